//! Settings inside of pods, as the tuning plugin makes them, and the way back.
//!
//! What an interface's settings were is remembered before they are changed, so that a later DEL can put them back: an
//! interface that survives the pod (a device of the node that was lent to it) goes home as it came. Sysctls go with the
//! pod's namespace.

use kernel::Kernel;
use model::{AttachmentKey, IfName, InterfaceSettings, Mac, Netns, NetnsPath, State};
use planner::{Refusal, Scope, Step};
use store::StoreError;

use crate::transaction::Done;
use crate::{Engine, EngineError};

/// What to tune, and how.
#[derive(Clone, Debug)]
pub struct Tune {
    /// The pod's network namespace.
    pub netns: NetnsPath,
    /// The pod's interface.
    pub ifname: IfName,
    /// New settings.
    pub settings: InterfaceSettings,
    /// Keys under which the interface may be on record, the one to remember the way back by first.
    pub keys: Vec<AttachmentKey>,
}

impl<K: Kernel> Engine<K> {
    /// Sets a pod's loopback up or down. A namespace that is gone has none that could be up.
    pub fn set_loopback(&mut self, path: &NetnsPath, up: bool) -> Result<(), EngineError> {
        let observed = self.settings_of(path, &loopback(), &InterfaceSettings::default())?;
        match observed.0 {
            Some(netns) => self.step(&Step::SetLoopback { netns, up }),
            None if up => Err(Refusal::NoNetns { path: path.clone() }.into()),
            None => Ok(()),
        }
    }

    /// Changes settings of a pod's interface.
    pub fn tune(&mut self, tune: &Tune) -> Result<(), EngineError> {
        let (netns, present) = self.settings_of(&tune.netns, &tune.ifname, &tune.settings)?;
        let path = tune.netns.clone();
        let netns = netns.ok_or(Refusal::NoNetns { path })?;
        let present = present.ok_or_else(|| Refusal::NoInterface {
            ifname: tune.ifname.clone(),
            path: tune.netns.clone(),
        })?;
        let previous = present.of_the_same(&tune.settings);
        let unknown = tune.settings.sysctls.keys();
        if let Some(key) = unknown
            .into_iter()
            .find(|key| !previous.sysctls.contains_key(*key))
        {
            return Err(Refusal::NoSysctl { key: key.clone() }.into());
        }
        if let Some(key) = tune.keys.first() {
            self.remember_settings(key, &previous)?;
        }
        let step = Step::TunePod {
            netns,
            ifname: tune.ifname.clone(),
            settings: Box::new(tune.settings.clone()),
            previous: Box::new(previous),
        };
        let mut done = Done::default();
        let plan = planner::Plan::single(step);
        done.apply(&mut self.kernel, &plan)?;
        if let Err(error) = self.follow_mac(tune) {
            for failure in done.roll_back(&mut self.kernel) {
                tracing::warn!("cannot undo: {failure}");
            }
            return Err(error);
        }
        Ok(())
    }

    /// Our programs drop what a pod sends by another Ethernet address than its own: they must know the new one.
    fn follow_mac(&mut self, tune: &Tune) -> Result<(), EngineError> {
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

    /// Whether a pod's interface has these settings. Another Ethernet address is no fault: a plugin behind may have set it.
    pub fn check_tuned(&mut self, tune: &Tune) -> Result<(), EngineError> {
        let (_, present) = self.settings_of(&tune.netns, &tune.ifname, &tune.settings)?;
        let present = present.ok_or_else(|| Refusal::NoInterface {
            ifname: tune.ifname.clone(),
            path: tune.netns.clone(),
        })?;
        let mut wanted = tune.settings.clone();
        wanted.mac = None;
        let present = present.of_the_same(&wanted);
        if present == wanted {
            return Ok(());
        }
        Err(EngineError::NotTuned {
            ifname: tune.ifname.clone(),
            wanted: Box::new(wanted),
            present: Box::new(present),
        })
    }

    /// Puts the interface's settings back, if it is still there.
    pub fn untune(&mut self, tune: &Tune) -> Result<(), EngineError> {
        for key in &tune.keys {
            let Some(previous) = self.store.choice(&name(key)).map(recall) else {
                continue;
            };
            let (netns, present) = self.settings_of(&tune.netns, &tune.ifname, &previous)?;
            if let (Some(netns), Some(present)) = (netns, present) {
                self.step(&Step::TunePod {
                    netns,
                    ifname: tune.ifname.clone(),
                    previous: Box::new(present.of_the_same(&previous)),
                    settings: Box::new(previous),
                })?;
            }
            self.store.remove_choice(&name(key))?;
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
        Done::default().apply(&mut self.kernel, &plan)
    }

    /// The first time counts: what a second ADD finds is what the first has set.
    fn remember_settings(
        &mut self,
        key: &AttachmentKey,
        previous: &InterfaceSettings,
    ) -> Result<(), StoreError> {
        let text = remembered(previous);
        if text.is_empty() || self.store.choice(&name(key)).is_some() {
            return Ok(());
        }
        self.store.put_choice(&name(key), &text)
    }

    /// The way back is of no use any more when the interface is gone.
    pub(crate) fn forget_settings(&mut self, key: &AttachmentKey) -> Result<(), StoreError> {
        self.store.remove_choice(&name(key))
    }
}

fn loopback() -> IfName {
    "lo".parse().expect("two letters are an interface name")
}

fn name(key: &AttachmentKey) -> String {
    format!("settings of {key}")
}

/// The interface's settings as words: `mac=… mtu=…`.
fn remembered(settings: &InterfaceSettings) -> String {
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

fn recall(words: &str) -> InterfaceSettings {
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
    fn what_is_remembered_of_settings_is_recalled() {
        let settings = InterfaceSettings {
            mac: Some(Mac([2, 0, 0, 0, 0, 9])),
            mtu: Some(1400),
            promiscuous: Some(true),
            all_multicast: Some(false),
            tx_queue_length: Some(7),
            ..InterfaceSettings::default()
        };
        assert_eq!(recall(&remembered(&settings)), settings);
        assert_eq!(remembered(&InterfaceSettings::default()), "");
    }
}
