//! Executes a trace on one system: builds the packets of each step, and records what arrives.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use anyhow::Result;
use verdict::simulator::frame::flag;

use super::kinds::{errors, martians};
use super::packet::{Header, Place, Segment};
use super::reassembly::Reassembly;
use super::system::{SITES, Scene, Site, System};
use super::trace::{
    Action, Base, Content, Flow, Path, Protocol, Quote, Sequence, Step, Trace, Way,
};
use super::wire::{Wire, header_length};

/// First byte of the payload of each packet of a trace.
const TAG: u8 = 0xd1;
/// Flow number of packets that belong to no flow.
const NO_FLOW: usize = 0xff;

/// A packet that arrived.
#[derive(Clone, Debug)]
pub(super) struct Arrival {
    pub(super) site: Site,
    pub(super) wire: Wire,
    /// The flow and direction of the packet, if it is one of the trace's.
    pub(super) of: Option<(usize, Way)>,
    /// The packet for the comparison.
    pub(super) text: String,
}

/// A packet that was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) flow: usize,
    pub(super) way: Way,
    /// TCP flags.
    pub(super) flags: u8,
    pub(super) sequence: Sequence,
    /// Whether its checksum is wrong.
    pub(super) is_corrupt: bool,
    /// Whether the packet went in fragments that no receiver puts together, or not before other
    /// packets of the step; or is too big for the next link.
    pub(super) is_lost: bool,
}

/// A run of a trace on a system.
pub(super) struct Replay<'a> {
    system: &'a System,
    scene: &'a Scene,
    trace: &'a Trace,
    base: Base,
    states: Vec<State>,
    reassembly: BTreeMap<Site, Reassembly>,
    /// Whether the step has one action.
    is_alone: bool,
    /// Packets of each site so far: pods number their packets alike.
    numbers: BTreeMap<Site, u16>,
    /// TCP segments in the order of sending.
    history: Vec<Sent>,
    /// Flows with another source port than the client's, by the tuple that their server sees.
    moved: BTreeMap<Tuple, BTreeSet<usize>>,
}

/// Protocol, and both addresses and ports.
type Tuple = (u8, IpAddr, u16, IpAddr, u16);

#[derive(Clone, Debug, Default)]
struct State {
    /// Next sequence number of each direction.
    next: [u32; 2],
    /// The last packet of each direction as its receiver got it.
    received: [Option<Wire>; 2],
    /// The last packet of each direction as its sender sent it.
    sent: [Option<Vec<u8>>; 2],
}

impl<'a> Replay<'a> {
    pub(super) fn new(system: &'a System, scene: &'a Scene, trace: &'a Trace, base: Base) -> Self {
        Self {
            system,
            scene,
            trace,
            base,
            states: vec![State::default(); trace.flows.len()],
            reassembly: SITES.map(|site| (site, Reassembly::default())).into(),
            moved: BTreeMap::new(),
            history: Vec::new(),
            numbers: BTreeMap::new(),
            is_alone: true,
        }
    }

    /// Returns what was sent so far.
    pub(super) fn history(&self) -> &[Sent] {
        &self.history
    }

    /// Executes a step, and returns the packets that were sent and those that arrived.
    pub(super) fn step(&mut self, step: &Step) -> Result<(Vec<String>, Vec<Arrival>)> {
        self.is_alone = step.actions.len() == 1;
        let mut frames = step
            .actions
            .iter()
            .map(|action| self.frames(action))
            .collect::<Vec<_>>();
        if step.interleaved {
            let most = frames.iter().map(Vec::len).max().unwrap_or(0);
            frames = (0..most)
                .map(|at| {
                    frames
                        .iter()
                        .filter_map(|list| list.get(at).cloned())
                        .collect()
                })
                .collect();
        }
        let frames = frames.concat();
        let arrived = self.system.exchange(&frames)?;
        let mut whole = Vec::new();
        for (site, bytes) in arrived {
            let Some(wire) = Wire::parse(&bytes).filter(|wire| !wire.is_of_neighbours()) else {
                continue;
            };
            let complete = self.reassembly.entry(site).or_default().take(wire);
            whole.extend(complete.map(|wire| (site, wire)));
        }
        let arrivals = whole
            .into_iter()
            .map(|(site, wire)| self.record(site, wire))
            .collect::<Vec<_>>()
            .into_iter()
            .map(|arrival| self.named(arrival))
            .collect();
        let sent = frames
            .iter()
            .map(|(site, bytes)| self.sent_text(*site, bytes));
        Ok((sent.collect(), arrivals))
    }

