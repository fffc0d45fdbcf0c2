//! Keys of the bridge plugin about the bridge and its ports.
//!
//! Error texts are the bridge plugin's, where it has any.

use std::collections::BTreeSet;
use std::net::IpAddr;

use model::{
    BridgeOptions, EgressAddresses, IngressPolicy, LimitPolicy, Network, NetworkAccess,
    PortOptions, PortVlans, VlanId,
};

use crate::Error;
use crate::config::agreement::check_matches;
use crate::config::{bandwidth, limits};
use crate::json::{Node, Object};
use crate::values::ingress_policy;

/// Declares the keys: field, doc line and type; how it is read from `$config`; and the rule for a
/// configuration of the agent's default network, which all such configurations share. The block is
/// executed before the keys are read. A key without a rule does not compile, so that none is
/// ignored.
macro_rules! bridge_keys {
    (
        |$config:ident| { $($prelude:tt)* }
        |$keys:ident, $network:ident|
        $(
            $(#[$attribute:meta])*
            $field:ident: $type:ty = $read:expr;
            default network: $rule:expr;
        )*
    ) => {
        /// Settings of the bridge and of its pods' ports; `None` where the key is missing.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct BridgeKeys {
            $($(#[$attribute])* pub $field: $type,)*
        }

        impl BridgeKeys {
            pub(crate) fn read($config: &Object<'_>) -> Result<Self, Error> {
                $($prelude)*
                Ok(Self {
                    $($field: $read,)*
                })
            }

            /// Fails if a key differs from the default network's setting, which all its ports
            /// share.
            pub(crate) fn check_default_network(&self, $network: &Network) -> Result<(), Error> {
                let $keys = self;
                $($rule?;)*
                Ok(())
            }
        }
    };
}

bridge_keys! {
    |config| {
        let vlans = PortVlans {
            access: access(config)?,
            trunk: trunk(config)?,
            keeps_default: config.flag("preserveDefaultVlan")?.unwrap_or(false),
        };
        let [internal, direct_access] = access_keys(config)?;
    }

    |keys, network|

    /// `isGateway`: the bridge has the gateway addresses.
    is_gateway: Option<bool> = config.flag("isGateway")?;
    default network: check_matches("isGateway", keys.is_gateway, Some(true));

    /// `forceAddress`: other addresses of the bridge are replaced.
    force_address: Option<bool> = config.flag("forceAddress")?;
    default network: check_matches("forceAddress", keys.force_address, Some(false));

    /// `enabledad`: duplicate address detection of the pod's IPv6 addresses.
    enable_dad: Option<bool> = config.flag("enabledad")?;
    default network: check_matches("enabledad", keys.enable_dad, Some(false));

    /// `macspoofchk`: source addresses of the pod are checked. The default is true.
    mac_spoof_check: Option<bool> = config.flag("macspoofchk")?;
    default network: check_matches("macspoofchk", keys.mac_spoof_check, Some(true));

    /// `portIsolation`: isolated bridge ports.
    port_isolation: Option<bool> = config.flag("portIsolation")?;
    default network: check_matches("portIsolation", keys.port_isolation, Some(false));

    /// `ingressPolicy` of the firewall plugin.
    ingress: Option<IngressPolicy> = ingress_policy(config)?;
    default network: check_matches("ingressPolicy", keys.ingress, Some(IngressPolicy::Open));

    /// `vlan`, `vlanTrunk` and `preserveDefaultVlan`: VLANs of the port.
    vlans: PortVlans = vlans;
    default network: check_vlans(&keys.vlans);

    /// `internal`: no packet leaves or enters the network but those of its published ports.
    internal: Option<bool> = internal;
    default network: check_matches(
        "internal",
        keys.internal,
        Some(network.options.port.access == NetworkAccess::Internal),
    );

    /// `directAccess`: the pods' own addresses are reachable from outside the node and from other
    /// networks.
    direct_access: Option<bool> = direct_access;
    default network: check_matches(
        "directAccess",
        keys.direct_access,
        Some(network.options.port.access == NetworkAccess::Direct),
    );

    /// `disableContainerInterface`: the pod's interface stays down.
    leaves_down: Option<bool> = config.flag("disableContainerInterface")?;
    default network: check_matches("disableContainerInterface", keys.leaves_down, Some(false));

    /// `egressAddresses`: addresses of the node that flows to the outside get, at most one of each
    /// family.
    egress: EgressAddresses = egress(config)?;
    default network: check_no_egress(keys.egress);

    /// `bandwidthDefaults` and `bandwidthCeilings`: limits of pods without their own, and upper
    /// bounds.
    limits: LimitPolicy = bandwidth::policy(config)?;
    default network: check_limits(keys.limits, network.options.limits);
}

impl BridgeKeys {
    /// Returns the options of a declared network; missing keys have the bridge plugin's defaults.
    pub(crate) fn options(&self, is_default_gateway: bool) -> BridgeOptions {
        let on = |key: Option<bool>| key.unwrap_or(false);
        BridgeOptions {
            gateway: is_default_gateway || on(self.is_gateway),
            force_address: on(self.force_address),
            detects_duplicates: on(self.enable_dad),
            limits: self.limits,
            egress: self.egress,
            port: PortOptions {
                isolated: on(self.port_isolation),
                // A pod on a trunk has addresses in its VLANs that are not on record here.
                trusted: self.mac_spoof_check == Some(false) || !self.vlans.trunk.is_empty(),
                vlans: self.vlans.clone(),
                ingress: self.ingress.unwrap_or_default(),
                access: NetworkAccess::new(on(self.internal), self.direct_access != Some(false)),
                left_down: on(self.leaves_down),
                ..PortOptions::default()
            },
            ..BridgeOptions::default()
        }
    }
}

/// Fails if the ports of the default network have other VLANs: they have none. Then
/// `preserveDefaultVlan` changes nothing, whatever its value.
fn check_vlans(vlans: &PortVlans) -> Result<(), Error> {
    let number = |vlan: Option<VlanId>| vlan.map(VlanId::get);
    check_matches("vlan", number(vlans.access), Some(0))?;
    check_matches("vlanTrunk", number(vlans.trunk.first().copied()), Some(0))
}

fn check_limits(configured: LimitPolicy, current: LimitPolicy) -> Result<(), Error> {
    if configured == LimitPolicy::default() || configured == current {
        return Ok(());
    }
    Err(Error::invalid_config(
        "bandwidthDefaults and bandwidthCeilings of the agent's default network are flags of the agent",
    ))
}

fn check_no_egress(egress: EgressAddresses) -> Result<(), Error> {
    if egress.is_empty() {
        return Ok(());
    }
    Err(Error::invalid_config(
        "egressAddresses of the agent's default network are its flag egress-address",
    ))
}

/// Parses `egressAddresses`, a list of addresses.
fn egress(config: &Object<'_>) -> Result<EgressAddresses, Error> {
    let nodes = config.list("egressAddresses")?;
    let addresses: Vec<IpAddr> = nodes.iter().map(Node::parsed).collect::<Result<_, _>>()?;
    if addresses.is_empty() {
        return Ok(EgressAddresses::default());
    }
    if config.flag("ipMasq")? != Some(true) {
        return Err(Error::invalid_config(
            "egressAddresses are for masqueraded flows: set ipMasq",
        ));
    }
    EgressAddresses::of(addresses)
        .map_err(|error| Error::invalid_config(format!("egressAddresses: {error}")))
}

/// Parses `internal` and `directAccess`.
fn access_keys(config: &Object<'_>) -> Result<[Option<bool>; 2], Error> {
    let keys = [config.flag("internal")?, config.flag("directAccess")?];
    if keys == [Some(true); 2] {
        return Err(Error::invalid_config(
            "internal and directAccess are both true: an internal network has no direct access",
        ));
    }
    Ok(keys)
}

fn access(config: &Object<'_>) -> Result<Option<VlanId>, Error> {
    let number = config.number("vlan")?.unwrap_or_default();
    if number == 0 {
        return Ok(None);
    }
    let vlan = vlan_id(number);
    vlan.map(Some).ok_or_else(|| {
        Error::invalid_config(format!(
            "invalid VLAN ID {number} (must be between 0 and 4094)"
        ))
    })
}

fn trunk(config: &Object<'_>) -> Result<BTreeSet<VlanId>, Error> {
    // One flag for each ID, so that many wide ranges take little time.
    let mut flags = [false; 1 << 12];
    for node in config.list_up_to("vlanTrunk", limits::TRUNK_ENTRIES)? {
        for [min, max] in trunk_entry(&node)?.into_iter().flatten() {
            let range = usize::from(min.get())..=usize::from(max.get());
            if let Some(flags) = flags.get_mut(range) {
                flags.fill(true);
            }
        }
    }
    let numbers = (0..).zip(flags).filter(|(_, is_in_trunk)| *is_in_trunk);
    Ok(numbers
        .filter_map(|(number, _)| VlanId::new(number))
        .collect())
}

/// Parses `{"id": 5}`, `{"minID": 10, "maxID": 20}`, or an entry with both. Returns the first and
/// last VLAN of each.
fn trunk_entry(node: &Node<'_>) -> Result<[Option<[VlanId; 2]>; 2], Error> {
    let entry = node.object()?;
    let ends = [member(&entry, "minID")?, member(&entry, "maxID")?];
    let range = match ends {
        [Some(min), Some(max)] if min > max => {
            return Err(node.invalid("minID is greater than maxID in trunk parameter"));
        }
        [Some(min), Some(max)] => Some([min, max]),
        [None, None] => None,
        [min, _] => {
            let missing = if min.is_none() { "minID" } else { "maxID" };
            return Err(node.invalid(format_args!(
                "minID and maxID should be configured simultaneously, {missing} is missing"
            )));
        }
    };
    let single = member(&entry, "id")?.map(|id| [id; 2]);
    Ok([range, single])
}

fn member(entry: &Object<'_>, key: &str) -> Result<Option<VlanId>, Error> {
    let Some(node) = entry.get(key) else {
        return Ok(None);
    };
    let vlan = vlan_id(node.number()?);
    let wrong = || node.invalid(format_args!("incorrect trunk {key} parameter"));
    vlan.map(Some).ok_or_else(wrong)
}

fn vlan_id(number: i64) -> Option<VlanId> {
    VlanId::new(u16::try_from(number).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json;
    use crate::request::tests::add_with;

    fn read(keys: &str) -> Result<BridgeKeys, Error> {
        let map = json::parse(keys).unwrap();
        BridgeKeys::read(&Object::root(&map))
    }

    fn trunk_of(keys: &str) -> Vec<u16> {
        let trunk = read(keys).unwrap().vlans.trunk;
        trunk.into_iter().map(VlanId::get).collect()
    }

    /// behaviour F8
    #[test]
    fn a_trunk_is_written_as_numbers_and_ranges() {
        let keys =
            r#"{"vlanTrunk":[{"minID":10,"maxID":12},{"id":5},{"ID":11,"minID":1,"maxID":1}]}"#;
        assert_eq!(trunk_of(keys), [1, 5, 10, 11, 12]);
        assert_eq!(trunk_of(r#"{"vlan":0,"vlanTrunk":null}"#), [0; 0]);
    }

    /// behaviour F8: as in the bridge plugin since release 1.8.
    #[test]
    fn vlan_is_the_native_vlan_of_a_trunk() {
        let vlans = |keys: &str| read(keys).unwrap().vlans;
        let both = vlans(r#"{"vlan":7,"vlanTrunk":[{"id":8}]}"#);
        assert_eq!(both.native().map(VlanId::get), Some(7));
        assert_eq!(both.trunk.len(), 1);
        let trunk = vlans(r#"{"vlanTrunk":[{"id":8}]}"#);
        assert_eq!(
            (trunk.access, trunk.native()),
            (None, Some(VlanId::DEFAULT))
        );
    }

    #[test]
    fn vlans_that_make_no_sense_are_refused_in_the_bridge_plugins_words() {
        for (keys, words) in [
            (r#"{"vlan":4095}"#, "invalid VLAN ID 4095"),
            (r#"{"vlan":-1}"#, "invalid VLAN ID -1"),
            (r#"{"vlanTrunk":[{"minID":3}]}"#, "maxID is missing"),
            (r#"{"vlanTrunk":[{"maxID":3}]}"#, "minID is missing"),
            (
                r#"{"vlanTrunk":[{"minID":4,"maxID":3}]}"#,
                "minID is greater than maxID",
            ),
            (
                r#"{"vlanTrunk":[{"id":0}]}"#,
                "incorrect trunk id parameter",
            ),
            (
                r#"{"vlanTrunk":[{"minID":1,"maxID":4095}]}"#,
                "incorrect trunk maxID parameter",
            ),
        ] {
            let error = read(keys).unwrap_err();
            assert_eq!(error.code, 7, "{keys}");
            assert!(error.msg.contains(words), "{keys}: {}", error.msg);
        }
    }

    /// behaviour F10: source addresses are checked, except with `macspoofchk: false` or a VLAN
    /// trunk.
    #[test]
    fn spoof_check_is_on_unless_disabled_or_on_a_trunk() {
        let trusted = |keys: &str| read(keys).unwrap().options(false).port.trusted;
        assert!(!trusted("{}"));
        assert!(!trusted(r#"{"macspoofchk":true,"vlan":7}"#));
        assert!(trusted(r#"{"macspoofchk":false}"#));
        assert!(trusted(r#"{"macspoofchk":true,"vlanTrunk":[{"id":8}]}"#));
    }

    #[test]
    fn internal_and_direct_access_are_read_as_the_access_of_the_network() {
        use NetworkAccess::{Direct, Internal, Published};
        for (keys, access) in [
            ("{}", Direct),
            (r#"{"internal":false,"directAccess":true}"#, Direct),
            (r#"{"directAccess":false}"#, Published),
            (r#"{"DIRECTACCESS":false,"internal":null}"#, Published),
            (r#"{"internal":true}"#, Internal),
            (r#"{"internal":true,"directAccess":false}"#, Internal),
        ] {
            assert_eq!(
                read(keys).unwrap().options(false).port.access,
                access,
                "{keys}"
            );
        }
        for (keys, words) in [
            (
                r#"{"internal":true,"directAccess":true}"#,
                "internal and directAccess are both true",
            ),
            (r#"{"internal":"yes"}"#, "internal"),
            (r#"{"directAccess":1}"#, "directAccess"),
        ] {
            let error = read(keys).unwrap_err();
            assert!(error.msg.contains(words), "{keys}: {}", error.msg);
        }
    }

    #[test]
    fn egress_addresses_are_of_masqueraded_networks_and_one_of_each_family() {
        let egress = |keys: &str| read(keys).map(|keys| keys.options(false).egress);
        assert!(egress(r#"{"egressAddresses":[]}"#).unwrap().is_empty());
        let both = r#"{"ipMasq":true,"egressAddresses":["192.0.2.9","2001:db8::9"]}"#;
        let both = egress(both).unwrap();
        assert_eq!(both.iter().count(), 2);
        for (keys, words) in [
            (r#"{"egressAddresses":["192.0.2.9"]}"#, "set ipMasq"),
            (
                r#"{"ipMasq":true,"egressAddresses":["192.0.2.9","192.0.2.8"]}"#,
                "192.0.2.8 is the second address",
            ),
            (
                r#"{"ipMasq":true,"egressAddresses":["red"]}"#,
                "egressAddresses[0]",
            ),
        ] {
            let error = egress(keys).unwrap_err();
            assert!(error.msg.contains(words), "{keys}: {}", error.msg);
        }
        let default = read(r#"{"ipMasq":true,"egressAddresses":["192.0.2.9"]}"#).unwrap();
        let error = check_no_egress(default.egress).unwrap_err();
        assert!(error.msg.contains("egress-address"), "{}", error.msg);
    }

    /// behaviour R3
    #[test]
    fn is_default_gateway_implies_is_gateway() {
        let options = read(r#"{"isGateway":false}"#).unwrap();
        assert!(options.options(true).gateway);
        assert!(!options.options(false).gateway);
    }

    /// behaviour B3
    #[test]
    fn an_interface_that_stays_down_has_no_address_to_give() {
        let config = serde_json::json!({
            "name": "n", "disableContainerInterface": true, "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"},
        });
        let error = add_with(&config.to_string(), "").unwrap_err();
        let words = "cannot use IPAM when DisableContainerInterface flag is set";
        assert_eq!((error.code, error.msg.as_str()), (7, words));
    }
}
