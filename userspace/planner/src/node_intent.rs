//! Desired state of the node.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use model::{Cidr, IfName, Network};

use crate::{BypassMode, PeerIntent, PolicyIndex, ShaperMode, XdpPrefilterMode};

/// Desired state of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeIntent {
    /// Networks: the default network, and those of existing attachments.
    pub networks: Vec<Network>,
    /// Names of the uplinks; empty to detect them from routes and addresses.
    pub uplinks: BTreeSet<IfName>,
    /// Destination prefixes that are not masqueraded.
    pub non_masquerade: BTreeSet<Cidr>,
    /// Egress addresses by bridge, at most one per family: SNAT uses them in place of the uplink's
    /// addresses.
    pub egress: BTreeMap<IfName, BTreeSet<IpAddr>>,
    /// When packets bypass the bridge and netfilter.
    pub bypass: BypassMode,
    /// How rate limits are shaped, beyond dropping packets above the rate.
    pub shaper: ShaperMode,
    /// Mode of the XDP prefilter on uplinks.
    pub xdp_prefilter: XdpPrefilterMode,
    /// Other nodes, and how their pods are reached.
    pub peers: PeerIntent,
    /// Network policies; none until the first list.
    pub policies: Arc<PolicyIndex>,
}
