//! Random traces.

use fastrand::Rng;
use verdict::simulator::frame::flag;

use super::kinds::{errors, martians};
use super::system::{PODS, PUBLISHED};
use super::trace::{
    Action, Content, Entry, Flow, PUBLISHED_PORT, Path, Protocol, Quote, Sequence, Step, Trace, Way,
};

/// Payload bytes of the largest whole packet that every sender can send.
pub(super) const LARGEST: usize = 1300;
/// Payload bytes of a packet that only a sender with the larger MTU can send.
const LARGE: usize = 1410;

/// Returns the trace of this seed.
pub(super) fn trace(seed: u64) -> Trace {
    let mut source = Source {
        rng: Rng::with_seed(seed),
        opened: Vec::new(),
    };
    source.trace()
}

struct Source {
    rng: Rng,
    /// Which directions of each flow have had a packet.
    opened: Vec<[bool; 2]>,
}

impl Source {
    fn trace(&mut self) -> Trace {
        let six = self.rng.bool();
        let main = self.protocol();
        let mut flows = Vec::new();
        for _ in 0..self.rng.usize(1..=4) {
            let flow = self.flow(main);
            // Two connections of one tuple are no conversation.
            if !flows.contains(&flow) {
                flows.push(flow);
            }
        }
        self.opened = vec![[false; 2]; flows.len()];
        let count = self.rng.usize(2..=9);
        let mut steps = Vec::new();
        for number in 0..count {
            let actions = (0..self.rng.usize(1..=3))
                .map(|_| self.action(&flows, six, number))
                .collect();
            let interleaved = self.rng.bool();
            steps.push(Step {
                actions,
                interleaved,
            });
        }
        Trace { six, flows, steps }
    }

    fn chance(&mut self, percent: u8) -> bool {
        self.rng.u8(0..100) < percent
    }

    fn protocol(&mut self) -> Protocol {
        match self.rng.u8(0..100) {
            0..40 => Protocol::Tcp,
            40..80 => Protocol::Udp,
            80..95 => Protocol::Echo,
            _ => Protocol::Portless,
        }
    }

    fn flow(&mut self, main: Protocol) -> Flow {
        let protocol = if self.chance(80) {
            main
        } else {
            self.protocol()
        };
        let pod = self.rng.usize(0..PODS.len());
        let path = match self.rng.u8(0..100) {
            0..45 => Path::Out {
                pod,
                host: self.rng.u8(0..2),
                port: self.rng.u16(0..2),
            },
            45..80 => Path::In {
                host: self.rng.u8(0..2),
                entry: self.entry(protocol),
            },
            _ => Path::Between {
                pod,
                entry: self.entry_of_another(pod, protocol),
            },
        };
        let may_be_published = protocol.has_ports() && matches!(path, Path::Out { .. });
        let port = match self.rng.u8(0..100) {
            0..70 => 0,
            70..74 if may_be_published => PUBLISHED_PORT,
            _ => self.rng.u16(1..3),
        };
        Flow {
            path,
            protocol,
            port,
        }
    }

    /// Returns mostly entries of other pods.
    fn entry_of_another(&mut self, pod: usize, protocol: Protocol) -> Entry {
        let entry = self.entry(protocol);
        let (Entry::Published { pod: server, .. } | Entry::Own { pod: server }) = entry;
        if server == pod && self.chance(80) {
            return self.entry_of_another(pod, protocol);
        }
        entry
    }

    fn entry(&mut self, protocol: Protocol) -> Entry {
        let pod = self.rng.usize(0..PODS.len());
        if !protocol.has_ports() || self.chance(25) {
            return Entry::Own { pod };
        }
        Entry::Published {
            node: self.rng.usize(0..2),
            pod,
            port: self.rng.usize(0..PUBLISHED[pod].len()),
        }
    }

    fn action(&mut self, flows: &[Flow], six: bool, number: usize) -> Action {
        let flow = self.rng.usize(0..flows.len());
        let protocol = flows[flow].protocol;
        if number > 0 {
            match self.rng.u8(0..100) {
                0..18 => return self.error(flow, six),
                18..21 => {
                    return Action::Martian {
                        flow,
                        source: self.rng.usize(0..martians(six).len()),
                    };
                }
                _ => {}
            }
        }
        let opened = self.opened[flow];
        let way = match opened {
            [true, false] if self.chance(70) => Way::Back,
            [true, true] if self.rng.bool() => Way::Back,
            _ => Way::There,
        };
        let packet = self.content(protocol, way, opened);
        self.opened[flow][way as usize] = true;
        Action::Send { flow, way, packet }
    }

