//! Tests of quantities in Kubernetes' grammar, and of limits from every source.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::request::tests::add_with;

/// behaviour K28: k, M, G, T, P, Ki.., decimals, exponents; rounded up.
#[test]
fn quantities_are_read_as_kubernetes_reads_them() {
    for (text, value) in [
        ("1k", 1_000),
        ("1000", 1_000),
        ("10M", 10_000_000),
        ("1.5G", 1_500_000_000),
        (".5M", 500_000),
        ("2.M", 2_000_000),
        ("1Ki", 1_024),
        ("1.5Mi", 1_572_864),
        ("1e6", 1_000_000),
        ("15E2", 1_500),
        ("+3k", 3_000),
        ("1000000m", 1_000),
        ("1000001m", 1_001),
        ("1.0000000000000000000000001k", 1_001),
        ("1P", MOST),
    ] {
        assert_eq!(parse_rate(text), Ok(value), "{text}");
    }
}

/// behaviour K28: 1k and 1P are within the bounds.
#[test]
fn bandwidth_bounds_and_error_texts_are_kubenets() {
    for text in ["999", "0", "-1M", "999.9n", "1e-400", "0.0001"] {
        assert_eq!(
            parse_rate(text).unwrap_err(),
            "resource is unreasonably small (< 1kbit)",
            "{text}"
        );
    }
    for text in [
        "1000000000000001",
        "2P",
        "1E",
        "1e400",
        "9999999999999999999999Ei",
    ] {
        assert_eq!(
            parse_rate(text).unwrap_err(),
            "resource is unreasonably large (> 1Pbit)",
            "{text}"
        );
    }
}

#[test]
fn an_invalid_quantity_is_refused() {
    for text in [
        "", "fast", "1Kb", "1 M", "1.2.3", ".", "-", "1e", "1e+", "k", "0x10", "1K",
    ] {
        let error = parse_rate(text).unwrap_err();
        assert!(error.contains("is not a quantity"), "{text}: {error}");
    }
}

proptest! {
    #[test]
    fn no_text_is_too_strange(text: String) {
        let _either = parse_rate(&text);
    }

    #[test]
    fn whole_numbers_are_worth_themselves(value in LEAST..=MOST) {
        prop_assert_eq!(parse_rate(&value.to_string()), Ok(value));
        prop_assert_eq!(parse_rate(&format!("{value}000m")), Ok(value));
        prop_assert_eq!(parse_rate(&format!("{value}e0")), Ok(value));
    }

    /// Values are rounded up, for any last digits.
    #[test]
    fn thousandths_round_up(value in LEAST * 1_000..MOST) {
        prop_assert_eq!(parse_rate(&format!("{value}m")), Ok(value.div_ceil(1_000)));
    }

    #[test]
    fn binary_suffixes_are_powers_of_1024(value in 1_u64..1_000, power in 1_u32..=3) {
        let suffix = ["Ki", "Mi", "Gi"][power as usize - 1];
        prop_assert_eq!(parse_rate(&format!("{value}{suffix}")), Ok(value << (10 * power)));
    }
}

fn with(key: &str, value: Value) -> Value {
    let mut config = json!({"name": "n", "cniVersion": "1.1.0"});
    config[key] = value;
    config
}

fn refusal(config: &Value) -> Error {
    add_with(&config.to_string(), "").unwrap_err()
}

/// Formats a limit: the rate, and the burst if there is one.
type RateAndBurst = (u64, Option<u64>);

fn limits_of(config: &Value) -> Result<[Option<RateAndBurst>; 2], Error> {
    let bandwidth = add_with(&config.to_string(), "")?
        .requested
        .limits
        .bandwidth;
    let both = [bandwidth.ingress, bandwidth.egress];
    Ok(both.map(|limit| limit.map(|limit| (limit.rate.get(), limit.burst.map(Into::into)))))
}

