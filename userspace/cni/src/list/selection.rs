//! Parser of the annotation `k8s.v1.cni.cncf.io/networks`, which selects further networks of a pod.
//!
//! The forms are those of Multus (behaviour C14): names separated by commas, each
//! `namespace/name@interface`, or a JSON list with further settings in each element. Networks are
//! files of one directory here, so the namespace is parsed and ignored. Finding a network's file is
//! the caller's work.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::{Map, Value, json};

use crate::Error;
use crate::values::{parse_mac, parse_requested_address};

/// Key of the pod annotation.
pub(crate) const ANNOTATION: &str = "k8s.v1.cni.cncf.io/networks";

/// One network that the annotation selects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Selection {
    pub(crate) name: String,
    /// The interface's name in the pod, if one is requested.
    pub(crate) ifname: Option<String>,
    /// Capability arguments of the network's plugins.
    pub(crate) capabilities: Map<String, Value>,
    /// Addresses and MAC address again as `CNI_ARGS` (`IP`, `MAC`), for plugins without these
    /// capabilities.
    pub(crate) args: Vec<(String, String)>,
    /// `cni-args`: members of `args.cni` of each plugin.
    pub(crate) cni_args: Map<String, Value>,
    /// `default-route`: gateways of the pod's default routes.
    pub(crate) gateways: Vec<IpAddr>,
}

/// Parses an annotation's value; the order is the annotation's.
pub(crate) fn selections(annotation: &str) -> Result<Vec<Selection>, Error> {
    let wrong = |why: String| Error::invalid_config(format!("{ANNOTATION}: {why}"));
    // None of these characters is valid in a name, so the value is JSON.
    if annotation.contains(['[', '{', '"']) {
        let list: Vec<Value> =
            serde_json::from_str(annotation).map_err(|error| wrong(error.to_string()))?;
        return list
            .iter()
            .map(element)
            .collect::<Result<_, _>>()
            .map_err(wrong);
    }
    annotation
        .split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty())
        .map(word)
        .collect::<Result<_, _>>()
        .map_err(wrong)
}

/// Returns the gateways that `default-route` of the pod's annotation names; none without
/// annotation.
pub(crate) fn default_gateways(
    annotations: &BTreeMap<String, String>,
) -> Result<Vec<IpAddr>, Error> {
    let Some(annotation) = annotations.get(ANNOTATION) else {
        return Ok(Vec::new());
    };
    let gateways = selections(annotation)?.into_iter();
    Ok(gateways.flat_map(|selection| selection.gateways).collect())
}

fn word(word: &str) -> Result<Selection, String> {
    let ([name] | [_, name]) = word.split('/').collect::<Vec<_>>()[..] else {
        return Err(format!("{word:?} has too many slashes"));
    };
    let (name, ifname) = match name.split('@').map(str::trim).collect::<Vec<_>>()[..] {
        [name] => (name, None),
        [name, ifname] => (name, Some(ifname.to_owned())),
        _ => return Err(format!("{word:?} has two interfaces")),
    };
    Ok(Selection {
        name: name.to_owned(),
        ifname,
        ..Selection::default()
    })
}

/// Keys of an element, each with the capability that it becomes.
const CAPABILITIES: [(&str, &str); 5] = [
    ("ips", "ips"),
    ("mac", "mac"),
    ("bandwidth", "bandwidth"),
    ("portMappings", "portMappings"),
    ("infiniband-guid", "infinibandGUID"),
];

fn element(element: &Value) -> Result<Selection, String> {
    let text = |key: &str| element[key].as_str().filter(|text| !text.is_empty());
    let name = text("name").ok_or("an element has no name")?;
    let mut selection = Selection {
        name: name.to_owned(),
        // `interfaceRequest` is the name of the key in Multus before 3.2.
        ifname: text("interface")
            .or(text("interfaceRequest"))
            .map(str::to_owned),
        args: args(element)?,
        gateways: gateways(element)?,
        ..Selection::default()
    };
    for (key, capability) in CAPABILITIES {
        let value = element
            .get(key)
            .filter(|value| !value.is_null() && **value != json!(""));
        if let Some(value) = value {
            selection
                .capabilities
                .insert(capability.to_owned(), value.clone());
        }
    }
    match element.get("cni-args") {
        None | Some(Value::Null) => {}
        Some(Value::Object(args)) => selection.cni_args.clone_from(args),
        Some(_) => return Err("cni-args: expected an object".to_owned()),
    }
    Ok(selection)
}