    /// Adds the text of an arrival. All packets of the step must be recorded before.
    fn named(&self, mut arrival: Arrival) -> Arrival {
        let packet = arrival.wire.text(&|wire| self.names(wire));
        arrival.text = format!("{:?} gets {packet}", arrival.site);
        if let Some(pod) = self.masqueraded_pod(&arrival) {
            // See the difference "a client pod's address".
            let client = format!("gets pod {pod}:");
            arrival.text = arrival.text.replace("gets gateway:", &client);
        }
        arrival
    }

    /// Returns the pod that a packet is from, if the reference's `portmap` has masqueraded it.
    fn masqueraded_pod(&self, arrival: &Arrival) -> Option<usize> {
        let (flow, Way::There) = arrival.of? else {
            return None;
        };
        let Path::Between { pod, .. } = self.trace.flows[flow].path else {
            return None;
        };
        (self.scene.snat && arrival.site != Site::Pod(pod)).then_some(pod)
    }

    fn sent_text(&self, site: Site, bytes: &[u8]) -> String {
        let Some(wire) = Wire::parse(bytes) else {
            return String::new();
        };
        match wire.place() {
            Some(place) => {
                let [source, destination] =
                    [wire.source, wire.destination].map(|address| self.base.name(address));
                format!("{site:?} sends {source} > {destination} {place}")
            }
            None => format!("{site:?} sends {}", wire.text(&|wire| self.names(wire))),
        }
    }

    /// Returns the frames of an action, which may be none: a reply to a packet that did not
    /// arrive, or a packet beyond the sender's MTU.
    fn frames(&mut self, action: &Action) -> Vec<(Site, Vec<u8>)> {
        let (site, packets) = match action {
            Action::Send { flow, way, packet } => {
                let of = self.trace.flows[*flow];
                let site = match way {
                    Way::There => of.path.client(),
                    Way::Back => of.path.server(),
                };
                let before = self.states[*flow].clone();
                let packets = self.packets(*flow, *way, packet).unwrap_or_default();
                let packets = self.sendable(site, packets);
                if packets.is_empty() {
                    self.states[*flow] = before;
                } else {
                    self.history.push(Sent {
                        flow: *flow,
                        way: *way,
                        flags: packet.flags,
                        sequence: packet.sequence,
                        is_corrupt: packet.corrupt,
                        is_lost: !packet.is_complete(of.protocol)
                            || !self.is_alone && !packet.fragments.is_empty()
                            || self.is_too_big(packet),
                    });
                }
                (site, packets)
            }
            Action::Error {
                flow,
                about,
                kind,
                quote,
                by_router,
            } => {
                let path = self.trace.flows[*flow].path;
                let site = match about {
                    Way::There => path.server(),
                    Way::Back => path.client(),
                };
                let by_router = *by_router && site == Site::World;
                let error = self.error((*flow, *about), *kind, *quote, by_router);
                (site, error.into_iter().collect())
            }
            Action::Martian { flow, source } => {
                let of = self.trace.flows[*flow];
                (
                    of.path.client(),
                    self.martian(&of, *source).into_iter().collect(),
                )
            }
        };
        let packets = self.sendable(site, packets);
        packets.into_iter().map(|packet| (site, packet)).collect()
    }

    /// Returns whether a node cannot forward a packet, if it is for the side with the smaller MTU.
    fn is_too_big(&self, content: &Content) -> bool {
        let smaller = self.scene.uplink_mtu.min(self.scene.pod_mtu);
        let may_fragment = !content.dont_fragment && !self.trace.six;
        content.fragments.is_empty() && content.size > smaller - 60 && !may_fragment
    }

    /// Returns the packets if all are within the sender's MTU, else none.
    fn sendable(&self, site: Site, packets: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        let mtu = self.scene.mtu(site);
        if packets.iter().any(|packet| packet.len() > mtu) {
            return Vec::new();
        }
        packets
    }

