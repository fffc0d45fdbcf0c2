//! Frames that a pod sends.

mod arp;
mod discovery;
mod errors;
mod malformed;
mod packets;

use abi::Mac;

use super::cell::{Cell, Draft, NO_HANDLER, Standing};
use super::net::{Net, Party, Receiver};
use super::packets::FOREIGN;
use super::wire::{BROADCAST, ethernet};

/// Returns the cells of this seed.
pub(crate) fn cells(net: &Net, seed: u64) -> Vec<Cell> {
    let mut draft = Draft::new(seed);
    packets::draft(&mut draft, net);
    packets::groups(&mut draft, net);
    arp::draft(&mut draft, net);
    discovery::draft(&mut draft, net);
    errors::draft(&mut draft, net);
    malformed::draft(&mut draft, net);
    malformed::fragments(&mut draft, net);
    foreign(&mut draft, net);
    draft.wrap();
    draft.thin();
    draft.cells
}

/// A destination of a pod's packets.
pub(crate) struct Goal<'a> {
    pub(crate) name: &'static str,
    pub(crate) receiver: Receiver,
    pub(crate) mac: Mac,
    pub(crate) party: &'a Party,
}

/// Returns the destinations of a pod's packets, and the MAC addresses by which they are reached.
pub(crate) fn goals(net: &Net) -> Vec<Goal<'_>> {
    let goal = |name, receiver, mac, party| Goal {
        name,
        receiver,
        mac,
        party,
    };
    let router = net.gateway.mac;
    vec![
        goal("mate", Receiver::Mate, net.mate.mac, &net.mate),
        goal("mate by the gateway", Receiver::Mate, router, &net.mate),
        goal("far", Receiver::Far, router, &net.far),
        goal("gateway", Receiver::Node, router, &net.gateway),
        goal("node", Receiver::Node, router, &net.node),
        goal("world", Receiver::World, router, &net.world),
    ]
}

/// Adds frames whose `EtherType` is none of IP, ARP and VLANs, with an IP packet where the network
/// layer would be; and LLC with SNAP around an IP packet (RFC 1042).
fn foreign(draft: &mut Draft, net: &Net) {
    for (kind, destination) in FOREIGN {
        let to = match destination {
            [0, 0, 0, 0, 0, 0] => net.mate.mac,
            other => Mac::new(other),
        };
        for (who, from) in [("own", net.attacker.mac), ("mate", net.mate.mac)] {
            let mut payload = vec![0xaa, 0xaa, 0x03, 0, 0, 0, 0x08, 0x00];
            payload.extend(draft.marker());
            payload.resize(60, 0);
            let frame = ethernet(to, from, kind, &payload);
            let standing = Standing::Lie("an EtherType that no pod needs");
            let name = format!("EtherType {kind:04x} from the {who} MAC to {to:02x?}");
            draft.push(name, frame, standing).ignored = Some(NO_HANDLER);
        }
    }
    // A destination that Linux hands to no protocol, for the right EtherType.
    let frame = ethernet(BROADCAST, net.attacker.mac, 0x0800, &draft.marker());
    let name = "an IPv4 header of eight bytes".to_owned();
    draft.push(name, frame, Standing::Lie("a truncated header"));
}
