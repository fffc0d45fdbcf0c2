//! Settings that can be chosen at run time in place of the configured values.
//!
//! A choice is stored together with the configured value that it replaces, as
//! `configured>chosen`. A restarted agent uses the choice while its configuration has the same
//! value. A configuration with another value is newer and replaces the choice.

use std::collections::BTreeSet;

use model::{Cidr, HairpinMode, RangeSet};
use store::{Store, StoreError};

use crate::Settings;

/// Separates the configured value from the choice in the store.
const SEPARATOR: char = '>';

/// A value of the configuration, and the choice at run time that replaces it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setting<T> {
    /// Value of the configuration.
    pub(crate) configured: T,
    /// Value chosen at run time.
    pub(crate) chosen: Option<T>,
}

/// A value that can be chosen, as the store holds it.
pub(crate) trait Choice: Clone + PartialEq {
    /// Name of the choice in the store.
    const NAME: &'static str;

    /// Returns the text in the store.
    fn text(&self) -> String;

    /// Parses the text in the store; `None` for a text of another release.
    fn parse(text: &str) -> Option<Self>;

    /// Returns whether the configuration sets nothing: then every stored choice holds.
    fn is_unset(&self) -> bool;
}

impl<T: Choice> Setting<T> {
    /// Returns the setting with the stored choice, if that replaces this configured value.
    pub(crate) fn load(configured: T, store: &Store) -> Self {
        let stored = store
            .choice(T::NAME)
            .and_then(|choice| choice.split_once(SEPARATOR));
        let chosen = stored
            .filter(|(replaced, _)| configured.is_unset() || *replaced == configured.text())
            .and_then(|(_, chosen)| T::parse(chosen));
        Self { configured, chosen }
    }

    /// Returns the value in effect.
    pub(crate) fn value(&self) -> &T {
        self.chosen.as_ref().unwrap_or(&self.configured)
    }

    /// Stores a choice.
    pub(crate) fn choose(&mut self, chosen: &T, store: &mut Store) -> Result<(), StoreError> {
        let (configured, text) = (self.configured.text(), chosen.text());
        store.put_choice(T::NAME, &format!("{configured}{SEPARATOR}{text}"))?;
        self.chosen = Some(chosen.clone());
        Ok(())
    }
}

/// Pod CIDRs, as `10.1.0.0/24,fd00:1::/64`.
impl Choice for Vec<RangeSet> {
    const NAME: &'static str = "pod-cidrs";

    fn text(&self) -> String {
        let subnets: Vec<String> = self
            .iter()
            .flat_map(RangeSet::ranges)
            .map(|range| range.subnet().to_string())
            .collect();
        subnets.join(",")
    }

    fn parse(text: &str) -> Option<Self> {
        text.split(',')
            .map(|text| {
                let cidr: Cidr = text.parse().ok()?;
                RangeSet::of_cidr(cidr).ok()
            })
            .collect()
    }

    fn is_unset(&self) -> bool {
        self.is_empty()
    }
}

impl Choice for HairpinMode {
    const NAME: &'static str = "hairpin-mode";

    fn text(&self) -> String {
        self.to_string()
    }

    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    fn is_unset(&self) -> bool {
        false
    }
}

/// Non-masquerade CIDRs, as `10.0.0.0/8,fd00::/8`. An empty list is a value: everything is
/// masqueraded.
impl Choice for BTreeSet<Cidr> {
    const NAME: &'static str = "non-masquerade-cidrs";

    fn text(&self) -> String {
        let texts: Vec<String> = self.iter().map(ToString::to_string).collect();
        texts.join(",")
    }

    fn parse(text: &str) -> Option<Self> {
        text.split(',')
            .filter(|item| !item.is_empty())
            .map(|item| item.parse().ok())
            .collect()
    }

    fn is_unset(&self) -> bool {
        false
    }
}

/// Settings that can be overridden: the configured values, and the choices.
#[derive(Clone, Debug)]
pub(crate) struct Overrides {
    /// Pod CIDRs of the default network.
    pub(crate) pod_cidrs: Setting<Vec<RangeSet>>,
    /// Hairpin mode of the default network.
    pub(crate) hairpin: Setting<HairpinMode>,
    /// Destinations to which pods keep their source address.
    pub(crate) non_masquerade: Setting<BTreeSet<Cidr>>,
}

impl Overrides {
    /// Loads the stored choices for a configuration.
    pub(crate) fn load(configured: &Settings, store: &Store) -> Self {
        let network = &configured.default_network;
        Self {
            pod_cidrs: Setting::load(network.ranges.clone(), store),
            hairpin: Setting::load(network.hairpin, store),
            non_masquerade: Setting::load(configured.non_masquerade.clone(), store),
        }
    }

    /// Writes the values in effect into the settings.
    pub(crate) fn apply_to(&self, settings: &mut Settings) {
        settings
            .default_network
            .ranges
            .clone_from(self.pod_cidrs.value());
        settings.default_network.hairpin = *self.hairpin.value();
        settings
            .non_masquerade
            .clone_from(self.non_masquerade.value());
    }
}