    /// Returns the packet of a flow, whole or in fragments.
    fn packets(&mut self, flow: usize, way: Way, content: &Content) -> Option<Vec<Vec<u8>>> {
        let of = self.trace.flows[flow];
        let [source, destination] = self.tuple(flow, way)?;
        let site = match way {
            Way::There => of.path.client(),
            Way::Back => of.path.server(),
        };
        let number = self.numbers.entry(site).or_default();
        *number += 1;
        let header = Header {
            source: source.0,
            destination: destination.0,
            protocol: of.protocol.number(self.trace.six),
            dont_fragment: content.dont_fragment,
            identification: self.base.identification(*number),
        };
        let ends = [source.1, destination.1];
        let data = self.data(flow, way, content.size);
        let mut transport = match of.protocol {
            Protocol::Tcp => {
                let segment = self.segment(flow, way, content, ends);
                header.tcp(&segment, &data)
            }
            Protocol::Udp => {
                let needs_one = self.trace.six;
                header.udp(ends, &data, content.checksum || needs_one)
            }
            Protocol::Echo => echo(&header, way, ends, &data),
            Protocol::Portless => data,
        };
        if content.corrupt
            && let Some(last) = transport.last_mut()
        {
            *last ^= 0xff;
        }
        self.states[flow].sent[way as usize] = Some(header.packet(&transport));
        if content.fragments.is_empty() {
            return Some(vec![header.packet(&transport)]);
        }
        let fragments = content.fragments.iter().map(|&(offset, length)| {
            let end = (offset + length).min(transport.len());
            let more = end < transport.len();
            let place = Place { offset, more };
            header.fragment(&transport[offset.min(end)..end], place)
        });
        Some(fragments.collect())
    }

    /// Returns source and destination of a packet, each with its port; none for a reply to a
    /// packet that has not arrived.
    fn tuple(&self, flow: usize, way: Way) -> Option<[(IpAddr, u16); 2]> {
        let of = self.trace.flows[flow];
        match way {
            Way::There => Some([self.base.client(&of), self.base.destination(&of)]),
            Way::Back => {
                let seen = self.states[flow].received[Way::There as usize].as_ref()?;
                let [client, server] = seen.ports();
                let back = [(seen.destination, server), (seen.source, client)];
                Some(back)
            }
        }
    }

    fn data(&self, flow: usize, way: Way, size: usize) -> Vec<u8> {
        let mut data = self.tag(flow, way).to_vec();
        let filler = (0..=u8::MAX).cycle().map(|byte| byte.wrapping_mul(7));
        data.extend(filler.take(size.saturating_sub(data.len())));
        data
    }

    fn tag(&self, flow: usize, way: Way) -> [u8; 4] {
        let number = u8::try_from(flow).unwrap_or(u8::MAX);
        [TAG, self.base.run.to_be_bytes()[1], number, way as u8]
    }

    fn segment(&mut self, flow: usize, way: Way, content: &Content, ports: [u16; 2]) -> Segment {
        let next = &mut self.states[flow].next;
        let start = next[way as usize];
        let acknowledged = next[1 - way as usize];
        let counted = u32::from(content.flags & (flag::SYN | flag::FIN) != 0);
        let sequence = match content.sequence {
            Sequence::Next => start,
            Sequence::Ahead => start.wrapping_add(3000),
            Sequence::Outside => start.wrapping_add(0x4000_0000),
        };
        if content.sequence == Sequence::Next {
            let size = u32::try_from(content.size).unwrap_or(0);
            next[way as usize] = start.wrapping_add(size + counted);
        }
        Segment {
            ports,
            sequence,
            acknowledged: if content.flags & flag::ACK == 0 {
                0
            } else {
                acknowledged
            },
            flags: content.flags,
        }
    }

    /// Returns an ICMP error about the last packet of a direction.
    fn error(
        &self,
        (flow, about): (usize, Way),
        kind: usize,
        quote: Quote,
        by_router: bool,
    ) -> Option<Vec<u8>> {
        let state = &self.states[flow];
        let received = state.received[about as usize].as_ref()?;
        let header = header_length(received.source);
        let (quoted, length) = match quote {
            Quote::Received(length) => (received.bytes.clone(), header + length),
            Quote::Sent(length) => (state.sent[about as usize].clone()?, header + length),
            Quote::Fragment { first, length } => {
                let fragment = received.fragment(first);
                let header = fragment.len() - received.payload.len();
                (fragment, header + length)
            }
        };
        let length = quoted.len().min(length);
        let (code, rest) = errors(self.trace.six)[kind];
        let header = Header {
            source: if by_router {
                self.base.router()
            } else {
                received.destination
            },
            destination: received.source,
            protocol: Protocol::Echo.number(self.trace.six),
            dont_fragment: false,
            identification: 0,
        };
        let message = header.icmp(code, rest, &quoted[..length]);
        Some(header.packet(&message))
    }

