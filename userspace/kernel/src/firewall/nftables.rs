//! Reads and writes nftables' rulesets by netlink (`NFNL_SUBSYS_NFTABLES`).
//!
//! A [`Batch`] is one transaction: all of its messages take effect, or none. Integers of nftables'
//! attributes are big-endian; data in registers has the byte order of the packet, except for `meta`
//! and `ct`, which have the host's. Attribute numbers are those of
//! `include/uapi/linux/netfilter/nf_tables.h`.

mod attributes;
mod batch;
mod dump;
mod expression;
mod family;
mod socket;

pub(crate) use attributes::{Attributes, be32, parse, text};
pub(crate) use batch::{Batch, Chain, Element, Hook, Map, Position, Rule};
pub(crate) use dump::{ReadChain, ReadElement, ReadExpression, ReadRule};
pub(crate) use expression::{Expression, Register, Verdict, expr};
pub(crate) use family::Family;
pub(crate) use socket::{Nftables, Rejected};
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use {dump::fuzz as fuzz_rule, socket::results};

#[cfg(test)]
mod tests;
