//! Port mappings, as capability `portMappings` and annotations have them.

use std::num::NonZeroU16;

use model::{PortMapping, Protocol};

use crate::Error;
use crate::json::Object;

pub(crate) fn port_mapping(mapping: &Object<'_>) -> Result<PortMapping, Error> {
    Ok(PortMapping {
        host_port: port(mapping, "hostPort", "host")?,
        container_port: port(mapping, "containerPort", "container")?,
        // TCP is Kubernetes' default.
        protocol: mapping.parsed("protocol")?.unwrap_or(Protocol::Tcp),
        host_address: mapping.parsed("hostIP")?,
    })
}

/// Parses a port; error texts are portmap's (behaviour R12).
fn port(mapping: &Object<'_>, key: &str, which: &str) -> Result<NonZeroU16, Error> {
    let number = mapping.number(key)?.unwrap_or_default();
    let port = u16::try_from(number).ok().and_then(NonZeroU16::new);
    port.ok_or_else(|| {
        Error::invalid_config(format!("Invalid {which} port number: {number}"))
            .with_details(mapping.path_of(key))
    })
}
