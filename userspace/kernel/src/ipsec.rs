//! IPsec: policies of others that say which packets are to be encrypted, or must have been.
//!
//! Only looks: at how many there are, and at what happens to packets that have none (the kernel's XFRM, `xfrm_user.c`).

use std::collections::BTreeSet;
use std::io;

use rtnetlink::sys::protocols::NETLINK_XFRM;
use rtnetlink::sys::{Socket, TokioSocket};

use crate::netfilter::messages;
use crate::netlink;

/// `XFRM_MSG_GETSPDINFO`, and its answer.
const GET_COUNTS: u16 = 0x25;
const COUNTS: u16 = 0x24;
/// `XFRM_MSG_GETDEFAULT`, and its answer. Linux 5.15.
const DEFAULTS: u16 = 0x28;
/// `NLM_F_REQUEST`.
const REQUEST: u16 = 1;
/// `XFRMNLGRP_POLICY`.
const POLICIES: u32 = 4;

/// Where `struct xfrmu_spdinfo` is in the answer: behind the flags and an attribute's header. It begins with the numbers of
/// policies for what comes in, goes out, and is forwarded; those of single sockets follow.
const COUNTS_AT: usize = 8;
const COUNTED: usize = 12;
/// `XFRM_USERPOLICY_BLOCK`.
const BLOCK: u8 = 1;

/// What says that packets are to be encrypted, or to be dropped unless they are, in words.
pub(crate) fn rules() -> io::Result<BTreeSet<String>> {
    let Some(socket) = netlink::if_supported(Socket::new(NETLINK_XFRM))? else {
        // A kernel without IPsec.
        return Ok(BTreeSet::new());
    };
    let counts = ask(&socket, GET_COUNTS, COUNTS)?;
    let defaults = ask(&socket, DEFAULTS, DEFAULTS)?;
    let policies = counts.is_some_and(|answer| has_policies(&answer));
    let blocks = defaults.is_some_and(|answer| blocks(&answer));
    let words = [
        (policies, "IPsec: policies"),
        (blocks, "IPsec: what has no policy is blocked"),
    ];
    let told = words.into_iter().filter(|(is_so, _)| *is_so);
    Ok(told.map(|(_, words)| words.to_owned()).collect())
}

/// What the kernel answers to a question of this type; none, if it does not know the question.
fn ask(socket: &Socket, kind: u16, answer: u16) -> io::Result<Option<Vec<u8>>> {
    socket.send(&question(kind), 0)?;
    let mut buffer = Vec::with_capacity(4096);
    socket.recv(&mut buffer, 0)?;
    let found = messages(&buffer)
        .into_iter()
        .find(|(kind, _)| *kind == answer);
    Ok(found.map(|(_, body)| body.to_vec()))
}

/// `struct nlmsghdr`, and four bytes, which are more than either question has.
fn question(kind: u16) -> Vec<u8> {
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

/// `struct xfrm_userpolicy_default`: what comes in, is forwarded, goes out.
fn blocks(answer: &[u8]) -> bool {
    answer.iter().take(3).any(|default| *default == BLOCK)
}

/// A socket that hears of changes of policies, in the namespace that it was opened in. Must be called inside of a tokio
/// runtime.
pub(crate) fn changes() -> io::Result<Option<TokioSocket>> {
    netlink::if_supported(netlink::hear(NETLINK_XFRM, [POLICIES]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_count_but_not_those_of_single_sockets() {
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
    fn a_default_that_blocks_is_one_of_three() {
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
