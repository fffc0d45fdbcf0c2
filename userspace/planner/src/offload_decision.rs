//! Whether a connection that netfilter has accepted may bypass the stack, and for how long.

use std::fmt;

use abi::{Tuple, protocol};
use steps::{ConntrackStatus, TrackedConnection};

/// Seconds after which a packet takes the stack again, at the latest: netfilter keeps connections
/// alive by their packets, and rules see one of them.
const LONGEST: u32 = 15;

/// Why packets of a connection stay on the stack. The numbers are those of the offload table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum StackReason {
    /// conntrack does not have it: no rule tracks connections, or the packet was bridged.
    Untracked = 2,
    /// It is not established yet, or no longer.
    NotEstablished = 3,
    /// Netfilter translates it.
    Translated = 4,
    /// A helper follows it, or a flow table of netfilter has it.
    Special = 5,
    /// It has a mark or a zone, which rules and routes may depend on.
    Marked = 6,
    /// conntrack would forget it within seconds.
    ShortLived = 7,
}

impl StackReason {
    /// Returns the seconds after which the connection is looked up again.
    pub const fn retry_after(self) -> u32 {
        match self {
            Self::NotEstablished => 1,
            Self::Untracked
            | Self::Translated
            | Self::Special
            | Self::Marked
            | Self::ShortLived => 5,
        }
    }

    /// All reasons.
    pub const ALL: [Self; 6] = [
        Self::Untracked,
        Self::NotEstablished,
        Self::Translated,
        Self::Special,
        Self::Marked,
        Self::ShortLived,
    ];
}

impl fmt::Display for StackReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Untracked => "not tracked",
            Self::NotEstablished => "not established",
            Self::Translated => "translated by netfilter",
            Self::Special => "with a helper or in a flow table",
            Self::Marked => "with a mark or zone",
            Self::ShortLived => "with a short timeout",
        })
    }
}

/// Returns the seconds for which packets with this tuple may bypass the stack. Netfilter has just
/// accepted one.
pub fn decide_offload(
    tuple: &Tuple,
    connection: Option<&TrackedConnection>,
) -> Result<u32, StackReason> {
    let connection = connection.ok_or(StackReason::Untracked)?;
    let status = connection.status;
    if status & ConntrackStatus::SPECIAL != 0 || connection.has_helper {
        return Err(StackReason::Special);
    }
    let is_same = [connection.original, connection.reply].contains(tuple);
    if status & ConntrackStatus::TRANSLATED != 0
        || connection.original != connection.reply.reverse()
        || !is_same
    {
        return Err(StackReason::Translated);
    }
    if connection.mark != 0 || connection.zone != 0 {
        return Err(StackReason::Marked);
    }
    let seen = ConntrackStatus::SEEN_REPLY | ConntrackStatus::CONFIRMED;
    let is_open = match tuple.protocol {
        protocol::TCP => {
            status & ConntrackStatus::ASSURED != 0
                && connection.tcp_state == Some(TrackedConnection::ESTABLISHED)
        }
        // Assured after two seconds only.
        protocol::UDP => true,
        _ => false,
    };
    if status & seen != seen || !is_open {
        return Err(StackReason::NotEstablished);
    }
    // The next packet through the stack must find the connection.
    match LONGEST.min(connection.timeout / 2) {
        0 | 1 => Err(StackReason::ShortLived),
        seconds => Ok(seconds),
    }
}

#[cfg(test)]
mod tests {
    use abi::{Address, Port};

    use super::*;

    fn tuple(protocol: u8) -> Tuple {
        Tuple {
            source: Address::v4([10, 244, 0, 2]),
            destination: Address::v4([192, 0, 2, 2]),
            source_port: Port::new(40_000),
            destination_port: Port::new(443),
            protocol,
            reserved: [0; 3],
        }
    }

    fn connection(protocol: u8) -> TrackedConnection {
        TrackedConnection {
            original: tuple(protocol),
            reply: tuple(protocol).reverse(),
            status: 0b1110,
            timeout: 432_000,
            tcp_state: (protocol == protocol::TCP).then_some(3),
            ..TrackedConnection::default()
        }
    }

    fn decide(change: impl Fn(&mut TrackedConnection)) -> Result<u32, StackReason> {
        let mut changed = connection(protocol::TCP);
        change(&mut changed);
        decide_offload(&tuple(protocol::TCP), Some(&changed))
    }

    #[test]
    fn established_connections_bypass_the_stack_in_both_directions() {
        for protocol in [protocol::TCP, protocol::UDP] {
            for tuple in [tuple(protocol), tuple(protocol).reverse()] {
                let decision = decide_offload(&tuple, Some(&connection(protocol)));
                assert_eq!(decision, Ok(LONGEST));
            }
        }
    }

    #[test]
    fn connections_that_need_netfilter_stay_on_the_stack() {
        use StackReason::{Marked, NotEstablished, ShortLived, Special, Translated, Untracked};
        assert_eq!(decide_offload(&tuple(protocol::TCP), None), Err(Untracked));
        for bit in [4, 5, 6] {
            assert_eq!(decide(|it| it.status |= 1 << bit), Err(Translated));
        }
        assert_eq!(
            decide(|it| it.reply.source_port = Port::new(80)),
            Err(Translated)
        );
        let of_other = |it: &mut TrackedConnection| {
            it.original.source_port = Port::new(1);
            it.reply.destination_port = Port::new(1);
        };
        assert_eq!(decide(of_other), Err(Translated));
        for bit in [9, 11, 13, 14, 15] {
            assert_eq!(decide(|it| it.status |= 1 << bit), Err(Special));
        }
        assert_eq!(decide(|it| it.has_helper = true), Err(Special));
        assert_eq!(decide(|it| it.mark = 1), Err(Marked));
        assert_eq!(decide(|it| it.zone = 1), Err(Marked));
        for bit in [1, 2, 3] {
            assert_eq!(decide(|it| it.status &= !(1 << bit)), Err(NotEstablished));
        }
        for state in [None, Some(2), Some(4), Some(7)] {
            assert_eq!(decide(|it| it.tcp_state = state), Err(NotEstablished));
        }
        assert_eq!(decide(|it| it.timeout = 3), Err(ShortLived));
        assert_eq!(decide(|it| it.timeout = 20), Ok(10));
        let sctp = decide_offload(&tuple(protocol::SCTP), Some(&connection(protocol::SCTP)));
        assert_eq!(sctp, Err(NotEstablished));
    }
}
