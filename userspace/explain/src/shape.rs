//! What a packet has besides addresses, ports and length: the reason for which it was dropped says
//! so, where the report of a dropped packet does not contain the bytes.

use std::ops::Range;

use abi::{DropReason, Mac};
use verdict::simulator::frame::{Body, Frame};

/// A source MAC address that no pod has.
pub(crate) const FORGED: Mac = Mac::new([2, 0, 0, 0, 0, 0xff]);
/// A VLAN that no port of a pod with a spoof check has: any but 0.
const FOREIGN_VLAN: u32 = 4_094;
/// `EtherType` of LLDP, which such a pod may not send.
const LLDP: [u8; 2] = [0x88, 0xcc];
/// A tag with VLAN 0, in front of the `EtherType` of the packet.
const PRIORITY_TAG: [u8; 4] = [0x81, 0, 0, 0];
/// IPv6 destination options, and their number of bytes behind the first two.
const OPTIONS: (u8, usize) = (60, 6);
/// More extension headers than any parser walks.
const MANY: usize = 32;
/// Bytes of the transport header in a fragment that is too short.
const TINY: usize = 4;
/// Identification of fragments: the copied tables have no other ones.
const IDENTIFICATION: u32 = 1;
/// Least number of bytes in the payload of a packet of which fragments are made.
const FRAGMENTED: usize = 64;
/// Ranges of fragments behind the IP header: the first one, one behind it, and one that overlaps
/// it.
const FIRST: Range<usize> = 0..32;
const LATER: Range<usize> = 32..56;
const OVERLAPPING: Range<usize> = 24..48;

/// Kind of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shape {
    /// A whole packet with correct headers, in an untagged frame of its sender.
    #[default]
    Plain,
    /// A source MAC address that is not the sender's.
    ForgedMac,
    /// A wrong checksum of the IPv4 header, or an IPv6 payload that is longer than the frame.
    Malformed,
    /// IPv6 with more extension headers than a parser walks.
    ManyHeaders,
    /// A first fragment that ends within its transport header.
    TinyFragment,
    /// A frame of another protocol.
    ForeignFrame,
    /// A VLAN tag.
    Tagged,
    /// A VLAN tag behind a VLAN tag.
    TaggedTwice,
    /// A later fragment of a datagram whose first one has not arrived.
    LaterFragment,
    /// A fragment that overlaps the one before it.
    OverlappingFragment,
    /// The first fragment of an SCTP packet, whose checksum covers the others as well; a whole
    /// packet of another protocol.
    FirstFragmentOfSctp,
    /// The copy of a pod's packet that the node has forwarded, with the bridge's MAC address.
    Forwarded,
}

impl Shape {
    /// Returns the kind of packets that are dropped for a reason, where addresses and ports do not
    /// decide.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "addresses and ports decide in all others"
    )]
    pub const fn of(reason: DropReason) -> Self {
        use DropReason as R;
        match reason {
            R::SpoofedMac => Self::ForgedMac,
            R::Malformed => Self::Malformed,
            R::TooManyHeaders => Self::ManyHeaders,
            R::TinyFragment => Self::TinyFragment,
            R::ForeignFrame => Self::ForeignFrame,
            R::UnknownVlan => Self::Tagged,
            R::TaggedTwice => Self::TaggedTwice,
            R::FragmentWithoutFirst => Self::LaterFragment,
            R::OverlappingFragment => Self::OverlappingFragment,
            R::RewriteFailed => Self::FirstFragmentOfSctp,
            R::Duplicate => Self::Forwarded,
            _ => Self::Plain,
        }
    }

    /// Returns whether such a frame is dropped whatever packet is in it.
    pub const fn is_of_frame(self) -> bool {
        matches!(self, Self::ForeignFrame | Self::Tagged | Self::TaggedTwice)
    }

    /// Returns the VLAN of the outer tag, which the kernel has removed; `None` without a tag.
    pub(crate) const fn outer_vlan(self) -> Option<u32> {
        if matches!(self, Self::Tagged) {
            Some(FOREIGN_VLAN)
        } else if matches!(self, Self::TaggedTwice) {
            Some(0)
        } else {
            None
        }
    }

    /// Returns the fragment that has to arrive before the packet.
    pub(crate) fn preceding(self, mut frame: Frame) -> Option<Vec<u8>> {
        if !matches!(self, Self::OverlappingFragment) {
            return None;
        }
        lengthen(&mut frame.body);
        Some(frame.fragment(IDENTIFICATION, FIRST))
    }

    /// Returns the bytes of a frame of this kind.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "each match changes what few kinds need"
    )]
    pub(crate) fn bytes(self, mut frame: Frame) -> Vec<u8> {
        let is_v4 = frame.source.is_v4();
        match self {
            Self::TinyFragment => return frame.fragment(IDENTIFICATION, 0..TINY),
            Self::LaterFragment => return fragment(frame, LATER),
            Self::OverlappingFragment => return fragment(frame, OVERLAPPING),
            Self::FirstFragmentOfSctp if matches!(frame.body, Body::Sctp(..)) => {
                return fragment(frame, FIRST);
            }
            Self::ManyHeaders if !is_v4 => {
                let (number, length) = OPTIONS;
                frame.options = vec![(number, vec![0; length]); MANY];
            }
            _ => {}
        }
        let mut bytes = frame.bytes();
        let at = bytes.len() - frame.packet().len();
        match self {
            // The checksum, or the upper half of the length.
            Self::Malformed => bytes[at + if is_v4 { 10 } else { 4 }] ^= 0xff,
            Self::ForeignFrame if at > 0 => bytes[at - 2..at].copy_from_slice(&LLDP),
            Self::TaggedTwice if at > 0 => drop(bytes.splice(at - 2..at - 2, PRIORITY_TAG)),
            _ => {}
        }
        bytes
    }
}

