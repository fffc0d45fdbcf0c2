//! The differences to netfilter that random traces may show, each with its reason.
//! docs/masquerade.md lists them.

mod corrupt;
mod errors;
mod unopened;

use abi::protocol;

use self::corrupt::is_corrupt;
use self::errors::{
    is_error_about_fragment, is_error_about_reset, is_error_of_bystander, is_error_of_no_flow,
    is_forged_mtu, is_short_quote, is_source_of_nodes_error, is_source_of_routers_error,
};
use self::unopened::is_beside_unopened;
use super::case::{Case, is_not_of_its_flow, is_reset};
use super::generate::LARGEST;
use super::kinds::martians;
use super::replay::Arrival;
use super::system::Site;
use super::trace::{Action, Entry, PUBLISHED_PORT, Path, Protocol, Way};

/// An allowed difference.
pub(super) struct Difference {
    /// Its name in docs/masquerade.md.
    pub(super) name: &'static str,
    pub(super) reason: &'static str,
    /// Whether the two systems have different flows from then on.
    pub(super) ends: bool,
    /// Whether it is the cause that these packets arrived at one node only.
    explains: fn(&Case<'_>) -> bool,
}

/// All allowed differences.
pub(super) static ALL: [Difference; 20] = [
    Difference {
        name: "the source of a node's own error",
        reason: "a router reports from its own address",
        ends: false,
        explains: is_source_of_nodes_error,
    },
    Difference {
        name: "the source of a router's error about a moved port",
        reason: "a router reports from its own address",
        ends: false,
        explains: is_source_of_routers_error,
    },
    Difference {
        name: "a mapping that netfilter uses again",
        reason: "a free port is kept",
        ends: true,
        explains: is_used_again,
    },
    Difference {
        name: "a wrong checksum",
        reason: "the receiver finds it as wrong as it was, and no packet leaves with the pod's address",
        ends: true,
        explains: is_corrupt,
    },
    Difference {
        name: "a published port as source port",
        reason: "the port's owner is one pod",
        ends: true,
        explains: has_published_port,
    },
    Difference {
        name: "a path MTU that a forged ICMP error names",
        reason: "the error quotes a packet that never was on the wire",
        ends: false,
        explains: is_forged_mtu,
    },
    Difference {
        name: "a flow that netfilter does not have",
        reason: "the flow is made with the first packet or fragment",
        ends: true,
        explains: is_beside_unknown,
    },
    Difference {
        name: "fragments between packets of another flow",
        reason: "the first fragment needs the port, and is not delayed",
        ends: true,
        explains: is_order_of_fragments,
    },
    Difference {
        name: "a TCP connection to a pod's own address whose SYN was not seen",
        reason: "only a SYN shows which pod has opened a connection",
        ends: true,
        explains: is_beside_unopened,
    },
    Difference {
        name: "an ICMP error about a later fragment",
        reason: "without ports the quote names a flow by its addresses",
        ends: false,
        explains: is_error_about_fragment,
    },
    Difference {
        name: "a quote of fewer than 8 bytes",
        reason: "RFC 792 requires 8 bytes; a shorter quote cannot be translated",
        ends: false,
        explains: is_short_quote,
    },
    Difference {
        name: "an ICMP error about a reset connection",
        reason: "a flow lives on after a RST, whose sequence number may be forged",
        ends: false,
        explains: is_error_about_reset,
    },
    Difference {
        name: "a clash of a protocol without ports",
        reason: "there is no other tuple; packets that need no translation are delivered",
        ends: true,
        explains: is_portless_clash,
    },
    Difference {
        name: "IPv6 fragments beyond the MTU",
        reason: "routers do not fragment IPv6 packets",
        ends: true,
        explains: is_large_fragment,
    },
    Difference {
        name: "an ICMP error about no flow",
        reason: "with the pod's address it is of no use",
        ends: false,
        explains: is_error_of_no_flow,
    },
    Difference {
        name: "an ICMP error of a pod about a packet to another address",
        reason: "a pod reports only packets that were sent to it",
        ends: false,
        explains: is_error_of_bystander,
    },
    Difference {
        name: "a client pod's address at a published port",
        reason: "the server sees the client's address",
        ends: true,
        explains: is_client_pod,
    },
    Difference {
        name: "a pod's own published port",
        reason: "no pod accepts packets from its own address",
        ends: true,
        explains: is_hairpin,
    },
    Difference {
        name: "a martian source",
        reason: "no packet on a wire has the source address",
        ends: false,
        explains: is_martian,
    },
    Difference {
        name: "TCP outside of connection tracking's state",
        reason: "no packet of a flow leaves with the pod's address; the receiver decides",
        ends: true,
        explains: is_invalid_segment,
    },
];

/// Returns the difference that explains a case.
pub(super) fn explain(case: &Case<'_>) -> Option<&'static Difference> {
    ALL.iter().find(|difference| (difference.explains)(case))
}

/// Viaduct drops packets with a source address that no packet on a wire has. Netfilter leaves that
/// to routing, which accepts some of them.
fn is_martian(case: &Case<'_>) -> bool {
    let sources = martians(case.trace.six);
    let sends = case
        .actions()
        .any(|action| matches!(action, Action::Martian { .. }));
    sends
        && case.ours.is_empty()
        && case.theirs.iter().all(|it| {
            let is_martian = |address| sources.contains(&address);
            it.of.is_none() && (is_martian(it.wire.source) || is_martian(it.wire.destination))
        })
}

/// The reference's `portmap` masquerades pods that dial a published port with the gateway's
/// address, and Viaduct does not. So a flow to the pod's own address clashes with one to the port,
/// and gets another port, by Viaduct only; and errors about such flows go to the client by Viaduct,
/// and to the node by netfilter.
fn is_client_pod(case: &Case<'_>) -> bool {
    let Some((flow, Way::There)) = case.flow() else {
        let without_client = |it: &&Arrival| {
            let names = ["pod 0:", "pod 1:", "gateway:"];
            names
                .iter()
                .fold(it.text.clone(), |text, name| text.replace(name, "client:"))
        };
        let texts = |arrivals: &[&Arrival]| arrivals.iter().map(without_client).collect::<Vec<_>>();
        let is_error = |it: &&Arrival| it.wire.quote().is_some() && it.site != Site::World;
        return case.snat
            && case.ours.iter().all(is_error)
            && (case.theirs.is_empty() || texts(&case.ours) == texts(&case.theirs));
    };
    let without_port = |it: &&Arrival| {
        let (_, rest) = it.text.split_once(" > ").unwrap_or_default();
        rest.to_owned()
    };
    let texts = |arrivals: &[&Arrival]| arrivals.iter().map(without_port).collect::<Vec<_>>();
    case.snat
        && matches!(case.trace.flows[flow].path, Path::Between { .. })
        && case.ours.iter().all(|it| it.text.contains("moved port"))
        && texts(&case.ours) == texts(&case.theirs)
}

/// Connection tracking compares TCP segments with the connection's state and windows. What does
/// not fit is invalid for it and not translated: it leaves with the pod's address, or arrives at
/// the node, which resets. It also forgets a connection with the first RST, and takes what follows
/// for a new one. Viaduct translates all of them with the flow, so the receiver decides.
fn is_invalid_segment(case: &Case<'_>) -> bool {
    let Some((flow, way)) = case.flow() else {
        // The node's reset of a segment that was not translated.
        let irregular = |flow: usize| {
            case.trace.flows[flow].protocol == Protocol::Tcp && !case.is_regular(flow)
        };
        let resets = (0..case.trace.flows.len()).any(irregular);
        let is_error = |it: &&Arrival| {
            it.wire
                .quote()
                .is_some_and(|it| it.protocol == protocol::TCP)
        };
        return resets
            && case.ours.iter().all(is_error)
            && case
                .theirs
                .iter()
                .all(|it| is_reset(it, case) || is_error(it));
    };
    case.trace.flows[flow].protocol == Protocol::Tcp
        && !case.is_regular(flow)
        && !case.ours.is_empty()
        && case.ours.iter().all(|it| case.is_translated(it, flow, way))
        && case
            .theirs
            .iter()
            .all(|it| is_not_of_its_flow(it, case) || case.is_translated(it, flow, way))
}

/// A protocol without ports has one flow between two addresses at a time. Netfilter drops packets
/// of another one, which clashes with it. Viaduct delivers them where it needs no translation. Of
/// two packets in fragments, netfilter serves the one that is complete first, and Viaduct the one
/// that begins first; it also serves one that is not forwarded later.
fn is_portless_clash(case: &Case<'_>) -> bool {
    let Some((flow, Way::There)) = case.flow() else {
        let portless = Protocol::Portless.number(case.trace.six);
        let is_error = |it: &&Arrival| it.wire.quote().is_some_and(|it| it.protocol == portless);
        return case.ours.iter().chain(&case.theirs).all(is_error);
    };
    let of = case.trace.flows[flow];
    let others = case
        .trace
        .flows
        .iter()
        .filter(|other| other.protocol == Protocol::Portless && other.path != of.path);
    let is_delivered = |it: &&Arrival| case.is_translated(it, flow, Way::There);
    let needs_no_port = matches!(
        of.path,
        Path::Out { .. }
            | Path::In {
                entry: Entry::Own { .. },
                ..
            }
    );
    let mut so_far = case.trace.steps[..=case.step]
        .iter()
        .flat_map(|step| &step.actions);
    let is_beside_forged = so_far.any(|it| matches!(it, Action::Martian { .. }));
    of.protocol == Protocol::Portless
        && (others.count() > 0 || is_beside_forged)
        && needs_no_port
        && (case.is_fragmented()
            || case.history.iter().any(|sent| sent.is_lost)
            || case.theirs.is_empty() && case.ours.iter().all(is_delivered))
}

/// A packet opens a flow also if the node cannot forward it later, and so does a first fragment if
/// the others never arrive. Netfilter makes the flow when the whole packet leaves, and has none for
/// packets that are invalid for it. So another flow keeps its port there.
fn is_beside_unknown(case: &Case<'_>) -> bool {
    let Some((flow, Way::There)) = case.flow() else {
        return false;
    };
    let is_moved = |it: &&Arrival| it.text.contains("moved port");
    case.has_unknown_beside(flow)
        && case.ours.len() == case.theirs.len()
        && case.ours.iter().all(is_moved)
        && case
            .ours
            .iter()
            .all(|it| case.is_translated(it, flow, Way::There))
}

/// Of two clashing flows whose packets arrive interleaved, in fragments, the first one keeps its
/// port. That is the flow of the first fragment, and by netfilter the one that is complete first.
fn is_order_of_fragments(case: &Case<'_>) -> bool {
    let Some((flow, Way::There)) = case.flow() else {
        return false;
    };
    let is_moved = |all: &[&Arrival]| all.iter().all(|it| it.text.contains("moved port"));
    let has_moved = [is_moved(&case.ours), is_moved(&case.theirs)];
    let in_fragments = |of_flow: bool| {
        case.actions().any(|it| match it {
            Action::Send {
                flow: of, packet, ..
            } => (*of == flow) == of_flow && !packet.fragments.is_empty(),
            Action::Error { .. } | Action::Martian { .. } => false,
        })
    };
    case.actions().count() > 1
        && case.ours.len() == case.theirs.len()
        && match has_moved {
            [false, true] => in_fragments(true),
            [true, false] => in_fragments(false),
            [true, true] | [false, false] => false,
        }
        && case
            .ours
            .iter()
            .all(|it| case.is_translated(it, flow, Way::There))
}

/// Netfilter gives a flow the port of an earlier flow with the same source, and a port that a
/// forged packet has taken is not free. Viaduct keeps the client's own port where it is free, and
/// drops forged packets.
fn is_used_again(case: &Case<'_>) -> bool {
    let Some((flow, Way::There)) = case.flow() else {
        return false;
    };
    let is_moved = |it: &&Arrival| it.text.contains("moved port");
    let (client, _) = case.base.client(&case.trace.flows[flow]);
    let mut so_far = case.trace.steps[..=case.step]
        .iter()
        .flat_map(|step| &step.actions);
    let is_forged = so_far.any(|it| match it {
        Action::Martian { source, .. } => martians(case.trace.six)[*source] == client,
        Action::Send { .. } | Action::Error { .. } => false,
    });
    (case.snat || is_forged || matches!(case.trace.flows[flow].path, Path::Out { .. }))
        && case.ours.len() == case.theirs.len()
        && case.theirs.iter().all(is_moved)
        && case.ours.iter().all(|it| !is_moved(it))
        && case
            .ours
            .iter()
            .all(|it| case.is_translated(it, flow, Way::There))
}

/// Netfilter masquerades a flow with the port of another flow's hostport, if no tuple is equal.
/// Viaduct never does.
fn has_published_port(case: &Case<'_>) -> bool {
    let Some((flow, Way::There)) = case.flow() else {
        return false;
    };
    let is_moved =
        |it: &&Arrival| it.text.contains("moved port") && case.is_translated(it, flow, Way::There);
    case.trace.flows[flow].port == PUBLISHED_PORT
        && case.ours.len() == case.theirs.len()
        && case.ours.iter().all(is_moved)
}

/// Routers do not fragment IPv6 packets (RFC 8200), so the node reports fragments beyond the MTU
/// to their sender. On a node with `br_netfilter`, connection tracking forgets the size of the
/// fragments, and the node fragments anew. An error of the node quotes the packet that netfilter
/// has put together.
fn is_large_fragment(case: &Case<'_>) -> bool {
    let is_large = |it: &Action| match it {
        Action::Send { packet, .. } => packet.fragments.iter().any(|part| part.1 > LARGEST),
        Action::Error { .. } | Action::Martian { .. } => false,
    };
    let is_too_big = |it: &&Arrival| it.wire.payload.first() == Some(&2);
    case.trace.six
        && case.actions().any(is_large)
        && case.ours.iter().all(is_too_big)
        && case
            .theirs
            .iter()
            .all(|it| it.of.is_some() || is_too_big(it))
}

/// A pod that dials its own published port sees the gateway as the client, by Viaduct. Without
/// `snat` of `portmap`, the pod gets a packet from its own address, which it does not accept.
fn is_hairpin(case: &Case<'_>) -> bool {
    let Some((flow, _)) = case.flow() else {
        return false;
    };
    let path = case.trace.flows[flow].path;
    path.client() == path.server()
}
