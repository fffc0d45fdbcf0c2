//! Packets with a wrong checksum, and what comes of their flows.

use super::super::case::{Case, is_not_of_its_flow, is_reset};
use super::super::replay::Arrival;
use super::super::trace::{Entry, Path, Way};

/// A packet with a wrong checksum is invalid for connection tracking: it is not translated, and
/// makes no flow. Viaduct translates it, and the checksum stays wrong. By netfilter, a reply to it
/// opens a flow of the pod, from which later packets of the client get another port.
pub(super) fn is_corrupt(case: &Case<'_>) -> bool {
    let mut corrupted = case.history.iter().filter(|sent| sent.is_corrupt);
    let Some((flow, way)) = case.flow() else {
        let is_error = |it: &&Arrival| it.wire.quote().is_some();
        return corrupted.count() > 0
            && case.ours.iter().all(is_error)
            && case
                .theirs
                .iter()
                .all(|it| is_reset(it, case) || is_error(it));
    };
    let is_other = |it: &&Arrival| {
        is_not_of_its_flow(it, case)
            || way == Way::There && is_moved(it) && case.is_translated(it, flow, way)
    };
    corrupted.any(|sent| sent.flow == flow)
        && case.ours.iter().all(|it| case.is_translated(it, flow, way))
        && (case.theirs.iter().all(is_other)
            || way == Way::There && keeps_clashing_port(case, flow))
}

fn is_moved(arrival: &Arrival) -> bool {
    arrival.text.contains("moved port")
}

/// Returns whether packets to a pod's own address keep a port that clashes, by netfilter, since
/// they need no translation; by Viaduct they have another one.
fn keeps_clashing_port(case: &Case<'_>, flow: usize) -> bool {
    let is_to_own = matches!(
        case.trace.flows[flow].path,
        Path::In {
            entry: Entry::Own { .. },
            ..
        } | Path::Between {
            entry: Entry::Own { .. },
            ..
        }
    );
    let without_source = |arrivals: &[&Arrival]| {
        let rest = |it: &&Arrival| it.text.split_once(" > ").map(|(_, rest)| rest.to_owned());
        arrivals.iter().map(rest).collect::<Vec<_>>()
    };
    is_to_own
        && case.ours.iter().all(|it| is_moved(it))
        && case
            .theirs
            .iter()
            .all(|it| !is_moved(it) && case.is_translated(it, flow, Way::There))
        && without_source(&case.ours) == without_source(&case.theirs)
}

#[cfg(test)]
mod tests {
    use abi::protocol;

    use super::super::super::packet::Header;
    use super::super::super::replay::Sent;
    use super::super::super::system::{SERVED, Site};
    use super::super::super::trace::{Base, Flow, Protocol, Sequence, Trace};
    use super::super::super::wire::Wire;
    use super::*;

    const BASE: Base = Base { run: 1, six: false };
    /// To the pod's own address, and to its published port.
    const OWN: usize = 0;
    const PUBLISHED: usize = 1;
    const MOVED: &str = "moved port of flow 0";
    const KEPT: &str = "client port 0";

    fn trace() -> Trace {
        let published = Entry::Published {
            node: 0,
            pod: 0,
            port: 0,
        };
        let flows = [Entry::Own { pod: 0 }, published].map(|entry| Flow {
            path: Path::In { host: 0, entry },
            protocol: Protocol::Udp,
            port: 0,
        });
        Trace {
            six: false,
            flows: flows.to_vec(),
            steps: Vec::new(),
        }
    }

    /// A datagram of the client of a flow as the pod gets it, with the name of its source port.
    fn datagram(trace: &Trace, flow: usize, port: &str, payload: &str) -> Arrival {
        let (source, from) = BASE.client(&trace.flows[flow]);
        let (destination, _) = BASE.destination(&trace.flows[OWN]);
        let header = Header {
            source,
            destination,
            protocol: protocol::UDP,
            dont_fragment: true,
            identification: 0,
        };
        let from = if port == KEPT { from } else { from ^ 0x4000 };
        let packet = header.packet(&header.udp([from, SERVED], payload.as_bytes(), true));
        Arrival {
            site: Site::Pod(0),
            wire: Wire::parse(&packet).expect("a packet"),
            of: Some((flow, Way::There)),
            text: format!("Pod(0) gets {source}:{port} > {destination}:{SERVED} {payload}"),
        }
    }

    /// What arrives of a flow in the two systems.
    struct Arrived {
        flow: usize,
        ours: Vec<(&'static str, &'static str)>,
        theirs: Vec<(&'static str, &'static str)>,
    }

    impl Arrived {
        /// The explained difference.
        fn expected() -> Self {
            Self {
                flow: OWN,
                ours: vec![(MOVED, "data")],
                theirs: vec![(KEPT, "data")],
            }
        }

        /// Returns whether it is explained after packets of these flows, corrupt or not.
        fn is_explained(&self, sent: &[(usize, bool)]) -> bool {
            let trace = trace();
            let history = sent.iter().map(|&(flow, is_corrupt)| Sent {
                flow,
                way: Way::There,
                flags: 0,
                sequence: Sequence::Next,
                is_corrupt,
                is_lost: false,
            });
            let [ours, theirs] = [&self.ours, &self.theirs].map(|packets| {
                packets
                    .iter()
                    .map(|(port, payload)| datagram(&trace, self.flow, port, payload))
                    .collect::<Vec<_>>()
            });
            is_corrupt(&Case {
                trace: &trace,
                base: BASE,
                snat: false,
                step: 0,
                history: &history.collect::<Vec<_>>(),
                ours: ours.iter().collect(),
                theirs: theirs.iter().collect(),
            })
        }
    }

    #[test]
    fn a_clashing_port_at_a_pods_own_address_is_explained_after_a_wrong_checksum_of_the_flow() {
        let arrived = Arrived::expected();
        assert!(arrived.is_explained(&[(PUBLISHED, false), (OWN, true)]));
        assert!(!arrived.is_explained(&[(PUBLISHED, true), (OWN, false)]));
        assert!(!arrived.is_explained(&[]));
    }

    #[test]
    fn a_clashing_port_is_not_explained_at_a_published_port() {
        let arrived = Arrived {
            flow: PUBLISHED,
            ..Arrived::expected()
        };
        assert!(!arrived.is_explained(&[(PUBLISHED, true)]));
    }

    #[test]
    fn a_packet_to_a_pods_own_address_that_is_lost_or_changed_is_not_explained() {
        let corrupt = [(OWN, true)];
        let lost = Arrived {
            ours: Vec::new(),
            ..Arrived::expected()
        };
        assert!(!lost.is_explained(&corrupt));
        let changed = Arrived {
            ours: vec![(MOVED, "other")],
            ..Arrived::expected()
        };
        assert!(!changed.is_explained(&corrupt));
        let twice = Arrived {
            ours: vec![(MOVED, "data"), (MOVED, "data")],
            ..Arrived::expected()
        };
        assert!(!twice.is_explained(&corrupt));
        let unmoved = Arrived {
            ours: vec![(KEPT, "data")],
            ..Arrived::expected()
        };
        assert!(!unmoved.is_explained(&corrupt));
    }
}
