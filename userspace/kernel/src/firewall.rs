//! Our part of the node's firewall: the table `inet viaduct`, and rules in the filter tables that
//! forwarded packets pass.

pub(crate) mod conntrack;
pub(crate) mod forwarding;
pub(crate) mod hostport_table;
pub(crate) mod nftables;
pub(crate) mod xtables;
