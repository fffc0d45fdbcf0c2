//! Whether a connection that netfilter has accepted may bypass the stack, and for how long.

use std::fmt;

use abi::{Tuple, protocol};
use steps::{ConntrackStatus, TrackedConnection};

/// Seconds after which a packet takes the stack again, at the latest: netfilter keeps connections
/// alive by their packets, and rules see one of them.
const LONGEST: u32 = 15;
/// The same for a translated connection soon after a rule change. Who removes an endpoint changes
/// rules first, and then removes connections to it from conntrack, which is not notified.
const UNSETTLED: u32 = 2;
/// Seconds after a rule change for which translated connections may be removed from conntrack.
const SETTLING: u32 = 10;

/// Why packets of a connection stay on the stack. The numbers are those of the offload table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum StackReason {
    /// conntrack does not have it: no rule tracks connections, or the packet was bridged.
    Untracked = 2,
    /// It is not established yet, or no longer.
    NotEstablished = 3,
    /// A helper follows it, its sequence numbers are translated, or a flow table of netfilter has
    /// it.
    Special = 5,
    /// It has a mark or a zone, which rules and routes may depend on.
    Marked = 6,
    /// conntrack would forget it within seconds.
    ShortLived = 7,
    /// It is neither from nor to a pod of the agent.
    NotOfPod = 8,
}

impl StackReason {
    /// Returns the seconds after which the connection is looked up again.
    pub const fn retry_after(self) -> u32 {
        match self {
            Self::NotEstablished => 1,
            Self::Untracked | Self::Special | Self::Marked | Self::ShortLived | Self::NotOfPod => 5,
        }
    }

    /// All reasons.
    pub const ALL: [Self; 6] = [
        Self::Untracked,
        Self::NotEstablished,
        Self::Special,
        Self::Marked,
        Self::ShortLived,
        Self::NotOfPod,
    ];
}

impl fmt::Display for StackReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Untracked => "not tracked",
            Self::NotEstablished => "not established",
            Self::Special => "with a helper or in a flow table",
            Self::Marked => "with a mark or zone",
            Self::ShortLived => "with a short timeout",
            Self::NotOfPod => "of no pod",
        })
    }
}

/// That packets of one direction of a connection may bypass the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffloadDecision {
    /// The tuple of the packets before netfilter's translation.
    pub tuple: Tuple,
    /// Their tuple behind it.
    pub translated: Tuple,
    /// Seconds until a packet must take the stack again.
    pub seconds: u32,
}

impl OffloadDecision {
    /// Returns whether netfilter translates the packets.
    pub fn is_translated(&self) -> bool {
        self.tuple != self.translated
    }
}

/// Decides about the direction of a connection whose packets have this tuple behind netfilter's
/// last hook. Netfilter has just accepted one. `unchanged` are the seconds since the last rule
/// change.
pub fn decide_offload(
    observed: &Tuple,
    connection: Option<&TrackedConnection>,
    unchanged: u32,
) -> Result<OffloadDecision, StackReason> {
    let connection = connection.ok_or(StackReason::Untracked)?;
    let status = connection.status;
    if status & ConntrackStatus::SPECIAL != 0 || connection.has_helper {
        return Err(StackReason::Special);
    }
    // Packets get the reverse of the tuple that those of the other direction come with.
    let tuple = if *observed == connection.reply.reverse() {
        connection.original
    } else if *observed == connection.original.reverse() {
        connection.reply
    } else {
        return Err(StackReason::Untracked);
    };
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
    let longest = if tuple != *observed && unchanged < SETTLING {
        UNSETTLED
    } else {
        LONGEST
    };
    // The next packet through the stack must find the connection.
    match longest.min(connection.timeout / 2) {
        0 | 1 => Err(StackReason::ShortLived),
        seconds => Ok(OffloadDecision {
            tuple,
            translated: *observed,
            seconds,
        }),
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

    /// Returns the seconds.
    fn decide(change: impl Fn(&mut TrackedConnection)) -> Result<u32, StackReason> {
        let mut changed = connection(protocol::TCP);
        change(&mut changed);
        let decision = decide_offload(&tuple(protocol::TCP), Some(&changed), SETTLING);
        decision.map(|decision| decision.seconds)
    }

    #[test]
    fn established_connections_bypass_the_stack_in_both_directions() {
        for protocol in [protocol::TCP, protocol::UDP] {
            for tuple in [tuple(protocol), tuple(protocol).reverse()] {
                let decided = OffloadDecision {
                    tuple,
                    translated: tuple,
                    seconds: LONGEST,
                };
                let decision = decide_offload(&tuple, Some(&connection(protocol)), 0);
                assert_eq!(decision, Ok(decided));
            }
        }
    }

    /// A connection from a pod to port 443 of a service, which another pod serves at port 8443; and
    /// the tuple of its packets behind netfilter.
    fn connection_to_service() -> (TrackedConnection, Tuple) {
        let behind = Tuple {
            destination: Address::v4([10, 244, 0, 3]),
            destination_port: Port::new(8443),
            ..tuple(protocol::TCP)
        };
        let connection = TrackedConnection {
            reply: behind.reverse(),
            status: 0b10_1110,
            ..connection(protocol::TCP)
        };
        (connection, behind)
    }

    #[test]
    fn the_decision_about_a_translated_connection_has_both_tuples_of_each_direction() {
        let (connection, behind) = connection_to_service();
        for (tuple, translated) in [
            (connection.original, behind),
            (connection.reply, connection.original.reverse()),
        ] {
            let decision = decide_offload(&translated, Some(&connection), SETTLING);
            let decided = OffloadDecision {
                tuple,
                translated,
                seconds: LONGEST,
            };
            assert_eq!(decision, Ok(decided));
            assert!(decided.is_translated());
            // Never seen behind netfilter.
            let decision = decide_offload(&tuple, Some(&connection), SETTLING);
            assert_eq!(decision, Err(StackReason::Untracked));
        }
    }

    #[test]
    fn a_translated_connection_soon_takes_the_stack_after_a_rule_change() {
        let (connection, behind) = connection_to_service();
        let seconds =
            |unchanged| decide_offload(&behind, Some(&connection), unchanged).map(|it| it.seconds);
        assert_eq!(seconds(0), Ok(UNSETTLED));
        assert_eq!(seconds(SETTLING - 1), Ok(UNSETTLED));
        assert_eq!(seconds(SETTLING), Ok(LONGEST));
    }

    #[test]
    fn connections_that_need_netfilter_stay_on_the_stack() {
        use StackReason::{Marked, NotEstablished, ShortLived, Special, Untracked};
        let untracked = decide_offload(&tuple(protocol::TCP), None, SETTLING);
        assert_eq!(untracked, Err(Untracked));
        let of_other = |it: &mut TrackedConnection| {
            it.original.source_port = Port::new(1);
            it.reply.destination_port = Port::new(1);
        };
        assert_eq!(decide(of_other), Err(Untracked));
        for bit in [6, 9, 11, 13, 14, 15] {
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
        let sctp = connection(protocol::SCTP);
        let decision = decide_offload(&tuple(protocol::SCTP), Some(&sctp), SETTLING);
        assert_eq!(decision, Err(NotEstablished));
    }
}
