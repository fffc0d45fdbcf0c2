//! A TCP connection to a pod's own address whose SYN was not seen, beside one from the same port to
//! the pod's published port.

use verdict::simulator::frame::flag;

use super::super::case::Case;
use super::super::replay::{Arrival, Sent};
use super::super::trace::{Entry, Path, Protocol, Way};

/// A segment to a pod's own address makes a flow if it is a SYN. Netfilter also picks up a
/// connection in the middle. A connection to the published port then gets another port, by
/// netfilter only. Replies of both have one tuple by Viaduct, which takes them for those of the
/// published port.
pub(super) fn is_beside_unopened(case: &Case<'_>) -> bool {
    let others = || 0..case.trace.flows.len();
    match case.flow() {
        Some((flow, Way::There)) => others().any(|other| {
            is_clash(case, other, flow) && !is_opened(case, other) && keeps_port(case, flow)
        }),
        Some((flow, Way::Back)) => others().any(|other| {
            is_clash(case, flow, other)
                && !is_opened(case, flow)
                && is_opened(case, other)
                && is_answered_by(case, flow, other)
        }),
        None => false,
    }
}

/// Returns whether a client pod's two TCP flows, to a server's own address and to its published
/// port, have one tuple at the server.
fn is_clash(case: &Case<'_>, own: usize, published: usize) -> bool {
    let [own, published] = [own, published].map(|flow| case.trace.flows[flow]);
    let is_to_own = matches!(
        own.path,
        Path::Between {
            entry: Entry::Own { .. },
            ..
        }
    );
    let is_to_published = matches!(
        published.path,
        Path::Between {
            entry: Entry::Published { .. },
            ..
        }
    );
    is_to_own
        && is_to_published
        && [own.protocol, published.protocol] == [Protocol::Tcp; 2]
        && own.port == published.port
        && own.path.client() == published.path.client()
        && own.path.server() == published.path.server()
}

/// Returns whether the flow's client has sent a SYN.
fn is_opened(case: &Case<'_>, flow: usize) -> bool {
    let opens = |sent: &Sent| sent.flags & (flag::SYN | flag::ACK) == flag::SYN;
    case.history
        .iter()
        .any(|sent| sent.flow == flow && sent.way == Way::There && opens(sent))
}

/// Returns whether the flow's packets have the client's port by Viaduct, and another one by
/// netfilter.
fn keeps_port(case: &Case<'_>, flow: usize) -> bool {
    let is_moved = |it: &&Arrival| it.text.contains("moved port");
    case.ours.len() == case.theirs.len()
        && case.theirs.iter().all(is_moved)
        && case
            .ours
            .iter()
            .all(|it| !is_moved(it) && case.is_translated(it, flow, Way::There))
}

/// Returns whether the flow's replies come from what the client of the flow `other` dials, and are
/// else as by netfilter.
fn is_answered_by(case: &Case<'_>, flow: usize, other: usize) -> bool {
    let client = case.base.client(&case.trace.flows[flow]);
    let dialled = case.base.destination(&case.trace.flows[other]);
    let comes_from_other = |it: &&Arrival| {
        let [from, to] = it.wire.ports();
        (it.wire.source, from) == dialled && (it.wire.destination, to) == client
    };
    let without_source = |arrivals: &[&Arrival]| {
        let rest = |it: &&Arrival| it.text.split_once(" > ").map(|(_, rest)| rest.to_owned());
        arrivals.iter().map(rest).collect::<Vec<_>>()
    };
    case.ours.iter().all(comes_from_other)
        && case
            .theirs
            .iter()
            .all(|it| case.is_translated(it, flow, Way::Back))
        && without_source(&case.ours) == without_source(&case.theirs)
}

#[cfg(test)]
mod tests {
    use abi::protocol;

    use super::super::super::packet::{Header, Segment};
    use super::super::super::system::Site;
    use super::super::super::trace::{Base, Flow, Sequence, Trace};
    use super::super::super::wire::Wire;
    use super::*;

    const BASE: Base = Base { run: 1, six: false };
    const OWN: usize = 0;
    const PUBLISHED: usize = 1;
    const OF_OTHER_PORT: usize = 2;

    fn trace() -> Trace {
        let flow = |entry, port| Flow {
            path: Path::Between { pod: 1, entry },
            protocol: Protocol::Tcp,
            port,
        };
        let published = Entry::Published {
            node: 0,
            pod: 0,
            port: 1,
        };
        Trace {
            six: false,
            flows: vec![
                flow(Entry::Own { pod: 0 }, 0),
                flow(published, 0),
                flow(published, 1),
            ],
            steps: Vec::new(),
        }
    }

    /// A reply to the client of [`OWN`] from what the client of this flow dials.
    fn reply(trace: &Trace, flow: usize) -> Arrival {
        let (source, from) = BASE.destination(&trace.flows[flow]);
        let (destination, to) = BASE.client(&trace.flows[OWN]);
        let header = Header {
            source,
            destination,
            protocol: protocol::TCP,
            dont_fragment: true,
            identification: 0,
        };
        let segment = Segment {
            ports: [from, to],
            sequence: 0,
            acknowledged: 1,
            flags: flag::ACK,
        };
        let packet = header.packet(&header.tcp(&segment, &[]));
        Arrival {
            site: Site::Pod(1),
            wire: Wire::parse(&packet).expect("a packet"),
            of: Some((OWN, Way::Back)),
            text: format!("Pod(1) gets {source}:{from} > {destination}:{to}"),
        }
    }

    /// Returns whether a reply of [`OWN`] that comes from the destination of another flow is
    /// explained, after a client's segments with these flags.
    fn is_explained(from: usize, segments: [(usize, u8); 2]) -> bool {
        let trace = trace();
        let history = segments.map(|(flow, flags)| Sent {
            flow,
            way: Way::There,
            flags,
            sequence: Sequence::Next,
            is_corrupt: false,
            is_lost: false,
        });
        let [ours, theirs] = [from, OWN].map(|flow| reply(&trace, flow));
        is_beside_unopened(&Case {
            trace: &trace,
            base: BASE,
            snat: false,
            step: 0,
            history: &history,
            ours: vec![&ours],
            theirs: vec![&theirs],
        })
    }

    #[test]
    fn a_reply_from_the_port_is_explained_only_if_the_connection_was_not_opened() {
        let unopened = [(OWN, flag::RST | flag::ACK), (PUBLISHED, flag::SYN)];
        assert!(is_explained(PUBLISHED, unopened));
        let opened = [(OWN, flag::SYN), (PUBLISHED, flag::SYN)];
        assert!(!is_explained(PUBLISHED, opened));
    }

    #[test]
    fn a_reply_from_the_port_is_explained_only_beside_an_opened_connection_to_it() {
        let acknowledged = [(OWN, flag::ACK), (PUBLISHED, flag::ACK)];
        assert!(!is_explained(PUBLISHED, acknowledged));
        let of_other_port = [(OWN, flag::ACK), (OF_OTHER_PORT, flag::SYN)];
        assert!(!is_explained(OF_OTHER_PORT, of_other_port));
    }
}
