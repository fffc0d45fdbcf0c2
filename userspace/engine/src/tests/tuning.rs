//! Recorded settings of interfaces, which the tuning plugin restores.

use ::model::{InterfaceSettings, Mac, NetnsPath, State};
use kernel::fake::Errno;
use steps::Step;

use super::chain::{foreign, update};
use super::*;
use crate::Tune;

const TUNED: Mac = Mac([2, 0, 0, 0, 0, 9]);

fn tune(key: &AttachmentKey, netns: &NetnsPath) -> Tune {
    Tune {
        netns: netns.clone(),
        ifname: key.ifname.clone(),
        settings: InterfaceSettings {
            mac: Some(TUNED),
            ..InterfaceSettings::default()
        },
        keys: vec![key.clone()],
    }
}

fn recorded(node: &mut Node) -> Vec<String> {
    let choices = node.contents().choices.into_keys();
    choices
        .filter(|name| name.starts_with("settings of "))
        .collect()
}

#[test]
fn recorded_settings_end_with_a_del_although_there_is_no_attachment() {
    let mut node = Node::start();
    let theirs = foreign(&node);
    let tuned = tune(&theirs.key, &theirs.netns);
    node.engine().tune(&tuned).unwrap();
    assert_eq!(recorded(&mut node), ["settings of foreign/eth0"]);
    node.engine().del(&theirs.key).unwrap();
    assert!(recorded(&mut node).is_empty());
}

/// A runtime that has lost its store reuses the container ID.
#[test]
fn recorded_settings_end_with_the_namespace_of_their_attachment() {
    let mut node = Node::start();
    let intent = node.intent("c1");
    node.add(&intent).unwrap();
    let tuned = tune(&intent.key, &intent.netns);
    node.engine().tune(&tuned).unwrap();
    node.fake.remove_netns(&intent.netns.to_string());
    node.engine().reconcile(NOW);
    assert!(recorded(&mut node).is_empty());
    let again = node.intent("c1");
    let attachment = node.add(&again).unwrap();
    let restore = Tune {
        settings: InterfaceSettings::default(),
        ..tuned
    };
    node.engine().restore_settings(&restore).unwrap();
    let side = node.fake.pod(&intent.netns.to_string(), "eth0").unwrap();
    assert_eq!(side.mac, Some(attachment.mac));
}

#[test]
fn recorded_settings_outlive_an_unfinished_adoption_of_their_interface() {
    let mut node = Node::start();
    let theirs = foreign(&node);
    let before = node.fake.pod("/run/netns/foreign", "eth0").unwrap().mac;
    let mut tuned = tune(&theirs.key, &theirs.netns);
    node.engine().tune(&tuned).unwrap();
    node.engine()
        .adopt_or_update(&update(&theirs, &[8080]), NOW)
        .unwrap();
    let mut record = node.contents().records[&theirs.key].clone();
    record.state = State::Pending;
    node.engine().store.put(&record).unwrap();
    node.engine().reconcile(NOW);
    assert!(node.contents().records.is_empty());
    tuned.settings = InterfaceSettings::default();
    node.engine().restore_settings(&tuned).unwrap();
    let side = node.fake.pod("/run/netns/foreign", "eth0").unwrap();
    assert_eq!(side.mac, before);
    assert!(recorded(&mut node).is_empty());
}

#[test]
fn recorded_settings_end_with_the_boot() {
    let mut node = Node::start();
    let theirs = foreign(&node);
    let tuned = tune(&theirs.key, &theirs.netns);
    node.engine().tune(&tuned).unwrap();
    node.restart();
    assert_eq!(recorded(&mut node), ["settings of foreign/eth0"]);
    node.reboot();
    node.restart();
    assert!(recorded(&mut node).is_empty());
}

/// CNI: a DEL is repeated until it succeeds, so it may not fail for what will never be restored.
#[test]
fn a_setting_that_cannot_be_restored_neither_fails_the_del_nor_keeps_the_others() {
    let mut node = Node::start();
    let theirs = foreign(&node);
    let before = node.fake.pod("/run/netns/foreign", "eth0").unwrap();
    let mut tuned = tune(&theirs.key, &theirs.netns);
    tuned.settings.mtu = Some(1300);
    node.engine().tune(&tuned).unwrap();
    let changes_mac =
        |step: &Step| matches!(step, Step::TunePod { settings, .. } if settings.mac.is_some());
    node.fake.fail_next(changes_mac, Errno::EBUSY);
    tuned.settings = InterfaceSettings::default();
    node.engine().restore_settings(&tuned).unwrap();
    let side = node.fake.pod("/run/netns/foreign", "eth0").unwrap();
    assert_eq!(side.mac, Some(TUNED), "it could not be restored");
    assert_eq!(side.mtu, before.mtu);
    assert!(recorded(&mut node).is_empty());
}
