//! Copy of the datapath's tables, as its programs see them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;

use abi::{
    Address, Bucket, Events, Flow, Limit, Offloaded, Pod, PolicyFlow, PolicyRule, PrefixKey,
    Settings, ShapedSubnetKey, Tuple,
};

/// Declares the rows of each lookup in the list of maps, so that the copy has all of them.
macro_rules! lookups {
    ($($map:ident: $key:tt, $value:tt, $lookup:ident, $rows:ident;)*) => {
        /// The tables that the agent writes and the stages look up.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct LookupTables {
            $(
                #[doc = concat!("Rows of [`abi::maps::", stringify!($map), "`].")]
                pub $rows: BTreeMap<abi::layout!($key), abi::layout!($value)>,
            )*
        }
    };
}
abi::for_each_lookup!(lookups);

/// The tables that verdicts depend on, read at about one time. Fragments, caches and counters are
/// left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DatapathTables {
    /// Time of the copy, in nanoseconds of `CLOCK_MONOTONIC`.
    pub now: u64,
    /// Whether the agent changed no table while they were copied.
    pub is_consistent: bool,
    /// The settings.
    pub settings: Settings,
    /// The pods by slot; free slots are left out.
    pub pods: BTreeMap<u32, Pod>,
    /// The tables of the lookups; the copy dereferences to them.
    pub lookups: LookupTables,
    /// The node's own addresses.
    pub locals: BTreeSet<Address>,
    /// The prefixes with their [`abi::PrefixClass`] bits.
    pub prefixes: BTreeMap<PrefixKey, u32>,
    /// Identities of addresses in network policies.
    pub identities: BTreeMap<PrefixKey, u32>,
    /// What rule sets of network policies allow: keys with their lengths in bits.
    pub policy_rules: BTreeSet<(u32, PolicyRule)>,
    /// Which ends of connections have let packets pass that network policies allow, by the tuple of
    /// the answers.
    pub policy_flows: BTreeMap<Tuple, PolicyFlow>,
    /// The flow table, with pending counters.
    pub flows: BTreeMap<Tuple, Flow>,
    /// Capacity of the flow table in entries.
    pub flow_entries: u32,
    /// Number of flows of each account that has any.
    pub live: BTreeMap<u32, i64>,
    /// The limits by `slot * 2 + direction`; slots without one are left out.
    pub limits: BTreeMap<u32, Limit>,
    /// The token buckets of these limits.
    pub buckets: BTreeMap<u32, Bucket>,
    /// The shaped subnets with their lengths in bits ([`ShapedSubnetKey::POD_BITS`] included), and
    /// the generation of their pods.
    pub shaped_subnets: BTreeMap<(ShapedSubnetKey, u32), u32>,
    /// The offload table.
    pub offloaded: BTreeMap<Tuple, Offloaded>,
    /// Events that the agent has reported to the programs.
    pub events: Events,
}

impl Deref for DatapathTables {
    type Target = LookupTables;

    fn deref(&self) -> &LookupTables {
        &self.lookups
    }
}
