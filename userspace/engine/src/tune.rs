//! Settings of a pod's interface and sysctls of its namespace, as the tuning plugin sets them.
//!
//! The previous settings of the interface are recorded before they are changed, and DEL restores
//! them. This matters for an interface that survives the pod, such as a device that was moved from
//! the host into the namespace. Sysctls need no record: they end with the namespace.

use kernel::Kernel;
use model::{AttachmentKey, IfName, InterfaceSettings, Mac, Netns, NetnsPath, State};
use planner::{Refusal, Scope, Step};
use store::StoreError;

use crate::transaction::Transaction;
use crate::{Engine, EngineError};

/// Request of the tuning plugin.
#[derive(Clone, Debug)]
pub struct Tune {
    /// Path of the pod's network namespace.
    pub netns: NetnsPath,
    /// Name of the interface in the pod.
    pub ifname: IfName,
    /// Settings to change; those that are `None` stay.
    pub settings: InterfaceSettings,
    /// Keys under which the interface may be recorded. The previous settings are stored under the
    /// first.
    pub keys: Vec<AttachmentKey>,
}

impl<K: Kernel> Engine<K> {
    /// Sets the loopback interface of a pod up or down. For a namespace that is gone, down is
    /// success and up is refused.
    pub fn set_loopback(&mut self, path: &NetnsPath, up: bool) -> Result<(), EngineError> {
        let observed = self.settings_of(path, &loopback(), &InterfaceSettings::default())?;
        match observed.0 {
            Some(netns) => self.step(&Step::SetLoopback { netns, up }),
            None if up => Err(Refusal::NoNetns { path: path.clone() }.into()),
            None => Ok(()),
        }
    }

    /// Changes settings of a pod's interface and sysctls of its namespace. A failed change is
    /// undone.
    pub fn tune(&mut self, tune: &Tune) -> Result<(), EngineError> {
        let (netns, present) = self.settings_of(&tune.netns, &tune.ifname, &tune.settings)?;
        let path = tune.netns.clone();
        let netns = netns.ok_or(Refusal::NoNetns { path })?;
        let present = present.ok_or_else(|| Refusal::NoInterface {
            ifname: tune.ifname.clone(),
            path: tune.netns.clone(),
        })?;
        let previous = present.restricted_to(&tune.settings);
        if let Some(key) = tune
            .settings
            .sysctls
            .keys()
            .find(|key| !previous.sysctls.contains_key(*key))
        {
            return Err(Refusal::NoSysctl { key: key.clone() }.into());
        }
        if let Some(key) = tune.keys.first() {
            self.record_settings(key, &previous)?;
        }
        let step = Step::TunePod {
            netns,
            ifname: tune.ifname.clone(),
            settings: Box::new(tune.settings.clone()),
            previous: Box::new(previous),
        };
        let mut transaction = Transaction::default();
        let plan = planner::Plan::single(step);
        transaction.apply(&mut self.kernel, &plan)?;
        if let Err(error) = self.update_recorded_mac(tune) {
            for failure in transaction.roll_back(&mut self.kernel) {
                tracing::warn!(
                    ifname = %tune.ifname,
                    netns = %tune.netns,
                    failure,
                    "cannot undo a failed change of interface settings"
                );
            }
            return Err(error);
        }
        Ok(())
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

    /// Compares the settings of a pod's interface with the requested ones. The MAC address is not
    /// compared, because a later plugin of the chain may have changed it.
    pub fn check_settings(&mut self, tune: &Tune) -> Result<(), EngineError> {
        let (_, present) = self.settings_of(&tune.netns, &tune.ifname, &tune.settings)?;
        let present = present.ok_or_else(|| Refusal::NoInterface {
            ifname: tune.ifname.clone(),
            path: tune.netns.clone(),
        })?;
        let mut wanted = tune.settings.clone();
        wanted.mac = None;
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

    /// Restores the recorded settings of an interface, if it still exists, and deletes the record
    /// of them.
    pub fn restore_settings(&mut self, tune: &Tune) -> Result<(), EngineError> {
        for key in &tune.keys {
            let Some(previous) = self.store.choice(&store_name(key)).map(from_text) else {
                continue;
            };
            let (netns, present) = self.settings_of(&tune.netns, &tune.ifname, &previous)?;
            if let (Some(netns), Some(present)) = (netns, present) {
                self.step(&Step::TunePod {
                    netns,
                    ifname: tune.ifname.clone(),
                    previous: Box::new(present.restricted_to(&previous)),
                    settings: Box::new(previous),
                })?;
            }
            self.store.remove_choice(&store_name(key))?;
        }
        Ok(())
    }

    fn settings_of(
        &mut self,
        path: &NetnsPath,
        ifname: &IfName,
        settings: &InterfaceSettings,
    ) -> Result<(Option<Netns>, Option<InterfaceSettings>), EngineError> {
        let mut observed = self.kernel.observe(&Scope::Settings {
            path: path.clone(),
            ifname: ifname.clone(),
            sysctls: settings.sysctls.keys().cloned().collect(),
        })?;
        Ok((observed.netns.remove(path), observed.settings))
    }

    fn step(&mut self, step: &Step) -> Result<(), EngineError> {
        let plan = planner::Plan::single(step.clone());
        Transaction::default().apply(&mut self.kernel, &plan)
    }

    /// Records the previous settings, unless there is a record: a second ADD would record what the
    /// first one set.
    fn record_settings(
        &mut self,
        key: &AttachmentKey,
        previous: &InterfaceSettings,
    ) -> Result<(), StoreError> {
        let text = to_text(previous);
        if text.is_empty() || self.store.choice(&store_name(key)).is_some() {
            return Ok(());
        }
        self.store.put_choice(&store_name(key), &text)
    }

    /// Deletes the recorded settings of an interface that is gone.
    pub(crate) fn delete_settings_record(&mut self, key: &AttachmentKey) -> Result<(), StoreError> {
        self.store.remove_choice(&store_name(key))
    }
}

fn loopback() -> IfName {
    "lo".parse().expect("two letters are an interface name")
}

fn store_name(key: &AttachmentKey) -> String {
    format!("settings of {key}")
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
