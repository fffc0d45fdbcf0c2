//! Network policies as the datapath evaluates them: by two lookups in tries.
//!
//! * An **identity** stands for a set of addresses that the same peers of rules contain. The
//!   longest prefix of an address has its identity; 0 is that of addresses that no rule names.
//! * A **rule set** is what all policies of a pod allow in one direction. It has a key for each
//!   identity and range of ports; those of identity 0 apply to every address.
//!
//! Both are numbered by their contents, so that a number never changes its meaning while tables are
//! written one entry after the other. Identities follow from the list of policies alone: they are
//! compiled once for each list ([`PolicyIndex`]), and a new pod has only its rule sets to add.

mod classes;
mod entries;
mod index;
mod limit;
mod numbers;
mod port_ranges;
mod rule_sets;

pub(crate) use self::entries::policy_entries;
pub use self::entries::{is_selected_by, plan_policies_of};
pub use self::index::PolicyIndex;
pub use self::limit::PolicyLimit;

#[cfg(test)]
mod tests;
