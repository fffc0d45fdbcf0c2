//! Published host ports of the node in the API's types (`GET /v1/hostports`).

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use api::{PortReservationView, PortView};
use engine::Ports;
use model::{PortMapping, Protocol, Record};
use planner::{mapping_endpoints, mapping_reservations, standby_reservations};
use steps::{FlowKind, LiveFlow, PortReservation, PortReservations, ReservedBy};

use crate::clock;
use crate::http::{names, view};

/// Number of live flows by slot and generation of the pod, and by the address and port that they
/// are addressed to.
type FlowCounts = BTreeMap<(u32, u32, PortReservation), u64>;

/// Returns all published ports in the order of port and protocol, with flow counts if the flow
/// table could be read.
pub(crate) fn ports(ports: &Ports, flows: Option<&[LiveFlow]>) -> Vec<PortView> {
    let flow_counts = flows.map(|flows| flow_counts(&ports.records, flows));
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
            flows: flow_counts
                .as_ref()
                .map(|flow_counts| count(record, mapping, flow_counts)),
            ..port(record, mapping, &ports.held)
        })
        .collect()
}

/// Counts the flows of each published port in one pass. A flow belongs to the port published on its
/// destination address, or else to the port published on all addresses of the node. A flow to the
/// pod's own address is not translated, and belongs to a port that is published there.
fn flow_counts(records: &[Record], flows: &[LiveFlow]) -> FlowCounts {
    let mut flow_counts = FlowCounts::new();
    for Record { attachment, .. } in records {
        let endpoints = attachment
            .port_mappings
            .iter()
            .flat_map(|mapping| mapping_endpoints(attachment, mapping));
        flow_counts.extend(endpoints.map(|to| ((attachment.slot, attachment.generation, to), 0)));
    }
    for flow in flows {
        let Some(particular) = destination(flow) else {
            continue;
        };
        let every = PortReservation {
            address: unspecified(particular.address),
            ..particular
        };
        let candidates: &[_] = match flow.kind {
            FlowKind::Published => &[particular, every],
            FlowKind::Direct => &[particular],
            FlowKind::Masqueraded
            | FlowKind::Node
            | FlowKind::PodToPod
            | FlowKind::PodToNode
            | FlowKind::NodeToPod => &[],
        };
        for to in candidates {
            if let Some(count) = flow_counts.get_mut(&(flow.pod, flow.generation, *to)) {
                *count += 1;
                break;
            }
        }
    }
    flow_counts
}

/// Returns address, port and protocol that a flow is addressed to.
fn destination(flow: &LiveFlow) -> Option<PortReservation> {
    let mut protocols = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp]
        .into_iter()
        .filter(|protocol| protocol.number() == flow.protocol);
    let to = flow.original.destination;
    Some(PortReservation {
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

fn count(record: &Record, mapping: &PortMapping, flow_counts: &FlowCounts) -> u64 {
    let attachment = &record.attachment;
    mapping_endpoints(attachment, mapping)
        .into_iter()
        .filter_map(|to| flow_counts.get(&(attachment.slot, attachment.generation, to)))
        .sum()
}

fn port(record: &Record, mapping: &PortMapping, held: &PortReservations) -> PortView {
    let attachment = &record.attachment;
    let key = &attachment.key;
    let held_by = |claim: &PortReservation| match held.get(claim) {
        Some(held) if held.generation == attachment.generation => match held.by {
            ReservedBy::Socket => "socket",
            ReservedBy::Table => "table",
            ReservedBy::Runtime => "runtime",
        },
        Some(_) | None => "nothing",
    };
    let standby = standby_reservations(attachment, mapping).into_iter();
    let claims = mapping_reservations(attachment, mapping)
        .into_iter()
        .map(|claim| (claim, held_by(&claim)))
        .chain(standby.map(|claim| (claim, "standby")));
    PortView {
        flows: None,
        port: view::hostport(mapping, &key.to_string()),
        network: key.network.to_string(),
        container_id: key.container_id.to_string(),
        pod: attachment.pod.as_ref().map(names::pod),
        state: view::state(record.state).to_owned(),
        since: record.created_at,
        since_time: clock::rfc3339(record.created_at),
        claims: claims
            .map(|(claim, held_by)| PortReservationView {
                socket: claim.socket().to_string(),
                held_by: held_by.to_owned(),
            })
            .collect(),
    }
}
