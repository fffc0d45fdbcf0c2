//! Frames that a machine on the uplink sends.

mod claims;
mod packets;

use std::net::IpAddr;

use super::cell::{Cell, Draft, Standing};
use super::net::{Net, Receiver};
use super::scene::PUBLISHED;
use super::sockets::PORT;

/// Linux refuses the packet by its routes, before any socket.
const NO_ROUTE: &str = "the node's routes refuse this source";
/// The node's network card did not ask for the frame.
const OTHER_HOST: &str = "a frame for another host";
/// What a packet without a rule of ours may reach on the node.
const OWN_STACK: &str = "the node's own stack decides";

/// Returns the cells of this seed.
pub(crate) fn cells(net: &Net, seed: u64) -> Vec<Cell> {
    let mut draft = Draft::new(seed);
    for family in [0, 1] {
        for goal in goals(net, family) {
            packets::honest(&mut draft, net, family, &goal);
            packets::lying(&mut draft, net, family, &goal);
            packets::malformed(&mut draft, net, family, &goal);
            packets::fragments(&mut draft, net, family, &goal);
            claims::errors(&mut draft, net, family, &goal);
        }
    }
    claims::arp(&mut draft, net);
    claims::discovery(&mut draft, net);
    claims::foreign(&mut draft, net);
    draft.wrap();
    draft.thin();
    draft.cells
}

/// A destination of packets from outside.
pub(crate) struct Goal {
    name: &'static str,
    receiver: Receiver,
    address: IpAddr,
    port: u16,
}

impl Goal {
    /// Returns the standing of a packet that the node's stack may accept: the ports of pods are
    /// none of its own.
    fn of_node() -> Standing {
        Standing::Tolerated(OWN_STACK, vec![Receiver::Node])
    }
}

fn goals(net: &Net, family: usize) -> Vec<Goal> {
    let goal = |name, receiver, address: [IpAddr; 2], port| Goal {
        name,
        receiver,
        address: address[family],
        port,
    };
    vec![
        goal(
            "a published port",
            Receiver::Mate,
            net.node.addresses,
            PUBLISHED,
        ),
        goal("a pod", Receiver::Mate, net.mate.addresses, PORT),
        goal(
            "a pod of another bridge",
            Receiver::Far,
            net.far.addresses,
            PORT,
        ),
        goal("the node", Receiver::Node, net.node.addresses, PORT),
        goal("the gateway", Receiver::Node, net.gateway.addresses, PORT),
    ]
}
