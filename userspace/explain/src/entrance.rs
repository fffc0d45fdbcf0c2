//! How a packet comes to a hook whose verdict alone is explained: MAC addresses and links.

use abi::{Interface, Mac, Tuple};
use steps::{DatapathTables, RouteDecision};
use verdict::simulator::Place;

use crate::question::Question;
use crate::shape::Shape;
use crate::snapshot::{Snapshot, route};
use crate::walk::{ROUTER, Walk};

/// A packet in front of a hook.
pub(crate) struct Entrance {
    /// Destination and source of the Ethernet header, if there is one.
    pub(crate) ethernet: Option<[Mac; 2]>,
    /// Interface index of the link by which the packet has entered the node.
    pub(crate) ingress: u32,
}

/// Returns the interface index of the link by which a fragment entered that was held: the report of
/// its drop has none. `None` where no pod has the sender's address, and no link leads to it.
pub fn link_of_held(snapshot: &Snapshot, place: Place, tuple: &Tuple) -> Option<u32> {
    match place {
        Place::FromPod => {
            let endpoint = snapshot.tables.endpoints.get(&tuple.source)?;
            Some(endpoint.interface)
        }
        Place::UplinkIn => match route(&*snapshot.lookups, None, &tuple.reverse()).decision {
            RouteDecision::Leaves { link, .. } => Some(link),
            RouteDecision::Local | RouteDecision::Unreachable | RouteDecision::SourceRefused => {
                None
            }
        },
        Place::ToPod | Place::UplinkOut => None,
    }
}

/// Returns the tuple of a packet before its translation to `tuple`, by the flow that it belongs to:
/// a packet whose translation has failed is reported as far as it was translated. `tuple` itself
/// where no flow is translated to it.
pub fn before_translation(tables: &DatapathTables, tuple: &Tuple) -> Tuple {
    let mut flows = tables.flows.iter();
    let found = flows.find(|(key, flow)| flow.translated == *tuple && *key != tuple);
    found.map_or(*tuple, |(key, _)| *key)
}

impl Walk<'_> {
    /// Returns how the packet of a question comes to a hook.
    pub(crate) fn entrance(
        &mut self,
        place: Place,
        interface: u32,
        question: &Question,
    ) -> Entrance {
        let of_pod = self.node.world().interfaces.get(&interface).copied();
        let uplink = self.node.world().uplinks.get(&interface).copied();
        match (place, of_pod) {
            (Place::FromPod, Some(of)) => Entrance {
                ethernet: Some(self.sent_by_pod(of, question)),
                ingress: interface,
            },
            (Place::ToPod, Some(of)) => self.sent_to_pod(of, question),
            (Place::UplinkIn | Place::UplinkOut, _)
                if uplink.is_some_and(|uplink| uplink.l2_len == 0) =>
            {
                Entrance {
                    ethernet: None,
                    ingress: interface,
                }
            }
            _ => Entrance {
                ethernet: Some([self.mac(interface), question.source_mac(ROUTER)]),
                ingress: interface,
            },
        }
    }

    /// Returns the MAC addresses of a frame that a pod sends.
    fn sent_by_pod(&mut self, of: Interface, question: &Question) -> [Mac; 2] {
        let from = self.pod(of.pod).map_or_else(Mac::default, |pod| pod.mac);
        let steps = self.steps.len();
        let to = self.resolve(of.pod, &question.tuple.destination);
        self.steps.truncate(steps);
        let to = to.unwrap_or_else(|_| self.bridge_mac(of.pod));
        [to, question.source_mac(from)]
    }

    /// Returns how a packet comes to its receiver: from another pod by their bridge, or from the
    /// node.
    fn sent_to_pod(&self, of: Interface, question: &Question) -> Entrance {
        let receiver = self.pod(of.pod).unwrap_or_default();
        let world = self.node.world();
        let sender = world
            .endpoints
            .get(&question.tuple.source)
            .and_then(|endpoint| self.pod(endpoint.pod))
            .filter(|pod| pod.network == receiver.network && question.shape != Shape::Forwarded);
        let (from, ingress) = match sender {
            Some(pod) => (pod.mac, pod.interface),
            None => (self.bridge_mac(of.pod), receiver.network),
        };
        Entrance {
            ethernet: Some([receiver.mac, question.source_mac(from)]),
            ingress,
        }
    }

    fn bridge_mac(&self, slot: u32) -> Mac {
        let bridge = self.pod(slot).map_or(0, |pod| pod.network);
        let network = self.node.world().networks.get(&bridge);
        network.map_or_else(Mac::default, |network| network.mac)
    }
}
