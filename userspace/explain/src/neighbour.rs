//! Address resolution by a pod: to which MAC address it sends a packet.

use abi::{Address, Mac};

use crate::explanation::{Decision, Outcome};
use crate::snapshot::ip;
use crate::walk::Walk;

impl Walk<'_> {
    /// Returns the MAC address that a pod sends packets for a destination to.
    pub(crate) fn resolve(&mut self, slot: u32, destination: &Address) -> Result<Mac, Outcome> {
        let name = self.node.facts.pod_name(slot);
        let Some(pod) = self.pod(slot) else {
            return Err(self.gone(slot));
        };
        let shown = ip(destination);
        if let Some(mac) = group_mac(destination) {
            return Ok(mac);
        }
        let world = self.node.world();
        let network = world.networks.get(&pod.network).copied();
        let gateway = network.map(|network| network.gateway(destination.family()));
        let subnets = self.node.facts.subnets.get(&slot);
        let is_on_link = subnets.is_some_and(|subnets| {
            subnets
                .iter()
                .any(|(address, length)| contains(address, *length, destination))
        });
        if is_on_link && gateway != Some(*destination) {
            return self.resolve_on_link(slot, pod, destination);
        }
        match (network, gateway) {
            (Some(network), Some(gateway)) if !gateway.is_any() => {
                if gateway != *destination {
                    let text = format!("sends {shown} to its gateway {}", ip(&gateway));
                    self.say(&name, Decision::Neighbour, text);
                }
                Ok(network.mac)
            }
            _ => {
                let text = format!(
                    "has no gateway of this family: it reaches addresses of its own subnet only, \
                     and {shown} is none"
                );
                Err(self.discard(&name, Decision::Neighbour, &text))
            }
        }
    }

    /// Resolves an address of the pod's own subnet.
    fn resolve_on_link(
        &mut self,
        slot: u32,
        pod: abi::Pod,
        destination: &Address,
    ) -> Result<Mac, Outcome> {
        let name = self.node.facts.pod_name(slot);
        let shown = ip(destination);
        let world = self.node.world();
        let network = world.networks.get(&pod.network).copied();
        if world.locals.contains(destination)
            && let Some(network) = network
        {
            return Ok(network.mac);
        }
        let endpoint = world.endpoints.get(destination).copied();
        let neighbour = endpoint
            .and_then(|endpoint| Some((endpoint, self.pod(endpoint.pod)?)))
            .filter(|(endpoint, other)| {
                other.network == pod.network && other.generation == endpoint.generation
            });
        let Some((endpoint, other)) = neighbour else {
            let text = format!(
                "gets no answer to address resolution: no pod of its network has the address \
                 {shown}"
            );
            return Err(self.discard(&name, Decision::Neighbour, &text));
        };
        let of = self.node.facts.pod_name(endpoint.pod);
        if pod.flags & other.flags & abi::EndpointFlags::ISOLATED != 0 && endpoint.pod != slot {
            let text = format!(
                "gets no answer to address resolution: the bridge forwards nothing between the \
                 isolated ports of it and of {of}, which has {shown}"
            );
            return Err(self.discard(&name, Decision::Neighbour, &text));
        }
        let text = format!("{shown} is the address of {of} on the same bridge");
        self.say(&name, Decision::Neighbour, text);
        Ok(endpoint.mac)
    }
}

/// Returns the MAC address of a multicast or broadcast group.
fn group_mac(destination: &Address) -> Option<Mac> {
    let bytes = destination.bytes();
    if destination.is_v4() {
        let [.., a, b, c, d] = bytes;
        return match (a, [a, b, c, d]) {
            (_, [255, 255, 255, 255]) => Some(Mac::new([255; 6])),
            (224..=239, [_, b, c, d]) => Some(Mac::new([1, 0, 0x5e, b & 0x7f, c, d])),
            _ => None,
        };
    }
    let [first, .., a, b, c, d] = bytes;
    (first == 255).then(|| Mac::new([0x33, 0x33, a, b, c, d]))
}

/// Returns whether a subnet contains an address. `length` is in bits of the address's own family.
fn contains(subnet: &Address, length: u32, address: &Address) -> bool {
    if subnet.family() != address.family() {
        return false;
    }
    let significant = length + if subnet.is_v4() { 96 } else { 0 };
    let [one, other] = [subnet, address].map(|it| u128::from_be_bytes(it.bytes()));
    let differ = one ^ other;
    differ.leading_zeros() >= significant.min(128)
}
