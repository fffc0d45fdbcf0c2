//! How far a flow has come: which flows are finished, and which give way to new ones.

use abi::{Flow, Seen, protocol};

use super::last_seen;
use crate::tcp;

/// Idle seconds after which a flow that has hardly begun counts as finished: clients retry an
/// unanswered request earlier.
pub(crate) const MIN_IDLE: u32 = 5;
/// A flow that lasted fewer seconds was one request and its reply.
const MAX_DURATION: u32 = 2;

/// Idle seconds for which an established connection of an account within its share never gives way
/// to a new flow: the least that RFC 5382 allows (REQ-5).
pub(crate) const LONG_IDLE: u32 = 7_440;

/// How far a live flow has come, by which flows give way: a higher number first. Linux's conntrack
/// evicts the first two likewise (`IPS_ASSURED`): a UDP flow is assured once it has lasted for two
/// seconds (`net/netfilter/nf_conntrack_proto_udp.c`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress;

impl Progress {
    /// An established connection, or an exchange that has lasted for [`MAX_DURATION`].
    pub(crate) const ASSURED: u32 = 0;
    /// An answered request.
    pub(crate) const ANSWERED: u32 = 1;
    /// A request without an answer, or a TCP connection that was not established.
    pub(crate) const UNANSWERED: u32 = 2;

    /// Returns the progress of a flow that is not finished, by its original direction and the
    /// other.
    #[inline(always)]
    pub(crate) const fn of(flow: &Flow, other: &Flow, protocol: u8) -> u32 {
        let is_answered = match protocol {
            protocol::TCP => tcp::is_established(flow.seen, other.seen),
            _ => other.seen & Seen::PACKET != 0,
        };
        let lasts = last_seen(flow, other).saturating_sub(flow.created) >= MAX_DURATION;
        if !is_answered {
            Self::UNANSWERED
        } else if protocol != protocol::TCP && !lasts {
            Self::ANSWERED
        } else {
            Self::ASSURED
        }
    }
}

/// Returns whether a flow is finished, so that it may be evicted before its timeout: a TCP
/// connection that was closed or reset, or never established, and a request with its reply. Linux's
/// conntrack drops the same early (`net/netfilter/nf_conntrack_core.c`, `early_drop_list`): flows
/// that are not assured, and closing connections. The two directions may be given in either order.
#[inline(always)]
pub fn is_finished(one: &Flow, other: &Flow, protocol: u8, now: u32) -> bool {
    let last_seen = last_seen(one, other);
    let is_idle = now.saturating_sub(last_seen) >= MIN_IDLE;
    match protocol {
        protocol::TCP if tcp::is_closed(one.seen, other.seen) => true,
        protocol::TCP => is_idle && !tcp::is_established(one.seen, other.seen),
        _ => is_idle && last_seen.saturating_sub(one.created) < MAX_DURATION,
    }
}

/// Returns whether a flow has been idle for so long that it may be evicted where no other place is
/// left.
#[inline(always)]
pub(crate) const fn is_long_idle(one: &Flow, other: &Flow, now: u32) -> bool {
    now.saturating_sub(last_seen(one, other)) >= LONG_IDLE
}
