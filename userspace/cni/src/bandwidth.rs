//! The pod annotations `kubernetes.io/{ingress,egress}-bandwidth`: Kubernetes' Quantity grammar, and kubenet's bounds
//! and words (BEHAVIOURS K28).
//!
//! ```text
//! quantity ::= sign? number suffix        number ::= digits | digits "." digits? | "." digits
//! suffix   ::= "Ki" … "Ei" | "n" "u" "m" "" "k" "M" "G" "T" "P" "E" | ("e" | "E") sign? digits
//! ```
//!
//! Values are bits per second, rounded up. Knows no limiter: whoever reads a limit decides what becomes of it.

use crate::Error;
use crate::json::Object;

/// Under `runtimeConfig`: all annotations of the pod, as containerd and CRI-O hand them on.
const ANNOTATIONS: &str = "io.kubernetes.cri.pod-annotations";
const INGRESS: &str = "kubernetes.io/ingress-bandwidth";
const EGRESS: &str = "kubernetes.io/egress-bandwidth";

const LEAST: u64 = 1_000;
const MOST: u64 = 1_000_000_000_000_000;

/// Limits of a pod in bits per second; `None` for no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    /// To the pod.
    pub(crate) ingress: Option<u64>,
    /// From the pod.
    pub(crate) egress: Option<u64>,
}

/// The bandwidth plugin's settings, in bits per second and bits; 0 for no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// To the pod: rate.
    pub ingress_rate: u64,
    /// To the pod: burst.
    pub ingress_burst: u64,
    /// From the pod: rate.
    pub egress_rate: u64,
    /// From the pod: burst.
    pub egress_burst: u64,
}

impl Rates {
    /// What the configuration says beats what the runtime says (BEHAVIOURS R16).
    pub(crate) fn read(config: &Object<'_>) -> Result<Self, Error> {
        let own = Self::of(config)?;
        let runtime = config.object("runtimeConfig")?;
        let asked = runtime.map(|runtime| runtime.object("bandwidth"));
        let rates = match asked.transpose()?.flatten() {
            Some(asked) if own == Self::default() => Self::of(&asked)?,
            _ => own,
        };
        check_pair("ingress", rates.ingress_rate, rates.ingress_burst)?;
        check_pair("egress", rates.egress_rate, rates.egress_burst)?;
        Ok(rates)
    }

    fn of(object: &Object<'_>) -> Result<Self, Error> {
        let number = |key: &str| -> Result<u64, Error> {
            let Some(node) = object.get(key) else {
                return Ok(0);
            };
            let number = node.value().as_u64();
            number.ok_or_else(|| node.invalid("it is no number of bits"))
        };
        Ok(Self {
            ingress_rate: number("ingressRate")?,
            ingress_burst: number("ingressBurst")?,
            egress_rate: number("egressRate")?,
            egress_burst: number("egressBurst")?,
        })
    }
}

/// The most that the reference plugin can tell the kernel, in bytes.
const MOST_BURST: u64 = u32::MAX as u64;

/// The words are those of the reference plugin.
fn check_pair(direction: &str, rate: u64, burst: u64) -> Result<(), Error> {
    let wrong = match (rate, burst) {
        (0, 1..) => "if burst is set, rate must also be set",
        (1.., 0) => "if rate is set, burst must also be set",
        (_, burst) if burst / 8 > MOST_BURST => "burst cannot be more than 4GB",
        _ => return Ok(()),
    };
    Err(Error::invalid_config(format!(
        "invalid {direction}: {wrong}"
    )))
}

/// The limits that a configuration's annotations tell.
pub(crate) fn limits(runtime: &Object<'_>) -> Result<Limits, Error> {
    let Some(annotations) = runtime.object(ANNOTATIONS)? else {
        return Ok(Limits::default());
    };
    let limit = |key| -> Result<Option<u64>, Error> {
        let Some(text) = annotations.text(key)? else {
            return Ok(None);
        };
        let invalid = |why| Error::invalid_config(format!("{key}: {why}"));
        rate(text).map(Some).map_err(invalid)
    };
    Ok(Limits {
        ingress: limit(INGRESS)?,
        egress: limit(EGRESS)?,
    })
}

/// A rate that kubenet would accept. The words are its own.
fn rate(text: &str) -> Result<u64, String> {
    let value = quantity(text)
        .ok_or_else(|| format!("{text:?} is no quantity, such as 10M, 512Ki or 1.5e6"))?;
    if value < LEAST {
        return Err("resource is unreasonably small (< 1kbit)".to_owned());
    }
    if value > MOST {
        return Err("resource is unreasonably large (> 1Pbit)".to_owned());
    }
    Ok(value)
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
    let value = digits.parse::<u128>().unwrap_or(u128::MAX);
    let value = value.saturating_mul(u128::from(factor));
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// BEHAVIOURS K28: k, M, G, T, P, Ki.., decimals, exponents; rounded up.
    #[test]
    fn quantities_are_read_as_kubernetes_reads_them() {
        for (text, value) in [
            ("1k", 1_000),
            ("1000", 1_000),
            ("10M", 10_000_000),
            ("1.5G", 1_500_000_000),
            (".5M", 500_000),
            ("2.M", 2_000_000),
            ("1Ki", 1_024),
            ("1.5Mi", 1_572_864),
            ("1e6", 1_000_000),
            ("15E2", 1_500),
            ("+3k", 3_000),
            ("1000000m", 1_000),
            ("1000001m", 1_001),
            ("1.0000000000000000000000001k", 1_001),
            ("1P", MOST),
        ] {
            assert_eq!(rate(text), Ok(value), "{text}");
        }
    }

    /// BEHAVIOURS K28: 1k and 1P are within.
    #[test]
    fn bounds_are_kubenets_and_so_are_the_words() {
        for text in ["999", "0", "-1M", "999.9n", "1e-400", "0.0001"] {
            assert_eq!(
                rate(text).unwrap_err(),
                "resource is unreasonably small (< 1kbit)",
                "{text}"
            );
        }
        for text in [
            "1000000000000001",
            "2P",
            "1E",
            "1e400",
            "9999999999999999999999Ei",
        ] {
            assert_eq!(
                rate(text).unwrap_err(),
                "resource is unreasonably large (> 1Pbit)",
                "{text}"
            );
        }
    }

    #[test]
    fn what_is_no_quantity_is_refused() {
        for text in [
            "", "fast", "1Kb", "1 M", "1.2.3", ".", "-", "1e", "1e+", "k", "0x10", "1K",
        ] {
            let error = rate(text).unwrap_err();
            assert!(error.contains("is no quantity"), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn no_text_is_too_strange(text: String) {
            let _either = rate(&text);
        }

        #[test]
        fn whole_numbers_are_worth_themselves(value in LEAST..=MOST) {
            prop_assert_eq!(rate(&value.to_string()), Ok(value));
            prop_assert_eq!(rate(&format!("{value}000m")), Ok(value));
            prop_assert_eq!(rate(&format!("{value}e0")), Ok(value));
        }

        /// Rounded up, whatever the last digits are.
        #[test]
        fn thousandths_round_up(value in LEAST * 1_000..MOST) {
            prop_assert_eq!(rate(&format!("{value}m")), Ok(value.div_ceil(1_000)));
        }

        #[test]
        fn binary_suffixes_are_powers_of_1024(value in 1_u64..1_000, power in 1_u32..=3) {
            let suffix = ["Ki", "Mi", "Gi"][power as usize - 1];
            prop_assert_eq!(rate(&format!("{value}{suffix}")), Ok(value << (10 * power)));
        }
    }
}
