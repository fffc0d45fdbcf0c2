//! Parser of an external IPAM plugin's result: addresses, routes and resolver settings, in any
//! version of the protocol.
//!
//! Rules and error texts are the bridge plugin's, where it has any.

use model::Route;

use crate::config::limits;
use crate::config::ranges::route;
use crate::json::{self, Object};
use crate::{Dns, Error, PluginResult, StaticAddress, Version};

/// Addresses that an external IPAM plugin has allocated, and that it must release.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForeignLease {
    /// The addresses, in the order of the result; at least one.
    pub addresses: Vec<StaticAddress>,
    /// Routes of the pod. A route without a gateway goes through the gateway of its family.
    pub routes: Vec<Route>,
    /// Resolver settings of the result.
    pub dns: Dns,
}

impl ForeignLease {
    /// Parses a result. Fails if it has no address.
    pub fn parse(answer: &str) -> Result<Self, Error> {
        Self::read(answer).map_err(|error| Error {
            msg: format!("result of the IPAM plugin: {}", error.msg),
            ..error
        })
    }

    fn read(answer: &str) -> Result<Self, Error> {
        let result = PluginResult::parse(answer)?;
        let addresses: Vec<StaticAddress> = result
            .addresses()?
            .into_iter()
            .map(|own| StaticAddress {
                address: own.address,
                gateway: own.gateway,
            })
            .collect();
        if addresses.is_empty() {
            return Err(Error::invalid_config(
                "IPAM plugin returned missing IP config",
            ));
        }
        let newest = json::parse(&result.to_json(Version::NEWEST)?)?;
        let newest = Object::root(&newest);
        newest.list_up_to("ips", limits::ADDRESSES)?;
        let routes = newest.list_up_to("routes", limits::ROUTES)?;
        Ok(Self {
            addresses,
            routes: routes.iter().map(route).collect::<Result<_, _>>()?,
            dns: Dns::read(&newest)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn texts(lease: &ForeignLease) -> Vec<String> {
        let gateway =
            |own: &StaticAddress| own.gateway.map_or("none".to_owned(), |ip| ip.to_string());
        let addresses = lease
            .addresses
            .iter()
            .map(|own| format!("{} by {}", own.address, gateway(own)));
        let routes = lease
            .routes
            .iter()
            .map(|own| format!("to {} by {:?}", own.destination, own.gateway));
        addresses.chain(routes).collect()
    }

    /// behaviours R3, S14
    #[test]
    fn an_ipam_result_of_every_version_is_parsed() {
        let newest = r#"{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.9/24","gateway":"10.1.0.254"},
            {"address":"fd00::9/64"}],"routes":[{"dst":"0.0.0.0/0"},{"dst":"fd01::/16","gw":"fd00::1"}],
            "dns":{"nameservers":["10.1.0.53"]}}"#;
        let lease = ForeignLease::parse(newest).unwrap();
        assert_eq!(lease.dns.nameservers, ["10.1.0.53"]);
        let expected = texts(&lease);
        assert_eq!(
            expected,
            [
                "10.1.0.9/24 by 10.1.0.254",
                "fd00::9/64 by none",
                "to 0.0.0.0/0 by None",
                "to fd01::/16 by Some(fd00::1)",
            ]
        );
        let middle = newest
            .replace("1.1.0", "0.3.1")
            .replace("\"address\":\"10", "\"version\":\"4\",\"address\":\"10");
        assert_eq!(texts(&ForeignLease::parse(&middle).unwrap()), expected);
        let oldest = r#"{"cniVersion":"0.2.0","ip4":{"ip":"10.1.0.9/24","gateway":"10.1.0.254","routes":[{"dst":"0.0.0.0/0"}]}}"#;
        let legacy = texts(&ForeignLease::parse(oldest).unwrap());
        assert_eq!(
            legacy,
            ["10.1.0.9/24 by 10.1.0.254", "to 0.0.0.0/0 by None"]
        );
    }

    #[test]
    fn an_ipam_result_without_an_address_is_refused_in_the_bridge_plugins_words() {
        for answer in [
            r#"{"cniVersion":"1.0.0"}"#,
            r#"{"cniVersion":"1.0.0","ips":null}"#,
        ] {
            let error = ForeignLease::parse(answer).unwrap_err();
            assert!(
                error
                    .msg
                    .ends_with("IPAM plugin returned missing IP config"),
                "{error:?}"
            );
        }
        for answer in [
            "",
            "7",
            r#"{"cniVersion":"9.0.0"}"#,
            r#"{"ips":[{"address":"10.1.0.9"}]}"#,
        ] {
            let error = ForeignLease::parse(answer).unwrap_err();
            assert!(error.msg.contains("IPAM plugin"), "{answer}: {error:?}");
        }
    }

    proptest! {
        #[test]
        fn no_ipam_result_makes_the_parser_panic(answer: String) {
            let _ = ForeignLease::parse(&answer);
        }
    }
}