    fn error(&mut self, flow: usize, six: bool) -> Action {
        let length = *self
            .rng
            .choice(&[0, 4, 8, 8, 8, 20, 28, 64, 548, 1200])
            .expect("there are lengths");
        Action::Error {
            flow,
            about: if self.chance(70) {
                Way::There
            } else {
                Way::Back
            },
            kind: self.rng.usize(0..errors(six).len()),
            quote: match self.rng.u8(0..100) {
                0..75 => Quote::Received(length),
                75..87 => Quote::Sent(length),
                _ => Quote::Fragment {
                    first: self.chance(80),
                    length,
                },
            },
            by_router: self.chance(30),
        }
    }

    fn content(&mut self, protocol: Protocol, way: Way, opened: [bool; 2]) -> Content {
        let (flags, sequence) = self.segment(way, opened);
        let mut content = Content {
            flags,
            sequence,
            size: self.rng.usize(8..64),
            dont_fragment: true,
            checksum: !self.chance(5),
            corrupt: self.chance(1),
            fragments: Vec::new(),
        };
        match self.rng.u8(0..100) {
            0..20 if protocol != Protocol::Tcp || self.chance(20) => {
                content.size = self.rng.usize(64..3 * LARGEST);
                content.fragments = self.fragments(content.size + protocol.header_length());
            }
            20..30 => {
                content.size = LARGE;
                content.dont_fragment = self.rng.bool();
            }
            30..35 => content.size = LARGEST,
            _ => {}
        }
        content
    }

    /// Returns flags and sequence number of a segment: mostly those of a connection that is opened
    /// and used, else any.
    fn segment(&mut self, way: Way, opened: [bool; 2]) -> (u8, Sequence) {
        let opening = match way {
            Way::There => flag::SYN,
            Way::Back => flag::SYN | flag::ACK,
        };
        let is_open = opened == [true; 2];
        if self.chance(if is_open { 75 } else { 92 }) {
            let flags = if is_open { flag::ACK } else { opening };
            return (flags, Sequence::Next);
        }
        let flags = match self.rng.u8(0..100) {
            0..25 => flag::RST,
            25..35 => flag::RST | flag::ACK,
            35..60 => flag::FIN | flag::ACK,
            60..70 => opening,
            _ => flag::ACK,
        };
        let sequence = match self.rng.u8(0..100) {
            0..20 => Sequence::Ahead,
            20..40 => Sequence::Outside,
            _ => Sequence::Next,
        };
        (flags, sequence)
    }

    /// Returns the fragments of a payload, in the order in which they are sent.
    fn fragments(&mut self, length: usize) -> Vec<(usize, usize)> {
        let count = self.rng.usize(2..=4).max(length.div_ceil(LARGEST));
        let mut piece = (length.div_ceil(count) + 7) & !7;
        if self.chance(10) {
            // Larger than the small MTU.
            piece = LARGE & !7;
        }
        let mut fragments = (0..length)
            .step_by(piece)
            .map(|start| (start, piece.min(length - start)))
            .collect::<Vec<_>>();
        if self.chance(15) {
            self.overlap(&mut fragments);
        }
        if self.chance(12) {
            let repeated = self.rng.usize(0..fragments.len());
            fragments.push(fragments[repeated]);
        }
        if self.chance(8) {
            let lost = self.rng.usize(0..fragments.len());
            fragments.remove(lost);
        }
        if self.chance(45) {
            self.rng.shuffle(&mut fragments);
        }
        fragments
    }

    /// Lets one fragment begin before the end of the one before it.
    fn overlap(&mut self, fragments: &mut [(usize, usize)]) {
        let later = self.rng.usize(0..fragments.len());
        let (start, length) = fragments[later];
        let by = 8 * self.rng.usize(1..=8);
        if start >= by && length + by <= LARGE {
            fragments[later] = (start - by, length + by);
        }
    }
}
