//! The published ports of the node, as the API shows them. Decides nothing.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use api::{ClaimView, PortView};
use engine::Ports;
use model::{PortMapping, Protocol, Record};
use planner::{Claim, FlowKind, FlowTable, HeldPorts, Holding, LiveFlow, mapping_claims};

use crate::view;

/// Live flows by slot and generation of the pod, and by the claim that led them there.
type Led = BTreeMap<(u32, u32, Claim), u64>;

/// Every published port, in the order of port and protocol; with its flows, where these could be read.
pub(crate) fn ports(ports: &Ports, flows: Option<&FlowTable>) -> Vec<PortView> {
    let led = flows.map(|flows| led(&ports.records, flows));
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
    all.into_iter()
        .map(|(record, mapping)| PortView {
            flows: led.as_ref().map(|led| count(record, mapping, led)),
            ..port(record, mapping, &ports.held)
        })
        .collect()
}

/// One look at each flow. The claim of a particular address leads it, and where there is none that of all addresses.
fn led(records: &[Record], flows: &FlowTable) -> Led {
    let mut led = Led::new();
    for Record { attachment, .. } in records {
        let claims = attachment
            .port_mappings
            .iter()
            .flat_map(|mapping| mapping_claims(attachment, mapping));
        led.extend(claims.map(|claim| ((attachment.slot, attachment.generation, claim), 0)));
    }
    let published = |flow: &LiveFlow| flow.kind == FlowKind::Published;
    for flow in flows.flows().filter(published) {
        let Some(particular) = dialled(&flow) else {
            continue;
        };
        let every = Claim {
            address: unspecified(particular.address),
            ..particular
        };
        for claim in [particular, every] {
            if let Some(count) = led.get_mut(&(flow.pod, flow.generation, claim)) {
                *count += 1;
                break;
            }
        }
    }
    led
}

/// The port of the node that a flow has come by.
fn dialled(flow: &LiveFlow) -> Option<Claim> {
    let mut protocols = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp]
        .into_iter()
        .filter(|protocol| protocol.number() == flow.protocol);
    let to = flow.seen.destination;
    Some(Claim {
        address: to.ip(),
        port: to.port(),
        protocol: protocols.next()?,
    })
}

fn unspecified(like: IpAddr) -> IpAddr {
    match like {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

fn count(record: &Record, mapping: &PortMapping, led: &Led) -> u64 {
    let attachment = &record.attachment;
    mapping_claims(attachment, mapping)
        .into_iter()
        .filter_map(|claim| led.get(&(attachment.slot, attachment.generation, claim)))
        .sum()
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
        flows: None,
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
