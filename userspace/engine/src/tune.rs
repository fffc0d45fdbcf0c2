//! Settings of a pod's interface and sysctls of its namespace, as the tuning plugin sets them.
//!
//! The previous settings of the interface are recorded before they are changed, and DEL restores
//! them. This matters for an interface that survives the pod, such as a device that was moved from
//! the host into the namespace. Sysctls need no record: they end with the namespace.
//!
//! A record ends with its interface or with the boot: a container whose ID is used again must not
//! get the settings of an earlier interface.

use kernel::Kernel;
use model::{AttachmentKey, IfName, InterfaceSettings, Mac, NetnsPath, State};
use planner::Refusal;
use steps::{ObservedSettings, SettingsQuery, Step};
use store::StoreError;

use crate::before::Before;
use crate::transaction::Transaction;
use crate::{Engine, EngineError};

/// Begins the name in the store of an interface's recorded settings.
const RECORD: &str = "settings of ";

/// Request of the tuning plugin.
#[derive(Clone, Debug)]
pub struct Tune {
    /// Path of the pod's network namespace.
    pub netns: NetnsPath,
    /// Name of the interface in the pod.
    pub ifname: IfName,
    /// Settings to change; those that are `None` stay. For a restoration: previous settings from
    /// the reference plugin's backup file, for an interface without a record.
    pub settings: InterfaceSettings,
    /// Keys under which the interface may be recorded. The previous settings are stored by
    /// container and interface name alone, because the network's name may differ at DEL.
    pub keys: Vec<AttachmentKey>,
}

impl<K: Kernel> Engine<K> {
    /// Sets the loopback interface of a pod up or down. For a namespace that is gone, down is
    /// success and up is refused.
    pub fn set_loopback(&mut self, path: &NetnsPath, up: bool) -> Result<(), EngineError> {
        let observed = self.settings_of(path, &loopback(), &InterfaceSettings::default())?;
        match observed {
            Some(ObservedSettings { netns, .. }) => self.step(&Step::SetLoopback { netns, up }),
            None if up => Err(Refusal::NoNetns { path: path.clone() }.into()),
            None => Ok(()),
        }
    }

    /// Changes settings of a pod's interface and sysctls of its namespace. Sysctls alone need no
    /// interface. A failed change is undone.
    ///
    /// Returns the recorded settings of the interface: those before the first change.
    pub fn tune(&mut self, tune: &Tune) -> Result<InterfaceSettings, EngineError> {
        let observed = self.settings_of(&tune.netns, &tune.ifname, &tune.settings)?;
        let path = tune.netns.clone();
        let ObservedSettings {
            netns,
            settings: present,
        } = observed.ok_or(Refusal::NoNetns { path })?;
        if tune.settings.has_link_settings() && !present.has_link_settings() {
            return Err(no_interface(tune).into());
        }
        let previous = present.restricted_to(&tune.settings);
        if let Some(key) = tune
            .settings
            .sysctls
            .keys()
            .find(|key| !previous.sysctls.contains_key(*key))
        {
            return Err(Refusal::NoSysctl { key: key.clone() }.into());
        }
        let recorded = self.record_settings(tune, &previous)?;
        let step = Step::TunePod {
            netns,
            ifname: tune.ifname.clone(),
            settings: Box::new(tune.settings.clone()),
            previous: Box::new(previous),
        };
        let plan = planner::Plan::single(step);
        let before = Before::Settings(tune.ifname.clone());
        self.transact(before, |engine, transaction| {
            transaction.apply(&mut engine.kernel, &mut engine.phases, &plan)?;
            engine.update_recorded_mac(tune)
        })?;
        Ok(recorded)
    }

