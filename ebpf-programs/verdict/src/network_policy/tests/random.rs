//! Random packets between two pods with random policies, beside a model that knows connections and
//! no tables.

use std::collections::BTreeSet;

use abi::{EndpointFlags, Port, RuleSets, Tuple, protocol};
use proptest::prelude::*;

use super::{
    ACK, CLIENT, FROM_POD, NOTHING, OTHER_POD, POD, POD_PORT, REFUSED, SYN, TO_OTHER, WAYS, Way,
    deliver, node_with, of_other, of_pod, other_pod, passes, tcp, udp,
};
use crate::simulator::Simulator;
use crate::simulator::frame::{Body, Frame};

/// Rule sets of a pod: ingress and egress.
type Sets = (u32, u32);

#[derive(Clone, Debug)]
enum Event {
    /// A packet from the first pod to the second, or the other way.
    Packet {
        from_first: bool,
        family: usize,
        body: Body,
    },
    /// New policies of both pods.
    Policies([Sets; 2]),
}

fn sets() -> impl Strategy<Value = [Sets; 2]> {
    let rules = || prop_oneof![Just(0), Just(NOTHING), Just(TO_OTHER), Just(FROM_POD)];
    ((rules(), rules()), (rules(), rules())).prop_map(|(first, second)| [first, second])
}

fn event() -> impl Strategy<Value = Event> {
    let port = || prop_oneof![Just(CLIENT), Just(POD_PORT), Just(POD_PORT + 1)];
    let body = (port(), port(), 0..4_u8).prop_map(|(from, to, kind)| match kind {
        0 => udp(from, to),
        1 => tcp(from, to, SYN),
        2 => tcp(from, to, SYN | ACK),
        _ => tcp(from, to, ACK),
    });
    let packet =
        (any::<bool>(), 0..2_usize, body).prop_map(|(from_first, family, body)| Event::Packet {
            from_first,
            family,
            body,
        });
    prop_oneof![9 => packet, 1 => sets().prop_map(Event::Policies)]
}

/// What network policies mean: a connection that one end opens and the other accepts, and answers.
struct Model {
    way: Way,
    /// Of the first and the second pod.
    sets: [Sets; 2],
    /// Answers that a pod may send or receive: its index, and their tuple.
    answers: BTreeSet<(usize, Tuple)>,
}

impl Model {
    /// Returns whether a packet arrives that the pod with this index sends to the other.
    fn arrives(&mut self, from: usize, tuple: &Tuple, opens: bool) -> bool {
        let to = 1 - from;
        let is_answer = |model: &Self, end| !opens && model.answers.contains(&(end, *tuple));
        let answers = [from, to].map(|end| is_answer(self, end));
        let ((of_sender, egress), (ingress, of_receiver)) = (self.sets[from], self.sets[to]);
        let may_send = answers[0] || allows(egress, to, tuple);
        let may_arrive = may_send && (answers[1] || allows(ingress, from, tuple));
        // What goes through the stack is checked behind netfilter, and recorded before.
        let is_recorded = may_arrive || (self.way == Way::Stack && !answers[0]);
        if of_sender != 0 && !answers[0] && is_recorded {
            self.answers.insert((from, tuple.reverse()));
        }
        if of_receiver != 0 && !answers[1] && may_arrive {
            self.answers.insert((to, tuple.reverse()));
        }
        may_arrive
    }
}

/// Returns whether a rule set allows a connection whose other end is the pod with this index.
fn allows(rules: u32, peer: usize, tuple: &Tuple) -> bool {
    let is_named = match rules {
        0 => return true,
        TO_OTHER => peer == 1,
        FROM_POD => peer == 0,
        _ => false,
    };
    is_named && tuple.destination_port == Port::new(POD_PORT)
}

fn put(simulator: &mut Simulator, sets: [Sets; 2]) {
    for (slot, (ingress, egress)) in [POD, OTHER_POD].into_iter().zip(sets) {
        let sets = RuleSets {
            generation: 40 + slot,
            ingress,
            egress,
        };
        simulator.world.rule_sets.insert(slot, sets);
    }
}

fn tuple_of(frame: &Frame, body: &Body) -> Tuple {
    let (number, ports) = match body {
        Body::Tcp(from, to, ..) => (protocol::TCP, [*from, *to]),
        Body::Udp(from, to, _) => (protocol::UDP, [*from, *to]),
        Body::UdpUnchecked(..) | Body::Sctp(..) | Body::Icmp(..) | Body::Other(..) => {
            unreachable!("{body:?}")
        }
    };
    let [source_port, destination_port] = ports.map(Port::new);
    Tuple {
        source: frame.source,
        destination: frame.destination,
        source_port,
        destination_port,
        protocol: number,
        ..Tuple::default()
    }
}

proptest! {
    #[test]
    fn packets_arrive_as_the_policies_of_both_ends_say(
        first in sets(),
        events in prop::collection::vec(event(), 1..60),
        way in 0..2_usize,
        cached in any::<bool>(),
        published in any::<bool>(),
    ) {
        let way = WAYS[way];
        let mut simulator = node_with(way, first);
        simulator.world.memory.disabled = !cached;
        // Of published pods, some packets are checked before the stack and others behind it.
        if !published || way == Way::Stack {
            for endpoint in simulator.world.endpoints.values_mut() {
                endpoint.flags &= !EndpointFlags::PUBLISHED;
            }
        }
        let mut model = Model { way, sets: first, answers: BTreeSet::new() };
        for event in events {
            match event {
                Event::Policies(sets) => {
                    put(&mut simulator, sets);
                    model.sets = sets;
                }
                Event::Packet { from_first, family, body } => {
                    let opens = matches!(body, Body::Tcp(_, _, SYN, _));
                    let frame = if from_first {
                        of_pod(family, other_pod()[family], body.clone())
                    } else {
                        of_other(family, body.clone())
                    };
                    let tuple = tuple_of(&frame, &body);
                    let expected = model.arrives(usize::from(!from_first), &tuple, opens);
                    let verdict = deliver(&mut simulator, &frame);
                    prop_assert!(passes(verdict) || verdict == REFUSED, "{:?}", verdict);
                    prop_assert_eq!(passes(verdict), expected, "{:?} {:?}", way, tuple);
                }
            }
        }
    }
}