fn fragment(mut frame: Frame, range: Range<usize>) -> Vec<u8> {
    lengthen(&mut frame.body);
    frame.fragment(IDENTIFICATION, range)
}

/// Makes a payload so long that fragments of a packet with it have the ranges above.
fn lengthen(body: &mut Body) {
    let (Body::Tcp(_, _, _, payload)
    | Body::Udp(_, _, payload)
    | Body::UdpUnchecked(_, _, payload)
    | Body::Sctp(_, _, payload)
    | Body::Icmp(_, _, _, payload)
    | Body::Other(_, payload)) = body;
    if payload.len() < FRAGMENTED {
        payload.resize(FRAGMENTED, 0);
    }
}

#[cfg(test)]
mod tests {
    use abi::protocol;
    use verdict::simulator::Place;
    use verdict::simulator::example::{
        OTHER_POD, POD, SCTP_HOSTPORT, node, other_pod, pod, remote,
    };

    use super::*;
    use crate::testing::{UPLINK, VETH, question, snapshot, tcp, world};
    use crate::{Node, Outcome, Question, Sender, explain_at};
    use DropReason as R;

    fn outcome(place: Place, question: &Question) -> Outcome {
        let interface = if place == Place::FromPod {
            VETH
        } else {
            UPLINK
        };
        explain_at(
            &mut Node::new(snapshot(&world())),
            place,
            interface,
            question,
        )
        .outcome
    }

    #[test]
    fn a_packet_of_each_kind_is_dropped_for_its_reason() {
        for (reason, family) in [
            (R::SpoofedMac, 0),
            (R::SpoofedMac, 1),
            (R::Malformed, 0),
            (R::Malformed, 1),
            (R::TooManyHeaders, 1),
            (R::TinyFragment, 0),
            (R::TinyFragment, 1),
            (R::ForeignFrame, 0),
            (R::UnknownVlan, 0),
            (R::TaggedTwice, 0),
            (R::TaggedTwice, 1),
        ] {
            let tuple = tcp(pod()[family], other_pod()[family], [40_000, 443]);
            let packet = Question {
                shape: Shape::of(reason),
                ..question(Sender::Pod(POD), tuple)
            };
            let place = Place::FromPod;
            let expected = Outcome::Dropped { place, reason };
            assert_eq!(outcome(place, &packet), expected, "{}", reason.name());
        }
        for reason in [R::Malformed, R::TinyFragment, R::TaggedTwice] {
            let tuple = tcp(remote()[0], node()[0], [40_000, 443]);
            let packet = Question {
                shape: Shape::of(reason),
                ..question(Sender::World, tuple)
            };
            let place = Place::UplinkIn;
            let expected = Outcome::Dropped { place, reason };
            assert_eq!(outcome(place, &packet), expected, "{}", reason.name());
        }
    }

