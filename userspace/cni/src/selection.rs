//! The annotation by which a pod asks for further networks, in the forms that Multus reads (behaviour C14): names with
//! commas between them, `namespace/name@interface`, or a JSON list with more wishes in each element.
//!
//! Networks are files of one folder here, so a namespace is read and says nothing. What a network is, others know.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::{Map, Value, json};

use crate::Error;
use crate::runtime::{parse_mac, parse_wish};

/// The pod's annotation.
pub(crate) const ANNOTATION: &str = "k8s.v1.cni.cncf.io/networks";

/// One network that the annotation asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Selection {
    pub(crate) name: String,
    /// The interface's name, where one is asked for.
    pub(crate) ifname: Option<String>,
    /// Capability arguments.
    pub(crate) capabilities: Map<String, Value>,
    /// The same once more for plugins that declare no capability: `IP` and `MAC`.
    pub(crate) args: Vec<(String, String)>,
    /// `cni-args`: what becomes `args.cni` of each plugin.
    pub(crate) cni_args: Map<String, Value>,
    /// `default-route`: the gateways by which the pod's default routes go.
    pub(crate) gateways: Vec<IpAddr>,
}

/// Everything that an annotation asks for, in its order.
pub(crate) fn selections(annotation: &str) -> Result<Vec<Selection>, Error> {
    let wrong = |why: String| Error::invalid_config(format!("{ANNOTATION}: {why}"));
    // A word with one of these is no name, so it was meant to be JSON.
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

/// The gateways of the networks by which a pod's default routes go, where its annotations say so.
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

/// A key of an element, and the capability by which plugins know it.
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
        // The second one is of Multus before 3.2.
        ifname: text("interface")
            .or(text("interfaceRequest"))
            .map(str::to_owned),
        args: args(element)?,
        gateways: gateways(element)?,
        ..Selection::default()
    };
    for (key, capability) in CAPABILITIES {
        let asked = element.get(key);
        if let Some(asked) = asked.filter(|it| !it.is_null() && **it != json!("")) {
            selection
                .capabilities
                .insert(capability.to_owned(), asked.clone());
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
        parse_wish(address)?;
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
                .map_err(|_| format!("default-route: {text:?} is no address"))
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
    fn names_are_read_with_and_without_namespaces_and_interfaces() {
        let read = |annotation: &str| {
            let selections = selections(annotation)?.into_iter();
            Ok::<_, Error>(
                selections
                    .map(|it| format!("{}:{}", it.name, it.ifname.unwrap_or_default()))
                    .collect::<Vec<_>>(),
            )
        };
        let told = read(" a, kube-system/b@lan0 ,c @ lan1,,").unwrap();
        assert_eq!(told, ["a:", "b:lan0", "c:lan1"]);
        assert_eq!(read("").unwrap(), [""; 0]);
        for wrong in ["a/b/c", "a@b@c", "[{", "{}", "\"a\"", "[{}]", "[7]"] {
            assert_eq!(read(wrong).unwrap_err().code, 7, "{wrong}");
        }
    }

    /// behaviour C14
    #[test]
    fn an_element_may_ask_for_all_that_multus_knows() {
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
