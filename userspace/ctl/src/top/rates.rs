//! Rates of pods: differences between two samples of the agent's counters.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::Result;
use api::{AttachmentView, Client, CounterView, LimitView, path};

/// Share of the limit from which a direction counts as being at its limit.
pub(super) const FULL: f64 = 0.95;

/// Order of the pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum SortKey {
    /// Sum of the rates of both directions
    #[default]
    Rate,
    /// Rate sent by the pod
    Tx,
    /// Rate received by the pod
    Rx,
    /// Dropped packets per second
    Drops,
    /// Name of the pod
    Name,
}

impl SortKey {
    const ALL: [Self; 5] = [Self::Rate, Self::Tx, Self::Rx, Self::Drops, Self::Name];

    /// Returns the key that follows, after the last one the first.
    pub(super) fn next(self) -> Self {
        let mut keys = Self::ALL.into_iter().cycle();
        keys.find(|key| *key == self);
        keys.next().unwrap_or_default()
    }

    /// Returns the name in options and on the screen.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::Tx => "tx",
            Self::Rx => "rx",
            Self::Drops => "drops",
            Self::Name => "name",
        }
    }

    /// Compares two pods: largest first, equal ones by name.
    pub(super) fn compare(self, one: &PodRates, other: &PodRates) -> Ordering {
        let key = |pod: &PodRates| match self {
            Self::Rate => pod.tx.rate + pod.rx.rate,
            Self::Tx => pod.tx.rate,
            Self::Rx => pod.rx.rate,
            Self::Drops => pod.dropped(),
            Self::Name => 0.0,
        };
        key(other)
            .total_cmp(&key(one))
            .then_with(|| one.pod.cmp(&other.pod))
    }
}

/// All attachments, with their counters at one point in time.
pub(super) struct Sample {
    pub(super) at: Instant,
    pub(super) attachments: Vec<AttachmentView>,
}

impl Sample {
    /// Reads the counters of the agent.
    pub(super) fn take(client: &Client) -> Result<Self> {
        let attachments = crate::decode(&crate::get(client, path::ATTACHMENTS)?)?;
        let at = Instant::now();
        Ok(Self { at, attachments })
    }
}

/// The rates of a pod's interface.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PodRates {
    /// Name of the pod, and of the interface unless it is `eth0`.
    pub(super) pod: String,
    pub(super) container_id: String,
    pub(super) tx: Rates,
    pub(super) rx: Rates,
}

/// The rates of one direction in the last interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Rates {
    /// Bits per second; `None` for no limit.
    pub(super) limit: Option<u64>,
    /// Bits per second.
    pub(super) rate: f64,
    /// Packets per second.
    pub(super) marked: f64,
    pub(super) paced: f64,
    pub(super) dropped: f64,
}

impl PodRates {
    pub(super) fn dropped(&self) -> f64 {
        self.tx.dropped + self.rx.dropped
    }

    pub(super) fn has_limit(&self) -> bool {
        self.tx.limit.is_some() || self.rx.limit.is_some()
    }

    pub(super) fn is_at_limit(&self) -> bool {
        self.tx.is_full() || self.rx.is_full()
    }

    /// Returns whether the pod's name or container ID contains the text.
    pub(super) fn matches(&self, text: &str) -> bool {
        self.pod.contains(text) || self.container_id.contains(text)
    }
}

impl Rates {
    /// Returns the rate as a share of the limit.
    pub(super) fn share(&self) -> Option<f64> {
        self.limit.map(|limit| self.rate / as_float(limit.max(1)))
    }

    /// Returns whether the rate has reached the limit.
    pub(super) fn is_full(&self) -> bool {
        self.share().is_some_and(|share| share >= FULL)
    }
}

/// Returns the rates of all pods between two samples.
pub(super) fn compare(before: &Sample, now: &Sample) -> Vec<PodRates> {
    let span = now.at.saturating_duration_since(before.at).as_secs_f64();
    let key = |it: &AttachmentView| (it.container_id.clone(), it.ifname.clone());
    let earlier: BTreeMap<_, _> = before.attachments.iter().map(|it| (key(it), it)).collect();
    let unknown = AttachmentView::default();
    let rates = now.attachments.iter().map(|now| {
        // A pod that was not in the earlier sample starts from zero.
        let before = *earlier.get(&key(now)).unwrap_or(&&unknown);
        of_pod(before, now, span)
    });
    rates.collect()
}

pub(super) fn of_pod(before: &AttachmentView, now: &AttachmentView, span: f64) -> PodRates {
    let counted = |count: fn(&CounterView) -> u64| {
        [before, now].map(|it| it.counters.as_ref().map_or(0, count))
    };
    let (was, is) = (&before.bandwidth, &now.bandwidth);
    let sent = counted(|it| it.tx_bytes);
    let received = counted(|it| it.rx_bytes);
    let mut tx = direction((&was.egress, &is.egress), sent, span);
    let mut rx = direction((&was.ingress, &is.ingress), received, span);
    if now.counters.is_some() {
        // Drops for all reasons, where they were counted; else only those of the limit.
        let [earlier, later] = counted(|it| it.tx_dropped);
        tx.dropped = per_second(earlier, later, span);
        let [earlier, later] = counted(|it| it.rx_dropped);
        rx.dropped = per_second(earlier, later, span);
    }
    PodRates {
        pod: name(now),
        container_id: now.container_id.clone(),
        tx,
        rx,
    }
}

/// Returns the rates of one direction, from its limit before and now, and from the bytes that the
/// interface has counted.
fn direction(
    limits: (&Option<LimitView>, &Option<LimitView>),
    counted: [u64; 2],
    span: f64,
) -> Rates {
    let none = LimitView::default();
    // The counters of a limit that was set in this interval include earlier traffic: use the
    // interface's counters instead.
    let ([earlier, later], [was, is]) = match limits {
        (Some(was), Some(is)) => ([was.passed_bytes, is.passed_bytes], [was, is]),
        _ => (counted, [&none, &none]),
    };
    Rates {
        limit: limits.1.as_ref().map(|limit| limit.rate),
        rate: per_second(earlier, later, span) * 8.0,
        marked: per_second(was.marked_packets, is.marked_packets, span),
        paced: per_second(was.delayed_packets, is.delayed_packets, span),
        dropped: per_second(was.dropped_packets, is.dropped_packets, span),
    }
}

fn name(attachment: &AttachmentView) -> String {
    let named = match &attachment.pod {
        Some(pod) => format!("{}/{}", pod.namespace, pod.name),
        None => crate::render::short_id(&attachment.container_id),
    };
    match attachment.ifname.as_str() {
        "eth0" => named,
        other => format!("{named} {other}"),
    }
}

/// Returns the rate per second; 0 if the counter is smaller than before, because the pod was
/// attached again.
pub(super) fn per_second(before: u64, now: u64, span: f64) -> f64 {
    as_float(now.saturating_sub(before)) / span.max(1e-3)
}

#[expect(
    clippy::cast_precision_loss,
    reason = "rates are shown with three digits"
)]
pub(super) fn as_float(number: u64) -> f64 {
    number as f64
}
