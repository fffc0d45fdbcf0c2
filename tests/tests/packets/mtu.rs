//! Packets between pods of two networks with different MTUs: the stack reports or fragments those
//! to and from hostports that are too large for the receiver.

use abi::Address;
use anyhow::Result;
use verdict::simulator::Place::{FromPod, ToPod};
use verdict::simulator::example::{
    self, BRIDGE, FAMILIES, HOSTPORT, INTERFACE, OTHER_INTERFACE, OTHER_POD, OWN_HOSTPORT, POD_PORT,
};
use verdict::simulator::frame::{Body, Frame, flag};

use crate::bench::{Bench, on_machine};

/// MTU of the second pod's network in bytes.
const MTU: u32 = 1400;
/// Interface index of the second pod's bridge.
const OTHER_BRIDGE: u32 = BRIDGE + 1;
/// Payload bytes that are too many for the second pod's link, and those that are not.
const TOO_LARGE: usize = 1440;
const SMALL: usize = 100;

/// Runs a test on a bench whose second pod is on a network of its own, with [`MTU`], and to which
/// the node has routes.
fn on_two_networks(test: impl FnOnce(&mut Bench) -> Result<()> + Send) -> Result<()> {
    on_machine(|machine, bench| {
        machine.call(&format!("ip link set other mtu {MTU}"))?;
        machine.sysctl("ipv4/ip_forward", "1")?;
        machine.sysctl("ipv6/conf/all/forwarding", "1")?;
        let first = BRIDGE;
        for line in [
            format!("ip link add first index {first} type bridge"),
            format!("ip link add second mtu {MTU} index {OTHER_BRIDGE} type bridge"),
            "ip link set first up".to_owned(),
            "ip link set second up".to_owned(),
            "ip address add 10.88.0.1/32 dev first".to_owned(),
            "ip address add 10.88.1.1/24 dev second".to_owned(),
            "ip route add 10.88.0.3/32 dev second".to_owned(),
            "ip address add fd00:88::1/128 dev first nodad".to_owned(),
            "ip route add fd00:88::3/128 dev second".to_owned(),
        ] {
            machine.call(&line)?;
        }
        bench.change(|world| {
            world
                .mtus
                .extend([OTHER_INTERFACE, OTHER_BRIDGE].map(|link| (link, MTU)));
            let routes = example::other_pod().map(|address| (address, OTHER_BRIDGE));
            world.egress_routes.extend(routes);
            world.pods[OTHER_POD as usize].network = OTHER_BRIDGE;
            let network = world.networks[&BRIDGE];
            world.networks.insert(OTHER_BRIDGE, network);
        })?;
        test(bench)
    })
}

fn tcp(source: u16, destination: u16, length: usize) -> Body {
    Body::Tcp(source, destination, flag::ACK, vec![7; length])
}

fn udp(source: u16, destination: u16, length: usize) -> Body {
    Body::Udp(source, destination, vec![7; length])
}

fn from_first(to: Address, body: Body) -> Frame {
    let family = usize::from(!to.is_v4());
    Frame::new(example::pod()[family], to, body).from_to(example::mac(), example::bridge_mac())
}

fn from_second(to: Address, body: Body) -> Frame {
    let family = usize::from(!to.is_v4());
    let frame = Frame::new(example::other_pod()[family], to, body);
    frame.from_to(example::other_mac(), example::bridge_mac())
}

fn to_second(frame: Frame) -> Frame {
    frame.from_to(example::bridge_mac(), example::other_mac())
}

/// An error of the node that quotes `packet`, an IP packet.
fn error_about(from: Address, to: Address, packet: &[u8]) -> Frame {
    let quote = packet[..packet.len().min(500)].to_vec();
    let rest = [0, 0, 5, 0x78];
    let (icmp_type, code) = if from.is_v4() { (3, 4) } else { (2, 0) };
    Frame::new(from, to, Body::Icmp(icmp_type, code, rest, quote))
}

