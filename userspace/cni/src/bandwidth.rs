//! Limits of a pod's traffic: the keys of the bandwidth plugin (behaviour R16), and the pod annotations
//! `kubernetes.io/{ingress,egress}-bandwidth` with Kubernetes' Quantity grammar and kubenet's bounds and words (K28).
//!
//! ```text
//! quantity ::= sign? number suffix        number ::= digits | digits "." digits? | "." digits
//! suffix   ::= "Ki" … "Ei" | "n" "u" "m" "" "k" "M" "G" "T" "P" "E" | ("e" | "E") sign? digits
//! ```
//!
//! Rates are bits per second, bursts bits; quantities are rounded up. The configuration's own keys beat those of
//! `runtimeConfig`, and those the annotations. Knows no limiter: whoever reads a limit decides what becomes of it.

use std::num::NonZeroU64;

use model::{Bandwidth, Cidr, Limit, LimitPolicy, ShapedSubnets, Prefixes, Rates};

use crate::Error;
use crate::annotation::CAPABILITY;
use crate::json::Object;

const INGRESS: &str = "kubernetes.io/ingress-bandwidth";
const EGRESS: &str = "kubernetes.io/egress-bandwidth";

const LEAST: u64 = 1_000;
const MOST: u64 = 1_000_000_000_000_000;
/// The largest burst in bytes that the bandwidth plugin accepts, and one more.
const TOO_LARGE: u64 = u32::MAX as u64;
/// Bits: containerd's burst where nobody asked for one. This and anything above it (CRI-O's 2^35 - 9, go-cni's 4 GB)
/// would let a pod send for minutes as if it had no limit.
const PLACEHOLDER: u64 = u32::MAX as u64;

/// What a configuration asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// The limits.
    pub bandwidth: Bandwidth,
    /// Whether a burst was left out because nobody can have meant it.
    pub placeholder: bool,
}

/// The limits that a configuration asks for.
pub(crate) fn read(config: &Object<'_>) -> Result<Asked, Error> {
    let peers = peers(config)?;
    let mut asked = rates(config)?;
    // The lists of a network are for the limits of its pods, wherever these come from.
    if asked.bandwidth.shaped_subnets == ShapedSubnets::All && !asked.bandwidth.is_unlimited() {
        asked.bandwidth.shaped_subnets = peers;
    }
    Ok(asked)
}

fn rates(config: &Object<'_>) -> Result<Asked, Error> {
    if let Some(own) = entry(config)? {
        return Ok(own);
    }
    let Some(runtime) = config.object("runtimeConfig")? else {
        return Ok(Asked::default());
    };
    let by_runtime = match runtime.object("bandwidth")? {
        Some(bandwidth) => entry(&bandwidth)?,
        None => None,
    };
    match by_runtime {
        Some(asked) if !asked.bandwidth.is_unlimited() => Ok(asked),
        _ => annotated(&runtime),
    }
}

/// What a network makes of its pods' limits: two keys of our own, with quantities.
pub(crate) fn policy(config: &Object<'_>) -> Result<LimitPolicy, Error> {
    Ok(LimitPolicy {
        default: quantities(config, "bandwidthDefaults")?,
        ceiling: quantities(config, "bandwidthCeilings")?,
    })
}

fn quantities(config: &Object<'_>, key: &str) -> Result<Rates, Error> {
    let Some(source) = config.object(key)? else {
        return Ok(Rates::default());
    };
    let of = |direction: &str| -> Result<Option<NonZeroU64>, Error> {
        let Some(text) = source.text(direction)? else {
            return Ok(None);
        };
        let path = source.path_of(direction);
        let invalid = |why| Error::invalid_config(format!("{path}: {why}"));
        rate(text).map(NonZeroU64::new).map_err(invalid)
    };
    Ok(Rates {
        ingress: of("ingress")?,
        egress: of("egress")?,
    })
}

