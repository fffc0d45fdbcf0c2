//! Rates of flows: differences between two answers of the agent.

use std::collections::BTreeMap;

use api::{FlowView, FlowsView};

/// What identifies a flow: protocol, and the endpoints before translation.
type Key<'a> = (&'a str, &'a str, &'a str);

/// Returns the first `limit` flows of an answer and the bits per second of each, in both
/// directions: by their rates, or else in the order of the answer.
pub(super) fn with_rates(
    before: &FlowsView,
    mut now: FlowsView,
    span: f64,
    (by_rate, limit): (bool, usize),
) -> (FlowsView, Vec<f64>) {
    let earlier: BTreeMap<Key<'_>, &FlowView> =
        before.flows.iter().map(|flow| (key(flow), flow)).collect();
    let mut flows: Vec<(f64, FlowView)> = std::mem::take(&mut now.flows)
        .into_iter()
        .map(|flow| (rate(earlier.get(&key(&flow)).copied(), &flow, span), flow))
        .collect();
    if by_rate {
        // Stable: of flows without a rate, the one with the latest packet comes first.
        flows.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    }
    flows.truncate(limit);
    let (rates, flows) = flows.into_iter().unzip();
    (FlowsView { flows, ..now }, rates)
}

fn key(flow: &FlowView) -> Key<'_> {
    (&flow.protocol, &flow.seen.source, &flow.seen.destination)
}

/// Returns the bits per second of a flow, 0 if its bytes are not counted. One that is new counts
/// with all its bytes; one that the earlier answer did not have, although it is older or of unknown
/// age, with none.
#[expect(
    clippy::cast_precision_loss,
    reason = "rates are shown with three digits"
)]
fn rate(before: Option<&FlowView>, now: &FlowView, span: f64) -> f64 {
    let bytes = |flow: &FlowView| {
        let directions = [flow.sent_bytes, flow.answered_bytes].into_iter();
        directions.flatten().sum::<u64>()
    };
    let is_new = (now.age_seconds).is_some_and(|age| f64::from(age) <= span + 1.0);
    let earlier = match before {
        // The tuple is that of another flow by now.
        Some(before) if bytes(before) > bytes(now) => 0,
        Some(before) => bytes(before),
        None if is_new => 0,
        None => bytes(now),
    };
    (bytes(now) - earlier) as f64 * 8.0 / span.max(1e-3)
}

#[cfg(test)]
mod tests {
    use api::EndsView;

    use super::*;

    fn flow(port: u16, age_seconds: u32, sent_bytes: u64, answered_bytes: u64) -> FlowView {
        FlowView {
            protocol: "tcp".to_owned(),
            seen: EndsView {
                source: format!("10.0.0.2:{port}"),
                destination: "192.0.2.7:443".to_owned(),
            },
            age_seconds: Some(age_seconds),
            sent_bytes: Some(sent_bytes),
            answered_bytes: Some(answered_bytes),
            ..FlowView::default()
        }
    }

    fn view(flows: Vec<FlowView>) -> FlowsView {
        FlowsView {
            matching: 40,
            flows,
            ..FlowsView::default()
        }
    }

    #[test]
    fn flows_are_listed_by_the_bytes_of_both_directions_in_the_interval() {
        let before = view(vec![
            flow(1, 50, 1_000, 0),
            flow(2, 50, 9, 900),
            flow(3, 50, 700, 0),
        ]);
        let now = view(vec![
            flow(1, 52, 1_000, 500),
            flow(2, 52, 509, 2_900),
            // The same tuple, of a later flow.
            flow(3, 1, 300, 0),
            flow(4, 1, 400, 0),
            flow(5, 90, 1 << 40, 0),
            // Of sockets: a TCP connection that was not there before, and UDP.
            FlowView {
                age_seconds: None,
                ..flow(6, 0, 800, 0)
            },
            FlowView {
                sent_bytes: None,
                answered_bytes: None,
                ..flow(7, 0, 0, 0)
            },
        ]);
        let listed = |by_rate, limit| {
            let (view, rates) = with_rates(&before, now.clone(), 2.0, (by_rate, limit));
            assert_eq!(view.matching, 40);
            let sources = view.flows.into_iter().map(|flow| flow.seen.source);
            sources
                .zip(rates)
                .map(|(source, rate)| format!("{} {rate}", source.replace("10.0.0.2:", "")))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            listed(true, 9),
            ["2 10000", "1 2000", "4 1600", "3 1200", "5 0", "6 0", "7 0"]
        );
        assert_eq!(listed(false, 2), ["1 2000", "2 10000"]);
    }
}
