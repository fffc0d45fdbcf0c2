//! Packets that arrived in one system only, and what the predicates of differences need to know
//! about them.

use abi::protocol;
use e2e::GATEWAYS;
use verdict::simulator::frame::flag;

use super::replay::{Arrival, Sent};
use super::system::{SERVED, Site, node_address, pod_address};
use super::trace::{Action, Base, Path, Protocol, Sequence, Trace, Way};

/// Packets of one flow and direction that arrived in one system only; or of no flow, to one site
/// and of one kind.
pub(super) struct Case<'a> {
    pub(super) trace: &'a Trace,
    pub(super) base: Base,
    /// Whether the reference's `portmap` masquerades pods.
    pub(super) snat: bool,
    /// The number of the step that differs.
    pub(super) step: usize,
    /// What was sent so far.
    pub(super) history: &'a [Sent],
    pub(super) ours: Vec<&'a Arrival>,
    pub(super) theirs: Vec<&'a Arrival>,
}

impl<'a> Case<'a> {
    /// Returns a case for each of the packets.
    pub(super) fn single(&self) -> Vec<Self> {
        let with = |ours: Vec<&'a Arrival>, theirs: Vec<&'a Arrival>| Self {
            ours,
            theirs,
            ..*self
        };
        let ours = self.ours.iter().map(|it| with(vec![it], Vec::new()));
        let theirs = self.theirs.iter().map(|it| with(Vec::new(), vec![it]));
        ours.chain(theirs).collect()
    }

    /// Returns the actions of the step.
    pub(super) fn actions(&self) -> impl Iterator<Item = &Action> {
        self.trace.steps[self.step].actions.iter()
    }

    /// Returns whether the step has fragments.
    pub(super) fn is_fragmented(&self) -> bool {
        self.actions().any(|it| match it {
            Action::Send { packet, .. } => !packet.fragments.is_empty(),
            Action::Error { .. } | Action::Martian { .. } => false,
        })
    }

    /// Returns flow and direction of the packets.
    pub(super) fn flow(&self) -> Option<(usize, Way)> {
        self.ours.iter().chain(&self.theirs).find_map(|it| it.of)
    }

    /// Returns whether an arrival has the addresses and ports that a packet of the flow has in this
    /// direction.
    pub(super) fn is_translated(&self, arrival: &Arrival, flow: usize, way: Way) -> bool {
        let of = &self.trace.flows[flow];
        let wire = &arrival.wire;
        let [from, to] = wire.ports();
        let (client, dialled) = (self.base.client(of), self.base.destination(of));
        match (way, of.path) {
            (Way::Back, _) => (wire.source, from) == dialled && (wire.destination, to) == client,
            (Way::There, Path::Out { .. }) => {
                let mut own = (0..2).map(|number| node_address(number, self.trace.six));
                own.any(|it| it == wire.source) && (wire.destination, to) == dialled
            }
            (Way::There, Path::In { .. } | Path::Between { .. }) => {
                let server = match of.path.server() {
                    Site::Pod(number) => pod_address(number, self.trace.six),
                    Site::World => return false,
                };
                let gateway = GATEWAYS[usize::from(self.trace.six)];
                let hairpin = of.path.client() == of.path.server() && wire.source == gateway;
                (wire.source == client.0 || hairpin)
                    && wire.destination == server
                    && (to == SERVED || !of.protocol.has_ports())
            }
        }
    }

    /// Returns whether netfilter may have no flow for what another flow has sent.
    pub(super) fn has_unknown_beside(&self, flow: usize) -> bool {
        let mut others = self.history.iter().filter(|sent| sent.flow != flow);
        others.any(|sent| {
            let of_tcp = self.trace.flows[sent.flow].protocol == Protocol::Tcp;
            sent.is_lost || sent.is_corrupt || of_tcp && !self.is_regular(sent.flow)
        })
    }

    /// Returns whether the segments of a TCP flow were those of a connection that is opened by a
    /// handshake, and used, so far.
    pub(super) fn is_regular(&self, flow: usize) -> bool {
        let mut opened = [false; 2];
        let segments = self.history.iter().filter(|sent| sent.flow == flow);
        for sent in segments {
            let expected = match (sent.way, opened) {
                (Way::There, [false, false]) => flag::SYN,
                (Way::Back, [true, false]) => flag::SYN | flag::ACK,
                (_, [true, true]) => flag::ACK,
                _ => return false,
            };
            if sent.flags != expected || sent.sequence != Sequence::Next || sent.is_lost {
                return false;
            }
            opened[sent.way as usize] = true;
        }
        true
    }
}

/// Returns whether a packet is from an address of the node.
pub(super) fn is_from_node(arrival: &Arrival, case: &Case<'_>) -> bool {
    let gateway = GATEWAYS[usize::from(case.trace.six)];
    let mut own = (0..2).map(|number| node_address(number, case.trace.six));
    arrival.wire.source == gateway || own.any(|it| it == arrival.wire.source)
}

pub(super) fn is_reset(arrival: &Arrival, case: &Case<'_>) -> bool {
    arrival.wire.protocol == protocol::TCP
        && is_from_node(arrival, case)
        && arrival
            .wire
            .payload
            .get(13)
            .is_some_and(|flags| flags & flag::RST != 0)
}

pub(super) fn is_from_pod(arrival: &Arrival, case: &Case<'_>) -> bool {
    let mut pods = (0..2).map(|number| pod_address(number, case.trace.six));
    pods.any(|pod| arrival.wire.source == pod)
}

pub(super) fn is_untranslated(arrival: &Arrival, case: &Case<'_>) -> bool {
    is_from_pod(arrival, case) && (arrival.site == Site::World || arrival.of.is_some())
}

/// Returns whether a packet has a pod's address where it should not, or that of the node as in a
/// new connection.
pub(super) fn is_not_of_its_flow(arrival: &Arrival, case: &Case<'_>) -> bool {
    let mut own = (0..2).map(|number| node_address(number, case.trace.six));
    is_untranslated(arrival, case)
        || arrival.site == Site::World && own.any(|it| it == arrival.wire.source)
}