/// With whom limits count. The words are the bandwidth plugin's, as far as it has any.
fn peers(source: &Object<'_>) -> Result<ShapedSubnets, Error> {
    let unshaped = prefixes(source, "unshapedSubnets")?;
    let shaped = prefixes(source, "shapedSubnets")?;
    match (unshaped, shaped) {
        (Some(_), Some(_)) => Err(Error::invalid_config(
            "unshapedSubnets and shapedSubnets cannot be both specified, one of them should be discarded",
        )),
        (Some(unshaped), None) => Ok(ShapedSubnets::Except(unshaped)),
        (None, Some(shaped)) => Ok(ShapedSubnets::Only(shaped)),
        (None, None) => Ok(ShapedSubnets::All),
    }
}

/// The prefixes of a list; `None` where it is empty.
fn prefixes(source: &Object<'_>, key: &str) -> Result<Option<Prefixes>, Error> {
    let texts = source.texts(key)?;
    let parse = |text: &String| {
        let bad = |error| format!("bad subnet {text:?} provided, details {error}");
        Cidr::masked(text).map_err(|error| Error::invalid_config(bad(error)))
    };
    let parsed: Vec<Cidr> = texts.iter().map(parse).collect::<Result<_, _>>()?;
    if parsed.is_empty() {
        return Ok(None);
    }
    let too_many = || {
        let (path, most) = (source.path_of(key), Prefixes::MAX);
        Error::invalid_config(format!("{path}: more than {most} subnets"))
    };
    Prefixes::new(parsed).map(Some).ok_or_else(too_many)
}

/// The keys of the bandwidth plugin; `None` where there are none.
fn entry(source: &Object<'_>) -> Result<Option<Asked>, Error> {
    let peers = peers(source)?;
    let keys = ["ingressRate", "ingressBurst", "egressRate", "egressBurst"];
    if keys.iter().all(|key| source.get(key).is_none()) {
        return Ok(None);
    }
    let (ingress, one) = limit(source, "ingressRate", "ingressBurst")?;
    let (egress, other) = limit(source, "egressRate", "egressBurst")?;
    Ok(Some(Asked {
        bandwidth: Bandwidth {
            ingress,
            egress,
            shaped_subnets: peers,
        },
        placeholder: one || other,
    }))
}

/// One direction, and whether its burst is a placeholder. The words are the bandwidth plugin's.
fn limit(source: &Object<'_>, rate: &str, burst: &str) -> Result<(Option<Limit>, bool), Error> {
    let path = source.path_of(rate);
    let invalid = |why: &str| Error::invalid_config(format!("{path}: {why}"));
    let rate = natural(source, rate)?;
    let burst = natural(source, burst)?;
    let rate = match (NonZeroU64::new(rate), burst) {
        (None, 0) => return Ok((None, false)),
        (None, _) => return Err(invalid("if burst is set, rate must also be set")),
        (Some(_), 0) => return Err(invalid("if rate is set, burst must also be set")),
        (Some(rate), _) => rate,
    };
    if burst / 8 >= TOO_LARGE {
        return Err(invalid("burst cannot be more than 4GB"));
    }
    within_bounds(rate.get()).map_err(|why| invalid(&why))?;
    let meant = burst < PLACEHOLDER;
    let burst = NonZeroU64::new(burst).filter(|_| meant);
    Ok((Some(Limit { rate, burst }), !meant))
}

fn natural(source: &Object<'_>, key: &str) -> Result<u64, Error> {
    let Some(node) = source.get(key) else {
        return Ok(0);
    };
    let number = node.number()?;
    u64::try_from(number).map_err(|_| node.invalid(format_args!("{number} is negative")))
}

