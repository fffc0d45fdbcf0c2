//! Which pods send so much that the short way in front of their hook is worth what it costs.
//!
//! A program that the kernel calls without a filter around it costs a packet a tenth of a microsecond less. But to put it there,
//! and to remove a link that has it, keeps the lock of all links for an RCU grace period, some ten milliseconds each. So a pod
//! gets it when it has sent as many packets as would have paid for both: then it has cost at most twice what the best choice
//! would have cost, whatever the pod does next. Knows no clock and no counter: what was sent comes in.

use std::collections::{BTreeMap, BTreeSet};

use abi::Counters;
use model::{IfName, State};

use crate::Records;
use crate::tables::may_bypass;

/// Packets that pay for both grace periods.
pub(crate) const WORTH: u64 = 250_000;
/// Packets of each flow that take no shortcut: the first ones, and those that open and end it.
const SHORT: u64 = 16;

/// Links of pods that may become busy, by slot: their packets can take shortcuts past the stack, and they are not among
/// `already`.
pub fn may_be_busy(records: &Records, already: &BTreeSet<IfName>) -> BTreeMap<u32, IfName> {
    records
        .values()
        .filter(|it| it.state == State::Attached)
        .map(|record| &record.attachment)
        .filter(|it| may_bypass(it) && it.bandwidth.is_unlimited())
        .map(|it| (it.slot, it.host_link().name().clone()))
        .filter(|(_, link)| !already.contains(link))
        .collect()
}

/// Those of the links, by slot, whose pods are busy, those that have sent most first. `sent` is by slot as well, what each has
/// sent since it was attached.
pub fn busiest(links: &BTreeMap<u32, IfName>, sent: &BTreeMap<u32, Counters>) -> Vec<IfName> {
    let mut busy: Vec<_> = sent
        .iter()
        .filter_map(|(slot, sent)| {
            let worth = worth(sent);
            (worth >= WORTH).then_some((worth, links.get(slot)?))
        })
        .collect();
    busy.sort_by(|(one, _), (other, _)| other.cmp(one));
    busy.into_iter().map(|(_, link)| link.clone()).collect()
}

/// How many packets have taken shortcuts, or could have.
fn worth(sent: &Counters) -> u64 {
    let short = sent.new_flows.saturating_mul(SHORT);
    sent.packets.saturating_sub(short)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroU64;

    use model::{Attachment, Limit};

    use crate::testing::{World, attachment, intent};

    fn sent(packets: u64, new_flows: u64) -> Counters {
        Counters {
            packets,
            new_flows,
            ..Counters::default()
        }
    }

    fn chosen(attachments: &[Attachment], sent: &[(u32, Counters)]) -> Vec<IfName> {
        let mut ground = World::empty();
        for attachment in attachments {
            ground.remember(attachment, State::Attached);
        }
        let sent = sent.iter().copied().collect();
        busiest(&may_be_busy(&ground.records, &BTreeSet::new()), &sent)
    }

    fn pods() -> [Attachment; 2] {
        let [one, mut other] = ["one", "other"].map(|container| attachment(&intent(container)));
        other.slot = one.slot + 1;
        [one, other]
    }

    fn name(attachment: &Attachment) -> IfName {
        attachment.host_link().name().clone()
    }

    #[test]
    fn a_pod_gets_the_short_way_when_it_has_sent_what_pays_for_it() {
        let [one, other] = pods();
        let both = [one.clone(), other.clone()];
        let slots = (one.slot, other.slot);
        let little = [(slots.0, sent(WORTH - 1, 0)), (slots.1, sent(3, 0))];
        assert_eq!(chosen(&both, &little), []);
        let much = [(slots.0, sent(WORTH, 0)), (slots.1, sent(2 * WORTH, 0))];
        assert_eq!(chosen(&both, &much), [name(&other), name(&one)]);
    }

    #[test]
    fn connections_that_end_soon_make_no_pod_busy() {
        let [one, _] = pods();
        let many = [(one.slot, sent(10 * WORTH, WORTH))];
        assert_eq!(chosen(std::slice::from_ref(&one), &many), []);
    }

    #[test]
    fn a_pod_whose_packets_take_no_shortcut_gets_none() {
        let [one, _] = pods();
        let much = [(one.slot, sent(2 * WORTH, 0))];
        let mut limited = one.clone();
        limited.bandwidth.egress = Some(Limit {
            rate: NonZeroU64::MIN,
            burst: None,
        });
        let adopted = Attachment {
            adopted: Some("other0".parse().expect("a name")),
            ..one.clone()
        };
        for pod in [limited, adopted] {
            assert_eq!(chosen(&[pod], &much), []);
        }
        assert_eq!(chosen(std::slice::from_ref(&one), &much).len(), 1);
    }

    #[test]
    fn a_pod_that_has_it_is_not_chosen_again() {
        let [one, _] = pods();
        let mut ground = World::empty();
        ground.remember(&one, State::Attached);
        let sent = BTreeMap::from([(one.slot, sent(WORTH, 0))]);
        let already = BTreeSet::from([name(&one)]);
        assert!(busiest(&may_be_busy(&ground.records, &already), &sent).is_empty());
    }
}
