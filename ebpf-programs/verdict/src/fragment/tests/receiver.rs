//! A receiver of fragments, as Linux is one.

use std::collections::{BTreeMap, BTreeSet};

use abi::Address;

use crate::simulator::frame::Frame;

/// Source, destination, protocol and identification.
pub(super) type Key = (Vec<u8>, Vec<u8>, u8, u32);

/// Returns datagram, offset, "more fragments" and data of a frame's fragment.
pub(super) fn parse(frame: &[u8]) -> (Key, usize, bool, Vec<u8>) {
    let packet = &frame[14..];
    if packet[0] >> 4 == 4 {
        let bits = u16::from_be_bytes([packet[6], packet[7]]);
        let identification = u32::from(u16::from_be_bytes([packet[4], packet[5]]));
        let end = usize::from(u16::from_be_bytes([packet[2], packet[3]]));
        let addresses = (packet[12..16].to_vec(), packet[16..20].to_vec());
        let key = (addresses.0, addresses.1, packet[9], identification);
        let offset = usize::from(bits & 0x1fff) * 8;
        return (key, offset, bits & 0x2000 != 0, packet[20..end].to_vec());
    }
    assert_eq!(packet[6], 44, "a fragment header follows");
    let bits = u16::from_be_bytes([packet[42], packet[43]]);
    let identification = u32::from_be_bytes([packet[44], packet[45], packet[46], packet[47]]);
    let addresses = (packet[8..24].to_vec(), packet[24..40].to_vec());
    let key = (addresses.0, addresses.1, packet[40], identification);
    let end = 40 + usize::from(u16::from_be_bytes([packet[4], packet[5]]));
    let data = packet[48..end].to_vec();
    (key, usize::from(bits & 0xfff8), bits & 1 != 0, data)
}

/// A datagram: source, destination, and what follows the IP header.
pub(super) type Whole = (Vec<u8>, Vec<u8>, Vec<u8>);

/// Reassembles fragments as Linux does: it keeps the first copy of each byte, and forgets a
/// datagram once it is complete. Returns the complete datagrams in the order of their ends.
///
/// # Panics
/// If two fragments of a datagram have different bytes in one place: datagrams were mixed.
pub(super) fn received(frames: &[Vec<u8>]) -> Vec<Whole> {
    let mut queues: BTreeMap<Key, (BTreeMap<usize, u8>, Option<usize>)> = BTreeMap::new();
    let mut complete = Vec::new();
    for frame in frames {
        let (key, offset, more, data) = parse(frame);
        let (bytes, length) = queues.entry(key.clone()).or_default();
        if !more {
            let end = offset + data.len();
            assert_eq!(*length.get_or_insert(end), end);
        }
        for (at, byte) in (offset..).zip(data) {
            assert_eq!(
                *bytes.entry(at).or_insert(byte),
                byte,
                "datagrams are mixed"
            );
        }
        if *length == Some(bytes.len()) {
            let (bytes, _) = queues.remove(&key).expect("the queue exists");
            let (source, destination, ..) = key;
            complete.push((source, destination, bytes.into_values().collect()));
        }
    }
    complete
}

/// Returns the different datagrams that are received.
pub(super) fn reassemble(frames: &[Vec<u8>]) -> BTreeSet<Whole> {
    received(frames).into_iter().collect()
}

/// Returns the reassembled form of a frame that is not fragmented.
pub(super) fn whole(frame: &Frame) -> Whole {
    let header = if frame.source.is_v4() { 20 } else { 40 };
    let part = |address: &Address| {
        let bytes = address.bytes();
        if address.is_v4() {
            bytes[12..].to_vec()
        } else {
            bytes.to_vec()
        }
    };
    let transport = frame.packet()[header..].to_vec();
    (part(&frame.source), part(&frame.destination), transport)
}
