//! From a report of the datapath to an event of the API.

use abi::{DropHook, DropReason, DropRecord, DroppedPacketFlags as Flags, Tuple};
use api::{DropEvent, DropQuery};
use kernel::DropReport;

use crate::clock;
use crate::http::names;
use crate::telemetry::owners::Owner;

const ETHERTYPE_ARP: u16 = 0x0806;

/// Returns the event of a report; `now` is in milliseconds since 1970.
pub(super) fn event(report: &DropReport, owner: Option<&Owner>, now: u64) -> DropEvent {
    let DropRecord {
        count,
        reason,
        interface,
        length,
        packet,
        ..
    } = report.record;
    let age = u64::try_from(report.age.as_millis()).unwrap_or(u64::MAX);
    let has = |flag: u8| packet.flags & flag != 0;
    let known = DropReason::from_number(reason);
    let hook = DropHook::ALL
        .into_iter()
        .find(|hook| *hook as u8 == packet.hook);
    let at_ms = now.saturating_sub(age);
    DropEvent {
        at_ms,
        time: clock::rfc3339_ms(at_ms),
        reason: known.map_or_else(|| reason.to_string(), |reason| reason.name().to_owned()),
        advice: known.map_or("", DropReason::advice).to_owned(),
        count: count.into(),
        hook: hook.map_or("", DropHook::name).to_owned(),
        interface: match &report.interface {
            Some(name) => name.to_string(),
            None if interface == 0 => String::new(),
            None => format!("#{interface}"),
        },
        pod: owner.and_then(|owner| owner.pod.clone()),
        container_id: owner.map(|owner| owner.container_id.clone()),
        ifname: owner.map(|owner| owner.ifname.clone()),
        length,
        ethertype: match packet.ethertype {
            0 => String::new(),
            number => format!("{number:#06x}"),
        },
        protocol: match packet.ethertype {
            _ if !has(Flags::ADDRESSES) => String::new(),
            ETHERTYPE_ARP => "arp".to_owned(),
            _ => names::protocol(packet.tuple.protocol),
        },
        packet: has(Flags::ADDRESSES).then(|| names::ends(&packet.tuple, has(Flags::PORTS))),
        icmp: has(Flags::ICMP).then(|| format!("{}/{}", packet.icmp_type, packet.icmp_code)),
        quoted: has(Flags::QUOTED).then(|| names::ends(&packet.quoted, has_ports(&packet.quoted))),
        quoted_protocol: if has(Flags::QUOTED) {
            names::protocol(packet.quoted.protocol)
        } else {
            String::new()
        },
        fragment: has(Flags::FRAGMENT),
    }
}

fn has_ports(tuple: &Tuple) -> bool {
    names::has_ports(tuple.protocol) && tuple.destination_port.number() != 0
}

/// Returns the event that replaces missed events.
pub(super) fn gap(missed: u64, next: &DropEvent) -> DropEvent {
    DropEvent {
        at_ms: next.at_ms,
        time: next.time.clone(),
        reason: "gap".to_owned(),
        count: missed,
        ..DropEvent::default()
    }
}

/// Returns whether a client wants an event.
pub(super) fn matches(event: &DropEvent, query: &DropQuery) -> bool {
    query
        .reason
        .as_ref()
        .is_none_or(|reason| *reason == event.reason)
        && query.pod.as_ref().is_none_or(|pod| is_of_pod(event, pod))
}

fn is_of_pod(event: &DropEvent, name: &str) -> bool {
    let is_id = |id: &String| !name.is_empty() && id.starts_with(name);
    event.container_id.as_ref().is_some_and(is_id)
        || event.pod.as_ref().is_some_and(|pod| {
            pod.name == name || name.split_once('/') == Some((&pod.namespace, &pod.name))
        })
}

pub(super) fn line(event: &DropEvent) -> String {
    serde_json::to_string(event).unwrap_or_default() + "\n"
}
