//! `ipam` of type `static`: addresses that the configuration lists.
//!
//! Addresses of `CNI_ARGS` are added to them; those of `args.cni` or `runtimeConfig` replace them.
//! Error texts are the static plugin's, where it has any.

use std::net::IpAddr;

use model::{InterfaceAddress, Range, RangeSet};

use crate::config::limits;
use crate::json::{Node, Object};
use crate::{Error, RuntimeArgs};

/// A static address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StaticAddress {
    /// The address with the prefix length of its subnet.
    pub address: InterfaceAddress,
    /// Its gateway, if one is configured.
    pub gateway: Option<IpAddr>,
}

pub(crate) fn addresses(ipam: &Object<'_>) -> Result<Vec<StaticAddress>, Error> {
    ipam.list_up_to("addresses", limits::ADDRESSES)?
        .into_iter()
        .map(|node| address(&node))
        .collect()
}

fn address(node: &Node<'_>) -> Result<StaticAddress, Error> {
    let entry = node.object()?;
    let text = entry.text("address")?.unwrap_or_default();
    let address = text.parse().map_err(|_| {
        node.invalid(format_args!(
            "the 'address' field is expected to be in CIDR notation, got: '{text}'"
        ))
    })?;
    Ok(StaticAddress {
        address,
        gateway: entry.parsed("gateway")?,
    })
}

/// Returns the addresses as ranges of one address each. With `is_gateway`, an address without a
/// gateway gets the first one of its subnet, as with the bridge plugin (behaviour R3).
pub(crate) fn ranges(
    configured: &[StaticAddress],
    requested: &RuntimeArgs,
    is_gateway: bool,
) -> Result<Vec<RangeSet>, Error> {
    let kept = if requested.replaces_addresses {
        &[]
    } else {
        configured
    };
    let added = requested
        .interface_addresses()?
        .into_iter()
        .map(|address| StaticAddress {
            address,
            gateway: None,
        });
    let all = kept.iter().copied().chain(added);
    single_ranges(all, &requested.gateways, is_gateway)
}

/// Returns each address as a range of its own. Its gateway is the first of `gateways` in its
/// subnet, or its own, or with `is_gateway` the subnet's first address.
pub(crate) fn single_ranges(
    addresses: impl Iterator<Item = StaticAddress>,
    gateways: &[IpAddr],
    is_gateway: bool,
) -> Result<Vec<RangeSet>, Error> {
    let range = |own| {
        let StaticAddress { address, gateway } = with_gateway(own, gateways, is_gateway);
        let range = Range::single(address, gateway).and_then(|range| RangeSet::new(vec![range]));
        range.map_err(|error| Error::invalid_config(error.to_string()))
    };
    addresses.map(range).collect()
}

fn with_gateway(own: StaticAddress, gateways: &[IpAddr], is_gateway: bool) -> StaticAddress {
    let subnet = own.address.subnet();
    let requested = gateways
        .iter()
        .copied()
        .find(|gateway| subnet.is_some_and(|subnet| subnet.contains(*gateway)));
    let usual = subnet.filter(|_| is_gateway).map(Range::default_gateway);
    StaticAddress {
        gateway: requested.or(own.gateway).or(usual),
        ..own
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::request::tests::add_with;
    use crate::{Error, intent};

    fn config(ipam: &Value, more: &Value) -> String {
        let mut config = json!({
            "cniVersion": "1.0.0", "name": "fixed", "type": "bridge", "bridge": "br7", "ipam": ipam,
        });
        let map = config.as_object_mut().unwrap();
        map.extend(more.as_object().unwrap().clone());
        config.to_string()
    }

    fn planned(ipam: &Value, more: &Value, args: &str) -> Result<Vec<String>, Error> {
        let request = add_with(&config(ipam, more), args)?;
        let intent = intent(&request, None)?;
        assert!(intent.requested.addresses.is_empty(), "they are the ranges");
        let ranges = intent
            .network
            .ranges
            .iter()
            .flat_map(model::RangeSet::ranges);
        let text = |range: &model::Range| {
            let gateway = range
                .gateway()
                .map_or("none".to_owned(), |own| own.to_string());
            assert_eq!(range.first(), range.last());
            format!(
                "{}/{} by {gateway}",
                range.first(),
                range.subnet().prefix_len()
            )
        };
        Ok(ranges.map(text).collect())
    }

    fn two() -> Value {
        json!({"type": "static", "addresses": [
            {"address": "10.10.0.1/24", "gateway": "10.10.0.254"},
            {"address": "3ffe:ffff:0:1ff::1/64"},
        ]})
    }

    /// behaviours F11; R3
    #[test]
    fn static_addresses_are_assigned_as_configured() {
        let plain = planned(&two(), &json!({}), "").unwrap();
        assert_eq!(
            plain,
            [
                "10.10.0.1/24 by 10.10.0.254",
                "3ffe:ffff:0:1ff::1/64 by none"
            ]
        );
        let gateway = planned(&two(), &json!({"isGateway": true}), "");
        let reason = "a gateway is the first address of its subnet, and this is given to a pod";
        assert_eq!(gateway.unwrap_err().code, 7, "{reason}");
    }

    #[test]
    fn arguments_add_addresses_and_gateways_and_capabilities_replace_them() {
        let args = "IP=10.11.0.9/16,fd00::9/64;GATEWAY=10.11.0.1";
        let added = planned(&two(), &json!({}), args).unwrap();
        assert_eq!(
            added[2..],
            ["10.11.0.9/16 by 10.11.0.1", "fd00::9/64 by none"]
        );
        let replaced = json!({"runtimeConfig": {"ips": ["10.12.0.9/24"]}, "isGateway": true});
        assert_eq!(
            planned(&two(), &replaced, "").unwrap(),
            ["10.12.0.9/24 by 10.12.0.1"]
        );
        let args = json!({"args": {"cni": {"ips": ["10.13.0.9/32"]}}});
        assert_eq!(
            planned(&two(), &args, "").unwrap(),
            ["10.13.0.9/32 by none"]
        );
    }

    #[test]
    fn an_address_without_its_length_is_refused_in_the_static_plugins_words() {
        let ipam = json!({"type": "static", "addresses": [{"address": "10.10.0.1"}]});
        let error = planned(&ipam, &json!({}), "").unwrap_err();
        assert!(
            error
                .msg
                .contains("expected to be in CIDR notation, got: '10.10.0.1'"),
            "{error:?}"
        );
        let bare = json!({"runtimeConfig": {"ips": ["10.10.0.1"]}});
        let error = planned(&two(), &bare, "").unwrap_err();
        assert!(error.msg.contains("CIDR notation"), "{error:?}");
        assert!(
            planned(&json!({"type": "static"}), &json!({}), "").is_err(),
            "no address at all"
        );
    }

    /// behaviour R6
    #[test]
    fn name_servers_of_the_ipam_are_reported_unless_the_configuration_has_its_own() {
        let mut ipam = two();
        ipam["dns"] = json!({"nameservers": ["10.1.0.1"]});
        let servers = |more: &Value| {
            let request = add_with(&config(&ipam, more), "").unwrap();
            request.config.dns.nameservers
        };
        assert_eq!(servers(&json!({})), ["10.1.0.1"]);
        let own = json!({"dns": {"nameservers": ["10.2.0.1"]}});
        assert_eq!(servers(&own), ["10.2.0.1"]);
    }
}
