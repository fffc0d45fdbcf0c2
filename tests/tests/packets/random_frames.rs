//! Random frames for the loaded programs, and their places. `VIADUCT_SEED` repeats a run.

use abi::{Address, Mac};
use anyhow::Result;
use verdict::simulator::Place;
use verdict::simulator::example::{self, HOSTPORT, OWN_HOSTPORT, POD_PORT, SCTP_HOSTPORT};
use verdict::simulator::frame::{Body, Frame};

use crate::bench::{Bench, MOVED};

/// Minimum frame length in bytes: the kernel reads the IP header itself and refuses shorter test
/// frames.
const SHORTEST: usize = 14 + 40;

/// Returns the seed of the random numbers.
pub(crate) fn seed() -> u64 {
    let given = std::env::var("VIADUCT_SEED").ok();
    given.and_then(|text| text.parse().ok()).unwrap_or_else(|| {
        use std::hash::{BuildHasher as _, RandomState};
        RandomState::new().hash_one(0)
    })
}

/// Sets timeouts that no flow reaches, because object and simulator have different clocks.
pub(crate) fn keep_flows(bench: &mut Bench) -> Result<()> {
    bench.change(|world| {
        world.settings.timeouts = abi::Timeouts {
            tcp_opening: u32::MAX,
            tcp_established: u32::MAX,
            tcp_closing: u32::MAX,
            tcp_reset: u32::MAX,
            udp_single: u32::MAX,
            udp_stream: u32::MAX,
            icmp: u32::MAX,
            other: u32::MAX,
        };
    })
}

/// `SplitMix64` (Steele, Lea, Flood: Fast splittable pseudorandom number generators).
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, end: u32) -> u32 {
        u32::try_from(self.next() % u64::from(end)).expect("the remainder is below `end`")
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        let index = self.below(u32::try_from(from.len()).expect("lists are short"));
        from[index as usize].clone()
    }

    fn bytes(&mut self, most: u32) -> Vec<u8> {
        (0..self.below(most)).map(|_| self.byte()).collect()
    }
}

/// A random frame and the place where it arrives.
pub(crate) fn send(dice: &mut Dice) -> (Place, Vec<u8>) {
    let place = dice.pick(&[
        Place::FromPod,
        Place::ToPod,
        Place::UplinkIn,
        Place::UplinkIn,
        Place::UplinkIn,
        Place::UplinkOut,
        Place::UplinkOut,
        Place::UplinkOut,
    ]);
    (place, bytes(dice, place))
}

/// The place where the reply to a frame arrives.
pub(crate) fn opposite(place: Place) -> Place {
    match place {
        Place::FromPod => Place::ToPod,
        Place::ToPod => Place::FromPod,
        Place::UplinkIn => Place::UplinkOut,
        Place::UplinkOut => Place::UplinkIn,
    }
}

/// The frame with addresses and ports swapped: a reply, if the frame has no options.
pub(crate) fn reflected(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let (address, length, transport) = if bytes[14] >> 4 == 4 {
        (26, 4, 34)
    } else {
        (22, 16, 54)
    };
    let (front, back) = bytes.split_at_mut(address + length);
    front[address..].swap_with_slice(&mut back[..length]);
    if bytes.len() >= transport + 4 {
        let (front, back) = bytes.split_at_mut(transport + 2);
        front[transport..].swap_with_slice(&mut back[..2]);
    }
    bytes
}

/// A random frame, sometimes with a few bytes changed, truncated, or appended.
fn bytes(dice: &mut Dice, place: Place) -> Vec<u8> {
    let family = dice.below(2) as usize;
    let frame = frame(dice, family, Some(place));
    let mut bytes = if dice.below(6) == 0 {
        let longest = u32::try_from(frame.packet().len()).expect("packets are short");
        let header = if family == 0 { 20 } else { 40 };
        let options: usize = frame
            .options
            .iter()
            .map(|(_, fields)| fields.len() + 2)
            .sum();
        let behind = longest.saturating_sub(header + u32::try_from(options).expect("short"));
        let at = (dice.below(behind / 8 + 1) * 8) as usize;
        let pieces = frame.fragments(dice.below(50), at);
        dice.pick(&pieces)
    } else {
        frame.bytes()
    };
    if dice.below(4) == 0 {
        for _ in 0..=dice.below(3) {
            let at = dice.below(u32::try_from(bytes.len()).expect("frames are short")) as usize;
            bytes[at] = dice.byte();
        }
    }
    if dice.below(8) == 0 {
        bytes.truncate(SHORTEST + dice.below(60) as usize);
    }
    if dice.below(8) == 0 {
        bytes.extend(dice.bytes(40));
    }
    bytes.resize(bytes.len().max(SHORTEST), 0);
    bytes
}