#[test]
fn a_request_too_large_for_a_hostports_pod_goes_to_the_stack_translated() -> Result<()> {
    on_two_networks(|bench| {
        let (node, server) = (example::node()[0], example::other_pod()[0]);
        let client = example::pod()[0];
        bench.interface = INTERFACE;
        for length in [SMALL, TOO_LARGE, SMALL, TOO_LARGE] {
            let request = from_first(node, tcp(40_000, OWN_HOSTPORT, length));
            let inside = request.becoming(client, server, tcp(40_000, POD_PORT, length));
            if length == SMALL {
                bench.delivers(&request, &to_second(inside), OTHER_INTERFACE)?;
                continue;
            }
            bench.becomes(FromPod, &request, &inside)?;
            let gateway = example::gateway()[0];
            let error = error_about(gateway, client, &inside.packet());
            let translated = error_about(gateway, client, &request.packet());
            bench.becomes(ToPod, &error, &translated)?;
        }
        Ok(())
    })
}

#[test]
fn a_reply_too_large_for_a_hostports_client_goes_to_the_stack_as_it_is() -> Result<()> {
    on_two_networks(|bench| {
        for family in FAMILIES {
            let node = example::node()[family];
            let (server, client) = (example::pod()[family], example::other_pod()[family]);
            bench.interface = OTHER_INTERFACE;
            let request = from_second(node, udp(40_000, HOSTPORT, SMALL));
            bench.run(FromPod, &request.bytes())?;
            for length in [TOO_LARGE, SMALL, TOO_LARGE] {
                bench.interface = INTERFACE;
                let reply = from_first(client, udp(POD_PORT, 40_000, length));
                let seen = reply.becoming(node, client, udp(HOSTPORT, 40_000, length));
                if length == SMALL {
                    bench.delivers(&reply, &to_second(seen), OTHER_INTERFACE)?;
                    continue;
                }
                bench.passes(FromPod, &reply)?;
                let gateway = example::gateway()[family];
                let error = error_about(gateway, server, &reply.packet());
                bench.passes(ToPod, &error)?;
                // The stack has fragmented the packet.
                bench.interface = OTHER_INTERFACE;
                let fragments = reply.fragments(0x81, 800);
                for (fragment, seen) in fragments.iter().zip(seen.fragments(0x81, 800)) {
                    bench.turns_into(ToPod, fragment, &seen)?;
                }
            }
        }
        Ok(())
    })
}

/// The last fragment of a packet is short, but connection tracking may reassemble the packet.
#[test]
fn all_fragments_to_a_hostport_with_a_smaller_mtu_go_to_the_stack() -> Result<()> {
    on_two_networks(|bench| {
        for family in FAMILIES {
            let (node, client) = (example::node()[family], example::other_pod()[family]);
            bench.interface = OTHER_INTERFACE;
            let request = from_second(node, udp(40_000, HOSTPORT, SMALL));
            bench.run(FromPod, &request.bytes())?;
            bench.interface = INTERFACE;
            let reply = from_first(client, udp(POD_PORT, 40_000, TOO_LARGE));
            for fragment in reply.fragments(0x82, 1400) {
                bench.turns_into(FromPod, &fragment, &fragment)?;
            }
        }
        Ok(())
    })
}

#[test]
fn other_packets_to_a_pod_are_delivered_unchanged() -> Result<()> {
    on_two_networks(|bench| {
        for family in FAMILIES {
            let (remote, pod) = (example::remote()[family], example::other_pod()[family]);
            bench.interface = OTHER_INTERFACE;
            let large = Frame::new(remote, pod, udp(POD_PORT, 40_000, TOO_LARGE));
            for fragment in large.fragments(0x83, 800) {
                bench.turns_into(ToPod, &fragment, &fragment)?;
            }
            let own = Frame::new(pod, remote, udp(1, 2, SMALL));
            let error = error_about(example::gateway()[family], pod, &own.packet());
            bench.passes(ToPod, &error)?;
        }
        Ok(())
    })
}
