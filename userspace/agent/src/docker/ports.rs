//! Publishes ports of endpoints, and finds free ones for those that the user leaves to Docker.

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use docker::ports::{Choice, TakenPort, choose, is_chosen};
use docker::protocol::PortBinding;
use engine::{EngineError, Handle};
use model::Attachment;
use planner::Refusal;

use super::driver::Called;

/// Ports that are tried for an endpoint before an error: other processes may have bound some.
const MAX_TRIES: usize = 64;
/// The kernel's range of ephemeral ports.
const LOCAL_PORTS: &str = "/proc/sys/net/ipv4/ip_local_port_range";
/// Its default.
const DEFAULT_PORTS: RangeInclusive<u16> = 32_768..=60_999;

/// Publishes the ports of an attachment, and no others.
pub(super) async fn publish(
    handle: &Handle,
    attachment: &Attachment,
    bindings: &[PortBinding],
    default_binding: Option<IpAddr>,
) -> Called<()> {
    let ephemeral = ephemeral(&fs::read_to_string(LOCAL_PORTS).unwrap_or_default());
    let mut taken = ports_of_others(handle, attachment).await?;
    let routed = attachment.port.routed;
    let own = attachment.addresses.iter().map(|own| own.address.address);
    let addresses: Vec<(IpAddr, bool)> = own
        .map(|own| (own, routed.contains(own.is_ipv4())))
        .collect();
    for _ in 0..MAX_TRIES {
        let choice = Choice {
            default_binding,
            addresses: &addresses,
            present: &attachment.port_mappings,
            taken: &taken,
            ephemeral: ephemeral.clone(),
        };
        let mappings = choose(bindings, &choice)?;
        let key = attachment.key.clone();
        let Err(error) = handle.publish_ports(key, mappings).await else {
            return Ok(());
        };
        match conflict(&error).filter(|port| is_chosen(bindings, *port)) {
            Some(port) if taken.insert(port) => {}
            _ => return Err(error.into()),
        }
    }
    Err(EngineError::Unfinished("no free port was found".to_owned()).into())
}

/// Returns the port that another process or attachment has.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "all others are about no port"
)]
fn conflict(error: &EngineError) -> Option<TakenPort> {
    match error {
        EngineError::PortInUse(in_use) => {
            let reservation = in_use.reservation;
            Some((reservation.protocol, reservation.port))
        }
        EngineError::Refused(Refusal::PortTaken { mapping, .. }) => {
            Some((mapping.protocol, mapping.host_port.get()))
        }
        _ => None,
    }
}

async fn ports_of_others(handle: &Handle, attachment: &Attachment) -> Called<BTreeSet<TakenPort>> {
    let records = handle.attachments().await?;
    let others = records.iter().map(|record| &record.attachment);
    let ports = others
        .filter(|other| other.key != attachment.key)
        .flat_map(|other| &other.port_mappings)
        .map(|mapping| (mapping.protocol, mapping.host_port.get()));
    Ok(ports.collect())
}

/// Parses the kernel's range of ephemeral ports.
fn ephemeral(text: &str) -> RangeInclusive<u16> {
    let mut ports = text.split_whitespace().map(str::parse::<u16>);
    match (ports.next(), ports.next()) {
        (Some(Ok(first)), Some(Ok(last))) if 0 < first && first <= last => first..=last,
        _ => DEFAULT_PORTS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ephemeral_ports_of_docker_are_the_kernels() {
        assert_eq!(ephemeral("40000\t50000\n"), 40_000..=50_000);
        for wrong in ["", "7", "9 8", "0 9", "a b"] {
            assert_eq!(ephemeral(wrong), DEFAULT_PORTS);
        }
    }
}
