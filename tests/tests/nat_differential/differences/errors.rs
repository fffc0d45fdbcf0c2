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
        && case.theirs.iter().all(|it| is_of_peer(it))
        && without_source(&case.ours) == without_source(&case.theirs)
}

/// Returns whether an error comes from the destination of the quoted packet.
fn is_of_peer(arrival: &Arrival) -> bool {
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

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::super::super::packet::Header;
    use super::super::super::system::{Site, node_address, pod_address};
    use super::super::super::trace::{Base, Trace, Way};
    use super::super::super::wire::Wire;
    use super::*;

    const BASE: Base = Base { run: 1, six: false };
    const MOVED: &str = "moved port of flow 0";
    const UNMOVED: &str = "client port 0";

    /// An error about a reply of a pod to a client in the world, as the pod gets it.
    #[derive(Clone, Copy)]
    struct Error {
        from: IpAddr,
        /// Name of the client's port in the quote.
        port: &'static str,
        code: u8,
    }

    impl Error {
        fn arrival(self) -> Arrival {
            let header = |source, destination, protocol| Header {
                source,
                destination,
                protocol,
                dont_fragment: false,
                identification: 0,
            };
            let [pod, client] = [pod_address(0, false), BASE.host(0)];
            let reply = header(pod, client, protocol::UDP);
            let quoted = reply.packet(&reply.udp([80, 10_004], b"data", true));
            let error = header(self.from, pod, protocol::ICMP);
            let packet = error.packet(&error.icmp([3, self.code], [0; 4], &quoted));
            let names = |wire: &Wire| match wire.quote() {
                Some(_) => [wire.source, wire.destination].map(|it| it.to_string()),
                None => [format!("{pod}:80"), format!("{client}:{}", self.port)],
            };
            let wire = Wire::parse(&packet).expect("a packet");
            Arrival {
                site: Site::Pod(0),
                text: format!("Pod(0) gets {}", wire.text(&names)),
                wire,
                of: None::<(usize, Way)>,
            }
        }
    }

    /// Returns whether these errors are a difference in the source of a router's error.
    fn is_explained(ours: &[Error], theirs: &[Error]) -> bool {
        let [ours, theirs] = [ours, theirs].map(|all| {
            let arrivals = all.iter().map(|error| error.arrival());
            arrivals.collect::<Vec<_>>()
        });
        is_source_of_routers_error(&Case {
            trace: &Trace {
                six: false,
                flows: Vec::new(),
                steps: Vec::new(),
            },
            base: BASE,
            snat: false,
            step: 0,
            history: &[],
            ours: ours.iter().collect(),
            theirs: theirs.iter().collect(),
        })
    }

    fn of_router() -> Error {
        Error {
            from: BASE.router(),
            port: MOVED,
            code: 1,
        }
    }

    fn of_client() -> Error {
        Error {
            from: BASE.host(0),
            ..of_router()
        }
    }

    #[test]
    fn the_source_of_a_routers_error_is_explained_only_for_a_moved_port() {
        assert!(is_explained(&[of_router()], &[of_client()]));
        let [router, client] = [of_router(), of_client()].map(|error| Error {
            port: UNMOVED,
            ..error
        });
        assert!(!is_explained(&[router], &[client]));
    }

    #[test]
    fn a_routers_error_is_explained_only_from_the_router_by_viaduct_and_the_client_by_netfilter() {
        assert!(!is_explained(&[of_client()], &[of_router()]));
        let of_node = Error {
            from: node_address(0, false),
            ..of_router()
        };
        assert!(!is_explained(&[of_node], &[of_client()]));
        assert!(!is_explained(&[of_router()], &[of_node]));
    }

    #[test]
    fn a_routers_error_that_is_lost_repeated_or_changed_is_not_explained() {
        assert!(!is_explained(&[], &[of_client()]));
        assert!(!is_explained(&[of_router()], &[]));
        assert!(!is_explained(&[of_router(), of_router()], &[of_client()]));
        let other = Error {
            code: 3,
            ..of_router()
        };
        assert!(!is_explained(&[other], &[of_client()]));
    }
}
