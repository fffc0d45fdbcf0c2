//! Endpoints: their keys, and the attachments that they become.
//!
//! dockerd names neither the container nor the network: an attachment has the IDs of network and
//! endpoint, which `docker network inspect` shows.

use std::net::{IpAddr, Ipv4Addr};

use model::{
    Attachment, AttachmentKey, Bandwidth, IfName, Intent, InterfaceAddress, Mac, NetnsPath,
    PodName, Requested,
};

use crate::protocol::{CreateEndpoint, CreatedEndpoint, Id, Interface, InterfaceName, Joined};
use crate::{NetworkSpec, Refused};

/// Namespace of the names under which tools show endpoints.
const NAMESPACE: &str = "docker";

/// An endpoint with its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The attachment that it becomes.
    pub intent: Intent,
    /// What dockerd must be told: values that it has not chosen itself.
    pub answer: CreatedEndpoint,
}

impl Endpoint {
    /// Returns the key of the attachment. The interface name is the one in the node's namespace,
    /// from which dockerd moves the interface: `vd` and the first digits of the endpoint's ID.
    #[expect(clippy::missing_panics_doc, reason = "hexadecimal digits are an ID")]
    pub fn key(network: &Id, endpoint: &Id) -> AttachmentKey {
        AttachmentKey {
            network: NetworkSpec::name(network),
            container_id: (endpoint.as_str().parse()).expect("hexadecimal digits are an ID"),
            ifname: interface(endpoint),
        }
    }

    /// Reads a request for an endpoint of `spec`.
    pub fn read(request: &CreateEndpoint, spec: &NetworkSpec) -> Result<Self, Refused> {
        let network = spec.network()?;
        let given = &request.interface;
        let v4 = address("Address", &given.address)?;
        let v6 = address("AddressIPv6", &given.address_ipv6)?;
        for set in &network.ranges {
            let (name, own) = if set.is_ipv4() {
                ("IPv4", &v4)
            } else {
                ("IPv6", &v6)
            };
            let Some(own) = own else {
                return Err(Refused::new(format!(
                    "network {} has an {name} subnet, and the endpoint no {name} address",
                    network.name
                )));
            };
            let mut ranges = set.ranges().iter();
            if !ranges.any(|range| range.offers(own.address)) {
                return Err(Refused::new(format!(
                    "{own} is no address for a container of network {}",
                    network.name
                )));
            }
        }
        let key = Self::key(&request.network, &request.endpoint);
        let mac = match given.mac_address.as_str() {
            "" => chosen_mac(v4, &key),
            text => text
                .parse()
                .map_err(|error| Refused::new(format!("MacAddress {text}: {error}")))?,
        };
        let is_chosen = given.mac_address.is_empty();
        let answer = Interface {
            mac_address: if is_chosen {
                mac.to_string()
            } else {
                String::new()
            },
            ..Interface::default()
        };
        let own = [v4, v6].into_iter().flatten();
        Ok(Self {
            intent: Intent {
                key,
                netns: NetnsPath::of_node(),
                network,
                port_mappings: Vec::new(),
                bandwidth: Bandwidth::default(),
                requested: Requested {
                    addresses: own.map(|own| own.address).collect(),
                    mac: Some(mac),
                    ..Requested::default()
                },
                pod: Some(PodName {
                    namespace: NAMESPACE.to_owned(),
                    name: request.endpoint.short().to_owned(),
                }),
            },
            answer: CreatedEndpoint { interface: answer },
        })
    }

    /// Returns whether an attachment is this endpoint, made by an earlier request.
    pub fn is(&self, attachment: &Attachment) -> bool {
        let intent = &self.intent;
        let addresses = attachment.addresses.iter().map(|own| own.address.address);
        attachment.key == intent.key
            && Some(attachment.mac) == intent.requested.mac
            && addresses.eq(intent.requested.addresses.iter().copied())
    }
}

fn interface(endpoint: &Id) -> IfName {
    let name = format!("vd{}", endpoint.short()).parse();
    name.expect("fourteen bytes are a name of an interface")
}

fn address(name: &str, text: &str) -> Result<Option<InterfaceAddress>, Refused> {
    if text.is_empty() {
        return Ok(None);
    }
    let own: InterfaceAddress = text
        .parse()
        .map_err(|error| Refused::new(format!("{name} {text}: {error}")))?;
    if own.address.is_ipv4() == (name == "Address") {
        Ok(Some(own))
    } else {
        Err(Refused::new(format!(
            "{name} {text}: another address family"
        )))
    }
}

