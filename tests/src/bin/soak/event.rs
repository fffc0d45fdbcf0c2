//! Random events of the soak test, and their frequencies.

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// ADD of one pod.
    Add,
    /// ADD of many pods at the same time.
    AddMany,
    /// DEL of one pod.
    Del,
    /// CHECK of one pod.
    Check,
    /// GC without one pod, whose namespace is gone.
    Gc,
    /// Change of a pod's bandwidth limit.
    Limit,
    /// SIGKILL and restart of the agent.
    Kill,
    /// SIGKILL of the agent during an ADD.
    KillDuringAdd,
    /// SIGKILL of the agent during a DEL.
    KillDuringDel,
    /// DEL while no agent runs.
    DelWithoutAgent,
    /// Replacement of the agent by another version.
    Upgrade,
    /// Change or removal of a pod's kernel objects by other software.
    Damage,
    /// Deletion of a pod's link.
    LinkGone,
    /// End of a pod's namespace without a DEL.
    NamespaceGone,
}

/// Frequency of each event in percent.
const SHARES: [(Event, u32); 14] = [
    (Event::Add, 24),
    (Event::AddMany, 3),
    (Event::Del, 22),
    (Event::Check, 14),
    (Event::Gc, 3),
    (Event::Limit, 5),
    (Event::Kill, 5),
    (Event::KillDuringAdd, 5),
    (Event::KillDuringDel, 4),
    (Event::DelWithoutAgent, 3),
    (Event::Upgrade, 2),
    (Event::Damage, 4),
    (Event::LinkGone, 3),
    (Event::NamespaceGone, 3),
];

impl Event {
    /// Chooses an event at random, by frequency.
    pub(crate) fn any(random: &mut fastrand::Rng) -> Self {
        let all: u32 = SHARES.iter().map(|(_, share)| share).sum();
        let mut left = random.u32(..all);
        for (event, share) in SHARES {
            if left < share {
                return event;
            }
            left -= share;
        }
        Self::Check
    }
}
