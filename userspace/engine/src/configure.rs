//! Another configuration while the engine runs: all that it says anew, or nothing.

use std::collections::BTreeSet;
use std::mem::replace;
use std::net::IpAddr;

use kernel::Kernel;
use model::{Cidr, HairpinMode, IfName, RangeSet};
use planner::{BypassMode, GuardMode};

use crate::{Engine, EngineError, Settings, choices};

/// What the configuration says otherwise than before; `None` where it says the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// The pod CIDRs of the agent's own network.
    pub pod_cidrs: Option<Vec<RangeSet>>,
    /// How its pods reach themselves.
    pub hairpin: Option<HairpinMode>,
    /// Destinations that see the pods' own addresses.
    pub non_masquerade: Option<BTreeSet<Cidr>>,
    /// Links by which packets leave the node; empty to follow the routing table.
    pub uplinks: Option<BTreeSet<IfName>>,
    /// The addresses that pods of the agent's own network leave with.
    pub egress: Option<BTreeSet<IpAddr>>,
    /// When packets go past bridge and stack.
    pub bypass: Option<BypassMode>,
    /// Whether guards stand in front of uplinks.
    pub guard: Option<GuardMode>,
}

impl Change {
    /// What leads back from it.
    fn reverse(&self, settings: &Settings) -> Self {
        let network = &settings.default_network;
        Self {
            pod_cidrs: self.pod_cidrs.as_ref().map(|_| network.ranges.clone()),
            hairpin: self.hairpin.map(|_| network.hairpin),
            non_masquerade: (self.non_masquerade.as_ref()).map(|_| settings.non_masquerade.clone()),
            uplinks: self.uplinks.as_ref().map(|_| settings.uplinks.clone()),
            egress: self.egress.as_ref().map(|_| settings.egress.clone()),
            bypass: self.bypass.map(|_| settings.bypass),
            guard: self.guard.map(|_| settings.guard),
        }
    }
}

/// What was configured, as choices remember it.
struct Configured([String; 3]);

impl<K: Kernel> Engine<K> {
    /// Goes by another configuration from now on, wholly or not at all. What was chosen since the last one is forgotten
    /// where this one says something new: it is the later word. `now` is in seconds since 1970.
    pub fn configure(&mut self, mut change: Change, now: u64) -> Result<(), EngineError> {
        let back = change.reverse(&self.settings);
        let configured = self.configured(&change);
        // What is most likely to be refused comes first, and undoes itself.
        if let Some(ranges) = change.pod_cidrs.take()
            && let Err(error) = self.set_pod_cidrs(ranges)
        {
            self.restore(configured);
            return Err(error);
        }
        let Err(error) = self.take(change, now) else {
            return Ok(());
        };
        self.restore(configured);
        if let Err(failed) = self.take(back, now) {
            let error = crate::error::chain(&failed);
            tracing::error!(error, "cannot go back to the configuration before");
        }
        Err(error)
    }

    fn take(&mut self, change: Change, now: u64) -> Result<(), EngineError> {
        if let Some(ranges) = change.pod_cidrs.filter(|ranges| !ranges.is_empty()) {
            self.set_pod_cidrs(ranges)?;
        }
        if let Some(uplinks) = change.uplinks {
            self.settings.uplinks = uplinks;
        }
        if let Some(egress) = change.egress {
            self.settings.egress = egress;
        }
        if let Some(bypass) = change.bypass {
            self.settings.bypass = bypass;
        }
        let prefixes = change
            .non_masquerade
            .unwrap_or_else(|| self.settings.non_masquerade.clone());
        self.set_non_masquerade(prefixes)?;
        if let Some(mode) = change.hairpin {
            self.set_hairpin_mode(mode, now)?;
        }
        if let Some(mode) = change.guard {
            self.settings.guard = mode;
            self.reconcile(now).finished()?;
        }
        Ok(())
    }

    /// Notes what is configured from now on, and returns what was.
    fn configured(&mut self, change: &Change) -> Configured {
        let cidrs = change.pod_cidrs.as_deref().map(choices::cidrs);
        let hairpin = change.hairpin.map(|mode| mode.to_string());
        let prefixes = change.non_masquerade.as_ref().map(choices::prefixes);
        let mut before = [const { String::new() }; 3];
        let places = self.configured_places().into_iter().zip(&mut before);
        for ((place, was), said) in places.zip([cidrs, hairpin, prefixes]) {
            was.clone_from(place);
            if let Some(said) = said {
                *place = said;
            }
        }
        Configured(before)
    }

    fn restore(&mut self, configured: Configured) {
        for (place, was) in self.configured_places().into_iter().zip(configured.0) {
            drop(replace(place, was));
        }
    }

    fn configured_places(&mut self) -> [&mut String; 3] {
        [
            &mut self.configured_cidrs,
            &mut self.configured_hairpin,
            &mut self.configured_non_masquerade,
        ]
    }
}
