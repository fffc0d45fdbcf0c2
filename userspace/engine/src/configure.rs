//! Reloads the configuration: applies all changed values, or none.

use std::collections::BTreeSet;
use std::net::IpAddr;

use kernel::Kernel;
use model::{Cidr, DatapathLogLevel, HairpinMode, IfName, RangeSet};
use planner::{BypassMode, ForwardingMode, PeerOptions, XdpPrefilterMode};

use crate::setting::Overrides;
use crate::{Engine, EngineError, Settings};

/// Changed values of the configuration; `None` for values that did not change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigChange {
    /// Pod CIDRs of the default network.
    pub pod_cidrs: Option<Vec<RangeSet>>,
    /// Hairpin mode of the default network.
    pub hairpin: Option<HairpinMode>,
    /// Destinations to which pods keep their source address.
    pub non_masquerade: Option<BTreeSet<Cidr>>,
    /// Uplinks; empty to determine them from the routing table.
    pub uplinks: Option<BTreeSet<IfName>>,
    /// SNAT source addresses of the default network's pods.
    pub egress: Option<BTreeSet<IpAddr>>,
    /// When packets bypass the bridge and netfilter.
    pub bypass: Option<BypassMode>,
    /// Whether pods' packets are carried past dropping defaults.
    pub forwarding: Option<ForwardingMode>,
    /// How packets of pods travel between nodes.
    pub peers: Option<PeerOptions>,
    /// Whether the XDP prefilter is attached to uplinks.
    pub xdp_prefilter: Option<XdpPrefilterMode>,
    /// Level of the datapath log.
    pub datapath_log: Option<DatapathLogLevel>,
}

impl ConfigChange {
    /// Returns the change that restores the current values.
    fn reverse(&self, settings: &Settings, log: DatapathLogLevel) -> Self {
        let network = &settings.default_network;
        Self {
            pod_cidrs: self.pod_cidrs.as_ref().map(|_| network.ranges.clone()),
            hairpin: self.hairpin.map(|_| network.hairpin),
            non_masquerade: (self.non_masquerade.as_ref()).map(|_| settings.non_masquerade.clone()),
            uplinks: self.uplinks.as_ref().map(|_| settings.uplinks.clone()),
            egress: self.egress.as_ref().map(|_| settings.egress.clone()),
            bypass: self.bypass.map(|_| settings.bypass),
            forwarding: self.forwarding.map(|_| settings.forwarding),
            peers: self.peers.as_ref().map(|_| settings.peers.clone()),
            xdp_prefilter: self.xdp_prefilter.map(|_| settings.xdp_prefilter),
            datapath_log: self.datapath_log.map(|_| log),
        }
    }
}

impl Overrides {
    /// Replaces the configured values that have changed.
    fn reconfigure(&mut self, change: &ConfigChange) {
        if let Some(ranges) = &change.pod_cidrs {
            self.pod_cidrs.configured.clone_from(ranges);
        }
        if let Some(mode) = change.hairpin {
            self.hairpin.configured = mode;
        }
        if let Some(prefixes) = &change.non_masquerade {
            self.non_masquerade.configured.clone_from(prefixes);
        }
    }
}

impl<K: Kernel> Engine<K> {
    /// Applies the changed values of the configuration, all or none. A changed value replaces an
    /// override that was made at run time. `now` is in seconds since 1970.
    pub fn configure(&mut self, mut change: ConfigChange, now: u64) -> Result<(), EngineError> {
        let log = self.kernel.datapath_log().level;
        let back = change.reverse(&self.choices.settings, log);
        let overrides = self.choices.overrides.clone();
        self.choices.overrides.reconfigure(&change);
        // Pod CIDRs first: they are the most likely to be refused, and `set_pod_cidrs` undoes
        // itself.
        if let Some(ranges) = change.pod_cidrs.take()
            && let Err(error) = self.set_pod_cidrs(ranges)
        {
            self.choices.overrides = overrides;
            return Err(error);
        }
        let Err(error) = self.apply_config(change, now) else {
            return Ok(());
        };
        self.choices.overrides = overrides;
        if let Err(failed) = self.apply_config(back, now) {
            let error = crate::error::chain(&failed);
            tracing::error!(
                error,
                "cannot restore the previous configuration; restart the agent to apply its configuration file"
            );
        }
        Err(error)
    }

    fn apply_config(&mut self, change: ConfigChange, now: u64) -> Result<(), EngineError> {
        if let Some(ranges) = change.pod_cidrs.filter(|ranges| !ranges.is_empty()) {
            self.set_pod_cidrs(ranges)?;
        }
        if let Some(uplinks) = change.uplinks {
            self.choices.settings.uplinks = uplinks;
        }
        if let Some(egress) = change.egress {
            self.choices.settings.egress = egress;
        }
        if let Some(bypass) = change.bypass {
            self.choices.settings.bypass = bypass;
        }
        if let Some(forwarding) = change.forwarding {
            self.choices.settings.forwarding = forwarding;
        }
        let has_peer_options = change.peers.is_some();
        if let Some(options) = change.peers {
            self.choices.settings.peers = options;
        }
        let prefixes = change
            .non_masquerade
            .unwrap_or_else(|| self.choices.settings.non_masquerade.clone());
        self.set_non_masquerade(prefixes)?;
        if let Some(mode) = change.hairpin {
            self.set_hairpin_mode(mode, now)?;
        }
        if let Some(mode) = change.xdp_prefilter {
            self.choices.settings.xdp_prefilter = mode;
            self.reconcile(now).finished()?;
        }
        if change.forwarding.is_some() || has_peer_options {
            self.reconcile(now).finished()?;
        }
        // Last: it takes longest, and nothing after it can fail.
        if let Some(level) = change.datapath_log {
            self.set_datapath_log(level, now)?;
        }
        Ok(())
    }

    /// Loads the programs with this level of the datapath log, and replaces those that are
    /// attached. A link on which that fails keeps a program of the old level, until a later
    /// reconciliation replaces it.
    fn set_datapath_log(&mut self, level: DatapathLogLevel, now: u64) -> Result<(), EngineError> {
        if self.kernel.datapath_log().level != level {
            self.kernel.set_datapath_log(level)?;
            self.reconcile(now);
        }
        Ok(())
    }
}
