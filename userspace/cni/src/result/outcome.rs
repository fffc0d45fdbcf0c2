//! Prints the result of an ADD, in the shape of each version (behaviour S8).
//!
//! The result is a function of the attachment and the configuration alone.

use std::collections::BTreeSet;
use std::net::IpAddr;

use model::{Assigned, Attachment, Cidr, IfName, Mac, Route};
use serde::Serialize;

use crate::{Dns, Version, json};

/// The result of an ADD, before it is printed.
#[derive(Clone, Copy, Debug)]
pub struct Outcome<'a> {
    /// The attachment that ADD created.
    pub attachment: &'a Attachment,
    /// MAC address of the bridge; `None` leaves it out of the result.
    pub bridge_mac: Option<Mac>,
    /// The VLAN link that has the gateway addresses, where that is not the bridge.
    pub vlan_link: Option<&'a IfName>,
    /// Resolver settings of the configuration.
    pub dns: &'a Dns,
    /// Destinations of routes without a gateway in the configuration: like host-local, the result
    /// names no gateway for them.
    pub implied: &'a BTreeSet<Cidr>,
}

impl Outcome<'_> {
    /// Returns the JSON for standard output, in the configuration's version.
    pub fn to_json(&self, version: Version) -> String {
        if version < Version::V0_3_0 {
            json::print(&self.oldest(version))
        } else {
            json::print(&self.newer(version))
        }
    }

    fn oldest(&self, version: Version) -> OldestJson {
        OldestJson {
            cni_version: version.as_str(),
            ip4: self.oldest_ip(true, version),
            ip6: self.oldest_ip(false, version),
            dns: DnsJson::from(self.dns),
        }
    }

    /// Returns the first address of a family; the shape has no room for more.
    fn oldest_ip(&self, ipv4: bool, version: Version) -> Option<OldestIpJson> {
        let mut addresses = self.attachment.addresses.iter();
        let assigned = addresses.find(|a| a.address.address.is_ipv4() == ipv4)?;
        let routes = self
            .attachment
            .routes
            .iter()
            .filter(|route| route.destination.is_ipv4() == ipv4);
        Some(OldestIpJson {
            ip: assigned.address.to_string(),
            gateway: assigned.gateway,
            routes: routes.map(|route| self.route(route, version)).collect(),
        })
    }

    fn newer(&self, version: Version) -> NewerJson {
        let addresses = self.attachment.addresses.iter();
        let dns = DnsJson::from(self.dns);
        let keeps_empty_dns = version < Version::V1_0_0;
        NewerJson {
            cni_version: version.as_str(),
            interfaces: self.interfaces(version),
            ips: addresses.map(|a| IpJson::new(a, version)).collect(),
            routes: self.routes(version),
            dns: (keeps_empty_dns || *self.dns != Dns::default()).then_some(dns),
        }
    }

    fn routes(&self, version: Version) -> Vec<RouteJson> {
        self.attachment
            .routes
            .iter()
            .map(|route| self.route(route, version))
            .collect()
    }

    fn route(&self, route: &Route, version: Version) -> RouteJson {
        let implied = self.implied.contains(&route.destination);
        let route = RouteJson::new(route, version);
        RouteJson {
            gw: route.gw.filter(|_| !implied),
            ..route
        }
    }

    /// Returns bridge, host end, pod end and VLAN link, in this order: addresses refer to the pod
    /// end by its index (behaviour R2).
    fn interfaces(&self, version: Version) -> Vec<InterfaceJson> {
        let attachment = self.attachment;
        let mtu = (version >= Version::V1_1_0).then_some(attachment.mtu);
        let text = |mac: Mac| mac.to_string();
        let of_bridge = |name: &IfName| InterfaceJson {
            name: name.to_string(),
            mac: self.bridge_mac.map(text),
            mtu: None,
            sandbox: None,
        };
        let ends = [
            of_bridge(&attachment.bridge),
            InterfaceJson {
                name: attachment.host_link().to_string(),
                mac: Some(text(attachment.key.host_mac())),
                mtu,
                sandbox: None,
            },
            InterfaceJson {
                name: attachment.key.ifname.to_string(),
                mac: Some(text(attachment.mac)),
                mtu,
                sandbox: Some(attachment.netns.path.to_string()),
            },
        ];
        ends.into_iter()
            .chain(self.vlan_link.map(of_bridge))
            .collect()
    }
}

/// Index of the pod's end in `interfaces`.
const POD_INTERFACE: usize = 2;

/// Result of versions 0.1.0 and 0.2.0.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct OldestJson {
    cni_version: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    ip4: Option<OldestIpJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ip6: Option<OldestIpJson>,
    dns: DnsJson,
}

#[derive(Serialize)]
struct OldestIpJson {
    ip: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    gateway: Option<IpAddr>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    routes: Vec<RouteJson>,
}

/// Result of version 0.3.0 and later.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct NewerJson {
    cni_version: &'static str,
    interfaces: Vec<InterfaceJson>,
    ips: Vec<IpJson>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    routes: Vec<RouteJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dns: Option<DnsJson>,
}

#[derive(Serialize)]
struct InterfaceJson {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    mac: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mtu: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sandbox: Option<String>,
}

#[derive(Serialize)]
struct IpJson {
    /// Address family, "4" or "6"; up to version 0.4.0.
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<&'static str>,
    interface: usize,
    address: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    gateway: Option<IpAddr>,
}

impl IpJson {
    fn new(assigned: &Assigned, version: Version) -> Self {
        let family = if assigned.address.address.is_ipv4() {
            "4"
        } else {
            "6"
        };
        Self {
            version: (version < Version::V1_0_0).then_some(family),
            interface: POD_INTERFACE,
            address: assigned.address.to_string(),
            gateway: assigned.gateway,
        }
    }
}

#[derive(Serialize)]
struct RouteJson {
    dst: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    gw: Option<IpAddr>,
    /// This key and the following ones: since version 1.1.0.
    #[serde(skip_serializing_if = "Option::is_none")]
    mtu: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    advmss: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    table: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    scope: Option<u8>,
}

impl RouteJson {
    fn new(route: &Route, version: Version) -> Self {
        let options = if version >= Version::V1_1_0 {
            route.options
        } else {
            model::RouteOptions::default()
        };
        Self {
            dst: route.destination.to_string(),
            gw: route.gateway,
            mtu: options.mtu,
            advmss: options.advmss,
            priority: options.priority,
            table: options.table,
            scope: options.scope,
        }
    }
}

impl Dns {
    /// Returns the JSON object `dns` of a result.
    pub(crate) fn to_value(&self) -> serde_json::Value {
        serde_json::to_value(DnsJson::from(self)).unwrap_or_default()
    }
}

#[derive(Serialize)]
struct DnsJson {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    nameservers: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    domain: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    search: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    options: Vec<String>,
}

impl From<&Dns> for DnsJson {
    fn from(dns: &Dns) -> Self {
        Self {
            nameservers: dns.nameservers.clone(),
            domain: dns.domain.clone(),
            search: dns.search.clone(),
            options: dns.options.clone(),
        }
    }
}

#[cfg(test)]
mod tests;
