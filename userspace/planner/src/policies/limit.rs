//! The largest lists of policies.

use abi::maps;

/// Most members of all classes together: 10,000 pods with a hundred peers each. Peers that overlap
/// in other ways have more, up to the product of peers and prefixes.
pub(super) const MAX_MEMBERS: usize = 1 << 20;

/// Most different addresses of the peers of all rules together, each as often as a peer that has it
/// is named. It bounds the time of a compilation.
pub(super) const MAX_NAMED: usize = 4 * MAX_MEMBERS;

/// Room in the table of what rule sets allow.
pub(super) const MOST_KEYS: usize = maps::POLICY_RULES_CAPACITY as usize;

/// Why a list of policies cannot be compiled: it would need more memory than a node has for it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyLimit {
    /// Too many peers contain the same addresses.
    #[error(
        "the peers of the rules overlap too much: {MAX_MEMBERS} pairs of a peer and different \
         addresses are the maximum"
    )]
    Overlaps,
    /// Too many rules name peers with many different addresses.
    #[error(
        "the rules name peers with too many different addresses: {MAX_NAMED} of all peers are the \
         maximum"
    )]
    Peers,
    /// The rules have too many different addresses and ports.
    #[error(
        "the rules need {keys} entries for their addresses and ports, those of policy {policy} the \
         most: {MOST_KEYS} is the maximum"
    )]
    Rules {
        /// Entries that all rules need.
        keys: usize,
        /// Name of the policy that has the largest rule.
        policy: String,
    },
}