    /// Records a new MAC address of an attached interface and updates the table entries: `from_pod`
    /// drops frames whose source address is not the recorded one.
    fn update_recorded_mac(&mut self, tune: &Tune) -> Result<(), EngineError> {
        let Some(mac) = tune.settings.mac else {
            return Ok(());
        };
        let mut attached = tune
            .keys
            .iter()
            .filter_map(|key| self.store.get(key))
            .filter(|record| record.state == State::Attached);
        let Some(record) = attached.next().cloned() else {
            return Ok(());
        };
        let mut attachment = record.attachment.clone();
        attachment.mac = mac;
        self.change(&record, attachment).map(drop)
    }

    /// Compares the settings of a pod's interface with the requested ones.
    pub fn check_settings(&mut self, tune: &Tune) -> Result<(), EngineError> {
        let observed = self.settings_of(&tune.netns, &tune.ifname, &tune.settings)?;
        let present = observed
            .map(|observed| observed.settings)
            .filter(InterfaceSettings::has_link_settings)
            .ok_or_else(|| no_interface(tune))?;
        let wanted = tune.settings.clone();
        let present = present.restricted_to(&wanted);
        if present == wanted {
            return Ok(());
        }
        Err(EngineError::SettingsDiffer {
            ifname: tune.ifname.clone(),
            wanted: Box::new(wanted),
            present: Box::new(present),
        })
    }

    /// Restores the recorded settings of an interface, or those of `tune` if there is no record.
    /// Does nothing if the interface is gone. A setting that cannot be restored is logged and does
    /// not prevent the others: a DEL that failed for it would fail for ever. Deletes the record.
    pub fn restore_settings(&mut self, tune: &Tune) -> Result<(), EngineError> {
        let names = store_names(&tune.keys);
        let recorded = names.iter().find_map(|name| self.store.choice(name));
        let previous = recorded.map_or_else(|| tune.settings.clone(), from_text);
        let observed = self.settings_of(&tune.netns, &tune.ifname, &previous)?;
        let observed = observed.filter(|observed| observed.settings.has_link_settings());
        for setting in previous.each_link_setting() {
            let Some(observed) = &observed else { break };
            let wanted = Tune {
                settings: setting,
                ..tune.clone()
            };
            if let Err(error) = self.restore_setting(&wanted, observed) {
                tracing::warn!(
                    ifname = %tune.ifname,
                    netns = %tune.netns,
                    setting = to_text(&wanted.settings),
                    error = crate::error::chain(&error),
                    "cannot restore a setting of the interface; it stays as it is"
                );
            }
        }
        self.delete_settings_records(&tune.keys)
    }

    fn restore_setting(
        &mut self,
        wanted: &Tune,
        observed: &ObservedSettings,
    ) -> Result<(), EngineError> {
        self.step(&Step::TunePod {
            netns: observed.netns.clone(),
            ifname: wanted.ifname.clone(),
            previous: Box::new(observed.settings.restricted_to(&wanted.settings)),
            settings: Box::new(wanted.settings.clone()),
        })?;
        self.update_recorded_mac(wanted)
    }

    fn settings_of(
        &mut self,
        path: &NetnsPath,
        ifname: &IfName,
        settings: &InterfaceSettings,
    ) -> Result<Option<ObservedSettings>, EngineError> {
        Ok(self.kernel.observe(&SettingsQuery {
            path: path.clone(),
            ifname: ifname.clone(),
            sysctls: settings.sysctls.keys().cloned().collect(),
        })?)
    }

    fn step(&mut self, step: &Step) -> Result<(), EngineError> {
        let plan = planner::Plan::single(step.clone());
        Transaction::default().apply(&mut self.kernel, &mut self.phases, &plan)
    }

    /// Records the previous settings, unless there is a record: a second ADD would record what the
    /// first one set. Returns the recorded ones.
    fn record_settings(
        &mut self,
        tune: &Tune,
        previous: &InterfaceSettings,
    ) -> Result<InterfaceSettings, StoreError> {
        let names = store_names(&tune.keys);
        if let Some(recorded) = names.iter().find_map(|name| self.store.choice(name)) {
            return Ok(from_text(recorded));
        }
        let text = to_text(previous);
        if let (Some(name), false) = (names.first(), text.is_empty()) {
            self.store.put_choice(name, &text)?;
        }
        Ok(from_text(&text))
    }

