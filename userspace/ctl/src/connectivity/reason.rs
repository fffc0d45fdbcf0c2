//! Why a cell failed: the explanation of its packet, and the packets that were dropped meanwhile.

use std::collections::BTreeMap;

use api::{Client, WhyLeg, WhyQuery, WhyView};

use super::plan::{Cell, Facts, Origin, of_family};
use super::pods::attachment;
use crate::{decode, get};

/// Dropped packets of the two pods by reason.
pub(super) type Drops = [BTreeMap<String, u64>; 2];

/// The cause of a failure, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reason {
    /// In one sentence; empty if it is not known.
    pub(super) text: String,
    /// What to do about it; may be empty.
    pub(super) advice: String,
}

/// Queries why the packet of a cell is not answered.
pub(super) fn explain(client: &Client, facts: &Facts, cell: &Cell) -> Reason {
    let Some(query) = query(facts, cell) else {
        return Reason::default();
    };
    let answer = get(client, &query.to_path()).and_then(|reply| Ok(decode::<WhyView>(&reply)?));
    match answer {
        Ok(view) => of_view(&view),
        Err(error) => Reason {
            text: format!("viaductctl why has no answer: {error:#}"),
            advice: String::new(),
        },
    }
}

fn query(facts: &Facts, cell: &Cell) -> Option<WhyQuery> {
    let address = match cell.from {
        Origin::FirstPod => of_family(&facts.pods[0].addresses, cell.to.is_ipv4()),
        Origin::SecondPod => of_family(&facts.pods[1].addresses, cell.to.is_ipv4()),
        Origin::Node if cell.to.ip().is_loopback() => Some(cell.to.ip()),
        Origin::Node => of_family(&facts.node, cell.to.is_ipv4()),
    };
    let to = match cell.to.port() {
        0 => cell.to.ip().to_string(),
        _ => cell.to.to_string(),
    };
    Some(WhyQuery {
        from: Some(address?.to_string()),
        to: Some(to),
        protocol: Some(cell.probe.protocol().to_owned()),
        size: cell.probe.size(),
        last_drop: None,
    })
}

/// Returns the cause that an explanation names. One that finds none names rules that may be it.
fn of_view(view: &WhyView) -> Reason {
    let legs = || {
        [Some(&view.request), view.answer.as_ref()]
            .into_iter()
            .flatten()
    };
    let is_lost = |leg: &&WhyLeg| !matches!(leg.outcome.as_str(), "pod" | "node" | "leaves");
    if let Some(leg) = legs().find(is_lost) {
        let which = if Some(leg) == view.answer.as_ref() {
            "answer: "
        } else {
            ""
        };
        return Reason {
            text: format!("{which}{}", leg.text),
            advice: leg.advice.clone(),
        };
    }
    let doubts: Vec<String> = legs().flat_map(|leg| leg.doubts.iter().cloned()).collect();
    if doubts.is_empty() {
        let text = "viaductctl why finds nothing on this node that drops it".to_owned();
        let advice = "Look beyond the node, and at rules of the hooks input and output.".to_owned();
        return Reason { text, advice };
    }
    Reason {
        text: format!("it may be dropped by {}", doubts.join(", ")),
        advice: String::new(),
    }
}

/// Returns the packets of both pods that were dropped so far; empty where that is not known.
pub(super) fn drops(client: &Client, facts: &Facts) -> Drops {
    facts.pods.each_ref().map(|pod| {
        let view = attachment(client, &pod.id).ok();
        let counters = view.and_then(|view| view.counters);
        counters.map(|it| it.drops).unwrap_or_default()
    })
}

/// Returns the packets that were dropped between two readings.
pub(super) fn dropped_between(before: &Drops, after: &Drops) -> Drops {
    let mut between = after.clone();
    for (between, before) in between.iter_mut().zip(before) {
        for (reason, count) in between.iter_mut() {
            *count -= before.get(reason).copied().unwrap_or(0).min(*count);
        }
        between.retain(|_, count| *count > 0);
    }
    between
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connectivity::plan::{PodFacts, Probe};

    #[test]
    fn the_query_about_a_cell_has_its_addresses_protocol_and_length() {
        let pod = |address: &str| PodFacts {
            addresses: vec![address.parse().unwrap()],
            ..PodFacts::default()
        };
        let facts = Facts {
            pods: [pod("10.0.0.2"), pod("10.0.0.3")],
            node: vec!["192.0.2.1".parse().unwrap()],
            ..Facts::default()
        };
        let cell = |from, to: &str, probe| Cell {
            name: String::new(),
            from,
            to: to.parse().unwrap(),
            probe,
        };
        for (cell, from, to) in [
            (
                cell(Origin::FirstPod, "10.0.0.3:7", Probe::Tcp),
                "10.0.0.2",
                "10.0.0.3:7",
            ),
            (
                cell(Origin::SecondPod, "8.8.8.8:0", Probe::Icmp),
                "10.0.0.3",
                "8.8.8.8",
            ),
            (
                cell(Origin::Node, "127.0.0.1:80", Probe::Udp),
                "127.0.0.1",
                "127.0.0.1:80",
            ),
            (
                cell(Origin::Node, "10.0.0.3:7", Probe::Tcp),
                "192.0.2.1",
                "10.0.0.3:7",
            ),
        ] {
            let query = query(&facts, &cell).unwrap();
            assert_eq!(query.from.as_deref(), Some(from), "{cell:?}");
            assert_eq!(query.to.as_deref(), Some(to), "{cell:?}");
            assert_eq!(query.protocol.as_deref(), Some(cell.probe.protocol()));
        }
        let large = cell(Origin::FirstPod, "10.0.0.3:7", Probe::LargeUdp(1500));
        assert_eq!(query(&facts, &large).unwrap().size, Some(1500));
        let other = cell(Origin::FirstPod, "[fd00::1]:7", Probe::Tcp);
        assert_eq!(query(&facts, &other), None);
    }

    #[test]
    fn the_cause_is_that_of_the_packet_or_of_its_answer_or_a_rule_that_may_apply() {
        let leg = |outcome: &str, text: &str| WhyLeg {
            outcome: outcome.to_owned(),
            text: text.to_owned(),
            advice: "Do it.".to_owned(),
            ..WhyLeg::default()
        };
        let mut view = WhyView {
            request: leg("dropped", "from_pod drops it as martian"),
            ..WhyView::default()
        };
        assert_eq!(of_view(&view).text, "from_pod drops it as martian");
        assert_eq!(of_view(&view).advice, "Do it.");
        view.request = leg("pod", "it arrives");
        view.answer = Some(leg("discarded", "the stack discards it"));
        assert_eq!(of_view(&view).text, "answer: the stack discards it");
        view.answer = None;
        assert!(of_view(&view).text.contains("finds nothing"));
        view.request.doubts.push("rule 1".to_owned());
        assert_eq!(of_view(&view).text, "it may be dropped by rule 1");
    }

    #[test]
    fn drops_of_a_test_are_those_since_its_start() {
        let of = |count| BTreeMap::from([("rate-limit".to_owned(), count)]);
        let before = [of(3), BTreeMap::new()];
        let after = [of(3), of(2)];
        assert_eq!(dropped_between(&before, &after), [BTreeMap::new(), of(2)]);
    }
}
