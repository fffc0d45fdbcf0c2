//! Upper bounds for lists in a configuration. They bound the time of checks that compare each entry
//! with all others, in which other requests wait.

use model::RangeSet;

use crate::Error;

/// Maximum number of ranges in `ipam`, and of those in `runtimeConfig`; of all range sets together.
pub(crate) const RANGES: usize = 256;

/// Maximum number of addresses in one list: static and requested addresses, and gateways.
pub(crate) const ADDRESSES: usize = 256;

/// Maximum number of routes of a pod.
pub(crate) const ROUTES: usize = 1024;

/// Maximum number of entries of `vlanTrunk`: one for each VLAN.
pub(crate) const TRUNK_ENTRIES: usize = 4094;

/// Fails with code 7 if the range sets of the key `path` have more than [`RANGES`] ranges.
pub(crate) fn check_ranges(sets: &[RangeSet], path: &str) -> Result<(), Error> {
    let number: usize = sets.iter().map(|set| set.ranges().len()).sum();
    if number > RANGES {
        return Err(Error::invalid_config(format!(
            "{path}: {number} ranges, more than {RANGES}"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::ForeignLease;
    use crate::request::tests::add_with;

    fn many(number: usize, entry: impl Fn(usize) -> Value) -> Value {
        (0..number).map(entry).collect()
    }

    fn subnet(number: usize) -> Value {
        json!({ "subnet": format!("10.{}.{}.0/24", number / 256, number % 256) })
    }

    fn address(number: usize) -> String {
        format!("10.8.{}.{}/16", number / 256, number % 256)
    }

    /// Returns a configuration in which the list has `number` entries, all valid and different.
    fn config(list: &str, number: usize) -> Value {
        let mut config = json!({
            "cniVersion": "1.0.0", "name": "n", "ipam": { "type": "host-local", "subnet": "172.16.0.0/24" },
        });
        let ips = || many(number, |at| json!(address(at)));
        match list {
            "ipam.ranges" => {
                config["ipam"] = json!({ "type": "host-local" });
                config["ipam"]["ranges"] = many(number, |at| json!([subnet(at)]));
            }
            "ipam.addresses" => {
                let addresses = many(number, |at| json!({ "address": address(at) }));
                config["ipam"] = json!({ "type": "static", "addresses": addresses });
            }
            "ipam.routes" => {
                config["ipam"]["routes"] =
                    many(number, |at| json!({ "dst": subnet(at)["subnet"] }));
            }
            "runtimeConfig.ipRanges" => {
                config["runtimeConfig"] = json!({ "ipRanges": [many(number, subnet)] });
            }
            "runtimeConfig.ips" => config["runtimeConfig"] = json!({ "ips": ips() }),
            "args.cni.ips" => config["args"] = json!({ "cni": { "ips": ips() } }),
            "vlanTrunk" => {
                config[list] = many(number, |_| json!({ "minID": 1, "maxID": 4093 }));
            }
            other => panic!("no list {other}"),
        }
        config
    }

    #[test]
    fn a_list_longer_than_its_limit_is_refused_by_its_key() {
        for (list, most) in [
            ("ipam.ranges", 256),
            ("ipam.addresses", 256),
            ("ipam.routes", 1024),
            ("runtimeConfig.ipRanges", 256),
            ("runtimeConfig.ips", 256),
            ("args.cni.ips", 256),
            ("vlanTrunk", 4094),
        ] {
            let request = add_with(&config(list, most).to_string(), "").unwrap();
            crate::intent(&request, None).unwrap();
            let error = add_with(&config(list, most + 1).to_string(), "").unwrap_err();
            assert_eq!(error.code, 7, "{error:?}");
            let (key, limit) = (format!("{list}: "), format!("more than {most}"));
            assert!(error.msg.starts_with(&key), "{error:?}");
            assert!(error.msg.ends_with(&limit), "{error:?}");
        }
    }

    #[test]
    fn a_range_beside_the_range_sets_counts_among_them() {
        let mut config = config("ipam.ranges", 256);
        config["ipam"]["subnet"] = json!("172.16.0.0/24");
        let error = add_with(&config.to_string(), "").unwrap_err();
        assert_eq!(error.msg, "ipam.ranges: 257 ranges, more than 256");
    }

    #[test]
    fn long_lists_of_cni_args_are_refused_by_their_keys() {
        for key in ["IP", "GATEWAY"] {
            let args = |number: usize| format!("{key}={}", vec!["10.1.0.9"; number].join(","));
            let config = r#"{"name":"n"}"#;
            assert!(add_with(config, &args(256)).is_ok());
            let error = add_with(config, &args(257)).unwrap_err();
            let words = format!("CNI_ARGS: {key}: 257 entries, more than 256");
            assert_eq!((error.code, error.msg), (4, words));
        }
    }

    #[test]
    fn an_ipam_result_with_too_many_addresses_or_routes_is_refused() {
        let parse = |addresses: usize, routes: usize| {
            let ips = many(addresses, |at| json!({ "address": address(at) }));
            let routes = many(routes, |at| json!({ "dst": subnet(at)["subnet"] }));
            let result = json!({ "cniVersion": "1.0.0", "ips": ips, "routes": routes });
            ForeignLease::parse(&result.to_string())
        };
        assert!(parse(256, 1024).is_ok());
        for (addresses, routes, words) in [
            (257, 0, "ips: 257 entries, more than 256"),
            (1, 1025, "routes: 1025 entries, more than 1024"),
        ] {
            let error = parse(addresses, routes).unwrap_err();
            assert_eq!(error.code, 7);
            assert!(error.msg.ends_with(words), "{error:?}");
        }
    }
}
