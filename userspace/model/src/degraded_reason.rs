//! Degraded reasons: why a node does not work completely. One list gives word, meaning, advice and
//! the code of CNI STATUS.
//!
//! The table in `docs/operations.md` is generated from this list (`cargo xtask tidy --bless`).

/// Declares [`DegradedReason`] and everything that is derived from it.
macro_rules! degraded_reasons {
    ($(
        $(#[doc = $meaning:literal])+
        $variant:ident = $word:literal, status $status:literal, do $advice:literal;
    )+) => {
        /// Reason of a degradation. The word is the same in the API, the metrics, the events and
        /// the documentation; it never changes once released.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum DegradedReason {
            $( $(#[doc = $meaning])+ $variant, )+
        }

        impl DegradedReason {
            /// All reasons, in the order of the documentation.
            pub const ALL: [Self; [$($word),+].len()] = [$(Self::$variant),+];

            /// Returns the word in the API, the metrics and the events, such as `no-uplink`.
            pub const fn word(self) -> &'static str {
                match self {
                    $( Self::$variant => $word, )+
                }
            }

            /// Returns what the reason means, in one or two sentences.
            pub const fn meaning(self) -> &'static str {
                match self {
                    $( Self::$variant => concat!($($meaning),+), )+
                }
            }

            /// Returns the code of CNI STATUS, with its condition; empty where STATUS succeeds.
            pub const fn status(self) -> &'static str {
                match self {
                    $( Self::$variant => $status, )+
                }
            }

            /// Returns the advice to the operator, in one sentence.
            pub const fn advice(self) -> &'static str {
                match self {
                    $( Self::$variant => $advice, )+
                }
            }
        }
    };
}

degraded_reasons! {
    /// The default network has no range, and a pod needs it.
    NoPodCidr = "no-pod-cidr", status "50 for the default network",
        do "Give the agent a pod CIDR (`--pod-cidr`, `--pod-cidr-file`).";
    /// No link leads out of the node.
    NoUplink = "no-uplink", status "",
        do "Set a link up and give it an address or a route.";
    /// A link named with `--uplink` does not exist.
    UplinkMissing = "uplink-missing", status "",
        do "Create the link, or correct `--uplink`.";
    /// An uplink has no programs: pods are not masqueraded or published there.
    ProgramsMissing = "programs-missing", status "51",
        do "Find the error of the attachment in the agent's log.";
    /// A network's bridge cannot be used.
    NetworkRefused = "network-refused", status "50 for the network",
        do "Correct the network's configuration, or remove what it conflicts with.";
    /// At most a tenth of a range is free.
    PoolNearlyExhausted = "pool-nearly-exhausted", status "",
        do "Enlarge the range, or run fewer pods on this node.";
    /// A range has no free address.
    PoolExhausted = "pool-exhausted", status "50 for the network",
        do "Enlarge the range, or remove pods.";
    /// The node does not have an address that pods should leave with.
    NoEgressAddress = "no-egress-address", status "",
        do "Add the address to a link, or correct `--egress-address`.";
    /// The last reconciliation could not repair something.
    RepairFailed = "repair-failed", status "51 if it concerns the node",
        do "Find the error in the agent's log; the next reconciliation tries again.";
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::DegradedReason;

    #[test]
    fn each_degraded_reason_has_a_word_of_its_own_and_one_sentence_of_advice() {
        let words: BTreeSet<&str> = DegradedReason::ALL.map(DegradedReason::word).into();
        assert_eq!(words.len(), DegradedReason::ALL.len());
        for reason in DegradedReason::ALL {
            let word = reason.word();
            let is_kebab = |byte: u8| byte.is_ascii_lowercase() || byte == b'-';
            assert!(word.bytes().all(is_kebab), "{word}");
            assert!(reason.meaning().trim().ends_with('.'), "{word}");
            assert!(reason.advice().ends_with('.'), "{word}");
        }
    }
}
