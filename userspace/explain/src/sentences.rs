//! The decisions of the stages in words.

use abi::{Address, Direction, DropReason, EndpointFlags, SettingsFlags, Tuple};
use verdict::simulator::World;
use verdict::{Fit, HostportMatch, Lack, Origin, Transport, Verdict, Work};

use crate::explanation::Decision;
use crate::question::has_ports;
use crate::snapshot::{Snapshot, ip, socket_address};

/// A decision in words; `None` where there is nothing to say.
pub(crate) type Described = Option<(Decision, String)>;
type Sentences = Vec<(Decision, String)>;

/// What a sentence is about: the state after a stage.
pub(crate) struct View<'a> {
    pub(crate) world: &'a World,
    pub(crate) work: &'a Work,
    pub(crate) facts: &'a Snapshot,
}

/// Returns the kind of decision that drops for a reason, where that does not depend on the stage.
pub(crate) const fn decision_of(reason: DropReason) -> Option<Decision> {
    use DropReason as R;
    match reason {
        R::Malformed
        | R::TooManyHeaders
        | R::TinyFragment
        | R::OverlappingFragment
        | R::FragmentWithoutFirst
        | R::TaggedTwice
        | R::UnknownVlan
        | R::ForeignFrame
        | R::Duplicate => Some(Decision::Admission),
        R::SpoofedMac
        | R::SpoofedAddress
        | R::SpoofedFromOutside
        | R::Martian
        | R::TunnelForeignSender
        | R::TunnelSource
        | R::RogueRouter
        | R::RogueDhcp => Some(Decision::Sender),
        R::IngressPolicy
        | R::DirectAccess
        | R::InternalNetwork
        | R::TunnelDestination
        | R::NetworkPolicy => Some(Decision::Policy),
        R::StaleGeneration => Some(Decision::Hostport),
        R::NoPort
        | R::FlowTableFull
        | R::FlowQuota
        | R::NatClash
        | R::NoFlow
        | R::ErrorWithoutFlow => Some(Decision::Flow),
        R::NoSourceAddress | R::NoEgressAddress | R::RewriteFailed => Some(Decision::Nat),
        R::UnknownUplink => Some(Decision::Route),
        R::RateLimit => Some(Decision::Limit),
        R::UnknownPod => None,
    }
}

/// Returns the sentence about a dropped packet: the reason, and the first sentence of its meaning.
pub(crate) fn dropped(reason: DropReason) -> String {
    let meaning = reason.meaning().trim();
    let first = meaning.split_once(". ").map_or(meaning, |(first, _)| first);
    format!(
        "dropped as {}: {}",
        reason.name(),
        first.trim_end_matches('.')
    )
}

/// Returns the sentence about policies that do not forbid the packet.
pub(crate) fn policy() -> Sentences {
    vec![(Decision::Policy, "no policy forbids it".to_owned())]
}

/// Returns the sentence about network policies that allow the packet.
pub(crate) fn allowed(view: &View<'_>) -> Sentences {
    let slots = [
        &view.work.policy.ends.source,
        &view.work.policy.ends.destination,
    ]
    .map(|address| slot_of(view.world, address));
    let has_policies = |slot: &u32| view.facts.policies.contains_key(slot);
    if slots.iter().flatten().any(has_policies) {
        vec![(Decision::Policy, "network policies allow it".to_owned())]
    } else {
        Vec::new()
    }
}

/// Returns the sentence about the network policies that do not allow the packet: those of the end
/// that was checked last.
pub(crate) fn refused(view: &View<'_>) -> String {
    let policy = &view.work.policy;
    let (slot, ends) = (policy.pod, &policy.ends);
    let pod = view.facts.pods.get(&slot).map_or("a pod", String::as_str);
    let is_sender = slot_of(view.world, &ends.source) == Some(slot);
    let direction = if is_sender { "egress" } else { "ingress" };
    let names = view.facts.policies.get(&slot);
    let names = names.map_or_else(String::new, |names| format!(" ({})", names.join(", ")));
    format!(
        "dropped as {}: no rule for {direction} of the network policies of {pod}{names} allows {} by {}",
        DropReason::NetworkPolicy.name(),
        self::ends(ends),
        protocol(ends.protocol)
    )
}

fn protocol(number: u8) -> String {
    let known = model::Protocol::from_number(number);
    known.map_or_else(|| format!("protocol {number}"), |known| known.to_string())
}

fn slot_of(world: &World, address: &Address) -> Option<u32> {
    world.endpoints.get(address).map(|endpoint| endpoint.pod)
}