/// The limits that the pod's annotations tell.
fn annotated(runtime: &Object<'_>) -> Result<Asked, Error> {
    let Some(annotations) = runtime.object(CAPABILITY)? else {
        return Ok(Asked::default());
    };
    let limit = |key| -> Result<Option<Limit>, Error> {
        let Some(text) = annotations.text(key)? else {
            return Ok(None);
        };
        let invalid = |why| Error::invalid_config(format!("{key}: {why}"));
        let rate = rate(text).map_err(invalid)?;
        let burst = None;
        Ok(NonZeroU64::new(rate).map(|rate| Limit { rate, burst }))
    };
    let bandwidth = Bandwidth {
        ingress: limit(INGRESS)?,
        egress: limit(EGRESS)?,
        shaped_subnets: ShapedSubnets::All,
    };
    Ok(Asked {
        bandwidth,
        placeholder: false,
    })
}

/// A rate in bits per second that kubenet would accept. The words are its own.
pub fn rate(text: &str) -> Result<u64, String> {
    let value = quantity(text)
        .ok_or_else(|| format!("{text:?} is no quantity, such as 10M, 512Ki or 1.5e6"))?;
    within_bounds(value).map(|()| value)
}

fn within_bounds(rate: u64) -> Result<(), String> {
    if rate < LEAST {
        return Err("resource is unreasonably small (< 1kbit)".to_owned());
    }
    if rate > MOST {
        return Err("resource is unreasonably large (> 1Pbit)".to_owned());
    }
    Ok(())
}

/// What a quantity is worth, rounded up; negative ones are 0, and what no number holds is the largest one.
fn quantity(text: &str) -> Option<u64> {
    let (negative, unsigned) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    let end = unsigned.find(|c| !is_number(c)).unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = format!("{whole}{fraction}");
    if digits.is_empty() || fraction.contains('.') {
        return None;
    }
    let scale = i32::try_from(fraction.len()).ok()?;
    let (factor, exponent) = unit(suffix)?;
    let value = worth(&digits, factor, exponent.saturating_sub(scale));
    Some(if negative { 0 } else { value })
}

/// A suffix as a factor and a power of ten.
fn unit(suffix: &str) -> Option<(u64, i32)> {
    const DECIMAL: [(&str, i32); 10] = [
        ("n", -9),
        ("u", -6),
        ("m", -3),
        ("", 0),
        ("k", 3),
        ("M", 6),
        ("G", 9),
        ("T", 12),
        ("P", 15),
        ("E", 18),
    ];
    const BINARY: [&str; 6] = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    if let Some((_, exponent)) = DECIMAL.iter().find(|(name, _)| *name == suffix) {
        return Some((1, *exponent));
    }
    if let Some(index) = BINARY.iter().position(|name| *name == suffix) {
        return Some((1 << (10 * (index + 1)), 0));
    }
    let exponent = suffix.strip_prefix(['e', 'E'])?;
    let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    // Ten thousand zeros are as good as any more.
    let value = digits.parse::<i32>().unwrap_or(10_000).min(10_000);
    let value = if exponent.starts_with('-') {
        -value
    } else {
        value
    };
    plain.then_some((1, value))
}

/// `digits * factor * 10^exponent`, rounded up, at most [`u64::MAX`].
fn worth(digits: &str, factor: u64, exponent: i32) -> u64 {
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return 0;
    }
    // Digits that are far behind the point tell no more than that something is there.
    let (digits, exponent, rest) = match digits.split_at_checked(19) {
        Some((head, tail)) => {
            let moved = i32::try_from(tail.len()).unwrap_or(i32::MAX);
            let rest = tail.bytes().any(|byte| byte != b'0');
            (head, exponent.saturating_add(moved), rest)
        }
        None => (digits, exponent, false),
    };
    let value = digits
        .parse::<u128>()
        .unwrap_or(u128::MAX)
        .saturating_mul(u128::from(factor));
    let power = 10_u128.checked_pow(exponent.unsigned_abs());
    let value = match (power, exponent >= 0) {
        (Some(power), true) => value.saturating_mul(power),
        (Some(power), false) => value.div_ceil(power) + u128::from(rest && value % power == 0),
        (None, true) => u128::MAX,
        (None, false) => 1,
    };
    u64::try_from(value).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