    fn martian(&self, of: &Flow, source: usize) -> Option<Vec<u8>> {
        let (client, port) = self.base.client(of);
        let source = martians(self.trace.six)[source];
        if source == client {
            return None;
        }
        let (destination, to) = self.base.destination(of);
        let header = Header {
            source,
            destination,
            protocol: of.protocol.number(self.trace.six),
            dont_fragment: true,
            identification: 0,
        };
        let data = self.tag(NO_FLOW, Way::There);
        let transport = match of.protocol {
            Protocol::Tcp => {
                let segment = Segment {
                    ports: [port, to],
                    sequence: 1,
                    acknowledged: 0,
                    flags: flag::SYN,
                };
                header.tcp(&segment, &data)
            }
            Protocol::Udp => header.udp([port, to], &data, true),
            Protocol::Echo => echo(&header, Way::There, [port, to], &data),
            Protocol::Portless => data.to_vec(),
        };
        Some(header.packet(&transport))
    }

    /// Records an arrival as the last packet of its flow.
    fn record(&mut self, site: Site, wire: Wire) -> Arrival {
        let of = self.flow_of(&wire);
        if let Some((flow, way)) = of {
            let path = self.trace.flows[flow].path;
            let receiver = match way {
                Way::There => path.server(),
                Way::Back => path.client(),
            };
            if site == receiver {
                let (_, port) = self.base.client(&self.trace.flows[flow]);
                if way == Way::There && wire.ports()[0] != port {
                    self.moved.entry(tuple(&wire)).or_default().insert(flow);
                }
                self.states[flow].received[way as usize] = Some(wire.clone());
            }
        }
        Arrival {
            site,
            wire,
            of,
            text: String::new(),
        }
    }

    fn flow_of(&self, wire: &Wire) -> Option<(usize, Way)> {
        let &[TAG, run, flow, way] = wire.data().first_chunk::<4>()? else {
            return None;
        };
        let flow = usize::from(flow);
        let is_ours = run == self.base.run.to_be_bytes()[1] && flow < self.trace.flows.len();
        let way = if way == 0 { Way::There } else { Way::Back };
        is_ours.then_some((flow, way))
    }

    /// Returns source and destination of a packet by name. A translated port is named by the flow
    /// that has it.
    fn names(&self, wire: &Wire) -> [String; 2] {
        let (number, source, from, destination, to) = tuple(wire);
        let moved = |tuple: &Tuple| {
            let flows = self.moved.get(tuple)?.iter().map(usize::to_string);
            let names = flows.collect::<Vec<_>>().join(" and ");
            Some(format!("moved port of flow {names}"))
        };
        let name = |port: u16, tuple: &Tuple| {
            let first = self.base.port(0);
            moved(tuple).unwrap_or_else(|| match port.wrapping_sub(first) {
                own @ 0..3 => format!("client port {own}"),
                _ => port.to_string(),
            })
        };
        let there = (number, source, from, destination, to);
        let back = (number, destination, to, source, from);
        [
            format!("{}:{}", self.base.name(source), name(from, &there)),
            format!("{}:{}", self.base.name(destination), name(to, &back)),
        ]
    }
}

fn echo(header: &Header, way: Way, ports: [u16; 2], data: &[u8]) -> Vec<u8> {
    let (kind, identifier) = match (way, header.source.is_ipv6()) {
        (Way::There, false) => (8, ports[0]),
        (Way::There, true) => (128, ports[0]),
        (Way::Back, false) => (0, ports[1]),
        (Way::Back, true) => (129, ports[1]),
    };
    let [high, low] = identifier.to_be_bytes();
    header.icmp([kind, 0], [high, low, 0, 1], data)
}

fn tuple(wire: &Wire) -> Tuple {
    let [from, to] = wire.ports();
    (wire.protocol, wire.source, from, wire.destination, to)
}
