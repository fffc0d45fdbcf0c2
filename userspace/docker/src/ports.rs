//! Published ports of endpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::ops::RangeInclusive;

use model::{Attachment, PortMapping, Protocol};
use serde_json::Value;

use crate::Refused;
use crate::protocol::{Options, PORT_MAP, PortBinding};

/// A port of the node that is taken.
pub type TakenPort = (Protocol, u16);

/// Inputs of the choice of ports besides the bindings.
#[derive(Clone, Debug)]
pub struct Choice<'a> {
    /// Address of ports that are bound without one; `None` for all.
    pub default_binding: Option<IpAddr>,
    /// Addresses of the endpoint, with whether they are routed: ports of such a one are published
    /// at the address itself.
    pub addresses: &'a [(IpAddr, bool)],
    /// Ports that the endpoint has: a repeated request gets the same.
    pub present: &'a [PortMapping],
    /// Ports that cannot be chosen.
    pub taken: &'a BTreeSet<TakenPort>,
    /// Ports of the node from which one is chosen for a binding without.
    pub ephemeral: RangeInclusive<u16>,
}

/// Returns the bindings in the options of a sandbox.
pub fn bindings(options: &Options) -> Result<Vec<PortBinding>, Refused> {
    match options.get(PORT_MAP) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(list) => serde_json::from_value(list.clone())
            .map_err(|error| Refused::new(format!("{PORT_MAP}: {error}"))),
    }
}

/// Returns the mapping of each binding, ports of one protocol and address side by side: dockerd has
/// a binding for each port of a range, in no order. A binding of several ports or of any port gets
/// the first that is not taken.
pub fn choose(bindings: &[PortBinding], choice: &Choice<'_>) -> Result<Vec<PortMapping>, Refused> {
    let present = choice.present.iter().copied().collect();
    let mut mappings: Vec<PortMapping> = Vec::new();
    let mut chosen = Chosen::new();
    for binding in bindings {
        let port = ContainerPort::read(binding)?;
        mappings.extend(port.direct(choice));
        if !port.is_translated(choice) {
            continue;
        }
        let host_address = port.host_address(choice);
        let mapping = choose_one(binding, (&port, host_address), choice, (&present, &chosen))?;
        let port = (mapping.protocol, mapping.host_port.get());
        chosen.entry(port).or_default().push(mapping.host_address);
        mappings.push(mapping);
    }
    mappings.sort_by_key(|mapping| (mapping.protocol, mapping.host_address, *mapping));
    Ok(mappings)
}

/// Addresses of the ports that earlier bindings of a request have got.
type Chosen = BTreeMap<TakenPort, Vec<Option<IpAddr>>>;

/// What a binding publishes.
struct ContainerPort {
    protocol: Protocol,
    port: NonZeroU16,
    /// Address of the node; `None` where the user has named none.
    named: Option<IpAddr>,
}

impl ContainerPort {
    fn read(binding: &PortBinding) -> Result<Self, Refused> {
        let named = match binding.host_ip.as_str() {
            "" => None,
            text => {
                let address = text.parse::<IpAddr>();
                Some(address.map_err(|_| Refused::new(format!("HostIP {text} is no address")))?)
            }
        };
        Ok(Self {
            protocol: protocol(binding.proto)?,
            port: NonZeroU16::new(binding.port)
                .ok_or_else(|| Refused::new("port 0 of a container cannot be published"))?,
            named,
        })
    }

    /// Returns the mappings at the routed addresses of the endpoint. An address of the node selects
    /// its family, and has no other effect.
    fn direct(&self, choice: &Choice<'_>) -> impl Iterator<Item = PortMapping> {
        let routed = choice.addresses.iter().filter(|(_, is_routed)| *is_routed);
        let selected = routed.filter(|(own, _)| self.selects(own.is_ipv4()));
        selected.map(|(own, _)| PortMapping {
            host_port: self.port,
            container_port: self.port,
            protocol: self.protocol,
            host_address: Some(*own),
        })
    }

    /// Returns whether the port is published at addresses of the node: not if all addresses of the
    /// endpoint that the binding selects are routed.
    fn is_translated(&self, choice: &Choice<'_>) -> bool {
        let mut selected = choice
            .addresses
            .iter()
            .filter(|(own, _)| self.selects(own.is_ipv4()));
        !choice.addresses.iter().any(|(_, is_routed)| *is_routed)
            || selected.any(|(_, is_routed)| !is_routed)
    }

    /// Returns the address of the node; `None` for all. Beside a routed family it is one of the
    /// other family, the unspecified one for all.
    fn host_address(&self, choice: &Choice<'_>) -> Option<IpAddr> {
        let default = self.named.or(choice.default_binding);
        let mut routed = choice.addresses.iter().filter(|(_, is_routed)| *is_routed);
        let Some((routed, _)) = routed.next() else {
            return default;
        };
        let any = if routed.is_ipv4() {
            IpAddr::from([0; 16])
        } else {
            IpAddr::from([0; 4])
        };
        let of_family = default.filter(|address| address.is_ipv4() == any.is_ipv4());
        Some(of_family.unwrap_or(any))
    }

