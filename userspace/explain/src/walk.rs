//! Follows a packet from its sender to where its way ends, and the answer back.

use abi::{DropReason, Mac, Tuple};
use steps::{FilterHook, RouteDecision};
use verdict::Verdict;
use verdict::hostport_from_node::{self, SocketRequest};
use verdict::simulator::Place;

use crate::entrance::Entrance;
use crate::explanation::{Decision, Explanation, HookRun, Leg, Outcome, Step};
use crate::frame;
use crate::node::Node;
use crate::question::{Question, Sender, is_loopback};
use crate::sentences::{dropped, end, ends};
use crate::snapshot::{address, ip, route};

/// Explains what happens to a packet, and to the answer to it.
pub fn explain(node: &mut Node, question: &Question) -> Explanation {
    let mut walk = Walk::new(node, question, false);
    let outcome = match question.sender {
        Sender::Pod(slot) => walk.pod_sends(slot, question),
        Sender::Node => walk.node_sends(question),
        Sender::World => walk.world_sends(question),
    };
    let outcome = walk.unless_a_flow_gives_way(outcome);
    let request = walk.finish(outcome);
    let answer = answer(node, question, &request);
    Explanation { request, answer }
}

/// Explains one hook's verdict about a packet at an interface, such as one that was dropped there.
/// The packet goes no further than this hook.
pub fn explain_at(node: &mut Node, place: Place, interface: u32, question: &Question) -> Leg {
    let mut walk = Walk::new(node, question, false);
    let outcome = walk.at(place, interface, question);
    walk.finish(outcome)
}

/// Explains the answer to a packet that has arrived.
fn answer(node: &mut Node, question: &Question, request: &Leg) -> Option<Leg> {
    let sender = match request.outcome {
        Outcome::Pod { slot } => Sender::Pod(slot),
        Outcome::Node => Sender::Node,
        Outcome::Leaves { .. } => Sender::World,
        Outcome::Dropped { .. } | Outcome::Discarded { .. } | Outcome::Unknown { .. } => {
            return None;
        }
    };
    let answered = Question {
        length: question.length,
        ..Question::plain(sender, Question::answer(&request.arrived))
    };
    let mut walk = Walk::new(node, &answered, true);
    let outcome = match request.outcome {
        Outcome::Pod { slot } => walk.pod_sends(slot, &answered),
        Outcome::Node => walk.node_sends(&answered),
        Outcome::Leaves { link, .. } => walk.enters_by(link, &answered),
        Outcome::Dropped { .. } | Outcome::Discarded { .. } | Outcome::Unknown { .. } => {
            return None;
        }
    };
    let outcome = walk.unless_a_flow_gives_way(outcome);
    let mut leg = walk.finish(outcome);
    // The sender accepts an answer from where it has sent the packet to only.
    let expected = request.sent.reverse();
    if leg.outcome.arrives() && leg.arrived != expected {
        for step in &mut leg.steps {
            step.ends = false;
        }
        let text = format!(
            "its receiver expects {}, and discards {}",
            ends(&expected),
            ends(&leg.arrived)
        );
        leg.steps.push(Step {
            at: "receiver".to_owned(),
            decision: Decision::Nat,
            text: text.clone(),
            ends: true,
        });
        leg.outcome = Outcome::Discarded { advice: text };
    }
    Some(leg)
}

/// A packet on its way.
pub(crate) struct Walk<'a> {
    pub(crate) node: &'a mut Node,
    pub(crate) frame: Vec<u8>,
    has_ethernet: bool,
    pub(crate) is_answer: bool,
    /// Whether the packet belongs to a flow that existed before.
    pub(crate) has_flow: bool,
    sent: Tuple,
    pub(crate) steps: Vec<Step>,
    hooks: Vec<HookRun>,
    doubts: Vec<String>,
    /// Number of verdicts that rest on an assumption about the eviction.
    evictions: u32,
}

impl<'a> Walk<'a> {
    fn new(node: &'a mut Node, question: &Question, is_answer: bool) -> Self {
        node.start_packet(question.sender == Sender::Node);
        Self {
            node,
            frame: Vec::new(),
            has_ethernet: false,
            is_answer,
            has_flow: false,
            sent: question.tuple,
            steps: Vec::new(),
            hooks: Vec::new(),
            doubts: Vec::new(),
            evictions: 0,
        }
    }

