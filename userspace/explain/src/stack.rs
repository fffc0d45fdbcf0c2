//! What bridge and stack do with a packet between two hooks: links, routes and filter tables.

use abi::{EndpointFlags, Mac, Tuple};
use steps::{FilterHook, RouteDecision};
use verdict::simulator::Place;

use crate::explanation::{Decision, Outcome};
use crate::frame;
use crate::netfilter::{self, Filtered, FilteredPacket};
use crate::snapshot::{address, ip, route};
use crate::walk::{Walk, unknown};

impl Walk<'_> {
    /// Forwards a frame of a pod by its bridge: to another port, or to the stack.
    pub(crate) fn bridge(&mut self, slot: u32) -> Outcome {
        let Some(sender) = self.pod(slot) else {
            return self.gone(slot);
        };
        let to = frame::destination_mac(&self.frame);
        let network = self.node.world().networks.get(&sender.network).copied();
        let bridge = self.node.facts.link_name(sender.network);
        let at = format!("bridge@{bridge}");
        if to.bytes()[0] & 1 != 0 {
            let text = "floods the frame to its ports".to_owned();
            self.say(&at, Decision::Bridge, text.clone());
            return unknown(format!("{bridge} {text}: each receiver decides"));
        }
        let of_port = [sender.network, sender.interface]
            .into_iter()
            .filter_map(|link| self.node.facts.links.get(&link))
            .any(|link| link.mac == to);
        if of_port || network.is_some_and(|network| network.mac == to) {
            self.node.set_ingress(sender.network);
            return self.stack(sender.network);
        }
        let world = self.node.world();
        let is_receiver =
            |pod: &abi::Pod| pod.network == sender.network && pod.mac == to && pod.interface != 0;
        let found = (0_u32..).zip(&world.pods).find(|(_, pod)| is_receiver(pod));
        let Some((receiver, pod)) = found.map(|(slot, pod)| (slot, *pod)) else {
            let text = "no port of the bridge has the frame's destination MAC address".to_owned();
            return self.discard(&at, Decision::Bridge, &text);
        };
        self.bridge_to_port(&at, [sender, pod], receiver)
    }

    /// Forwards a frame between the ports of two pods on one bridge.
    fn bridge_to_port(&mut self, at: &str, [sender, pod]: [abi::Pod; 2], slot: u32) -> Outcome {
        let name = self.node.facts.pod_name(slot);
        if sender.flags & pod.flags & EndpointFlags::ISOLATED != 0 {
            let text = format!("forwards nothing to {name}: both ports are isolated");
            return self.discard(at, Decision::Bridge, &text);
        }
        let mtu = self.mtu(pod.interface);
        if self.packet_length() > mtu {
            let text = format!("discards it: it exceeds the MTU of {name}'s link, {mtu} bytes");
            return self.discard(at, Decision::Mtu, &text);
        }
        if let Some(outcome) = self.filter(FilterHook::Forward, true, sender.network, None) {
            return outcome;
        }
        let link = self.node.facts.link_name(pod.interface);
        self.say(
            at,
            Decision::Bridge,
            format!("forwards it to the port {link}"),
        );
        self.node.set_ingress(sender.interface);
        self.enter_pod(slot)
    }

    /// Routes a packet that came in by a link.
    pub(crate) fn stack(&mut self, from: u32) -> Outcome {
        if let Some(outcome) = self.filter(FilterHook::Prerouting, false, from, None) {
            return outcome;
        }
        let Some(tuple) = self.tuple() else {
            return unknown("the packet has no addresses".to_owned());
        };
        if let Some(outcome) = self.translation(FilterHook::Prerouting, from, None) {
            return outcome;
        }
        let found = route(&*self.node.facts.lookups, Some(from), &tuple);
        let link = self.node.facts.link_name(from);
        match found.decision {
            RouteDecision::Local => {
                let text = format!("{}: for the node itself", found.route);
                self.say("stack", Decision::Route, text);
                self.arrive_at_node()
            }
            RouteDecision::Unreachable => {
                let text = format!("no route for packets from {link}: {}", found.route);
                self.discard("stack", Decision::Route, &text)
            }
            RouteDecision::SourceRefused => {
                let source = ip(&tuple.source);
                let text = format!(
                    "{source} is refused as a source on {link} (reverse path filter, or an \
                     address of the node), or a route rejects the packet: {}",
                    found.route
                );
                self.discard("stack", Decision::Route, &text)
            }
            RouteDecision::Leaves {
                link: to,
                gateway,
                mtu,
            } => {
                let to_name = self.node.facts.link_name(to);
                let text = format!("{}: leaves by {to_name}", found.route);
                self.say("stack", Decision::Route, text);
                let mtu = mtu.unwrap_or(u32::MAX).min(self.mtu(to));
                if self.packet_length() > mtu {
                    let text = format!(
                        "exceeds the MTU of the route, {mtu} bytes: the stack reports the MTU to \
                         the sender, or fragments the packet"
                    );
                    return self.discard("stack", Decision::Mtu, &text);
                }
                for hook in [FilterHook::Forward, FilterHook::Postrouting] {
                    if let Some(outcome) = self.filter(hook, false, from, Some(to)) {
                        return outcome;
                    }
                }
                self.leave(to, gateway.map_or(tuple.destination, address))
            }
        }
    }

    /// Sends a packet out of a link, after routing.
    pub(crate) fn leave(&mut self, link: u32, hop: abi::Address) -> Outcome {
        let world = self.node.world();
        if let Some(uplink) = world.uplinks.get(&link).copied() {
            let ethernet = (uplink.l2_len != 0).then(|| [Mac::default(), self.mac(link)]);
            self.set_ethernet(ethernet);
            return self.uplink_out(link, hop);
        }
        let name = self.node.facts.link_name(link);
        if !world.networks.contains_key(&link) {
            let text = format!("leaves by {name}, which has no programs of Viaduct");
            self.say("stack", Decision::Delivery, text);
            return Outcome::Leaves { link, hop };
        }
        let receiver = world.endpoints.get(&hop).copied();
        let Some(receiver) = receiver.filter(|endpoint| self.pod(endpoint.pod).is_some()) else {
            let text = format!(
                "no pod has the address {}: {name} gets no answer to address resolution",
                ip(&hop)
            );
            return self.discard("stack", Decision::Neighbour, &text);
        };
        self.set_ethernet(Some([receiver.mac, self.mac(link)]));
        self.enter_pod(receiver.pod)
    }

    /// Evaluates the filter tables at a hook. Returns the outcome where they drop the packet.
    fn filter(
        &mut self,
        hook: FilterHook,
        is_bridged: bool,
        from: u32,
        to: Option<u32>,
    ) -> Option<Outcome> {
        let tuple = self.tuple()?;
        let packet = self.filtered(&tuple, from, to);
        let tables = self.node.facts.filters.as_ref()?;
        let at = name(hook);
        match netfilter::evaluate(tables, hook, is_bridged, &packet) {
            Filtered::NoChain => None,
            Filtered::Accepted(chains) => {
                self.say(at, Decision::Netfilter, format!("accepted by {chains}"));
                None
            }
            Filtered::Unknown(by) => {
                let text = format!(
                    "may be dropped by {by}: whether its conditions are met is not known here"
                );
                self.say(at, Decision::Netfilter, text);
                self.doubt(by);
                None
            }
            Filtered::Dropped(by) => {
                Some(self.discard(at, Decision::Netfilter, &format!("dropped by {by}")))
            }
        }
    }

    /// Evaluates the rules of other software that translate destinations. Returns the outcome where
    /// one may apply: where the packet goes then is not known. Packets of a known connection are
    /// translated as its first one was, whatever the rules are.
    pub(crate) fn translation(
        &mut self,
        hook: FilterHook,
        from: u32,
        to: Option<u32>,
    ) -> Option<Outcome> {
        let tuple = self.tuple()?;
        let packet = self.filtered(&tuple, from, to);
        if !packet.is_new {
            return None;
        }
        let tables = self.node.facts.translations.as_ref()?;
        let by = netfilter::translator(tables, hook, &packet)?;
        let text = format!("may get another destination by {by}: which one is not known here");
        self.say(name(hook), Decision::Netfilter, text);
        Some(unknown(format!("the destination that {by} gives")))
    }

    fn filtered(&self, tuple: &Tuple, from: u32, to: Option<u32>) -> FilteredPacket {
        let has_ports = matches!(
            tuple.protocol,
            abi::protocol::TCP | abi::protocol::UDP | abi::protocol::SCTP
        );
        FilteredPacket {
            source: ip(&tuple.source),
            destination: ip(&tuple.destination),
            protocol: tuple.protocol,
            ports: has_ports
                .then(|| [tuple.source_port, tuple.destination_port].map(abi::Port::number)),
            is_local: self.node.world().locals.contains(&tuple.destination),
            input: if from == 0 {
                String::new()
            } else {
                self.node.facts.link_name(from)
            },
            output: to.map(|to| self.node.facts.link_name(to)),
            is_new: !self.is_answer && !self.has_flow,
        }
    }

    /// The node's own stack receives the packet.
    pub(crate) fn arrive_at_node(&mut self) -> Outcome {
        let text = "the node receives it; rules of the hook `input` are not read".to_owned();
        self.say("stack", Decision::Delivery, text);
        Outcome::Node
    }

    /// A program of an uplink at its egress, and the way out.
    pub(crate) fn uplink_out(&mut self, link: u32, hop: abi::Address) -> Outcome {
        use verdict::Verdict;
        match self.run(Place::UplinkOut, link) {
            Verdict::Drop(reason) => Outcome::Dropped {
                place: Place::UplinkOut,
                reason,
            },
            Verdict::Consume => unknown("a fragment is held".to_owned()),
            Verdict::Pass
            | Verdict::Redirect(_)
            | Verdict::RedirectPeer(_)
            | Verdict::RedirectNeigh(_) => {
                let name = self.node.facts.link_name(link);
                let sent = self
                    .tuple()
                    .map(|tuple| crate::sentences::ends(&tuple))
                    .unwrap_or_default();
                let text = format!("leaves by {name} to {} as {sent}", ip(&hop));
                self.say(&name, Decision::Delivery, text);
                Outcome::Leaves { link, hop }
            }
        }
    }
}

/// Returns the name of a hook, as netfilter has it.
const fn name(hook: FilterHook) -> &'static str {
    match hook {
        FilterHook::Prerouting => "prerouting",
        FilterHook::Forward => "forward",
        FilterHook::Postrouting => "postrouting",
        FilterHook::Output => "output",
    }
}