    fn selects(&self, ipv4: bool) -> bool {
        self.named.is_none_or(|named| named.is_ipv4() == ipv4)
    }
}

fn choose_one(
    binding: &PortBinding,
    (port, host_address): (&ContainerPort, Option<IpAddr>),
    choice: &Choice<'_>,
    (present, chosen): (&BTreeSet<PortMapping>, &Chosen),
) -> Result<PortMapping, Refused> {
    let protocol = port.protocol;
    let mapping = |host_port| PortMapping {
        host_port,
        container_port: port.port,
        protocol,
        host_address,
    };
    let candidates = candidates(binding, choice);
    let is_single = candidates.start() == candidates.end();
    let mut ports = candidates.clone().filter_map(NonZeroU16::new);
    if is_single {
        // Whether the port is free is decided when it is reserved, with the owner in the error.
        return ports
            .next()
            .map(mapping)
            .ok_or_else(|| Refused::new("port 0 of the node cannot be published"));
    }
    // The same port on other addresses of the node is a port of its own.
    let is_mine = |port: &NonZeroU16| present.contains(&mapping(*port));
    let is_free = |port: &NonZeroU16| {
        let port = (protocol, port.get());
        let mut others = chosen.get(&port).into_iter().flatten();
        !choice.taken.contains(&port)
            && !others.any(|other| *other == host_address || host_address.is_none())
    };
    let kept = ports.clone().find(|port| is_mine(port) && is_free(port));
    kept.or_else(|| ports.find(is_free))
        .map(mapping)
        .ok_or_else(|| {
            Refused::new(format!(
                "all ports of the node from {} to {} are taken",
                candidates.start(),
                candidates.end()
            ))
        })
}

fn candidates(binding: &PortBinding, choice: &Choice<'_>) -> RangeInclusive<u16> {
    match (binding.host_port, binding.host_port_end) {
        (0, _) => choice.ephemeral.clone(),
        (first, last) => first..=last.max(first),
    }
}

fn protocol(number: u8) -> Result<Protocol, Refused> {
    [Protocol::Tcp, Protocol::Udp, Protocol::Sctp]
        .into_iter()
        .find(|protocol| protocol.number() == number)
        .ok_or_else(|| Refused::new(format!("IP protocol {number} cannot be published")))
}

/// Returns whether a binding lets the driver choose the port, so that another one can be tried.
pub fn is_chosen(bindings: &[PortBinding], port: TakenPort) -> bool {
    bindings.iter().any(|binding| {
        let range = binding.host_port..=binding.host_port_end.max(binding.host_port);
        let covers =
            binding.host_port == 0 || range.contains(&port.1) && range.end() > range.start();
        covers && protocol(binding.proto) == Ok(port.0)
    })
}

/// Returns the published ports of an attachment, as dockerd writes them.
pub fn published(attachment: &Attachment) -> Vec<PortBinding> {
    let binding = |mapping: &PortMapping| PortBinding {
        proto: mapping.protocol.number(),
        ip: String::new(),
        port: mapping.container_port.get(),
        host_ip: mapping
            .host_address
            .map(|own| own.to_string())
            .unwrap_or_default(),
        host_port: mapping.host_port.get(),
        host_port_end: mapping.host_port.get(),
    };
    attachment.port_mappings.iter().map(binding).collect()
}

#[cfg(test)]
mod tests {
    use model::PortRange;
    use serde_json::json;

    use super::*;

    fn binding(port: u16, host_port: u16, host_port_end: u16) -> PortBinding {
        PortBinding {
            proto: 6,
            port,
            host_port,
            host_port_end,
            ..PortBinding::default()
        }
    }

    fn chosen(bindings: &[PortBinding], present: &[PortMapping], taken: &[u16]) -> Vec<u16> {
        let taken = taken.iter().map(|port| (Protocol::Tcp, *port)).collect();
        let choice = Choice {
            default_binding: None,
            addresses: &[],
            present,
            taken: &taken,
            ephemeral: 40_000..=40_002,
        };
        let mappings = choose(bindings, &choice).unwrap();
        mappings
            .iter()
            .map(|mapping| mapping.host_port.get())
            .collect()
    }

    #[test]
    fn bindings_are_read_as_dockerd_writes_them() {
        let options = json!({PORT_MAP: [
            {"Proto": 6, "IP": "", "Port": 80, "HostIP": "", "HostPort": 8080, "HostPortEnd": 8080},
            {"Proto": 17, "IP": null, "Port": 53, "HostIP": "192.0.2.1", "HostPort": 0,
                "HostPortEnd": 0}]});
        let bindings = bindings(options.as_object().unwrap()).unwrap();
        assert_eq!(bindings[0], binding(80, 8080, 8080));
        assert_eq!(
            (bindings[1].proto, bindings[1].host_ip.as_str()),
            (17, "192.0.2.1")
        );
        assert!(super::bindings(&Options::new()).unwrap().is_empty());
        let wrong = json!({PORT_MAP: 7});
        super::bindings(wrong.as_object().unwrap()).unwrap_err();
    }

