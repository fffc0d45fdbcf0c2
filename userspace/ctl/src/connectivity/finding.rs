//! What a probe found, and what that means for its cell.

use std::time::Duration;

use super::plan::{Cell, Probe};

/// Least share of a limit's rate, in per cent, that a connection must reach.
const LOWEST_SHARE: u64 = 50;
/// Largest share of a limit's rate, in per cent.
const HIGHEST_SHARE: u64 = 115;

/// Result of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// It was answered.
    Answered(Duration),
    /// Addresses of the name.
    Resolved(Vec<String>),
    /// A router or the stack reported that the packet is too long, with the MTU of the path.
    TooLong(u32),
    /// It was not answered within the time; `fits` is the longest packet that was, in bytes, of a
    /// probe with a length.
    Lost { fits: Option<u32> },
    /// An error of the socket or of the server.
    Refused(String),
    /// The test was interrupted before.
    Interrupted,
}

/// Outcome of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Outcome {
    Ok,
    Skip,
    Warn,
    Fail,
}

impl Outcome {
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Skip => "skip",
            Self::Warn => "warn",
            Self::Fail => "FAIL",
        }
    }
}

/// Returns what a finding means, in one sentence.
pub(super) fn judge(cell: &Cell, finding: &Finding) -> (Outcome, String) {
    match finding {
        Finding::Answered(time) => (Outcome::Ok, milliseconds(*time)),
        Finding::Resolved(addresses) if addresses.is_empty() => {
            (Outcome::Warn, "no address".to_owned())
        }
        Finding::Resolved(addresses) => (Outcome::Ok, addresses.join(", ")),
        Finding::TooLong(mtu) => too_long(&cell.probe, *mtu),
        Finding::Lost { fits: Some(bytes) } => {
            (Outcome::Fail, format!("lost if longer than {bytes} bytes"))
        }
        Finding::Lost { fits: None } => (Outcome::Fail, "no answer".to_owned()),
        Finding::Refused(why) => (Outcome::Fail, why.clone()),
        Finding::Interrupted => (Outcome::Skip, "interrupted".to_owned()),
    }
}

/// A router in the world may have a smaller MTU; between pods there is none.
fn too_long(probe: &Probe, mtu: u32) -> (Outcome, String) {
    match probe {
        Probe::LargeIcmp(_) => (Outcome::Warn, format!("path MTU {mtu}, reported")),
        Probe::Tcp
        | Probe::Connect
        | Probe::Udp
        | Probe::Icmp
        | Probe::LargeUdp(_)
        | Probe::Dns(_) => (Outcome::Fail, format!("path MTU {mtu}, less than the pods")),
    }
}

/// Returns what a measured rate means for a limit; both in bit/s.
pub(super) fn judge_rate(limit: u64, measured: u64) -> (Outcome, String) {
    let share = measured.saturating_mul(100) / limit.max(1);
    let text = format!("{:.1} Mbit/s", megabits(measured));
    if share > HIGHEST_SHARE {
        (Outcome::Fail, format!("{text}: more than the limit"))
    } else if share < LOWEST_SHARE {
        (Outcome::Warn, format!("{text}: far less than the limit"))
    } else {
        (Outcome::Ok, text)
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "for display, with one digit behind the point"
)]
fn megabits(rate: u64) -> f64 {
    rate as f64 / 1e6
}

fn milliseconds(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connectivity::plan::Origin;

    fn cell(probe: Probe) -> Cell {
        Cell {
            name: "pod to pod".to_owned(),
            from: Origin::FirstPod,
            to: "10.0.0.2:7".parse().unwrap(),
            probe,
        }
    }

    #[test]
    fn a_smaller_mtu_is_a_fault_between_pods_and_a_warning_in_the_world() {
        let found = Finding::TooLong(1400);
        for (probe, outcome) in [
            (Probe::LargeUdp(1500), Outcome::Fail),
            (Probe::LargeIcmp(1500), Outcome::Warn),
        ] {
            let (judged, text) = judge(&cell(probe), &found);
            assert_eq!(judged, outcome);
            assert!(text.contains("path MTU 1400"), "{text}");
        }
        let lost = Finding::Lost { fits: Some(1400) };
        let (judged, text) = judge(&cell(Probe::LargeIcmp(1500)), &lost);
        assert_eq!(judged, Outcome::Fail);
        assert!(text.contains("longer than 1400 bytes"), "{text}");
    }

    #[test]
    fn a_rate_is_judged_by_its_share_of_the_limit() {
        for (measured, outcome) in [
            (19_000_000, Outcome::Ok),
            (22_000_000, Outcome::Ok),
            (24_000_000, Outcome::Fail),
            (9_000_000, Outcome::Warn),
            (0, Outcome::Warn),
        ] {
            assert_eq!(judge_rate(20_000_000, measured).0, outcome, "{measured}");
        }
        assert_eq!(judge_rate(0, u64::MAX).0, Outcome::Fail);
    }

    #[test]
    fn a_name_without_addresses_is_a_warning() {
        let probe = Probe::Dns("example.org".to_owned());
        let judged = |addresses| judge(&cell(probe.clone()), &Finding::Resolved(addresses));
        assert_eq!(judged(Vec::new()).0, Outcome::Warn);
        let text = "192.0.2.7".to_owned();
        assert_eq!(judged(vec![text.clone()]), (Outcome::Ok, text));
    }
}
