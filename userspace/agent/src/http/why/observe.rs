//! The state of the node that explanations are made of.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use abi::{Address, Mac};
use explain::{LinkFacts, Lookups, Snapshot};
use kernel::{DatapathReader, NodeLookups, ObserveError};
use model::{NetworkPolicies, Record};
use steps::{
    DatapathTables, FilterTable, ForwardTables, FoundRoute, FoundSocket, Link, RouteDecision,
    RoutedPacket, TableState,
};

use crate::http::why::view::Names;

/// The node as observed for one explanation.
pub(crate) struct ObservedNode {
    pub(crate) tables: DatapathTables,
    pub(crate) links: Vec<(String, Link)>,
    /// `None` where they could not be read.
    pub(crate) filters: Option<ForwardTables>,
    /// `None` where they could not be read.
    pub(crate) translations: Option<BTreeMap<FilterTable, TableState>>,
    pub(crate) lookups: Arc<dyn Lookups>,
}

impl ObservedNode {
    /// Copies the tables, and opens the lookups in the namespace of the calling thread.
    pub(crate) fn read(reader: &DatapathReader) -> Result<Self, ObserveError> {
        let tables = reader.read()?;
        let mut lookups = NodeLookups::open()?;
        let links = lookups.links()?;
        let filters = lookups.filters().inspect_err(
            |error| tracing::warn!(%error, "explaining a packet without the filter tables"),
        );
        let translations = lookups.translations().inspect_err(
            |error| tracing::warn!(%error, "explaining a packet without the nat tables"),
        );
        Ok(Self {
            tables,
            links: links
                .into_iter()
                .map(|(name, link)| (name.to_string(), link))
                .collect(),
            filters: filters.ok(),
            translations: translations.ok(),
            lookups: Arc::new(KernelLookups(Mutex::new(lookups))),
        })
    }

    /// Returns what the explanation is made of, with these names of pods by slot.
    pub(crate) fn snapshot(
        self,
        records: &[Record],
        names: Names,
        policies: &NetworkPolicies,
    ) -> Snapshot {
        let links = self.links.into_iter().map(|(name, link)| {
            let facts = LinkFacts {
                name,
                mac: link.mac.map_or_else(Mac::default, |mac| Mac::new(mac.0)),
                mtu: link.mtu,
            };
            (link.index, facts)
        });
        Snapshot {
            tables: self.tables,
            links: links.collect(),
            pods: names,
            policies: policies_of(records, policies),
            subnets: subnets(records),
            filters: self.filters,
            translations: self.translations,
            lookups: self.lookups,
        }
    }
}

/// Returns the names of the network policies that select each pod, by slot.
fn policies_of(records: &[Record], policies: &NetworkPolicies) -> BTreeMap<u32, Vec<String>> {
    let of = |record: &Record| {
        let selecting = policies.policies.iter();
        let names: Vec<String> = selecting
            .filter(|policy| planner::is_selected_by(&record.attachment, policy))
            .map(|policy| policy.name.clone())
            .collect();
        (!names.is_empty()).then_some((record.attachment.slot, names))
    };
    records.iter().filter_map(of).collect()
}

/// Returns the addresses of each pod with the prefix lengths of their subnets, by slot.
fn subnets(records: &[Record]) -> BTreeMap<u32, Vec<(Address, u32)>> {
    let of = |record: &Record| {
        let addresses = record.attachment.addresses.iter().map(|assigned| {
            let own = assigned.address;
            (
                super::parties::address(own.address),
                u32::from(own.prefix_len),
            )
        });
        (record.attachment.slot, addresses.collect())
    };
    records.iter().map(of).collect()
}

/// The kernel of the node.
struct KernelLookups(Mutex<NodeLookups>);

impl fmt::Debug for KernelLookups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KernelLookups")
    }
}

impl Lookups for KernelLookups {
    fn route(&self, packet: &RoutedPacket) -> FoundRoute {
        let mut lookups = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lookups.route(packet).unwrap_or_else(|error| FoundRoute {
            decision: RouteDecision::Unreachable,
            route: format!("the route is not known: {error}: {}", error.source),
        })
    }

    fn socket(&self, protocol: u8, source: SocketAddr, destination: SocketAddr) -> FoundSocket {
        let lookups = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lookups.socket(protocol, source, destination)
    }
}
