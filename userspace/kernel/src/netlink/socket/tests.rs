//! Decoding of netlink messages.

use rtnetlink::packet_core::DefaultNla;

use super::*;

#[test]
fn link_attributes_that_are_not_used_are_not_decoded() {
    let name = LinkAttribute::IfName("eth0".to_owned());
    let mut link = LinkMessage::default();
    link.header.index = 7;
    // As if a later kernel sent statistics in another format.
    let unknown_format = LinkAttribute::Other(DefaultNla::new(libc::IFLA_STATS64, vec![1]));
    link.attributes = vec![unknown_format, name.clone()];
    let bytes = encode_change(Message::NewLink(link));
    let decoded = decode(&bytes).expect("a link");
    let NetlinkPayload::InnerMessage(Message::NewLink(read)) = decoded else {
        panic!("another message: {decoded:?}");
    };
    assert_eq!(read.header.index, 7);
    assert_eq!(read.attributes, [name]);
}

#[test]
fn a_truncated_message_is_an_error() {
    let bytes = encode_change(Message::NewLink(LinkMessage::default()));
    for length in 0..bytes.len() {
        assert!(decode(&bytes[..length]).is_err(), "{length} bytes");
    }
}
