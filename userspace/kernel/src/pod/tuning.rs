//! Reads and changes settings of a pod's interface, and sysctls of the pod's namespace.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "netlink's enums are open: unknown values are skipped"
)]

use std::collections::BTreeSet;
use std::io;

use model::{IfName, InterfaceSettings, Netns};
use nix::errno::Errno;
use rtnetlink::packet_route::RouteNetlinkMessage as Message;
use rtnetlink::packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use steps::SysctlKey;

use crate::error::{Attempt as _, Failed};
use crate::netlink::links;
use crate::netlink::socket::Netlink;
use crate::pod::netns::OpenNetns;
use crate::sysctl;

/// Reads the settings of `ifname` and the values of `sysctls`. Without such an interface, the
/// sysctls alone.
pub(crate) fn observe(
    netns: &OpenNetns,
    ifname: &IfName,
    sysctls: &BTreeSet<String>,
) -> io::Result<InterfaceSettings> {
    let (mut netlink, values) = netns.run(|| {
        let mut values = Vec::new();
        for key in sysctls {
            let value = sysctl::read(&SysctlKey(key.clone()))?;
            values.extend(value.map(|value| (key.clone(), value)));
        }
        Ok((Netlink::open()?, values))
    })?;
    let sysctls = values.into_iter().collect();
    let Some(message) = links::find_message(&mut netlink, ifname)? else {
        return Ok(InterfaceSettings {
            sysctls,
            ..InterfaceSettings::default()
        });
    };
    let link = links::link(&message);
    let flags = message.header.flags;
    Ok(InterfaceSettings {
        mac: link.mac,
        mtu: Some(link.mtu),
        promiscuous: Some(link.promiscuous),
        all_multicast: Some(flags.contains(LinkFlags::Allmulti)),
        tx_queue_length: queue_length(&message),
        sysctls,
    })
}

fn queue_length(message: &LinkMessage) -> Option<u32> {
    message
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            LinkAttribute::TxQueueLen(length) => Some(*length),
            _ => None,
        })
}

/// Changes settings. Sysctls are written first, one after the other, and a failure ends the step;
/// the settings of the interface are then changed in one message.
pub(crate) fn tune(
    netns: &Netns,
    ifname: &IfName,
    settings: &InterfaceSettings,
) -> Result<(), Failed> {
    let place = || format!("enter network namespace {}", netns.path);
    let open = OpenNetns::open(netns).attempt(place)?;
    for (key, value) in &settings.sysctls {
        let written = open.run(|| sysctl::write(&SysctlKey(key.clone()), value));
        written.attempt(|| format!("set {key} to {value} in {}", netns.path))?;
    }
    if !settings.has_link_settings() {
        return Ok(());
    }
    let call = || format!("change the settings of {ifname} in {}", netns.path);
    let mut inside = open.run(Netlink::open).attempt(call)?;
    let Some(found) = links::find_message(&mut inside, ifname).attempt(call)? else {
        return Err(Failed::new(call(), Errno::ENODEV));
    };
    let message = message(found.header.index, settings);
    inside.change(Message::SetLink(message), 0).attempt(call)
}

fn message(index: u32, settings: &InterfaceSettings) -> LinkMessage {
    let mut message = links::indexed(index).build();
    let header = &mut message.header;
    for (flag, wanted) in [
        (LinkFlags::Promisc, settings.promiscuous),
        (LinkFlags::Allmulti, settings.all_multicast),
    ] {
        let Some(on) = wanted else { continue };
        header.change_mask |= flag;
        header.flags.set(flag, on);
    }
    let attributes = &mut message.attributes;
    attributes.extend((settings.mac).map(|mac| LinkAttribute::Address(mac.0.to_vec())));
    attributes.extend(settings.mtu.map(LinkAttribute::Mtu));
    attributes.extend(settings.tx_queue_length.map(LinkAttribute::TxQueueLen));
    message
}