fn args(element: &Value) -> Result<Vec<(String, String)>, String> {
    let mut args = Vec::new();
    if let Some(mac) = element["mac"].as_str().filter(|mac| !mac.is_empty()) {
        parse_mac(mac)?;
        args.push(("MAC".to_owned(), mac.to_owned()));
    }
    let addresses = texts(element, "ips")?;
    for address in &addresses {
        parse_requested_address(address)?;
    }
    if !addresses.is_empty() {
        args.push(("IP".to_owned(), addresses.join(",")));
    }
    Ok(args)
}

fn gateways(element: &Value) -> Result<Vec<IpAddr>, String> {
    texts(element, "default-route")?
        .into_iter()
        .map(|text| {
            text.parse()
                .map_err(|_| format!("default-route: {text:?} is not an address"))
        })
        .collect()
}

fn texts<'a>(element: &'a Value, key: &str) -> Result<Vec<&'a str>, String> {
    match &element[key] {
        Value::Null => Ok(Vec::new()),
        Value::Array(list) => {
            let texts: Option<_> = list.iter().map(Value::as_str).collect();
            texts.ok_or_else(|| format!("{key}: expected texts"))
        }
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => {
            Err(format!("{key}: expected a list"))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// behaviour C14
    #[test]
    fn networks_annotation_names_may_have_a_namespace_and_an_interface() {
        let read = |annotation: &str| {
            let selections = selections(annotation)?.into_iter();
            Ok::<_, Error>(
                selections
                    .map(|it| format!("{}:{}", it.name, it.ifname.unwrap_or_default()))
                    .collect::<Vec<_>>(),
            )
        };
        let selected = read(" a, kube-system/b@lan0 ,c @ lan1,,").unwrap();
        assert_eq!(selected, ["a:", "b:lan0", "c:lan1"]);
        assert_eq!(read("").unwrap(), [""; 0]);
        for wrong in ["a/b/c", "a@b@c", "[{", "{}", "\"a\"", "[{}]", "[7]"] {
            assert_eq!(read(wrong).unwrap_err().code, 7, "{wrong}");
        }
    }

    /// behaviour C14
    #[test]
    fn a_networks_annotation_element_accepts_all_keys_of_multus() {
        let list = json!([{
            "name": "a", "namespace": "default", "interface": "lan0", "ips": ["10.1.0.9/24", "fd00::9"],
            "mac": "02:00:00:00:00:09", "infiniband-guid": "", "portMappings": [{ "hostPort": 80, "containerPort": 80 }],
            "bandwidth": { "ingressRate": 1000, "ingressBurst": 1000 }, "cni-args": { "x": [1] },
            "default-route": ["10.1.0.1", "fd00::1"], "ipam-claim-reference": "claim",
        }, { "name": "b", "ips": null, "mac": "", "interfaceRequest": "old0", "cni-args": null, "default-route": null }]);
        let [a, b] = &selections(&list.to_string()).unwrap()[..] else {
            panic!("two networks");
        };
        assert_eq!(a.ifname.as_deref(), Some("lan0"));
        let known: Vec<&str> = a.capabilities.keys().map(String::as_str).collect();
        assert_eq!(known, ["bandwidth", "ips", "mac", "portMappings"]);
        let args: Vec<String> = a
            .args
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        assert_eq!(args, ["MAC=02:00:00:00:00:09", "IP=10.1.0.9/24,fd00::9"]);
        assert_eq!(Value::Object(a.cni_args.clone()), json!({ "x": [1] }));
        assert_eq!(a.gateways.len(), 2);
        let plain = Selection {
            name: "b".to_owned(),
            ifname: Some("old0".to_owned()),
            ..Selection::default()
        };
        assert_eq!(*b, plain);

        let annotations = BTreeMap::from([(ANNOTATION.to_owned(), list.to_string())]);
        assert_eq!(default_gateways(&annotations).unwrap(), a.gateways);
        for (key, wrong) in [
            ("ips", json!(["x"])),
            ("ips", json!("10.1.0.9")),
            ("mac", json!("x")),
            ("cni-args", json!([])),
            ("default-route", json!(["10.1.0.0/24"])),
        ] {
            let element = json!([{ "name": "a", key: wrong }]);
            assert_eq!(
                selections(&element.to_string()).unwrap_err().code,
                7,
                "{key}"
            );
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_reader_panic(text: String) {
            let _ = selections(&text);
            let _ = selections(&format!("[{{\"name\":\"a\",\"ips\":{text}}}]"));
        }
    }
}