    fn finish(mut self, outcome: Outcome) -> Leg {
        if let Some(last) = self.steps.last_mut() {
            last.ends = true;
        }
        Leg {
            sent: self.sent,
            arrived: self.tuple().unwrap_or(self.sent),
            steps: self.steps,
            hooks: self.hooks,
            outcome,
            doubts: self.doubts,
        }
    }

    /// Returns the outcome of a packet for which a flow may have to give way: whether one does is
    /// not known, since the order in which the program inspects them cannot be read.
    fn unless_a_flow_gives_way(&mut self, outcome: Outcome) -> Outcome {
        if self.evictions == 0 {
            return outcome;
        }
        let Outcome::Dropped {
            reason: DropReason::FlowQuota | DropReason::FlowTableFull,
            ..
        } = outcome
        else {
            self.doubt("a full flow quota or flow table, if no flow gives way,".to_owned());
            return outcome;
        };
        let by =
            "whether another flow gives way: the order in which flows are inspected cannot be read";
        if let Some(last) = self.steps.last_mut() {
            last.text = format!("not known {by}");
        }
        unknown(by.to_owned())
    }

    /// A pod sends the packet.
    fn pod_sends(&mut self, slot: u32, question: &Question) -> Outcome {
        let Some(pod) = self.pod(slot) else {
            return self.gone(slot);
        };
        let to = match self.resolve(slot, &question.tuple.destination) {
            Ok(mac) => mac,
            Err(outcome) => return outcome,
        };
        let from = question.source_mac(pod.mac);
        self.build(question, Some([to, from]));
        self.node.set_ingress(pod.interface);
        match self.run(Place::FromPod, pod.interface) {
            Verdict::Drop(reason) => Outcome::Dropped {
                place: Place::FromPod,
                reason,
            },
            Verdict::RedirectPeer(link) => self.arrive_at_interface(link),
            Verdict::RedirectNeigh(link) | Verdict::Redirect(link) => {
                let hop = self.node.simulator.next_hop();
                self.uplink_out(link, hop)
            }
            Verdict::Consume => unknown("a fragment is held".to_owned()),
            Verdict::Pass => self.bridge(slot),
        }
    }

    /// Runs the hook of a place only.
    fn at(&mut self, place: Place, interface: u32, question: &Question) -> Outcome {
        let Entrance { ethernet, ingress } = self.entrance(place, interface, question);
        if let Some(first) = frame::preceding(question, ethernet) {
            self.node.set_ingress(ingress);
            // Of no interest but for the tables.
            self.node.run(place, interface, first);
            self.node.start_packet(question.sender == Sender::Node);
        }
        self.build(question, ethernet);
        self.node.set_ingress(ingress);
        match self.run(place, interface) {
            Verdict::Drop(reason) => Outcome::Dropped { place, reason },
            Verdict::RedirectPeer(link) => self.arrive_at_interface(link),
            Verdict::Consume => self.await_first_fragment(place, interface),
            Verdict::Pass | Verdict::Redirect(_) | Verdict::RedirectNeigh(_) => {
                unknown(format!("{} passes it", crate::node::program(place)))
            }
        }
    }

    /// Holds the packet, a later fragment, until it is dropped without the first one.
    fn await_first_fragment(&mut self, place: Place, interface: u32) -> Outcome {
        let link = self.node.facts.link_name(interface);
        let at = format!("{}@{link}", crate::node::program(place));
        let text = "held until the first fragment of its datagram arrives".to_owned();
        self.say(&at, Decision::Admission, text);
        if !self.node.expire_fragments() {
            return unknown("a fragment is held".to_owned());
        }
        let reason = DropReason::FragmentWithoutFirst;
        self.say(&at, Decision::Admission, dropped(reason));
        Outcome::Dropped { place, reason }
    }

