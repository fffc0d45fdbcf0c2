//! Whether a connection that netfilter has accepted may bypass the stack, and for how long.

use std::fmt;

use abi::{Tuple, protocol};
use steps::{ConntrackStatus, TrackedConnection};

/// Seconds after which a packet takes the stack again, at the latest: netfilter keeps connections
/// alive by their packets, and rules see one of them.
const LONGEST: u32 = 15;
/// The same for a flow without a reply: its entry lives for 30 seconds after the last packet that
/// conntrack has seen, is not protected from an early removal, and the reply must find it.
const LONGEST_UNREPLIED: u32 = 10;
/// The same where netfilter translates such a flow.
const LONGEST_UNREPLIED_TRANSLATED: u32 = 5;
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
    /// It has no reply, and a rule must see every packet of new connections.
    NeedsReply = 4,
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
            Self::Untracked
            | Self::NeedsReply
            | Self::Special
            | Self::Marked
            | Self::ShortLived
            | Self::NotOfPod => 5,
        }
    }

    /// All reasons.
    pub const ALL: [Self; 7] = [
        Self::Untracked,
        Self::NotEstablished,
        Self::NeedsReply,
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
            Self::NeedsReply => "without a reply, beside rules for new connections",
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
    /// Whether netfilter has seen packets of this direction only.
    pub unreplied: bool,
}

impl OffloadDecision {
    /// Returns whether netfilter translates the packets.
    pub fn is_translated(&self) -> bool {
        self.tuple != self.translated
    }
}

/// What the agent knows beside conntrack about a packet that netfilter has just accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffloadEvidence {
    /// Seconds since the last rule change.
    pub unchanged: u32,
    /// Whether another packet of this direction was reported seconds before, so that the connection
    /// was in conntrack when this one met the rules.
    pub repeated: bool,
    /// Whether rules decide alike about all packets of a new connection.
    pub unreplied_allowed: bool,
}

/// Decides about the direction of a connection whose packets have this tuple behind netfilter's
/// last hook.
pub fn decide_offload(
    observed: &Tuple,
    connection: Option<&TrackedConnection>,
    evidence: OffloadEvidence,
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
    let unreplied = is_unreplied(connection, &tuple, observed);
    if !is_established(connection) {
        match (unreplied && evidence.repeated, evidence.unreplied_allowed) {
            (true, true) => {}
            (true, false) => return Err(StackReason::NeedsReply),
            (false, _) => return Err(StackReason::NotEstablished),
        }
    }
    let is_translated = tuple != *observed;
    let longest = match (unreplied, is_translated) {
        (_, true) if evidence.unchanged < SETTLING => UNSETTLED,
        (true, true) => LONGEST_UNREPLIED_TRANSLATED,
        (true, false) => LONGEST_UNREPLIED,
        (false, _) => LONGEST,
    };
    // The next packet through the stack must find the connection, and so must a reply.
    let share = if unreplied { 3 } else { 2 };
    match longest.min(connection.timeout / share) {
        0 | 1 => Err(StackReason::ShortLived),
        seconds => Ok(OffloadDecision {
            tuple,
            translated: *observed,
            seconds,
            unreplied,
        }),
    }
}

/// Returns whether rules see packets of both directions as established, and the connection will
/// stay so.
fn is_established(connection: &TrackedConnection) -> bool {
    let seen = ConntrackStatus::SEEN_REPLY | ConntrackStatus::CONFIRMED;
    connection.status & seen == seen
        && match connection.original.protocol {
            protocol::TCP => {
                connection.status & ConntrackStatus::ASSURED != 0
                    && connection.tcp_state == Some(TrackedConnection::ESTABLISHED)
            }
            // Assured after two seconds only.
            protocol::UDP => true,
            _ => false,
        }
}

