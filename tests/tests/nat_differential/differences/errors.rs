//! Differences in ICMP errors: which are delivered, translated, or made by the node.

use abi::protocol;
use verdict::simulator::frame::flag;

use super::super::case::{Case, is_from_node, is_from_pod, is_untranslated};
use super::super::kinds::FORGED_MTUS;
use super::super::replay::Arrival;
use super::super::system::Site;

/// An error of a pod about a packet of no flow leaves with the pod's address, by netfilter. Viaduct
/// drops it.
pub(super) fn is_error_of_no_flow(case: &Case<'_>) -> bool {
    let of_pod = |it: &&Arrival| is_untranslated(it, case) && it.wire.quote().is_some();
    case.ours.is_empty() && case.theirs.iter().all(of_pod)
}

/// An error of a pod about a packet that was not sent to its address could change the path MTU of
/// another pod. Netfilter passes it.
pub(super) fn is_error_of_bystander(case: &Case<'_>) -> bool {
    let is_one = |it: &&Arrival| {
        let quoted = it.text.split_once("about [").unwrap_or_default().1;
        let to = quoted.split_once(" > ").unwrap_or_default().1;
        it.text.contains("gets pod ") && !to.is_empty() && !to.starts_with("pod ")
    };
    case.ours.is_empty() && case.theirs.iter().all(is_one)
}

/// A quote of fewer than 8 bytes behind the IP header violates RFC 792. Netfilter drops such an
/// error about a translated packet. Viaduct leaves it as it is.
pub(super) fn is_short_quote(case: &Case<'_>) -> bool {
    let is_short = |it: &&Arrival| {
        let quote = it.wire.quote();
        quote.is_some_and(|quote| quote.payload.len() < 8) && it.site != Site::World
    };
    case.theirs.is_empty() && case.ours.iter().all(is_short)
}

/// An error that quotes a later fragment names a flow if the protocol has no ports. Netfilter
/// does not translate it.
pub(super) fn is_error_about_fragment(case: &Case<'_>) -> bool {
    let is_later = |it: &&Arrival| {
        let quote = it.wire.quote();
        quote.is_some_and(|quote| quote.is_later_fragment())
    };
    case.ours.iter().chain(&case.theirs).all(is_later)
        && case.theirs.iter().all(|it| is_untranslated(it, case))
}

/// With the RST of a connection, connection tracking forgets it, and drops errors about its packets
/// from then on.
pub(super) fn is_error_about_reset(case: &Case<'_>) -> bool {
    let was_reset = case.history.iter().any(|sent| sent.flags & flag::RST != 0);
    let is_error = |it: &&Arrival| {
        let quote = it.wire.quote();
        quote.is_some_and(|quote| quote.protocol == protocol::TCP)
    };
    let leaves = |it: &&Arrival| is_from_pod(it, case) && is_error(it);
    was_reset && case.ours.iter().all(is_error) && case.theirs.iter().all(leaves)
}

/// An error of the node's stack comes from the address that the stack has chosen, by Viaduct. By
/// netfilter it comes from the destination that the reported packet had when it was sent, if that
/// packet is translated: a published port's address for a client, or for a pod its peer.
pub(super) fn is_source_of_nodes_error(case: &Case<'_>) -> bool {
    let is_nodes = |it: &&Arrival| it.wire.quote().is_some() && is_from_node(it, case);
    case.ours.iter().all(is_nodes)
        && case.theirs.iter().all(|it| is_nodes(it) || is_of_peer(it))
        && without_source(&case.ours) == without_source(&case.theirs)
}

/// Of an error of a router about a packet to a moved port, netfilter translates the source as well:
/// to the client's address, which is the packet's destination. By Viaduct it comes from the router.
pub(super) fn is_source_of_routers_error(case: &Case<'_>) -> bool {
    let is_routers =
        |it: &&Arrival| it.wire.quote().is_some() && it.wire.source == case.base.router();
    let is_about_moved = |it: &&Arrival| {
        let (_, quote) = it.text.split_once("about [").unwrap_or_default();
        quote.contains("moved port")
    };
    case.ours
        .iter()
        .all(|it| is_routers(it) && is_about_moved(it))
        && case.theirs.iter().all(is_of_peer)
        && without_source(&case.ours) == without_source(&case.theirs)
}

/// Returns whether an error comes from the destination of the quoted packet.
fn is_of_peer(arrival: &&Arrival) -> bool {
    let quote = arrival.wire.quote();
    quote.is_some_and(|quote| quote.destination == arrival.wire.source)
}

/// Returns the texts of arrivals from their destinations on.
fn without_source(arrivals: &[&Arrival]) -> Vec<String> {
    let rest = |it: &&Arrival| {
        let (_, rest) = it.text.split_once(" > ").unwrap_or_default();
        rest.to_owned()
    };
    arrivals.iter().map(rest).collect()
}

/// The node takes an error that quotes a pod's own address for one about its own packets, and
/// lowers the path MTU. By netfilter this holds for forwarded IPv6 packets of pods, too, and the
/// node reports it from its address on the uplink; Viaduct's fast path ignores it, and the stack
/// reports it from the gateway's address.
pub(super) fn is_forged_mtu(case: &Case<'_>) -> bool {
    let is_too_big = |it: &Arrival| it.wire.payload.first() == Some(&2);
    let is_forged = |it: &&Arrival| {
        let mtu = it.wire.payload.get(4..8);
        is_too_big(it) && FORGED_MTUS.iter().any(|own| mtu == Some(&own[..]))
    };
    let is_delivered = |it: &&Arrival| it.of.is_some() || is_forged(it);
    case.trace.six
        && !case.theirs.is_empty()
        && case.theirs.iter().all(is_forged)
        && case.ours.iter().all(is_delivered)
}
