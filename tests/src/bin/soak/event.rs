//! What may happen, and how often.

/// One thing that happens to the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// A pod comes.
    Add,
    /// Many come at once.
    Crowd,
    /// A pod goes.
    Del,
    /// A pod is compared with what it should be.
    Check,
    /// The runtime lists what it knows; one pod that it does not know any more is gone.
    Gc,
    /// A pod gets another limit.
    Limit,
    /// The agent is killed and started again.
    Kill,
    /// The agent is killed in the middle of an ADD.
    DeathInAdd,
    /// The agent is killed in the middle of a DEL.
    DeathInDel,
    /// A DEL finds no agent.
    DelWithoutAgent,
    /// The agent is ended, and another version takes over.
    Upgrade,
    /// Somebody takes away or changes what is ours.
    Harm,
    /// A pod's link is deleted.
    LinkGone,
    /// A pod's namespace ends, and nobody says a word.
    NamespaceGone,
}

/// Each with its share of a hundred.
const SHARES: [(Event, u32); 14] = [
    (Event::Add, 24),
    (Event::Crowd, 3),
    (Event::Del, 22),
    (Event::Check, 14),
    (Event::Gc, 3),
    (Event::Limit, 5),
    (Event::Kill, 5),
    (Event::DeathInAdd, 5),
    (Event::DeathInDel, 4),
    (Event::DelWithoutAgent, 3),
    (Event::Upgrade, 2),
    (Event::Harm, 4),
    (Event::LinkGone, 3),
    (Event::NamespaceGone, 3),
];

impl Event {
    /// Any, by its share.
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
