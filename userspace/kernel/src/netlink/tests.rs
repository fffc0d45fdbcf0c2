//! What the kernel says of links is read as far as somebody asks.

use rtnetlink::packet_core::DefaultNla;

use super::*;

#[test]
fn what_nobody_asks_about_a_link_may_be_anything() {
    let name = LinkAttribute::IfName("eth0".to_owned());
    let mut link = LinkMessage::default();
    link.header.index = 7;
    // As if a kernel to come told of statistics in another way.
    let unheard_of = LinkAttribute::Other(DefaultNla::new(libc::IFLA_STATS64, vec![1]));
    link.attributes = vec![unheard_of, name.clone()];
    let bytes = encode_change(Message::NewLink(link));
    let decoded = decode(&bytes).expect("a link");
    let NetlinkPayload::InnerMessage(Message::NewLink(read)) = decoded else {
        panic!("another message: {decoded:?}");
    };
    assert_eq!(read.header.index, 7);
    assert_eq!(read.attributes, [name]);
}

#[test]
fn half_a_message_is_an_error() {
    let bytes = encode_change(Message::NewLink(LinkMessage::default()));
    for length in 0..bytes.len() {
        assert!(decode(&bytes[..length]).is_err(), "{length} bytes");
    }
}
