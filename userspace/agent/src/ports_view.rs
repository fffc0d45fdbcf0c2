//! The published ports of the node, as the API shows them. Decides nothing.

use api::{ClaimView, PortView};
use engine::Ports;
use model::{PortMapping, Record};
use planner::{Claim, HeldPorts, Holding, mapping_claims};

use crate::view;

/// Every published port, in the order of port and protocol.
pub(crate) fn ports(ports: &Ports) -> Vec<PortView> {
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
        .map(|(record, mapping)| port(record, mapping, &ports.held))
        .collect()
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
