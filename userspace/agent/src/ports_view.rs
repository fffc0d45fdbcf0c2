//! The published ports of the node, as the API shows them. Decides nothing.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use api::{ClaimView, PortView};
use engine::Ports;
use model::{PortMapping, Record};
use planner::{Claim, FlowKind, FlowTable, HeldPorts, Holding, mapping_claims};

use crate::view;

/// Live flows by pod, generation, protocol number, and the address and port of the node that was called.
type Called = BTreeMap<(u32, u32, u8, u16, IpAddr), u64>;

/// Every published port, in the order of port and protocol.
pub(crate) fn ports(ports: &Ports, flows: &FlowTable) -> Vec<PortView> {
    let called = called(flows);
    let mut all: Vec<(&Record, &PortMapping)> = Vec::new();
    for record in &ports.records {
        let mappings = record.attachment.port_mappings.iter();
        all.extend(mappings.map(|mapping| (record, mapping)));
    }
    all.sort_by_key(|(record, mapping)| {
        let PortMapping {
            host_port,
            protocol,
            host_address,
            ..
        } = mapping;
        (*host_port, *protocol, *host_address, &record.attachment.key)
    });
    let views = all.into_iter();
    views
        .map(|(record, mapping)| PortView {
            flows: count(record, mapping, &called),
            ..port(record, mapping, &ports.held)
        })
        .collect()
}

fn called(flows: &FlowTable) -> Called {
    let mut called = Called::new();
    for flow in flows
        .flows()
        .filter(|flow| flow.kind == FlowKind::Published)
    {
        let to = flow.seen.destination;
        let key = (flow.pod, flow.generation, flow.protocol, to.port(), to.ip());
        *called.entry(key).or_default() += 1;
    }
    called
}

/// The flows by one mapping; of those by an address that has a mapping of its own, no other counts any.
fn count(record: &Record, mapping: &PortMapping, called: &Called) -> u64 {
    let attachment = &record.attachment;
    let is_same = |other: &&PortMapping| {
        other.host_port == mapping.host_port && other.protocol == mapping.protocol
    };
    let others = attachment.port_mappings.iter().filter(is_same);
    let taken: Vec<IpAddr> = others.filter_map(|other| other.host_address).collect();
    let (pod, generation) = (attachment.slot, attachment.generation);
    let (protocol, port) = (mapping.protocol.number(), mapping.host_port.get());
    let key = |address: IpAddr| (pod, generation, protocol, port, address);
    let first = key(Ipv4Addr::UNSPECIFIED.into());
    let last = key(Ipv6Addr::from_bits(u128::MAX).into());
    let flows = called.range(first..=last).filter(|((.., to), _)| {
        (mapping.host_address).map_or_else(|| !taken.contains(to), |own| own == *to)
    });
    flows.map(|(_, count)| count).sum()
}

fn port(record: &Record, mapping: &PortMapping, held: &HeldPorts) -> PortView {
    let attachment = &record.attachment;
    let key = &attachment.key;
    let held_by = |claim: &Claim| match held.get(claim) {
        Some(held) if held.generation == attachment.generation => match held.by {
            Holding::Socket => "socket",
            Holding::Table => "table",
        },
        Some(_) | None => "nothing",
    };
    let claims = mapping_claims(attachment, mapping).into_iter();
    PortView {
        flows: 0,
        port: view::hostport(mapping, &key.to_string()),
        network: key.network.to_string(),
        container_id: key.container_id.to_string(),
        pod: attachment.pod.as_ref().map(view::pod),
        state: view::state(record.state).to_owned(),
        since: record.created_at,
        claims: claims
            .map(|claim| ClaimView {
                socket: claim.socket().to_string(),
                held_by: held_by(&claim).to_owned(),
            })
            .collect(),
    }
}
