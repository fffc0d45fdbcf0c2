//! Parser of a pod's bandwidth limits: keys of the bandwidth plugin, and pod annotations.
//!
//! Behaviour R16 covers the plugin's keys, whose rates have no bounds. The annotations
//! `kubernetes.io/{ingress,egress}-bandwidth` have Kubernetes' Quantity grammar, and kubenet's
//! bounds and error texts (behaviour K28).
//!
//! ```text
//! quantity ::= sign? number suffix        number ::= digits | digits "." digits? | "." digits
//! suffix   ::= "Ki" … "Ei" | "n" "u" "m" "" "k" "M" "G" "T" "P" "E" | ("e" | "E") sign? digits
//! ```
//!
//! Rates are in bits per second, bursts in bits; quantities are rounded up. The configuration's own
//! keys take precedence over `runtimeConfig`, and `runtimeConfig` over the annotations. How a limit
//! is enforced is not decided here.

use std::num::NonZeroU64;

use model::{Bandwidth, Cidr, Limit, LimitPolicy, Prefixes, Rates, ShapedSubnets};

use crate::Error;
use crate::json::Object;
use crate::values::CAPABILITY;

const INGRESS: &str = "kubernetes.io/ingress-bandwidth";
const EGRESS: &str = "kubernetes.io/egress-bandwidth";

/// Bits per second: kubenet's lower bound, 1k.
const LEAST: u64 = 1_000;
/// Bits per second: kubenet's upper bound, 1P.
const MOST: u64 = 1_000_000_000_000_000;
/// Bits per second: the plugin's keys have no bounds, and a limit above this one never applies.
const MOST_ENFORCED: NonZeroU64 = NonZeroU64::new(MOST).unwrap();
/// Bytes: bursts from this on are refused, as by the bandwidth plugin.
const TOO_LARGE: u64 = u32::MAX as u64;
/// Bits: containerd's burst for limits without a configured one. With this or a larger one (CRI-O's
/// 2^35 - 9, go-cni's 4 GB) a pod could send for minutes as if it had no limit.
const PLACEHOLDER: u64 = u32::MAX as u64;

/// The limits that a configuration requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestedLimits {
    /// Limits of both directions, and the subnets that they are for.
    pub bandwidth: Bandwidth,
    /// Whether a burst was ignored because it is a runtime's placeholder (2^32 - 1 bits or more).
    pub placeholder: bool,
}

/// Parses the limits of a configuration.
pub(crate) fn read(config: &Object<'_>) -> Result<RequestedLimits, Error> {
    let shaped_subnets = shaped_subnets(config)?;
    let mut limits = rates(config)?;
    // The subnet lists of the network apply to the limits of its pods, from whichever source.
    if limits.bandwidth.shaped_subnets == ShapedSubnets::All && !limits.bandwidth.is_unlimited() {
        limits.bandwidth.shaped_subnets = shaped_subnets;
    }
    Ok(limits)
}

fn rates(config: &Object<'_>) -> Result<RequestedLimits, Error> {
    if let Some(own) = entry(config)? {
        return Ok(own);
    }
    let Some(runtime) = config.object("runtimeConfig")? else {
        return Ok(RequestedLimits::default());
    };
    let by_runtime = match runtime.object("bandwidth")? {
        Some(bandwidth) => entry(&bandwidth)?,
        None => None,
    };
    match by_runtime {
        Some(limits) if !limits.bandwidth.is_unlimited() => Ok(limits),
        _ => annotated(&runtime),
    }
}

/// Parses a network's default limits and upper bounds: two keys of Viaduct, with quantities.
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
        parse_rate(text).map(NonZeroU64::new).map_err(invalid)
    };
    Ok(Rates {
        ingress: of("ingress")?,
        egress: of("egress")?,
    })
}

