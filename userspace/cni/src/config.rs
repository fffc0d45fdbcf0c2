//! The network configuration, decoded. Refuses to know what the agent's default network is: [`crate::network`] puts
//! the two together.

use std::path::PathBuf;

use model::{IfName, NetworkName};
use serde_json::{Map, Value};

use crate::json::{self, Object};
use crate::refused;
use crate::{BridgeKeys, Error, Ipam, Version};

/// Types of `ipam` that need no other plugin.
const OURS: [&str; 2] = ["host-local", "static"];

/// What every command needs of a configuration, however wrong the rest may be: a DEL must work with a configuration
/// whose ADD was refused (behaviour S10).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// `cniVersion`.
    pub version: Version,
    /// `name`.
    pub name: NetworkName,
    /// `socket`: where the agent listens, if not at the usual place.
    pub socket: Option<PathBuf>,
    /// Whether the configuration declares a network of its own, named `name`: by an `ipam`, or as a mere switch. Otherwise
    /// the agent's default network serves.
    pub declares_network: bool,
    /// `ipam.type`, where that is a plugin of somebody else's, which is to be executed for the addresses.
    pub ipam_plugin: Option<String>,
    /// `ipam.dataDir`: where host-local keeps leases as files.
    pub data_dir: Option<PathBuf>,
}

impl Header {
    /// Reads the header of a configuration.
    pub fn parse(config: &str) -> Result<Self, Error> {
        Self::read(&Object::root(&json::parse(config)?))
    }

    /// The configuration's `cniVersion` if it has one that is a text, however wrong the rest: an error is reported in
    /// the version of the question.
    pub fn version_of(config: &str) -> Option<String> {
        let map = json::parse(config).ok()?;
        let version = map.get("cniversion").and_then(Value::as_str);
        Some(version.unwrap_or(Version::V0_1_0.as_str()).to_owned())
    }

    pub(crate) fn read(config: &Object<'_>) -> Result<Self, Error> {
        let version = config.text("cniVersion")?;
        let ipam = config.get("ipam").map(|node| node.value().as_object());
        let data_dir = ipam.flatten().and_then(|map| map.get("datadir")?.as_str());
        let has_ipam = ipam.is_some_and(|map| map.is_none_or(|map| !map.is_empty()));
        let is_left_down = config
            .get("disableContainerInterface")
            .and_then(|node| node.value().as_bool());
        Ok(Self {
            data_dir: data_dir.map(PathBuf::from),
            version: version.map_or(Ok(Version::V0_1_0), str::parse)?,
            name: config.required("name")?,
            socket: config.text("socket")?.map(PathBuf::from),
            declares_network: has_ipam || is_left_down == Some(true),
            ipam_plugin: ipam.flatten().and_then(executed).map(str::to_owned),
        })
    }
}

/// A network configuration.
///
/// What is `None` was not said: the default of the network that serves holds. `ipMasqBackend`, `backend` and
/// `ipam.dataDir` are accepted and mean nothing here: they choose among means of other
/// plugins for ends that we reach in one way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// What every command needs.
    pub header: Header,
    /// `bridge`.
    pub bridge: Option<IfName>,
    /// `mtu` in bytes; 0 is the same as not said.
    pub mtu: Option<u32>,
    /// `ipMasq`.
    pub ip_masq: Option<bool>,
    /// `isDefaultGateway`.
    pub is_default_gateway: Option<bool>,
    /// `hairpinMode`.
    pub hairpin_mode: Option<bool>,
    /// `promiscMode`.
    pub promisc_mode: Option<bool>,
    /// `isGateway`, `vlan` and the like.
    pub bridge_keys: BridgeKeys,
    /// `ipam`; `None` for the agent's default network and for networks without addresses.
    pub ipam: Option<Ipam>,
    /// `dns`, which results repeat.
    pub dns: Dns,
}