/// A frame for a place, or one that an ICMP error at any place quotes.
fn frame(dice: &mut Dice, family: usize, place: Option<Place>) -> Frame {
    let (inside, outside) = (inside(dice, family), outside(dice, family));
    let (source, destination) = match place {
        _ if dice.below(8) == 0 => (address(dice, family), address(dice, family)),
        Some(Place::FromPod | Place::UplinkOut) => (inside, outside),
        None if dice.below(2) == 0 => (inside, outside),
        Some(Place::ToPod | Place::UplinkIn) | None => (outside, inside),
    };
    let body = body(dice, family, place.is_some());
    let mut frame = Frame::new(source, destination, body);
    if dice.below(4) != 0 {
        frame = frame.sent_by(example::mac());
    } else if dice.below(2) == 0 {
        frame = frame.sent_by(Mac::new([2, 0, 0, 0, 0, 3]));
    }
    for _ in 0..dice.pick(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 5, 6]) {
        let (number, length) = dice.pick(&[(0, 6), (60, 6), (43, 14), (51, 10), (44, 6)]);
        let fields = if family == 0 {
            vec![1; 4]
        } else {
            vec![0; length]
        };
        frame.options.push((number, fields));
    }
    frame
}

fn address(dice: &mut Dice, family: usize) -> Address {
    if dice.below(20) == 0 {
        return dice.pick(&odd_addresses(family));
    }
    dice.pick(&[
        example::pod(),
        example::pod(),
        example::other_pod(),
        example::no_pod(),
        example::node(),
        example::node(),
        example::remote(),
        example::remote(),
        example::friend(),
    ])[family]
}

fn inside(dice: &mut Dice, family: usize) -> Address {
    let own = [example::pod(), example::other_pod(), example::node()];
    dice.pick(&own)[family]
}

fn outside(dice: &mut Dice, family: usize) -> Address {
    let others = [example::remote(), example::remote(), example::friend()];
    dice.pick(&others)[family]
}

fn odd_addresses(family: usize) -> Vec<Address> {
    if family == 0 {
        let odd = [
            [127, 0, 0, 1],
            [224, 0, 0, 1],
            [255, 255, 255, 255],
            [0, 0, 0, 0],
            [169, 254, 0, 1],
        ];
        return odd.into_iter().map(Address::v4).collect();
    }
    let odd = ["::1", "::", "fe80::2", "ff02::1", "2001:db8:1::2"];
    odd.map(|text| text.parse::<std::net::Ipv6Addr>().expect("they are valid"))
        .map(|address| Address::v6(address.octets()))
        .to_vec()
}

fn port(dice: &mut Dice) -> u16 {
    dice.pick(&[
        40_000,
        40_001,
        53,
        443,
        MOVED,
        MOVED,
        HOSTPORT,
        OWN_HOSTPORT,
        SCTP_HOSTPORT,
        POD_PORT,
        0,
    ])
}

fn body(dice: &mut Dice, family: usize, may_quote: bool) -> Body {
    let (source, destination) = (port(dice), port(dice));
    match dice.below(12) {
        0..=2 => Body::Tcp(source, destination, dice.byte(), dice.bytes(20)),
        3..=5 => Body::Udp(source, destination, dice.bytes(20)),
        6 => Body::UdpUnchecked(source, destination, dice.bytes(20)),
        7 => Body::Sctp(source, destination, dice.bytes(20)),
        8 => {
            let request = dice.below(2) == 0;
            let sample = example::pod()[family];
            if request {
                Body::echo_request(&sample, source)
            } else {
                Body::echo_reply(&sample, source)
            }
        }
        9 | 10 if may_quote => {
            let icmp_type = dice.pick(&[1, 2, 3, 3, 4, 11, 12]);
            let mut quote = frame(dice, family, None).packet();
            quote.truncate(28 + dice.below(80) as usize);
            Body::Icmp(icmp_type, dice.pick(&[0, 1, 4]), [0, 0, 5, 0], quote)
        }
        9 => Body::Icmp(dice.byte(), 0, [0; 4], dice.bytes(40)),
        _ => Body::Other(dice.pick(&[47, 50, 59, 44, 1, 58]), dice.bytes(40)),
    }
}
