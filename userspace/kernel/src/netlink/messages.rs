//! Messages of netlink sockets other than rtnetlink.

/// Size of `struct nlmsghdr`.
pub(crate) const HEADER: usize = 16;

/// Splits one read into messages: type, and payload after `struct nlmsghdr`. Stops at a truncated
/// message.
pub(crate) fn messages(mut bytes: &[u8]) -> Vec<(u16, &[u8])> {
    let mut found = Vec::new();
    while let Some(head) = bytes.get(..HEADER) {
        let length = u32::from_ne_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let kind = u16::from_ne_bytes([head[4], head[5]]);
        let Some(body) = bytes.get(HEADER..length) else {
            break;
        };
        found.push((kind, body));
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
    }
    found
}
