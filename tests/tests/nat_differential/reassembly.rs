//! Puts fragments together as a Linux receiver does.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::wire::{Part, Wire};

type Key = (IpAddr, IpAddr, u8, u32);

/// Puts fragments together by the rules of `net/ipv4/inet_fragment.c`, `ip_fragment.c` and
/// `net/ipv6/reassembly.c`: an overlap discards what has arrived of the packet, a repetition of
/// bytes that have arrived is ignored.
#[derive(Clone, Debug, Default)]
pub(super) struct Reassembly {
    queues: BTreeMap<Key, Queue>,
}

#[derive(Clone, Debug, Default)]
struct Queue {
    /// Contiguous runs of fragments that arrived in order, as start and end. The kernel does not
    /// merge runs.
    runs: Vec<(usize, usize)>,
    /// End of the fragment with the highest offset, and the start of its run.
    last: Option<(usize, usize)>,
    bytes: BTreeMap<usize, Vec<u8>>,
    /// Highest end so far; the packet's length once its last fragment is here.
    length: usize,
    has_last: bool,
    first: Option<Wire>,
}

impl Reassembly {
    /// Takes a captured packet, and returns a whole one: itself, or the one that it completes.
    pub(super) fn take(&mut self, wire: Wire) -> Option<Wire> {
        let Some(part) = wire.part else {
            return Some(wire);
        };
        if part.offset == 0 && !part.more {
            // An atomic fragment belongs to no other one (RFC 6946).
            let payload = wire.payload.clone();
            return Some(wire.with_payload(payload));
        }
        let key = (
            wire.source,
            wire.destination,
            if wire.source.is_ipv4() {
                wire.protocol
            } else {
                0
            },
            part.identification,
        );
        let queue = self.queues.entry(key).or_default();
        match queue.take(wire, part) {
            Taken::Waits => None,
            Taken::Discards => {
                self.queues.remove(&key);
                None
            }
            Taken::Completes => {
                let queue = self.queues.remove(&key)?;
                queue.whole()
            }
        }
    }
}

enum Taken {
    Waits,
    Discards,
    Completes,
}

impl Queue {
    fn take(&mut self, wire: Wire, part: Part) -> Taken {
        let (start, mut end) = (part.offset, part.offset + wire.payload.len());
        if part.more {
            if wire.source.is_ipv6() && end % 8 != 0 {
                return Taken::Waits;
            }
            end &= !7;
            if end > self.length {
                if self.has_last {
                    return Taken::Discards;
                }
                self.length = end;
            }
        } else {
            if end < self.length || self.has_last && end != self.length {
                return Taken::Discards;
            }
            self.has_last = true;
            self.length = end;
        }
        if start == end {
            return Taken::Discards;
        }
        match self.insert(start, end) {
            Place::Repeats => return Taken::Waits,
            Place::Overlaps => return Taken::Discards,
            Place::Fits => {}
        }
        self.bytes
            .insert(start, wire.payload[..end - start].to_vec());
        if start == 0 {
            self.first = Some(wire);
        }
        let received: usize = self.bytes.values().map(Vec::len).sum();
        if self.has_last && self.first.is_some() && received == self.length {
            Taken::Completes
        } else {
            Taken::Waits
        }
    }

    /// `inet_frag_queue_insert` of the kernel.
    fn insert(&mut self, start: usize, end: usize) -> Place {
        match self.last {
            Some((_, last_end)) if last_end < end => {
                if start < last_end {
                    return Place::Overlaps;
                }
                if start == last_end {
                    let run = self.runs.iter_mut().max_by_key(|run| run.0);
                    if let Some(run) = run {
                        run.1 = end;
                    }
                } else {
                    self.runs.push((start, end));
                }
                self.last = Some((start, end));
            }
            Some(_) => {
                let overlapped = self.runs.iter().find(|run| start < run.1 && run.0 < end);
                match overlapped {
                    Some(run) if start >= run.0 && end <= run.1 => return Place::Repeats,
                    Some(_) => return Place::Overlaps,
                    None => self.runs.push((start, end)),
                }
            }
            None => {
                self.runs.push((start, end));
                self.last = Some((start, end));
            }
        }
        Place::Fits
    }

    fn whole(self) -> Option<Wire> {
        let payload = self.bytes.into_values().flatten().collect();
        Some(self.first?.with_payload(payload))
    }
}

enum Place {
    Fits,
    Repeats,
    Overlaps,
}

#[cfg(test)]
mod tests {
    use abi::protocol;

    use super::super::packet::{Header, Place};
    use super::{Reassembly, Wire};

    const LENGTH: usize = 40;

    fn header() -> Header {
        Header {
            source: "192.0.2.1".parse().expect("an address"),
            destination: "192.0.2.2".parse().expect("an address"),
            protocol: protocol::UDP,
            dont_fragment: false,
            identification: 7,
        }
    }

    /// Returns the number of bytes of the packet that these fragments complete.
    fn complete(fragments: &[(usize, usize)]) -> Option<usize> {
        let mut reassembly = Reassembly::default();
        let whole = fragments.iter().filter_map(|&(offset, length)| {
            let more = offset + length < LENGTH;
            let fragment = header().fragment(&vec![0; length], Place { offset, more });
            reassembly.take(Wire::parse(&fragment)?)
        });
        whole.last().map(|wire| wire.payload.len())
    }

    #[test]
    fn fragments_in_any_order_are_put_together() {
        for order in [
            [(0, 16), (16, 16), (32, 8)],
            [(32, 8), (16, 16), (0, 16)],
            [(16, 16), (32, 8), (0, 16)],
        ] {
            assert_eq!(complete(&order), Some(LENGTH), "{order:?}");
        }
        assert_eq!(complete(&[(0, 16), (32, 8)]), None);
    }

    #[test]
    fn an_atomic_fragment_is_a_packet_of_its_own() {
        assert_eq!(complete(&[(0, 16), (0, LENGTH)]), Some(LENGTH));
    }

    #[test]
    fn overlapping_fragments_discard_the_packet_and_repeated_ones_do_not() {
        assert_eq!(complete(&[(0, 16), (0, 16), (16, 24)]), Some(LENGTH));
        assert_eq!(complete(&[(0, 16), (8, 24), (32, 8)]), None);
        assert_eq!(complete(&[(16, 24), (8, 16), (0, 16)]), None);
    }
}