    /// Deletes the recorded settings of an interface that is gone; `keys` are those under which it
    /// may be recorded.
    pub fn delete_settings_records(&mut self, keys: &[AttachmentKey]) -> Result<(), EngineError> {
        for name in store_names(keys) {
            self.store.remove_choice(&name)?;
        }
        Ok(())
    }

    /// Deletes the recorded settings of an attachment's interface that is gone.
    pub(crate) fn delete_settings_record(
        &mut self,
        key: &AttachmentKey,
    ) -> Result<(), EngineError> {
        self.delete_settings_records(std::slice::from_ref(key))
    }

    /// Deletes the recorded settings of all interfaces, which are of an earlier boot.
    pub(crate) fn delete_all_settings_records(&mut self) -> Result<(), StoreError> {
        let choices = self.store.contents().choices.keys();
        let names: Vec<String> = choices
            .filter(|name| name.starts_with(RECORD))
            .cloned()
            .collect();
        names
            .iter()
            .try_for_each(|name| self.store.remove_choice(name))
    }
}

fn no_interface(tune: &Tune) -> Refusal {
    Refusal::NoInterface {
        ifname: tune.ifname.clone(),
        path: tune.netns.clone(),
    }
}

fn loopback() -> IfName {
    "lo".parse().expect("two letters are an interface name")
}

/// Returns the names under which the store may hold the settings of an interface: the one in use
/// first, then those of earlier releases, which contain the network.
fn store_names(keys: &[AttachmentKey]) -> Vec<String> {
    let own = keys
        .first()
        .map(|key| format!("{RECORD}{}/{}", key.container_id, key.ifname));
    let earlier = keys.iter().map(|key| format!("{RECORD}{key}"));
    own.into_iter().chain(earlier).collect()
}

/// Returns interface settings as the store holds them: `mac=… mtu=…`. Sysctls are left out.
fn to_text(settings: &InterfaceSettings) -> String {
    let word = |name: &str, value: Option<String>| value.map(|value| format!("{name}={value}"));
    let flag = |value: bool| u8::from(value).to_string();
    let words: Vec<String> = [
        word("mac", settings.mac.map(|mac| mac.to_string())),
        word("mtu", settings.mtu.map(|mtu| mtu.to_string())),
        word("promiscuous", settings.promiscuous.map(flag)),
        word("all_multicast", settings.all_multicast.map(flag)),
        word(
            "tx_queue_length",
            settings.tx_queue_length.map(|length| length.to_string()),
        ),
    ]
    .into_iter()
    .flatten()
    .collect();
    words.join(" ")
}

fn from_text(words: &str) -> InterfaceSettings {
    let mut settings = InterfaceSettings::default();
    for (name, value) in words.split(' ').filter_map(|word| word.split_once('=')) {
        match name {
            "mac" => settings.mac = value.parse::<Mac>().ok(),
            "mtu" => settings.mtu = value.parse().ok(),
            "promiscuous" => settings.promiscuous = Some(value == "1"),
            "all_multicast" => settings.all_multicast = Some(value == "1"),
            "tx_queue_length" => settings.tx_queue_length = value.parse().ok(),
            _ => {}
        }
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_settings_survive_a_round_trip_through_the_store() {
        let settings = InterfaceSettings {
            mac: Some(Mac([2, 0, 0, 0, 0, 9])),
            mtu: Some(1400),
            promiscuous: Some(true),
            all_multicast: Some(false),
            tx_queue_length: Some(7),
            ..InterfaceSettings::default()
        };
        assert_eq!(from_text(&to_text(&settings)), settings);
        assert_eq!(to_text(&InterfaceSettings::default()), "");
    }
}
