//! TCX fast path: selects the high-traffic pods for which `from_busy_pod` is attached.
//!
//! A TCX program, which the kernel calls without a TC filter around it, saves a tenth of a
//! microsecond per packet. Attaching it, and removing a link that has it, each holds the RTNL lock
//! for an RCU grace period, some ten milliseconds, in which the CPUs do other work. So pods that
//! send little never get it, and the engine bounds how many do at once. Packet counters come in as
//! arguments.

use std::collections::{BTreeMap, BTreeSet};

use abi::Counters;
use model::{IfName, State};

use crate::Records;
use crate::tables::may_bypass;

/// Number of packets of established flows after which a pod is a high-traffic pod (decision 161).
pub(crate) const HIGH_TRAFFIC_PACKETS: u64 = 25_000;
/// Packets of each flow that do not use the flow cache: the first ones, and those that open and
/// close it.
const UNCACHED_PER_FLOW: u64 = 16;

/// Returns the links, by slot, of pods that may get the fast path: attached, able to bypass the
/// stack, without a rate limit, and not among `already`.
pub fn tcx_fast_path_candidates(
    records: &Records,
    already: &BTreeSet<IfName>,
) -> BTreeMap<u32, IfName> {
    records
        .values()
        .filter(|it| it.state == State::Attached)
        .map(|record| &record.attachment)
        .filter(|it| may_bypass(it) && it.bandwidth.is_unlimited())
        .map(|it| (it.slot, it.host_link().name().clone()))
        .filter(|(_, link)| !already.contains(link))
        .collect()
}

/// Returns the `links` (by slot) of high-traffic pods, highest traffic first. `sent` has the
/// counters since attach, by slot.
pub fn high_traffic_links(
    links: &BTreeMap<u32, IfName>,
    sent: &BTreeMap<u32, Counters>,
) -> Vec<IfName> {
    let mut high_traffic: Vec<_> = sent
        .iter()
        .filter_map(|(slot, sent)| {
            let cached = cacheable_packets(sent);
            (cached >= HIGH_TRAFFIC_PACKETS).then_some((cached, links.get(slot)?))
        })
        .collect();
    high_traffic.sort_by(|(one, _), (other, _)| other.cmp(one));
    high_traffic
        .into_iter()
        .map(|(_, link)| link.clone())
        .collect()
}

/// Returns the number of packets that have used the flow cache, or could have.
fn cacheable_packets(sent: &Counters) -> u64 {
    let uncached = sent.new_flows.saturating_mul(UNCACHED_PER_FLOW);
    sent.packets.saturating_sub(uncached)
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
        let mut world = World::empty();
        for attachment in attachments {
            world.remember(attachment, State::Attached);
        }
        let sent = sent.iter().copied().collect();
        high_traffic_links(
            &tcx_fast_path_candidates(&world.records, &BTreeSet::new()),
            &sent,
        )
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
    fn a_pod_gets_the_tcx_fast_path_once_it_has_sent_many_packets() {
        let [one, other] = pods();
        let both = [one.clone(), other.clone()];
        let slots = (one.slot, other.slot);
        let little = [
            (slots.0, sent(HIGH_TRAFFIC_PACKETS - 1, 0)),
            (slots.1, sent(3, 0)),
        ];
        assert_eq!(chosen(&both, &little), []);
        let much = [
            (slots.0, sent(HIGH_TRAFFIC_PACKETS, 0)),
            (slots.1, sent(2 * HIGH_TRAFFIC_PACKETS, 0)),
        ];
        assert_eq!(chosen(&both, &much), [name(&other), name(&one)]);
    }

    #[test]
    fn short_connections_make_no_high_traffic_pod() {
        let [one, _] = pods();
        let many = [(
            one.slot,
            sent(10 * HIGH_TRAFFIC_PACKETS, HIGH_TRAFFIC_PACKETS),
        )];
        assert_eq!(chosen(std::slice::from_ref(&one), &many), []);
    }

    #[test]
    fn a_pod_that_may_not_bypass_gets_no_tcx_fast_path() {
        let [one, _] = pods();
        let much = [(one.slot, sent(2 * HIGH_TRAFFIC_PACKETS, 0))];
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
    fn a_pod_with_the_tcx_fast_path_is_not_selected_again() {
        let [one, _] = pods();
        let mut world = World::empty();
        world.remember(&one, State::Attached);
        let sent = BTreeMap::from([(one.slot, sent(HIGH_TRAFFIC_PACKETS, 0))]);
        let already = BTreeSet::from([name(&one)]);
        assert!(
            high_traffic_links(&tcx_fast_path_candidates(&world.records, &already), &sent)
                .is_empty()
        );
    }
}