    #[test]
    fn ranges_and_ephemeral_ports_get_the_first_free_port() {
        let any = [
            binding(80, 0, 0),
            binding(81, 0, 0),
            binding(80, 8000, 8001),
        ];
        assert_eq!(chosen(&any, &[], &[]), [8000, 40_000, 40_001]);
        assert_eq!(chosen(&any, &[], &[40_000, 8000]), [8001, 40_001, 40_002]);
        // A single port is not replaced: its reservation fails, with the owner in the error.
        assert_eq!(chosen(&[binding(80, 8080, 8080)], &[], &[8080]), [8080]);
    }

    /// dockerd sends a binding for each port of a range, and sorts none of them.
    #[test]
    fn bindings_of_a_range_of_ports_become_one_range() {
        let ports = (8000..9000).rev();
        let bindings: Vec<PortBinding> = ports.map(|port| binding(port, port, port)).collect();
        let choice = Choice {
            default_binding: None,
            addresses: &[],
            present: &[],
            taken: &BTreeSet::new(),
            ephemeral: 40_000..=40_002,
        };
        let ranges = PortRange::of(&choose(&bindings, &choice).unwrap());
        assert_eq!(ranges.len(), 1);
        assert_eq!(ranges[0].count().get(), 1000);
    }

    #[test]
    fn ports_of_routed_addresses_are_published_at_these_addresses() {
        let v4: IpAddr = [10, 7, 0, 2].into();
        let v6: IpAddr = "fd07::2".parse().unwrap();
        let texts = |addresses: &[(IpAddr, bool)], host_ip: &str| -> Vec<String> {
            let binding = PortBinding {
                host_ip: host_ip.to_owned(),
                ..binding(80, 8080, 8080)
            };
            let choice = Choice {
                default_binding: None,
                addresses,
                present: &[],
                taken: &BTreeSet::new(),
                ephemeral: 40_000..=40_002,
            };
            let mappings = choose(&[binding], &choice).unwrap();
            mappings.iter().map(ToString::to_string).collect()
        };
        let (direct4, direct6) = ("10.7.0.2:80->80/tcp", "[fd07::2]:80->80/tcp");
        let both = [(v4, true), (v6, true)];
        assert_eq!(texts(&both, ""), [direct4, direct6]);
        assert_eq!(texts(&both, "192.0.2.1"), [direct4]);
        let mixed = [(v4, false), (v6, true)];
        assert_eq!(texts(&mixed, ""), ["0.0.0.0:8080->80/tcp", direct6]);
        assert_eq!(texts(&mixed, "192.0.2.1"), ["192.0.2.1:8080->80/tcp"]);
        assert_eq!(texts(&mixed, "::"), [direct6]);
        let mixed = [(v4, true), (v6, false)];
        assert_eq!(texts(&mixed, ""), [direct4, "[::]:8080->80/tcp"]);
        assert_eq!(texts(&[(v4, true)], ""), [direct4]);
        assert!(texts(&[(v4, true)], "::").is_empty());
        assert_eq!(texts(&[(v4, false)], ""), ["8080->80/tcp"]);
    }

    #[test]
    fn a_repeated_request_keeps_its_ephemeral_port() {
        let mine = PortMapping {
            host_port: 40_002.try_into().unwrap(),
            container_port: 80.try_into().unwrap(),
            protocol: Protocol::Tcp,
            host_address: None,
        };
        assert_eq!(chosen(&[binding(80, 0, 0)], &[mine], &[]), [40_002]);
        assert_eq!(chosen(&[binding(81, 0, 0)], &[mine], &[]), [40_000]);
    }

    #[test]
    fn impossible_bindings_are_refused() {
        let taken = (40_000..=40_002)
            .map(|port| (Protocol::Tcp, port))
            .collect();
        let choice = Choice {
            default_binding: None,
            addresses: &[],
            present: &[],
            taken: &taken,
            ephemeral: 40_000..=40_002,
        };
        let proto = PortBinding {
            proto: 1,
            ..binding(80, 8080, 8080)
        };
        let address = PortBinding {
            host_ip: "here".to_owned(),
            ..binding(80, 8080, 8080)
        };
        for impossible in [binding(80, 0, 0), binding(0, 8080, 8080), proto, address] {
            choose(&[impossible], &choice).unwrap_err();
        }
    }

    #[test]
    fn only_ports_that_the_driver_has_chosen_are_replaced() {
        let bindings = [binding(80, 8080, 8080), binding(80, 9000, 9005)];
        assert!(is_chosen(&bindings, (Protocol::Tcp, 9001)));
        assert!(!is_chosen(&bindings, (Protocol::Tcp, 8080)));
        assert!(!is_chosen(&bindings, (Protocol::Udp, 9001)));
        assert!(is_chosen(&[binding(80, 0, 0)], (Protocol::Tcp, 40_000)));
    }
}