/// Returns the sentence about an eviction.
pub(crate) fn evicted(lack: Lack, evicted: bool) -> String {
    let missing = match lack {
        Lack::Place => "the flow table or the pod's quota has no free entry",
        Lack::Port => "no source port is free",
    };
    if evicted {
        format!("{missing}: another flow is evicted")
    } else {
        format!("{missing}, and no flow can be evicted")
    }
}

/// Returns the sentence about the MTU of the receiving pod.
pub(crate) fn fit(fit: Fit) -> Sentences {
    let text = match fit {
        Fit::Fits => return Vec::new(),
        Fit::ForwardTranslated | Fit::ForwardUnchanged => {
            "exceeds the MTU of the receiving pod: the stack fragments it, or reports the MTU"
        }
    };
    vec![(Decision::Mtu, text.to_owned())]
}

/// Shows source and destination of a tuple, with their ports where the protocol has some.
pub(crate) fn ends(tuple: &Tuple) -> String {
    let [source, destination] = [
        end(tuple, &tuple.source, tuple.source_port),
        end(tuple, &tuple.destination, tuple.destination_port),
    ];
    format!("{source} -> {destination}")
}

/// Shows an address of a tuple with its port.
pub(crate) fn end(tuple: &Tuple, address: &Address, port: abi::Port) -> String {
    if has_ports(tuple.protocol) {
        socket_address(address, port).to_string()
    } else {
        ip(address).to_string()
    }
}

/// The lookup of the hostport.
pub(crate) fn hostport(view: &View<'_>, found: HostportMatch) -> Sentences {
    let tuple = &view.work.headers.tuple;
    let destination = end(tuple, &tuple.destination, tuple.destination_port);
    let text = match found {
        HostportMatch::None => format!("{destination} is no published port"),
        HostportMatch::Socket => {
            format!(
                "{destination} is a published port, but a socket of the node has this connection"
            )
        }
        HostportMatch::Direct => {
            let pod = view.facts.pod_name(view.work.endpoint.pod);
            format!("{destination} is {pod}'s own address, and no published port")
        }
        HostportMatch::Pod => {
            let hostport = &view.work.hostport;
            let pod = view.facts.pod_name(hostport.pod);
            let at = end(tuple, &hostport.address, hostport.port);
            if at == destination {
                format!("{destination} is {pod}'s own address: the flow is tracked")
            } else {
                format!("{destination} is published by {pod} at {at}")
            }
        }
    };
    vec![(Decision::Hostport, text)]
}

/// The origin of a packet that leaves by an uplink.
pub(crate) fn origin(view: &View<'_>, origin: Origin) -> Sentences {
    let source = ip(&view.work.headers.tuple.source);
    let text = match origin {
        Origin::Elsewhere => format!("{source} leaves as it is: it is not masqueraded"),
        Origin::Pod => format!("{source} is a pod's address: it is masqueraded"),
        Origin::Collision => {
            "a pod's flow has the source port: the node's packet gets another one".to_owned()
        }
        Origin::Untranslated => {
            format!("{source} is the node's, without a socket: its port is reserved")
        }
        Origin::Tracked => {
            format!("{source} leaves as it is: the flow is tracked, so that replies may enter")
        }
    };
    vec![(Decision::Nat, text)]
}

/// An attempt to insert a flow.
pub(crate) fn opened(view: &View<'_>, is_open: bool) -> Sentences {
    if !is_open {
        return Vec::new();
    }
    let pair = &view.work.pair;
    let text = if pair.original.key == pair.original.flow.translated {
        "opens a flow without translation"
    } else {
        "opens a flow"
    };
    vec![(Decision::Flow, text.to_owned())]
}

/// The path of a packet.
pub(crate) fn path(view: &View<'_>, verdict: Verdict) -> Sentences {
    let text = match verdict {
        Verdict::RedirectPeer(link) => {
            let slot = view.world.interfaces.get(&link).map_or(0, |it| it.pod);
            let pod = view.facts.pod_name(slot);
            format!("redirected to {pod}, past bridge and stack")
        }
        Verdict::RedirectNeigh(link) => format!(
            "redirected out of {} to {}, past bridge and stack",
            view.facts.link_name(link),
            ip(&view.work.hop)
        ),
        Verdict::Redirect(link) => {
            format!("redirected out of {}", view.facts.link_name(link))
        }
        Verdict::Consume => "held until the first fragment arrives".to_owned(),
        Verdict::Pass => format!("takes bridge and stack{}", view.why_not_redirected()),
        Verdict::Drop(_) => return Vec::new(),
    };
    vec![(Decision::Path, text)]
}