    /// A process of the node sends the packet.
    fn node_sends(&mut self, question: &Question) -> Outcome {
        let mut tuple = question.tuple;
        if !self.is_answer {
            self.connect(&mut tuple);
        }
        self.sent = tuple;
        let found = route(&*self.node.facts.lookups, None, &tuple);
        let question = Question { tuple, ..*question };
        self.build(&question, None);
        match found.decision {
            RouteDecision::Local => {
                let text = format!("{}: for the node itself", found.route);
                self.say("stack", Decision::Route, text);
                match self.translation(FilterHook::Output, 0, None) {
                    Some(outcome) => outcome,
                    None => self.arrive_at_node(),
                }
            }
            RouteDecision::Unreachable | RouteDecision::SourceRefused => {
                self.discard("stack", Decision::Route, &found.route)
            }
            RouteDecision::Leaves { link, gateway, .. } => {
                let name = self.node.facts.link_name(link);
                let text = format!("{}: leaves by {name}", found.route);
                self.say("stack", Decision::Route, text);
                if let Some(outcome) = self.translation(FilterHook::Output, 0, Some(link)) {
                    return outcome;
                }
                self.leave(link, gateway.map_or(tuple.destination, address))
            }
        }
    }

    /// Replaces the destination where the cgroup programs would: a hostport of the node.
    fn connect(&mut self, tuple: &mut Tuple) {
        let world = self.node.world();
        let request = SocketRequest {
            netns: world.settings.netns_cookie,
            protocol: tuple.protocol,
            address: tuple.destination,
            port: tuple.destination_port,
        };
        let Some(target) = hostport_from_node::redirect(world, &request) else {
            return;
        };
        let asked = end(tuple, &tuple.destination, tuple.destination_port);
        tuple.destination = target.address;
        tuple.destination_port = target.port;
        let program = if target.address.is_v4() {
            abi::maps::programs::CONNECT4
        } else {
            abi::maps::programs::CONNECT6
        };
        let slot = world.endpoints.get(&target.address).map_or(0, |it| it.pod);
        let bridge = self.pod(slot).map_or(0, |pod| pod.network);
        let network = self.node.world().networks.get(&bridge).copied();
        if is_loopback(&tuple.source) {
            // The kernel chooses the source address by the route to the pod.
            let family = target.address.family();
            tuple.source = network.unwrap_or_default().gateway(family);
        }
        let pod = self.node.facts.pod_name(slot);
        let at = end(tuple, &target.address, target.port);
        let text = format!("{asked} is published: the socket is connected to {pod} at {at}");
        self.say(program, Decision::Hostport, text);
    }

    /// Another machine sends the packet: it arrives by the link that leads to that machine.
    fn world_sends(&mut self, question: &Question) -> Outcome {
        let back = question.tuple.reverse();
        let found = route(&*self.node.facts.lookups, None, &back);
        let source = ip(&question.tuple.source);
        let RouteDecision::Leaves { link, .. } = found.decision else {
            let text = format!("no link leads to {source}: {}", found.route);
            return self.discard("stack", Decision::Route, &text);
        };
        let name = self.node.facts.link_name(link);
        let text = format!("{source} is behind {name}: {}", found.route);
        self.say(&name, Decision::Route, text);
        self.enters_by(link, question)
    }

    /// The packet arrives by a link.
    fn enters_by(&mut self, link: u32, question: &Question) -> Outcome {
        let uplink = self.node.world().uplinks.get(&link).copied();
        let has_ethernet = uplink.is_none_or(|uplink| uplink.l2_len != 0);
        let router = question.source_mac(ROUTER);
        self.build(question, has_ethernet.then(|| [self.mac(link), router]));
        self.node.set_ingress(link);
        if uplink.is_none() {
            return self.stack(link);
        }
        match self.run(Place::UplinkIn, link) {
            Verdict::Drop(reason) => Outcome::Dropped {
                place: Place::UplinkIn,
                reason,
            },
            Verdict::RedirectPeer(to) => self.arrive_at_interface(to),
            Verdict::Consume => unknown("a fragment is held".to_owned()),
            Verdict::Pass | Verdict::Redirect(_) | Verdict::RedirectNeigh(_) => self.stack(link),
        }
    }

