//! Finds what other software has on the node that would apply to pod traffic: rules, policies and
//! programs. Changes nothing.

pub(crate) mod ipsec;
pub(crate) mod ipsec_policies;
pub(crate) mod netfilter;
pub(crate) mod tc_programs;