/// Returns whether rules see each packet of this direction as new, because there was no reply.
///
/// Where netfilter has chosen the source port, another connection could get the port once this
/// one's entry was removed: such a flow waits for a reply.
fn is_unreplied(connection: &TrackedConnection, tuple: &Tuple, observed: &Tuple) -> bool {
    const STATE: u32 =
        ConntrackStatus::EXPECTED | ConntrackStatus::SEEN_REPLY | ConntrackStatus::CONFIRMED;
    tuple.protocol == protocol::UDP
        && connection.status & STATE == ConntrackStatus::CONFIRMED
        && *tuple == connection.original
        && (tuple.source, tuple.source_port) == (observed.source, observed.source_port)
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

    /// A second report, long after a rule change, beside rules that allow all.
    const REPEATED: OffloadEvidence = OffloadEvidence {
        unchanged: SETTLING,
        repeated: true,
        unreplied_allowed: true,
    };
    /// The first report, beside rules that must see new connections.
    const FIRST: OffloadEvidence = OffloadEvidence {
        unchanged: SETTLING,
        repeated: false,
        unreplied_allowed: false,
    };

    /// Returns the seconds.
    fn decide(change: impl Fn(&mut TrackedConnection)) -> Result<u32, StackReason> {
        let mut changed = connection(protocol::TCP);
        change(&mut changed);
        let decision = decide_offload(&tuple(protocol::TCP), Some(&changed), FIRST);
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
                    unreplied: false,
                };
                let evidence = OffloadEvidence {
                    unchanged: 0,
                    ..FIRST
                };
                let decision = decide_offload(&tuple, Some(&connection(protocol)), evidence);
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
            let decision = decide_offload(&translated, Some(&connection), FIRST);
            let decided = OffloadDecision {
                tuple,
                translated,
                seconds: LONGEST,
                unreplied: false,
            };
            assert_eq!(decision, Ok(decided));
            assert!(decided.is_translated());
            // Never seen behind netfilter.
            let decision = decide_offload(&tuple, Some(&connection), FIRST);
            assert_eq!(decision, Err(StackReason::Untracked));
        }
    }

    #[test]
    fn a_translated_connection_soon_takes_the_stack_after_a_rule_change() {
        let (connection, behind) = connection_to_service();
        let seconds = |unchanged| {
            let evidence = OffloadEvidence { unchanged, ..FIRST };
            decide_offload(&behind, Some(&connection), evidence).map(|it| it.seconds)
        };
        assert_eq!(seconds(0), Ok(UNSETTLED));
        assert_eq!(seconds(SETTLING - 1), Ok(UNSETTLED));
        assert_eq!(seconds(SETTLING), Ok(LONGEST));
    }

    #[test]
    fn connections_that_need_netfilter_stay_on_the_stack() {
        use StackReason::{Marked, NotEstablished, ShortLived, Special, Untracked};
        let untracked = decide_offload(&tuple(protocol::TCP), None, FIRST);
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
        let decision = decide_offload(&tuple(protocol::SCTP), Some(&sctp), FIRST);
        assert_eq!(decision, Err(NotEstablished));
    }

    fn unreplied() -> TrackedConnection {
        TrackedConnection {
            status: ConntrackStatus::CONFIRMED,
            timeout: 30,
            ..connection(protocol::UDP)
        }
    }

    #[test]
    fn a_udp_flow_without_a_reply_bypasses_the_stack_in_its_direction() {
        let observed = tuple(protocol::UDP);
        let decision = decide_offload(&observed, Some(&unreplied()), REPEATED);
        let decided = OffloadDecision {
            tuple: observed,
            translated: observed,
            seconds: LONGEST_UNREPLIED,
            unreplied: true,
        };
        assert_eq!(decision, Ok(decided));
        // A reply between the report and the query.
        let decision = decide_offload(&observed.reverse(), Some(&unreplied()), REPEATED);
        assert_eq!(decision, Err(StackReason::NotEstablished));
        // After the reply, packets are those of an established connection.
        for tuple in [observed, observed.reverse()] {
            let decision = decide_offload(&tuple, Some(&connection(protocol::UDP)), REPEATED);
            assert_eq!(decision.map(|it| it.unreplied), Ok(false));
        }
    }

    #[test]
    fn the_first_report_of_a_flow_without_a_reply_is_no_evidence() {
        let decide = |evidence| {
            let decision = decide_offload(&tuple(protocol::UDP), Some(&unreplied()), evidence);
            decision.map(|it| it.seconds)
        };
        let allowed = OffloadEvidence {
            unreplied_allowed: true,
            ..FIRST
        };
        assert_eq!(decide(allowed), Err(StackReason::NotEstablished));
        assert_eq!(decide(REPEATED), Ok(LONGEST_UNREPLIED));
        let held = OffloadEvidence {
            unreplied_allowed: false,
            ..REPEATED
        };
        assert_eq!(decide(held), Err(StackReason::NeedsReply));
    }

    #[test]
    fn flows_without_a_reply_stay_on_the_stack_unless_they_are_plain_udp() {
        use StackReason::{NotEstablished, ShortLived, Special};
        let decide = |protocol, change: &dyn Fn(&mut TrackedConnection)| {
            let mut changed = TrackedConnection {
                status: ConntrackStatus::CONFIRMED,
                timeout: 30,
                ..connection(protocol)
            };
            change(&mut changed);
            let decision = decide_offload(&tuple(protocol), Some(&changed), REPEATED);
            decision.map(|it| it.seconds)
        };
        assert_eq!(decide(protocol::TCP, &|_| {}), Err(NotEstablished));
        assert_eq!(decide(protocol::SCTP, &|_| {}), Err(NotEstablished));
        let udp = |change: &dyn Fn(&mut TrackedConnection)| decide(protocol::UDP, change);
        // Its packets are related, not new.
        let expected = |it: &mut TrackedConnection| it.status |= ConntrackStatus::EXPECTED;
        assert_eq!(udp(&expected), Err(NotEstablished));
        let unconfirmed = |it: &mut TrackedConnection| it.status = 0;
        assert_eq!(udp(&unconfirmed), Err(NotEstablished));
        assert_eq!(udp(&|it| it.has_helper = true), Err(Special));
        assert_eq!(udp(&|it| it.timeout = 5), Err(ShortLived));
        assert_eq!(udp(&|it| it.timeout = 12), Ok(4));
    }

    #[test]
    fn a_flow_without_a_reply_may_have_another_destination_but_no_other_source() {
        let original = tuple(protocol::UDP);
        let decide = |behind: Tuple, unchanged| {
            let connection = TrackedConnection {
                reply: behind.reverse(),
                ..unreplied()
            };
            let evidence = OffloadEvidence {
                unchanged,
                ..REPEATED
            };
            decide_offload(&behind, Some(&connection), evidence).map(|it| it.seconds)
        };
        let to_endpoint = Tuple {
            destination: Address::v4([10, 244, 0, 3]),
            ..original
        };
        assert_eq!(
            decide(to_endpoint, SETTLING),
            Ok(LONGEST_UNREPLIED_TRANSLATED)
        );
        assert_eq!(decide(to_endpoint, 0), Ok(UNSETTLED));
        for masqueraded in [
            Tuple {
                source: Address::v4([192, 0, 2, 1]),
                ..to_endpoint
            },
            Tuple {
                source_port: Port::new(1024),
                ..original
            },
        ] {
            let decision = decide(masqueraded, SETTLING);
            assert_eq!(decision, Err(StackReason::NotEstablished));
        }
    }
}
