//! The network configuration, decoded.
//!
//! It is independent of the agent's default network: [`crate::network`] combines the two.

pub(crate) mod agreement;
pub(crate) mod bandwidth;
pub(crate) mod bridge_keys;
pub(crate) mod dns;
pub(crate) mod ipam;
pub(crate) mod limits;
pub(crate) mod ranges;
pub(crate) mod static_ipam;
pub(crate) mod tuning;
pub(crate) mod unsupported;

use std::path::PathBuf;

use model::{IfName, NetworkName};
use serde_json::{Map, Value};

use crate::config::dns::Dns;
use crate::json::{self, Object};
use crate::{BridgeKeys, Error, Ipam, Version};

/// Types of `ipam` that Viaduct implements itself.
const OURS: [&str; 2] = ["host-local", "static"];

/// The keys that every command needs, independent of errors in the rest: a DEL must succeed with a
/// configuration whose ADD was refused (behaviour S10).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// `cniVersion`; 0.1.0 if the key is missing.
    pub version: Version,
    /// `name`: the network's name.
    pub name: NetworkName,
    /// `socket`: path of the agent's socket, if not the default.
    pub socket: Option<PathBuf>,
    /// Whether the configuration declares a network of its own, called `name`: with an `ipam`, or
    /// as a layer-2 bridge without addresses. Otherwise the pod joins the agent's default network.
    pub declares_network: bool,
    /// `ipam.type`, where it is an external IPAM plugin that must be executed for the addresses.
    pub ipam_plugin: Option<String>,
    /// `ipam.dataDir`: the directory of host-local's lease files.
    pub data_dir: Option<PathBuf>,
}

impl Header {
    /// Parses the header of a configuration.
    pub fn parse(config: &str) -> Result<Self, Error> {
        Self::read(&Object::root(&json::parse(config)?))
    }

    /// Returns the configuration's `cniVersion`, even if the rest is invalid: an error is reported
    /// in the version of its request. `None` if the text is not a JSON object.
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
            ipam_plugin: ipam
                .flatten()
                .and_then(external_ipam_type)
                .map(str::to_owned),
        })
    }
}

/// A network configuration.
///
/// `None` means that the key is missing: the network's default applies. `ipMasqBackend`, `backend`
/// and `ipam.dataDir` are accepted and have no effect here: they select an implementation in the
/// reference plugins, and Viaduct has only one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Keys that every command needs.
    pub header: Header,
    /// `bridge`: name of the bridge.
    pub bridge: Option<IfName>,
    /// `mtu` in bytes; 0 is the same as a missing key.
    pub mtu: Option<u32>,
    /// `ipMasq`: traffic to other networks is masqueraded.
    pub ip_masq: Option<bool>,
    /// `isDefaultGateway`: pods get a default route through the bridge.
    pub is_default_gateway: Option<bool>,
    /// `hairpinMode`: hairpin on the bridge ports of pods.
    pub hairpin_mode: Option<bool>,
    /// `promiscMode`: promiscuous mode of the bridge.
    pub promisc_mode: Option<bool>,
    /// Further keys about the bridge and its ports: `isGateway`, `vlan` and others.
    pub bridge_keys: BridgeKeys,
    /// `ipam`; `None` for the agent's default network and for networks without addresses.
    pub ipam: Option<Ipam>,
    /// `dns`: resolver settings that results repeat.
    pub dns: Dns,
}

impl Config {
    pub(crate) fn read(config: &Object<'_>, header: Header) -> Result<Self, Error> {
        unsupported::check(config)?;
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

/// Returns the IPAM plugin to execute: any type that Viaduct does not implement, and the others if
/// `external` is true.
fn external_ipam_type(ipam: &Map<String, Value>) -> Option<&str> {
    let kind = ipam.get("type")?.as_str()?;
    let external = ipam.get("external").and_then(Value::as_bool);
    let is_ours = OURS.contains(&kind) && external != Some(true);
    // The type becomes a file name in the directories of CNI_PATH: no path separators.
    (!is_ours && !kind.is_empty() && !kind.contains('/')).then_some(kind)
}

/// Returns `dns` of the configuration, or else that of its `ipam` (behaviour R6).
fn dns(config: &Object<'_>, ipam: Option<&Ipam>) -> Result<Dns, Error> {
    let own = Dns::read(config)?;
    let of_ipam = ipam.map(|ipam| ipam.dns.clone());
    Ok(match of_ipam {
        Some(of_ipam) if own == Dns::default() => of_ipam,
        _ => own,
    })
}

/// Valid MTUs in bytes: the minimum of IPv4 (RFC 791) to the maximum of a veth in Linux
/// (`ETH_MAX_MTU`).
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

#[cfg(test)]
mod tests {
    use super::*;

    /// behaviour R6
    #[test]
    fn resolv_conf_is_parsed_and_dns_of_the_configuration_takes_precedence() {
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