/// behaviour R16: the configuration's own keys take precedence over `runtimeConfig`, and that over
/// the annotations.
#[test]
fn limits_are_read_from_the_configuration_the_runtime_and_the_annotations() {
    let annotations = json!({"kubernetes.io/egress-bandwidth": "1.5M", "other": "x"});
    let mut config = with(
        "runtimeConfig",
        json!({"io.kubernetes.cri.pod-annotations": annotations}),
    );
    assert_eq!(limits_of(&config), Ok([None, Some((1_500_000, None))]));
    config["runtimeConfig"]["bandwidth"] = json!({"ingressRate": 0, "ingressBurst": 0});
    assert_eq!(limits_of(&config), Ok([None, Some((1_500_000, None))]));
    config["runtimeConfig"]["bandwidth"] = json!({"IngressRate": 2_000_000, "IngressBurst": 8_000});
    assert_eq!(
        limits_of(&config),
        Ok([Some((2_000_000, Some(8_000))), None])
    );
    config["egressRate"] = json!(3_000_000);
    config["egressBurst"] = json!(4_000);
    assert_eq!(
        limits_of(&config),
        Ok([None, Some((3_000_000, Some(4_000)))])
    );
}

/// behaviour R16: the bandwidth plugin has no bounds for rates. A rate that no link reaches is
/// enforced as the largest one.
#[test]
fn rates_of_the_bandwidth_plugins_keys_have_no_bounds() {
    for (rate, enforced) in [(1_u64, 1), (800, 800), (MOST, MOST), (u64::MAX, MOST)] {
        let limits = json!({"ingressRate": rate, "ingressBurst": 200});
        let expected = Ok([Some((enforced, Some(200))), None]);
        let runtime = with("runtimeConfig", json!({"bandwidth": limits}));
        assert_eq!(limits_of(&runtime), expected, "{rate}");
        let mut own = with("ingressRate", json!(rate));
        own["ingressBurst"] = json!(200);
        assert_eq!(limits_of(&own), expected, "{rate}");
    }
}

/// behaviours C1, C5: the bursts that containerd and CRI-O send for limits without a burst are
/// ignored.
#[test]
fn placeholder_bursts_of_runtimes_are_ignored() {
    for burst in [4_294_967_295_u64, (1 << 35) - 9, 32_000_000_000] {
        let limits = json!({"bandwidth": {"egressRate": 1_000_000, "egressBurst": burst}});
        let config = with("runtimeConfig", limits);
        assert_eq!(
            limits_of(&config),
            Ok([None, Some((1_000_000, None))]),
            "{burst}"
        );
        assert!(
            add_with(&config.to_string(), "")
                .unwrap()
                .requested
                .limits
                .placeholder
        );
    }
}

/// behaviour R16: subnet lists; the network's also apply to limits of the runtime and the
/// annotations.
#[test]
fn limits_apply_to_the_shaped_subnets_of_the_configuration() {
    let peers = |config: &Value| {
        add_with(&config.to_string(), "")
            .unwrap()
            .requested
            .limits
            .bandwidth
            .shaped_subnets
    };
    let list = |texts: &[&str]| Prefixes::new(texts.iter().map(|text| text.parse().unwrap()));
    let limits = json!({"egressRate": 1_000_000, "egressBurst": 8_000});
    let mut config = with("runtimeConfig", json!({"bandwidth": limits}));
    assert_eq!(peers(&config), ShapedSubnets::All);
    // Host bits do not matter, and what is said twice is said once.
    config["shapedSubnets"] = json!(["10.1.2.3/8", "fd00::/8", "10.0.0.0/8"]);
    let shaped = list(&["10.0.0.0/8", "fd00::/8"]).unwrap();
    assert_eq!(peers(&config), ShapedSubnets::Only(shaped));
    config["runtimeConfig"]["bandwidth"]["unshapedSubnets"] = json!(["192.0.2.0/24"]);
    let unshaped = list(&["192.0.2.0/24"]).unwrap();
    assert_eq!(peers(&config), ShapedSubnets::Except(unshaped));
    config["shapedSubnets"] = json!([]);
    config["runtimeConfig"] = json!({});
    assert_eq!(peers(&config), ShapedSubnets::All, "nothing is limited");

    let many: Vec<String> = (0..=Prefixes::MAX)
        .map(|n| format!("10.{n}.0.0/16"))
        .collect();
    for (subnets, words) in [
        (
            json!(["10.0.0.0"]),
            "bad subnet \"10.0.0.0\" provided, details ",
        ),
        (json!(["a/8"]), "bad subnet \"a/8\" provided, details "),
        (json!(many), "shapedSubnets: more than 16 subnets"),
    ] {
        let error = refusal(&with("shapedSubnets", subnets));
        assert!(error.msg.contains(words), "{error:?}");
    }
}