/// Returns a MAC address that derives from the IPv4 address: the next container with the address
/// has the same, so that neighbours need not learn another.
fn chosen_mac(v4: Option<InterfaceAddress>, key: &AttachmentKey) -> Mac {
    match v4.map(|own| own.address) {
        Some(IpAddr::V4(v4)) => mac_of(v4),
        _ => key.pod_mac(),
    }
}

fn mac_of(address: Ipv4Addr) -> Mac {
    let [a, b, c, d] = address.octets();
    Mac::local([0x76, a, b, c, d])
}

/// Returns the answer to a Join: the interface to move, and the gateways.
pub fn join_answer(attachment: &Attachment, spec: &NetworkSpec) -> Result<Joined, Refused> {
    let has_gateway = spec.network()?.options.gateway && !spec.is_internal();
    let gateway = |ipv4: bool| {
        let mut gateways = attachment.addresses.iter().filter_map(|own| own.gateway);
        let found = gateways.find(|gateway| gateway.is_ipv4() == ipv4 && has_gateway);
        found.map(|gateway| gateway.to_string()).unwrap_or_default()
    };
    Ok(Joined {
        interface_name: InterfaceName {
            src_name: attachment.key.ifname.to_string(),
            dst_prefix: spec.interface_prefix()?,
        },
        gateway: gateway(true),
        gateway_ipv6: gateway(false),
        disable_gateway_service: !has_gateway,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NETWORK: &str = "0123456789abcdef";
    const ENDPOINT: &str = "fedcba9876543210";

    fn spec(internal: bool) -> NetworkSpec {
        let request = json!({
            "NetworkID": NETWORK,
            "IPv4Data": [{"Pool": "10.7.0.0/24", "Gateway": "10.7.0.1/24"}],
            "Options": {"com.docker.network.internal": internal},
        });
        NetworkSpec::read(&serde_json::from_value(request).unwrap()).unwrap()
    }

    fn endpoint(interface: &serde_json::Value) -> Result<Endpoint, Refused> {
        let request = json!({
            "NetworkID": NETWORK, "EndpointID": ENDPOINT, "Interface": interface, "Options": null,
        });
        Endpoint::read(&serde_json::from_value(request).unwrap(), &spec(false))
    }

    #[test]
    fn an_endpoint_becomes_an_attachment_whose_interface_dockerd_moves() {
        let endpoint = endpoint(&json!({"Address": "10.7.0.2/24"})).unwrap();
        let intent = &endpoint.intent;
        assert!(intent.netns.is_of_node());
        let key = intent.key.to_string();
        assert_eq!(
            key,
            format!("docker-0123456789ab/{ENDPOINT}/vdfedcba987654")
        );
        assert_eq!(
            intent.requested.addresses,
            ["10.7.0.2".parse::<IpAddr>().unwrap()]
        );
        // The driver answers what dockerd has not chosen, and nothing else.
        let answer = serde_json::to_value(&endpoint.answer).unwrap();
        let expected = json!({"Interface":
            {"Address": "", "AddressIPv6": "", "MacAddress": "02:76:0a:07:00:02"}});
        assert_eq!(answer, expected);
    }

    #[test]
    fn a_mac_address_that_dockerd_chooses_is_not_answered() {
        let mac = "02:00:00:00:00:07";
        let chosen = endpoint(&json!({"Address": "10.7.0.2/24", "MacAddress": mac})).unwrap();
        assert_eq!(chosen.answer.interface, Interface::default());
        assert_eq!(chosen.intent.requested.mac, Some(mac.parse().unwrap()));
    }

    #[test]
    fn endpoints_with_impossible_addresses_are_refused() {
        for interface in [
            json!({}),
            json!({"Address": "10.8.0.2/24"}),
            json!({"Address": "10.7.0.1/24"}),
            json!({"Address": "10.7.0.255/24"}),
            json!({"Address": "fd00::2/64"}),
            json!({"Address": "ten"}),
            json!({"Address": "10.7.0.2/24", "MacAddress": "none"}),
        ] {
            endpoint(&interface).unwrap_err();
        }
    }
}