    /// Delivers the packet to a pod by its veth.
    pub(crate) fn enter_pod(&mut self, slot: u32) -> Outcome {
        let Some(pod) = self.pod(slot) else {
            return self.gone(slot);
        };
        match self.run(Place::ToPod, pod.interface) {
            Verdict::Drop(reason) => Outcome::Dropped {
                place: Place::ToPod,
                reason,
            },
            Verdict::Pass
            | Verdict::Redirect(_)
            | Verdict::RedirectPeer(_)
            | Verdict::RedirectNeigh(_)
            | Verdict::Consume => self.arrive_at_interface(pod.interface),
        }
    }

    fn arrive_at_interface(&mut self, link: u32) -> Outcome {
        let slot = self.node.world().interfaces.get(&link).map(|it| it.pod);
        let name = self.node.facts.link_name(link);
        let Some(slot) = slot else {
            return unknown(format!("no pod has the interface {name}"));
        };
        let pod = self.node.facts.pod_name(slot);
        let sent = self.tuple().map(|tuple| ends(&tuple)).unwrap_or_default();
        self.say(&name, Decision::Delivery, format!("{pod} receives {sent}"));
        Outcome::Pod { slot }
    }

    /// Runs a hook on the packet.
    pub(crate) fn run(&mut self, place: Place, interface: u32) -> Verdict {
        let frame = std::mem::take(&mut self.frame);
        let trace = self.node.run(place, interface, frame);
        self.frame = trace.frame;
        self.has_flow |= trace.has_flow;
        self.evictions += u32::from(trace.depends_on_eviction);
        self.steps.extend(trace.steps);
        self.hooks.push(trace.run);
        trace.run.verdict
    }

    fn build(&mut self, question: &Question, ethernet: Option<[Mac; 2]>) {
        self.has_ethernet = ethernet.is_some();
        self.frame = frame::build(question, self.is_answer, ethernet);
        self.node.set_tag(question.shape.outer_vlan());
    }

    pub(crate) fn set_ethernet(&mut self, ethernet: Option<[Mac; 2]>) {
        frame::set_ethernet(&mut self.frame, self.has_ethernet, ethernet);
        self.has_ethernet = ethernet.is_some();
    }

    pub(crate) fn tuple(&self) -> Option<Tuple> {
        frame::read(&self.frame, self.has_ethernet)
    }

    /// Returns the length of the packet in bytes from the IP header on.
    pub(crate) fn packet_length(&self) -> u32 {
        let header = if self.has_ethernet {
            frame::ETHERNET
        } else {
            0
        };
        u32::try_from(self.frame.len().saturating_sub(header)).unwrap_or(u32::MAX)
    }

    pub(crate) fn pod(&self, slot: u32) -> Option<abi::Pod> {
        let pod = self.node.world().pods.get(slot as usize).copied();
        pod.filter(|pod| pod.interface != 0)
    }

    pub(crate) fn mac(&self, link: u32) -> Mac {
        let link = self.node.facts.links.get(&link);
        link.map_or_else(Mac::default, |link| link.mac)
    }

    /// Returns the MTU of a link in bytes; any packet fits a link that is not known.
    pub(crate) fn mtu(&self, link: u32) -> u32 {
        let link = self.node.facts.links.get(&link);
        link.map_or(u32::MAX, |link| link.mtu)
    }

    pub(crate) fn say(&mut self, at: &str, decision: Decision, text: String) {
        self.steps.push(Step {
            at: at.to_owned(),
            decision,
            text,
            ends: false,
        });
    }

    pub(crate) fn discard(&mut self, at: &str, decision: Decision, text: &str) -> Outcome {
        self.say(at, decision, text.to_owned());
        Outcome::Discarded {
            advice: format!("{at}: {text}"),
        }
    }

    pub(crate) fn doubt(&mut self, by: String) {
        self.doubts.push(by);
    }

    pub(crate) fn gone(&mut self, slot: u32) -> Outcome {
        let text = format!("{} has no interface", self.node.facts.pod_name(slot));
        self.discard("node", Decision::Admission, &text)
    }
}

pub(crate) const fn unknown(by: String) -> Outcome {
    Outcome::Unknown { by }
}

/// MAC address of the next router in frames from outside. None of the programs reads it.
pub(crate) const ROUTER: Mac = Mac::new([2, 0, 0, 0, 0, 0xfe]);
