//! Fuzzing entry points: every parser of answers and notifications of the kernel, for the fuzz
//! targets and for replaying their corpus.
//!
//! The only guarantee is that they return.

use rtnetlink::packet_core::NetlinkPayload;
use rtnetlink::packet_route::RouteNetlinkMessage as Message;

use crate::firewall::{conntrack, forwarding, hostport_table, nftables};
use crate::foreign::{ipsec, ipsec_policies, netfilter};
use crate::netlink::{
    addresses, bridge_port, bridge_vlans, links, messages, monitor, packet_route, route_lookup,
    route_watch, routes, sock_diag, socket,
};

/// Parses bytes as one read of each kind of netlink socket that this crate has: rtnetlink,
/// `sock_diag`, nftables, connection tracking and IPsec; and as a table of iptables, as
/// `getsockopt` returns it.
pub fn answers(bytes: &[u8]) {
    routing(bytes);
    bridge_port::fuzz(bytes);
    conntrack::fuzz(bytes);
    monitor::fuzz(bytes);
    route_watch::fuzz(bytes);
    sock_diag::fuzz(bytes);
    netfilter::fuzz(bytes);
    rulesets(bytes);
    hostport_table::fuzz(bytes);
    ipsec::fuzz(bytes);
    ipsec_policies::fuzz(bytes);
    forwarding::fuzz(bytes);
}

/// Parses answers of rtnetlink.
fn routing(bytes: &[u8]) {
    for part in socket::messages(bytes) {
        let _ = socket::answer(part);
        match socket::decode(part) {
            Ok(NetlinkPayload::InnerMessage(Message::NewLink(link))) => {
                links::fuzz(&link);
                bridge_vlans::fuzz(&link);
            }
            Ok(NetlinkPayload::InnerMessage(Message::NewAddress(own))) => {
                addresses::fuzz(&own);
            }
            Ok(NetlinkPayload::InnerMessage(Message::NewRoute(route))) => {
                routes::fuzz(&route);
                packet_route::fuzz(&route);
                route_lookup::fuzz(&route);
            }
            Ok(_) | Err(_) => {}
        }
    }
}

/// Parses answers of nftables.
fn rulesets(bytes: &[u8]) {
    let _ = nftables::results(bytes);
    for (_, body) in messages::messages(bytes) {
        if let Some(rule) = nftables::fuzz_rule(body) {
            forwarding::fuzz_rule(&rule);
        }
    }
}

#[cfg(test)]
mod tests {
    use model::testing::{Damage, corpus, damaged};
    use proptest::prelude::*;

    use super::*;

    fn recorded() -> Vec<Vec<u8>> {
        corpus("netlink").into_values().collect()
    }

    #[test]
    fn every_answer_of_the_corpus_is_parsed_or_refused() {
        for bytes in recorded() {
            answers(&bytes);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        #[test]
        fn damaged_answers_are_parsed_or_refused(
            bytes in proptest::sample::select(recorded()),
            damages in proptest::collection::vec(any::<Damage>(), 1..8),
        ) {
            answers(&damaged(&bytes, &damages));
        }
    }

    proptest! {
        /// Messages with a right length, so that bodies are reached.
        #[test]
        fn any_bodies_of_messages_are_parsed_or_refused(
            kind in prop_oneof![16_u16..120, 0x0100_u16..0x0110, 0x0a00_u16..0x0a20, 0_u16..4],
            body in proptest::collection::vec(any::<u8>(), 0..256),
        ) {
            let length = u32::try_from(16 + body.len()).unwrap();
            let mut bytes = length.to_ne_bytes().to_vec();
            bytes.extend(kind.to_ne_bytes());
            bytes.extend([0; 10]);
            bytes.extend(body);
            answers(&bytes);
        }
    }
}