impl Snapshot {
    /// Returns the name of a link, or `#` and its index.
    pub(crate) fn link_name(&self, index: u32) -> String {
        self.links
            .get(&index)
            .map_or_else(|| format!("#{index}"), |link| link.name.clone())
    }

    /// Returns the name of a pod.
    pub(crate) fn pod_name(&self, slot: u32) -> String {
        match self.pods.get(&slot) {
            Some(name) => format!("pod {name}"),
            None => format!("the pod in slot {slot}"),
        }
    }
}

impl View<'_> {
    /// A packet that a pod has sent.
    pub(crate) fn admitted(&self) -> Sentences {
        let pod = self.facts.pod_name(self.work.pod);
        let text = format!("a frame of {pod}, {} bytes of IP", self.work.headers.length);
        vec![(Decision::Admission, text)]
    }

    /// A packet that an uplink has received.
    pub(crate) fn entering(&self) -> Sentences {
        let text = format!(
            "a packet of {} bytes, without a flow",
            self.work.headers.length
        );
        vec![(Decision::Admission, text)]
    }

    /// A pod's packet that has passed the checks of its sender.
    pub(crate) fn sender(&self) -> Sentences {
        let flags = self.pod(self.work.pod).map_or(0, |pod| pod.flags);
        let text = if flags & EndpointFlags::SPOOF_CHECK == 0 {
            "the pod has no spoof check".to_owned()
        } else {
            let source = ip(&self.work.headers.tuple.source);
            format!("MAC address and {source} are the pod's")
        };
        vec![(Decision::Sender, text)]
    }

    /// A packet from outside whose source is no pod's.
    pub(crate) fn outside_source(&self) -> Sentences {
        let source = ip(&self.work.headers.tuple.source);
        let text = format!("{source} is no address of this node's pods, and may be on a wire");
        vec![(Decision::Sender, text)]
    }

    /// A packet that its sender's limit has let pass.
    pub(crate) fn charged(&self, direction: Direction) -> Sentences {
        self.limit(self.work.pod, direction)
    }

    /// A redirected packet that its receiver's limit has let pass.
    pub(crate) fn receiver_charged(&self) -> Sentences {
        if self.work.endpoint.flags & EndpointFlags::LIMITED == 0 {
            return Vec::new();
        }
        self.limit(self.work.endpoint.pod, Direction::Ingress)
    }

    fn limit(&self, slot: u32, direction: Direction) -> Sentences {
        let Some(limit) = self.world.limits.get(&(slot, direction)) else {
            return Vec::new();
        };
        let word = match direction {
            Direction::Egress => "egress",
            Direction::Ingress => "ingress",
        };
        let text = format!(
            "within the {word} limit of {}, {} bit/s",
            self.facts.pod_name(slot),
            limit.rate
        );
        vec![(Decision::Limit, text)]
    }

    /// The lookup of the packet's flow.
    pub(crate) fn flow(&self, found: bool) -> Sentences {
        let text = if !found {
            "no flow has these addresses and ports"
        } else if self.work.headers.tuple == self.work.translated {
            "belongs to a known flow, which is not translated"
        } else {
            "belongs to a known flow"
        };
        vec![(Decision::Flow, text.to_owned())]
    }

    /// The masquerade address.
    pub(crate) fn source_chosen(&self) -> Sentences {
        let link = self.facts.link_name(self.work.interface);
        let text = format!("masquerade address {} for {link}", ip(&self.work.source));
        vec![(Decision::Nat, text)]
    }

    /// The tuple that was written into a packet with the tuple `before`.
    pub(crate) fn translated(&self, before: &Tuple) -> Sentences {
        let written = &self.work.translated;
        if written == before {
            return Vec::new();
        }
        vec![(Decision::Nat, format!("becomes {}", ends(written)))]
    }

    /// Returns the known reason for which a packet takes the stack, as the end of a sentence.
    fn why_not_redirected(&self) -> &'static str {
        let is_allowed = self.world.settings.flags & SettingsFlags::BYPASS != 0;
        let may_bypass = |slot| {
            self.pod(slot)
                .is_some_and(|pod| pod.flags & EndpointFlags::BYPASS != 0)
        };
        if !is_allowed {
            ": the fast path is off on this node"
        } else if self.work.pod != 0 && !may_bypass(self.work.pod) {
            ": the pod's port has properties that only the bridge applies"
        } else if matches!(
            self.work.headers.transport,
            Transport::Portless | Transport::IcmpOther | Transport::IcmpError | Transport::None
        ) {
            ": the fast path takes TCP, UDP, SCTP and ICMP echo only"
        } else {
            ""
        }
    }

    fn pod(&self, slot: u32) -> Option<&abi::Pod> {
        self.world.pods.get(slot as usize)
    }
}