#[test]
fn bandwidth_defaults_and_ceilings_are_parsed_as_quantities() {
    let config = json!({
        "name": "n", "cniVersion": "1.1.0", "type": "viaduct",
        "ipam": {"type": "host-local", "subnet": "10.9.0.0/24"},
        "bandwidthDefaults": {"ingress": "50M"},
        "bandwidthCeilings": {"ingress": "1G", "egress": "1.5e6"},
    });
    let options = crate::intent::network(&add_with(&config.to_string(), "").unwrap().config, None);
    let policy = options.unwrap().options.limits;
    let rates =
        |rates: Rates| [rates.ingress, rates.egress].map(|it| it.map_or(0, NonZeroU64::get));
    assert_eq!(rates(policy.default), [50_000_000, 0]);
    assert_eq!(rates(policy.ceiling), [1_000_000_000, 1_500_000]);
    for (value, words) in [
        (
            json!({"egress": "fast"}),
            "bandwidthCeilings.egress: \"fast\" is not a quantity",
        ),
        (
            json!({"ingress": "1"}),
            "bandwidthCeilings.ingress: resource is unreasonably small",
        ),
        (json!("1M"), "bandwidthCeilings"),
    ] {
        let error = refusal(&with("bandwidthCeilings", value));
        assert!(error.msg.contains(words), "{error:?}");
    }
    // Those of the agent's own network are the agent's flags.
    let own = add_with(
        &with("bandwidthCeilings", json!({"egress": "1M"})).to_string(),
        "",
    )
    .unwrap();
    let network = config_network();
    let error = crate::intent::network(&own.config, Some(&network)).unwrap_err();
    assert!(error.msg.contains("bandwidthCeilings"), "{error:?}");
}

/// Returns the agent's default network.
fn config_network() -> model::Network {
    let range = model::RangeSet::of_cidr("10.1.0.0/24".parse().unwrap()).unwrap();
    model::Network {
        name: "default".parse().unwrap(),
        bridge: "cbr0".parse().unwrap(),
        ranges: vec![range],
        routes: Vec::new(),
        default_route: true,
        mtu: None,
        hairpin: model::HairpinMode::default(),
        masquerade: true,
        options: model::BridgeOptions::default(),
    }
}

/// behaviours R16, K28: the error texts are the bandwidth plugin's and kubenet's.
#[test]
fn invalid_bandwidth_limits_are_refused_by_key() {
    for (limits, words) in [
        (
            json!({"ingressRate": 1_000_000}),
            "if rate is set, burst must also be set",
        ),
        (
            json!({"egressBurst": 8_000}),
            "if burst is set, rate must also be set",
        ),
        (
            json!({"ingressRate": 1_000, "ingressBurst": 1_u64 << 35}),
            "burst cannot be more than 4GB",
        ),
        (
            json!({"egressRate": -1, "egressBurst": 8}),
            "-1 is negative",
        ),
        (
            json!({"shapedSubnets": ["10.0.0.0/8"], "unshapedSubnets": ["10.1.0.0/16"]}),
            "unshapedSubnets and shapedSubnets cannot be both specified, one of them should be discarded",
        ),
    ] {
        let own = refusal(&{
            let mut config = json!({"name": "n", "cniVersion": "1.1.0"});
            if let (Value::Object(config), Value::Object(limits)) = (&mut config, limits.clone()) {
                config.extend(limits);
            }
            config
        });
        assert!(own.msg.contains(words), "{own:?}");
        assert_eq!(own.code, 7, "{own:?}");
        let runtime = refusal(&with("runtimeConfig", json!({"bandwidth": limits})));
        assert!(runtime.msg.contains(words), "{runtime:?}");
    }
    let annotations = json!({"kubernetes.io/egress-bandwidth": "10"});
    let runtime = json!({"io.kubernetes.cri.pod-annotations": annotations});
    assert_eq!(
        refusal(&with("runtimeConfig", runtime)).msg,
        "kubernetes.io/egress-bandwidth: resource is unreasonably small (< 1kbit)"
    );
}