    #[test]
    fn fragments_are_dropped_without_the_first_one_and_where_they_overlap() {
        for reason in [R::FragmentWithoutFirst, R::OverlappingFragment] {
            for (number, ports) in [
                (protocol::TCP, [40_000, 443]),
                // As reported: the ports are in the first fragment.
                (protocol::UDP, [0, 0]),
            ] {
                for family in [0, 1] {
                    let from_pod = tcp(pod()[family], other_pod()[family], ports);
                    let from_world = tcp(remote()[family], node()[family], ports);
                    for (place, sender, mut tuple) in [
                        (Place::FromPod, Sender::Pod(POD), from_pod),
                        (Place::UplinkIn, Sender::World, from_world),
                    ] {
                        tuple.protocol = number;
                        let packet = Question {
                            shape: Shape::of(reason),
                            ..question(sender, tuple)
                        };
                        let expected = Outcome::Dropped { place, reason };
                        assert_eq!(outcome(place, &packet), expected, "{}", reason.name());
                    }
                }
            }
        }
    }

    #[test]
    fn a_later_fragment_is_dropped_at_the_uplink_whose_address_it_would_need() {
        let reason = R::FragmentWithoutFirst;
        for family in [0, 1] {
            let tuple = tcp(pod()[family], remote()[family], [0, 0]);
            let packet = Question {
                shape: Shape::of(reason),
                ..question(Sender::Pod(POD), tuple)
            };
            let place = Place::UplinkOut;
            let expected = Outcome::Dropped { place, reason };
            assert_eq!(outcome(place, &packet), expected);
        }
    }

    #[test]
    fn the_bridges_copy_of_a_pods_packet_is_dropped_as_a_duplicate() {
        let reason = R::Duplicate;
        let mut world = world();
        world.settings.flags |= abi::SettingsFlags::DUPLICATES;
        for network in world.networks.values_mut() {
            (network.duplicates_v4, network.duplicates_v6) = (24, 64);
        }
        for family in [0, 1] {
            let tuple = tcp(other_pod()[family], pod()[family], [40_000, 443]);
            let mut packet = Question {
                shape: Shape::of(reason),
                ..question(Sender::Pod(OTHER_POD), tuple)
            };
            let place = Place::ToPod;
            let node = || Node::new(snapshot(&world));
            let outcome = explain_at(&mut node(), place, VETH, &packet).outcome;
            assert_eq!(outcome, Outcome::Dropped { place, reason });
            packet.shape = Shape::Plain;
            let outcome = explain_at(&mut node(), place, VETH, &packet).outcome;
            assert_ne!(outcome, Outcome::Dropped { place, reason });
        }
    }

    #[test]
    fn the_checksum_of_a_fragmented_sctp_packet_cannot_be_rewritten() {
        let reason = R::RewriteFailed;
        let mut world = world();
        for (key, hostport) in &mut world.hostports {
            if key.protocol == protocol::SCTP {
                hostport.port = abi::Port::new(9_999);
            }
        }
        for family in [0, 1] {
            let mut tuple = tcp(remote()[family], node()[family], [40_000, SCTP_HOSTPORT]);
            tuple.protocol = protocol::SCTP;
            let packet = Question {
                shape: Shape::of(reason),
                ..question(Sender::World, tuple)
            };
            let place = Place::UplinkIn;
            let mut node = Node::new(snapshot(&world));
            let outcome = explain_at(&mut node, place, UPLINK, &packet).outcome;
            assert_eq!(outcome, Outcome::Dropped { place, reason });
        }
    }

    #[test]
    fn an_error_about_a_packet_that_no_flow_has_sent_is_dropped_with_its_quote_only() {
        let quoted = tcp(
            node()[0],
            remote()[0],
            [verdict::simulator::example::HOSTPORT, 50_999],
        );
        let mut error = tcp(remote()[0], node()[0], [0, 0]);
        error.protocol = protocol::ICMP;
        let packet = Question {
            icmp: Some((3, 1)),
            quoted: Some(quoted),
            ..question(Sender::World, error)
        };
        let place = Place::UplinkIn;
        let reason = DropReason::ErrorWithoutFlow;
        let expected = Outcome::Dropped { place, reason };
        assert_eq!(outcome(place, &packet), expected);
        let without = Question {
            quoted: None,
            ..packet
        };
        assert_ne!(outcome(place, &without), expected);
    }
}
