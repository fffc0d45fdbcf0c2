//! Finds foreign IPsec policies, which require that packets are encrypted.
//!
//! Reads only: the number of policies, and the default for packets without one (the kernel's XFRM,
//! `xfrm_user.c`).

use std::collections::BTreeSet;
use std::io;

use rtnetlink::sys::protocols::NETLINK_XFRM;
use rtnetlink::sys::{Socket, TokioSocket};

use crate::netlink::messages::messages;
use crate::netlink::socket;

/// `XFRM_MSG_GETSPDINFO` and the type of its answer.
const GET_COUNTS: u16 = 0x25;
const COUNTS: u16 = 0x24;
/// `XFRM_MSG_GETDEFAULT`, which is also the type of its answer. Since Linux 5.15.
const DEFAULTS: u16 = 0x28;
/// `NLM_F_REQUEST`.
const REQUEST: u16 = 1;
/// `XFRMNLGRP_POLICY`.
const POLICIES: u32 = 4;

/// Offset and length of the counters that are read: `struct xfrmu_spdinfo` comes after the flags
/// and an attribute's header. It begins with the numbers of policies for input, output and
/// forwarding; those of single sockets follow.
const COUNTS_AT: usize = 8;
const COUNTED: usize = 12;
/// `XFRM_USERPOLICY_BLOCK`.
const BLOCK: u8 = 1;

/// Returns descriptions of the policies that require encryption, or drop packets without it.
pub(crate) fn rules() -> io::Result<BTreeSet<String>> {
    let Some(socket) = socket::if_supported(Socket::new(NETLINK_XFRM))? else {
        // The kernel has no IPsec.
        return Ok(BTreeSet::new());
    };
    let counts = query(&socket, GET_COUNTS, COUNTS)?;
    let defaults = query(&socket, DEFAULTS, DEFAULTS)?;
    let policies = counts.is_some_and(|answer| has_policies(&answer));
    let blocks = defaults.is_some_and(|answer| blocks(&answer));
    let words = [
        (policies, "IPsec: policies"),
        (blocks, "IPsec: packets without a policy are blocked"),
    ];
    let found = words.into_iter().filter(|(is_so, _)| *is_so);
    Ok(found.map(|(_, words)| words.to_owned()).collect())
}

/// Returns whether packets without a policy are dropped: received, forwarded and sent ones.
pub(crate) fn blocked(socket: &Socket) -> io::Result<[bool; 3]> {
    let answer = query(socket, DEFAULTS, DEFAULTS)?.unwrap_or_default();
    let mut blocked = [false; 3];
    for (blocked, default) in blocked.iter_mut().zip(answer) {
        *blocked = default == BLOCK;
    }
    Ok(blocked)
}

/// Sends a request of this type and returns the payload of the answer; `None` if the kernel does
/// not support the request.
fn query(socket: &Socket, kind: u16, answer: u16) -> io::Result<Option<Vec<u8>>> {
    socket.send(&request(kind), 0)?;
    let mut buffer = Vec::with_capacity(4096);
    socket.recv(&mut buffer, 0)?;
    let found = messages(&buffer)
        .into_iter()
        .find(|(kind, _)| *kind == answer);
    Ok(found.map(|(_, body)| body.to_vec()))
}

/// Encodes a request: `struct nlmsghdr` and four bytes, at least as many as either request has.
fn request(kind: u16) -> Vec<u8> {
    let mut bytes = 20_u32.to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(REQUEST.to_ne_bytes());
    bytes.extend([0; 12]);
    bytes
}

fn has_policies(answer: &[u8]) -> bool {
    let counts = answer.get(COUNTS_AT..COUNTS_AT + COUNTED);
    counts.is_some_and(|counts| counts.iter().any(|byte| *byte != 0))
}

/// Whether a default of `struct xfrm_userpolicy_default` (input, forwarding, output) blocks.
fn blocks(answer: &[u8]) -> bool {
    answer.iter().take(3).any(|default| *default == BLOCK)
}

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(bytes: &[u8]) {
    let _ = (has_policies(bytes), blocks(bytes));
}

/// Opens a socket that receives changes of policies, in the namespace of the calling thread. Must
/// be called inside of a tokio runtime.
pub(crate) fn changes() -> io::Result<Option<TokioSocket>> {
    socket::if_supported(socket::subscribe(NETLINK_XFRM, [POLICIES]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_policies_do_not_count_as_ipsec_rules() {
        let answer = |at: usize| {
            let mut bytes = [vec![0; 4], vec![28, 0, 1, 0], vec![0; 24]].concat();
            bytes[COUNTS_AT + at] = 1;
            bytes
        };
        for (at, counts) in [(0, true), (4, true), (8, true), (12, false), (20, false)] {
            assert_eq!(has_policies(&answer(at)), counts, "{at}");
        }
        assert!(!has_policies(&[0; 4]));
    }

    #[test]
    fn a_blocking_ipsec_default_is_one_of_three_fields() {
        for (answer, expected) in [
            (&[2, 2, 2][..], false),
            (&[2, 1, 2], true),
            (&[2, 2, 2, 1], false),
            (&[], false),
        ] {
            assert_eq!(blocks(answer), expected);
        }
    }
}