/// Parses the subnets that limits are for. Error texts are the bandwidth plugin's, where it has
/// any.
fn shaped_subnets(source: &Object<'_>) -> Result<ShapedSubnets, Error> {
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

/// Parses a list of subnets; `None` if it is empty.
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

/// Parses the keys of the bandwidth plugin; `None` if there are none.
fn entry(source: &Object<'_>) -> Result<Option<RequestedLimits>, Error> {
    let shaped_subnets = shaped_subnets(source)?;
    let keys = ["ingressRate", "ingressBurst", "egressRate", "egressBurst"];
    if keys.iter().all(|key| source.get(key).is_none()) {
        return Ok(None);
    }
    let (ingress, one) = limit(source, "ingressRate", "ingressBurst")?;
    let (egress, other) = limit(source, "egressRate", "egressBurst")?;
    Ok(Some(RequestedLimits {
        bandwidth: Bandwidth {
            ingress,
            egress,
            shaped_subnets,
        },
        placeholder: one || other,
    }))
}

/// Parses one direction; the boolean is true if its burst is a placeholder. Error texts are the
/// bandwidth plugin's.
fn limit(source: &Object<'_>, rate: &str, burst: &str) -> Result<(Option<Limit>, bool), Error> {
    let invalid = |why: &str| Error::invalid_config(why);
    let rate = non_negative(source, rate)?;
    let burst = non_negative(source, burst)?;
    let rate = match (NonZeroU64::new(rate), burst) {
        (None, 0) => return Ok((None, false)),
        (None, _) => return Err(invalid("if burst is set, rate must also be set")),
        (Some(_), 0) => return Err(invalid("if rate is set, burst must also be set")),
        (Some(rate), _) => rate,
    };
    if burst / 8 >= TOO_LARGE {
        return Err(invalid("burst cannot be more than 4GB"));
    }
    let is_placeholder = burst >= PLACEHOLDER;
    let burst = NonZeroU64::new(burst).filter(|_| !is_placeholder);
    let rate = rate.min(MOST_ENFORCED);
    Ok((Some(Limit { rate, burst }), is_placeholder))
}

fn non_negative(source: &Object<'_>, key: &str) -> Result<u64, Error> {
    let Some(node) = source.get(key) else {
        return Ok(0);
    };
    if let Some(number) = node.value().as_u64() {
        return Ok(number);
    }
    let number = node.number()?;
    Err(node.invalid(format_args!("{number} is negative")))
}

/// Parses the limits of the pod's annotations.
fn annotated(runtime: &Object<'_>) -> Result<RequestedLimits, Error> {
    let Some(annotations) = runtime.object(CAPABILITY)? else {
        return Ok(RequestedLimits::default());
    };
    let limit = |key| -> Result<Option<Limit>, Error> {
        let Some(text) = annotations.text(key)? else {
            return Ok(None);
        };
        let invalid = |why| Error::invalid_config(format!("{key}: {why}"));
        let rate = parse_rate(text).map_err(invalid)?;
        let burst = None;
        Ok(NonZeroU64::new(rate).map(|rate| Limit { rate, burst }))
    };
    let bandwidth = Bandwidth {
        ingress: limit(INGRESS)?,
        egress: limit(EGRESS)?,
        shaped_subnets: ShapedSubnets::All,
    };
    Ok(RequestedLimits {
        bandwidth,
        placeholder: false,
    })
}

/// Parses a rate in bits per second, with kubenet's bounds and error texts.
pub fn parse_rate(text: &str) -> Result<u64, String> {
    let value = quantity(text)
        .ok_or_else(|| format!("{text:?} is not a quantity, such as 10M, 512Ki or 1.5e6"))?;
    if value < LEAST {
        return Err("resource is unreasonably small (< 1kbit)".to_owned());
    }
    if value > MOST {
        return Err("resource is unreasonably large (> 1Pbit)".to_owned());
    }
    Ok(value)
}

/// Returns the value of a quantity, rounded up: 0 for negative ones, [`u64::MAX`] for larger ones.
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
    let value = scaled(&digits, factor, exponent.saturating_sub(scale));
    Some(if negative { 0 } else { value })
}

/// Returns a suffix as a factor and a power of ten; `None` if it is not a suffix.
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
    // Beyond ten thousand zeros the result is the same: saturated, or rounded up to 1.
    let value = digits.parse::<i32>().unwrap_or(10_000).min(10_000);
    let value = if exponent.starts_with('-') {
        -value
    } else {
        value
    };
    plain.then_some((1, value))
}

/// Returns `digits * factor * 10^exponent`, rounded up, at most [`u64::MAX`].
fn scaled(digits: &str, factor: u64, exponent: i32) -> u64 {
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return 0;
    }
    // Digits beyond the 19th only decide whether the value is rounded up.
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
