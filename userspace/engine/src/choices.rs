//! What the node shall be: the configuration, and what was chosen at run time.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use model::{NetworkName, Peers};
use planner::PolicyIndex;
use store::Store;

use crate::setting::Overrides;
use crate::settings::Settings;
use crate::{peers_status, stored_policies};

/// What the node shall be.
#[derive(Debug)]
pub(crate) struct Choices {
    /// Configuration, with the overrides that were made at run time.
    pub(crate) settings: Settings,
    /// The overrides, and the configured values that they replace.
    pub(crate) overrides: Overrides,
    /// Other nodes; `None` until the first list.
    pub(crate) peers: Option<Arc<Peers>>,
    /// Network policies; `None` until the first list, or if the stored one is unreadable.
    pub(crate) policies: Option<Arc<PolicyIndex>>,
    /// Why the stored network policies are unreadable; `None` if they are not.
    pub(crate) policies_damage: Option<String>,
    /// Networks that stay without attachments.
    pub(crate) kept_networks: BTreeSet<NetworkName>,
    /// Whether something needs the default network although it has no range.
    pub(crate) is_default_wanted: Arc<AtomicBool>,
}

impl Choices {
    /// Returns the configuration, with the stored overrides applied to it.
    pub(crate) fn of(mut settings: Settings, store: &Store) -> Self {
        let overrides = Overrides::load(&settings, store);
        overrides.apply_to(&mut settings);
        let (policies, policies_damage) = stored_policies::load(store);
        Self {
            settings,
            overrides,
            peers: peers_status::load(store),
            policies,
            policies_damage,
            kept_networks: BTreeSet::new(),
            is_default_wanted: Arc::default(),
        }
    }

    /// Returns the network policies; none until the first list.
    pub(crate) fn network_policies(&self) -> Arc<PolicyIndex> {
        self.policies.clone().unwrap_or_default()
    }
}
