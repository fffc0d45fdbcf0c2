//! An explanation: what was decided about a packet, and about the answer to it.

use abi::{Address, DropReason, Tuple};
use verdict::Verdict;
use verdict::simulator::Place;

/// What happens to a packet and to the answer to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The packet.
    pub request: Leg,
    /// The answer to it; `None` where the packet does not arrive, or is not answered.
    pub answer: Option<Leg>,
}

impl Explanation {
    /// Returns whether packet and answer both arrive, as far as is known.
    pub fn passes(&self) -> bool {
        self.request.outcome.arrives()
            && self
                .answer
                .as_ref()
                .is_none_or(|answer| answer.outcome.arrives())
    }
}

/// The way of one packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leg {
    /// Addresses, ports and protocol of the packet as it is sent.
    pub sent: Tuple,
    /// The same as it was where its way ended.
    pub arrived: Tuple,
    /// The decisions in their order. The last one ends the way.
    pub steps: Vec<Step>,
    /// The runs of hooks in their order.
    pub hooks: Vec<HookRun>,
    /// The end of the way.
    pub outcome: Outcome,
    /// Rules and policies that may end the way before: it is not known here whether their
    /// conditions are met.
    pub doubts: Vec<String>,
}

/// One decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Where it is taken: `from_pod@veth1234`, `stack`, `bridge@cbr0`.
    pub at: String,
    /// What is decided.
    pub decision: Decision,
    /// The decision in words.
    pub text: String,
    /// Whether the packet's way ends with it.
    pub ends: bool,
}

/// Kind of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Decision {
    /// Whether the packet may enter at all.
    Admission,
    /// Whether the packet has its sender's addresses.
    Sender,
    /// Whether policies of pods and networks allow it.
    Policy,
    /// Whether it is for a published port.
    Hostport,
    /// The flow that it belongs to, or opens.
    Flow,
    /// The addresses and ports that are written into it.
    Nat,
    /// The next hop.
    Route,
    /// Whether it fits the links on its way.
    Mtu,
    /// Bandwidth limits.
    Limit,
    /// Whether it bypasses bridge and stack.
    Path,
    /// Rules of netfilter.
    Netfilter,
    /// Forwarding by a bridge.
    Bridge,
    /// Address resolution by the sender.
    Neighbour,
    /// Arrival.
    Delivery,
}

impl Decision {
    /// Returns the name in the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Admission => "admission",
            Self::Sender => "sender",
            Self::Policy => "policy",
            Self::Hostport => "hostport",
            Self::Flow => "flow",
            Self::Nat => "nat",
            Self::Route => "route",
            Self::Mtu => "mtu",
            Self::Limit => "limit",
            Self::Path => "path",
            Self::Netfilter => "netfilter",
            Self::Bridge => "bridge",
            Self::Neighbour => "neighbour",
            Self::Delivery => "delivery",
        }
    }
}

/// The run of a hook on a frame, with its decisions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookTrace {
    /// The run.
    pub run: HookRun,
    /// The frame as the hook left it.
    pub frame: Vec<u8>,
    /// The decisions.
    pub steps: Vec<Step>,
    /// Whether the packet belongs to a flow that existed before.
    pub has_flow: bool,
    /// Whether the verdict rests on an assumption about the eviction: which flows it inspects
    /// depends on the order of a queue that cannot be read.
    pub depends_on_eviction: bool,
}

/// The run of a hook on the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HookRun {
    /// The hook.
    pub place: Place,
    /// Interface index.
    pub interface: u32,
    /// Its verdict.
    pub verdict: Verdict,
}

/// The end of a packet's way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A pod receives it.
    Pod {
        /// Slot of the pod.
        slot: u32,
    },
    /// The node receives it.
    Node,
    /// It leaves the node.
    Leaves {
        /// Interface index of the link.
        link: u32,
        /// The next hop.
        hop: Address,
    },
    /// A program of the datapath drops it.
    Dropped {
        /// The hook.
        place: Place,
        /// The reason.
        reason: DropReason,
    },
    /// Bridge or stack, or the sender itself, discard it.
    Discarded {
        /// Why, and what to do.
        advice: String,
    },
    /// It is not known.
    Unknown {
        /// What decides about it.
        by: String,
    },
}

impl Outcome {
    /// Returns whether the packet arrives where it was sent to.
    pub const fn arrives(&self) -> bool {
        match self {
            Self::Pod { .. } | Self::Node | Self::Leaves { .. } => true,
            Self::Dropped { .. } | Self::Discarded { .. } | Self::Unknown { .. } => false,
        }
    }

    /// Returns the name in the API.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Pod { .. } => "pod",
            Self::Node => "node",
            Self::Leaves { .. } => "leaves",
            Self::Dropped { .. } => "dropped",
            Self::Discarded { .. } => "discarded",
            Self::Unknown { .. } => "unknown",
        }
    }
}