impl Config {
    pub(crate) fn read(config: &Object<'_>, header: Header) -> Result<Self, Error> {
        refused::check(config)?;
        let ipam = match config.object("ipam")? {
            Some(ipam) if !ipam.is_empty() => Some(Ipam::read(&ipam, &header)?),
            _ => None,
        };
        let config = Self {
            header,
            bridge: config.parsed("bridge")?,
            mtu: mtu(config)?,
            ip_masq: config.flag("ipMasq")?,
            is_default_gateway: config.flag("isDefaultGateway")?,
            hairpin_mode: config.flag("hairpinMode")?,
            promisc_mode: config.flag("promiscMode")?,
            bridge_keys: BridgeKeys::read(config)?,
            dns: dns(config, ipam.as_ref())?,
            ipam,
        };
        if config.hairpin_mode == Some(true) && config.promisc_mode == Some(true) {
            return Err(Error::invalid_config(
                "cannot set hairpin mode and promiscuous mode at the same time",
            ));
        }
        Ok(config)
    }
}

/// The plugin that an `ipam` wants executed: any that is not ours, and of ours where `external` says so.
fn executed(ipam: &Map<String, Value>) -> Option<&str> {
    let kind = ipam.get("type")?.as_str()?;
    let external = ipam.get("external").and_then(Value::as_bool);
    let is_ours = OURS.contains(&kind) && external != Some(true);
    // It becomes a file's name in folders of programs.
    (!is_ours && !kind.is_empty() && !kind.contains('/')).then_some(kind)
}

/// What the configuration says replaces what its `ipam` says (behaviour R6).
fn dns(config: &Object<'_>, ipam: Option<&Ipam>) -> Result<Dns, Error> {
    let own = Dns::read(config)?;
    let of_ipam = ipam.map(|ipam| ipam.dns.clone());
    Ok(match of_ipam {
        Some(of_ipam) if own == Dns::default() => of_ipam,
        _ => own,
    })
}

/// The least that IPv4 allows (RFC 791), and the most that Linux gives a veth (`ETH_MAX_MTU`).
const MTU: std::ops::RangeInclusive<u32> = 68..=65535;

fn mtu(config: &Object<'_>) -> Result<Option<u32>, Error> {
    let Some(node) = config.get("mtu") else {
        return Ok(None);
    };
    let number = node.number()?;
    if number == 0 {
        return Ok(None);
    }
    let mtu = u32::try_from(number).ok().filter(|mtu| MTU.contains(mtu));
    let invalid = || node.invalid(format_args!("{number} is not within {MTU:?}"));
    mtu.map(Some).ok_or_else(invalid)
}

/// Name servers and what belongs to them. Nobody here resolves a name: results repeat what the configuration says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dns {
    /// Addresses of name servers.
    pub nameservers: Vec<String>,
    /// The local domain.
    pub domain: Option<String>,
    /// Domains to search.
    pub search: Vec<String>,
    /// Options of the resolver.
    pub options: Vec<String>,
}

impl Dns {
    /// What a file in the form of `resolv.conf(5)` says.
    pub fn of_resolv_conf(text: &str) -> Self {
        let mut dns = Self::default();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let keyword = words.next().unwrap_or_default();
            let mut values = words.map(str::to_owned);
            match keyword {
                "nameserver" => dns.nameservers.extend(values.next()),
                "domain" => dns.domain = values.next(),
                "search" => dns.search.extend(values),
                "options" => dns.options.extend(values),
                _ => {}
            }
        }
        dns
    }

    /// The configuration's own, or else those of the `ipam` (behaviour R6).
    #[must_use]
    pub fn or(self, ipam: Self) -> Self {
        if self == Self::default() { ipam } else { self }
    }

    pub(crate) fn read(config: &Object<'_>) -> Result<Self, Error> {
        let Some(dns) = config.object("dns")? else {
            return Ok(Self::default());
        };
        Ok(Self {
            nameservers: dns.texts("nameservers")?,
            domain: dns.text("domain")?.map(str::to_owned),
            search: dns.texts("search")?,
            options: dns.texts("options")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// behaviour R6
    #[test]
    fn a_resolver_file_is_read_and_beaten_by_the_configuration() {
        let text = "# comment\nnameserver 10.0.0.10\nnameserver fd00::10\ndomain a\nsearch a b\noptions ndots:5\n;x";
        let file = Dns::of_resolv_conf(text);
        assert_eq!(file.nameservers, ["10.0.0.10", "fd00::10"]);
        assert_eq!((file.domain.as_deref(), file.search.len()), (Some("a"), 2));
        let own = Dns {
            search: vec!["c".to_owned()],
            ..Dns::default()
        };
        assert_eq!(own.clone().or(file.clone()), own);
        assert_eq!(Dns::default().or(file.clone()), file);
    }
}
