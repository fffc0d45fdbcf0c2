//! Encoding of transactions and decoding of answers.

use super::socket::ERROR;
use super::*;
use crate::netlink::messages::messages;

#[test]
fn attributes_are_padded_and_parsed_back() {
    let inner = Attributes::default().be32(1, 7).text(2, "cbr0");
    let all = Attributes::default().nested(3, &inner).bytes(4, &[1, 2, 3]);
    assert_eq!(all.as_bytes().len() % 4, 0);
    let parsed: Vec<(u16, &[u8])> = parse(all.as_bytes()).collect();
    assert_eq!(parsed, [(3, inner.as_bytes()), (4, &[1, 2, 3][..])]);
    let parsed: Vec<(u16, &[u8])> = parse(inner.as_bytes()).collect();
    assert_eq!(parsed, [(1, &[0, 0, 0, 7][..]), (2, &b"cbr0\0"[..])]);
}

#[test]
fn a_truncated_attribute_ends_the_list() {
    let list = Attributes::default().be32(1, 7).be32(2, 8);
    let bytes = list.as_bytes();
    for length in 0..bytes.len() {
        let expected = usize::from(length >= 8);
        assert_eq!(parse(&bytes[..length]).count(), expected, "{length} bytes");
    }
}

#[test]
fn a_batch_has_a_begin_an_end_and_asks_for_the_last_acknowledgement() {
    let mut batch = Batch::of_generation(9);
    batch.add_table(Family::Ip, "t");
    batch.delete_table(Family::Ip, "t");
    let (bytes, count) = batch.finish();
    assert_eq!(count, 2);
    let kinds: Vec<u16> = messages(&bytes).iter().map(|(kind, _)| *kind).collect();
    assert_eq!(kinds, [16, 10 << 8, 10 << 8 | 2, 17]);
    let flags = |at: usize| u16::from_ne_bytes([bytes[at + 6], bytes[at + 7]]);
    // The begin has an attribute, the first message too.
    let (first, second) = (28, 28 + 28);
    assert_eq!(flags(first) & 4, 0);
    assert_eq!(flags(second) & 4, 4);
}

#[test]
fn acknowledgements_name_the_message_that_failed() {
    let mut bytes = Vec::new();
    for (sequence, code) in [(3_u32, 0_i32), (1, -17)] {
        bytes.extend(36_u32.to_ne_bytes());
        bytes.extend(ERROR.to_ne_bytes());
        bytes.extend([0; 2]);
        bytes.extend(sequence.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend(code.to_ne_bytes());
        bytes.extend([0; 16]);
    }
    assert_eq!(results(&bytes), [(3, 0), (1, -17)]);
    assert_eq!(results(&bytes[..30]), [(3, 0)]);
}
