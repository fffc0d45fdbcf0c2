//! Delegates: further networks of a pod, of any plugin, as with Multus (behaviour C14).
//!
//! The configuration holds them as `delegates`, each a plugin's configuration or a list; or the
//! pod's annotation names them, and their files are in one directory. The pod's first interface is
//! ours; the others are `net1`, `net2`, …, unless a name is requested.

use std::collections::BTreeSet;
use std::net::IpAddr;

use model::IfName;
use serde_json::{Map, Value};

use crate::json::{self as text, Object};
use crate::list::selection::{ANNOTATION, Selection, selections};
use crate::values::CAPABILITY;
use crate::{Error, FileKind, NetworkList};

/// Default of `delegateDir`: the directory of networks that an annotation names.
pub const DEFAULT_DELEGATES: &str = "/etc/cni/multus/net.d";

/// One further network of the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delegate {
    /// The network, or the place of its file.
    pub network: DelegateNetwork,
    /// The interface's name in the pod.
    pub ifname: IfName,
    /// Settings of the annotation as capability arguments: `ips`, `mac`, `bandwidth`, …
    pub capabilities: Map<String, Value>,
    /// The same settings as `CNI_ARGS`, in addition to those of the runtime.
    pub args: Vec<(String, String)>,
    /// Members of `args.cni` for every plugin of the network.
    pub cni_args: Map<String, Value>,
    /// Gateways of the pod's default routes, which replace ours.
    pub gateways: Vec<IpAddr>,
}

impl Delegate {
    /// Returns the network's list with the pod's `args.cni` and default routes.
    pub fn adapt(&self, list: NetworkList) -> Result<NetworkList, Error> {
        list.with_args(&self.cni_args)
            .with_default_routes(&self.gateways)
    }
}

/// Place of a delegate's configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DelegateNetwork {
    /// In our own configuration.
    Inline(Box<NetworkList>),
    /// In a file of a directory, found by the network's name.
    Named {
        /// Path of the directory.
        folder: String,
        /// The network's name.
        name: String,
    },
}

/// Returns the delegates of a configuration, in the order of their ADDs. `own` is the name of the
/// pod's first interface, which Viaduct creates.
pub fn delegates(config: &str, own: &IfName) -> Result<Vec<Delegate>, Error> {
    // Most configurations have none: this avoids parsing them twice.
    if !config.contains("elegate") && !config.contains(ANNOTATION) {
        return Ok(Vec::new());
    }
    let parsed: Value = serde_json::from_str(config)
        .map_err(|error| Error::decode(format!("network configuration: {error}")))?;
    let mut requested = inline(&parsed)?;
    requested.extend(annotated(config)?);
    let mut taken = BTreeSet::from([own.clone()]);
    let mut delegates = Vec::new();
    for (index, RequestedDelegate { network, selection }) in requested.into_iter().enumerate() {
        let ifname: IfName = selection
            .ifname
            .unwrap_or_else(|| format!("net{}", index + 1))
            .parse()
            .map_err(|error| Error::invalid_config(format!("delegates: {error}")))?;
        if !taken.insert(ifname.clone()) {
            return Err(Error::invalid_config(format!(
                "delegates: two interfaces have the name {ifname}"
            )));
        }
        delegates.push(Delegate {
            network,
            ifname,
            capabilities: selection.capabilities,
            args: selection.args,
            cni_args: selection.cni_args,
            gateways: selection.gateways,
        });
    }
    Ok(delegates)
}

/// A delegate before its interface has a name.
struct RequestedDelegate {
    network: DelegateNetwork,
    selection: Selection,
}

fn inline(config: &Value) -> Result<Vec<RequestedDelegate>, Error> {
    let list = config.get("delegates").and_then(Value::as_array);
    list.into_iter()
        .flatten()
        .map(|delegate| {
            let kind = if delegate.get("plugins").is_some() {
                FileKind::List
            } else {
                FileKind::Single
            };
            let list = NetworkList::parse(kind, &delegate.to_string()).map_err(|error| Error {
                msg: format!("delegates: {}", error.msg),
                ..error
            })?;
            let selection = Selection {
                ifname: delegate["ifnameRequest"].as_str().map(str::to_owned),
                ..Selection::default()
            };
            Ok(RequestedDelegate {
                network: DelegateNetwork::Inline(Box::new(list)),
                selection,
            })
        })
        .collect()
}

fn annotated(config: &str) -> Result<Vec<RequestedDelegate>, Error> {
    let map = text::parse(config)?;
    let config = Object::root(&map);
    let folder = config.text("delegateDir")?.unwrap_or(DEFAULT_DELEGATES);
    let runtime = config.object("runtimeConfig")?;
    let annotations = runtime
        .map(|runtime| runtime.object(CAPABILITY))
        .transpose()?
        .flatten();
    let value = annotations.map(|annotations| annotations.text(ANNOTATION));
    let selected = selections(value.transpose()?.flatten().unwrap_or_default())?;
    let delegates = selected.into_iter().map(|selection| RequestedDelegate {
        network: DelegateNetwork::Named {
            folder: folder.to_owned(),
            name: selection.name.clone(),
        },
        selection,
    });
    Ok(delegates.collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn read(config: &Value) -> Result<Vec<(String, String)>, String> {
        let found = delegates(&config.to_string(), &"eth0".parse().unwrap());
        let network_and_ifname = |delegate: Delegate| {
            let network = match delegate.network {
                DelegateNetwork::Inline(list) => list.name,
                DelegateNetwork::Named { folder, name } => format!("{folder}:{name}"),
            };
            (network, delegate.ifname.to_string())
        };
        found
            .map(|found| found.into_iter().map(network_and_ifname).collect())
            .map_err(|error| error.msg)
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs
            .iter()
            .map(|(a, b)| ((*a).to_owned(), (*b).to_owned()))
            .collect()
    }

    /// behaviours C14, C15
    #[test]
    fn delegates_are_plugins_and_lists_with_names_of_their_own_or_counted_ones() {
        let config = json!({ "name": "n", "delegates": [
            { "name": "a", "type": "macvlan" },
            { "name": "b", "plugins": [{ "type": "bridge" }], "ifnameRequest": "sriov0" },
            { "name": "a", "type": "macvlan" },
        ] });
        assert_eq!(
            read(&config).unwrap(),
            pairs(&[("a", "net1"), ("b", "sriov0"), ("a", "net3")])
        );
        assert_eq!(read(&json!({ "name": "n" })).unwrap(), pairs(&[]));
    }

    #[test]
    fn a_networks_annotation_is_a_list_of_names_or_json() {
        let config = |networks: &str| {
            json!({
                "name": "n", "delegateDir": "/nets",
                "runtimeConfig": { CAPABILITY: { ANNOTATION: networks } },
            })
        };
        let plain = read(&config("default/a, b@lan0,")).unwrap();
        assert_eq!(plain, pairs(&[("/nets:a", "net1"), ("/nets:b", "lan0")]));
        let list = json!([{ "name": "a", "interface": "lan0", "ips": ["10.1.0.9"], "mac": "" }])
            .to_string();
        assert_eq!(read(&config(&list)).unwrap(), pairs(&[("/nets:a", "lan0")]));
        let found = delegates(&config(&list).to_string(), &"eth0".parse().unwrap()).unwrap();
        assert_eq!(
            Value::Object(found[0].capabilities.clone()),
            json!({ "ips": ["10.1.0.9"] })
        );
        assert!(read(&config("[{")).is_err() && read(&config("[{}]")).is_err());
        assert_eq!(found[0].args, [("IP".to_owned(), "10.1.0.9".to_owned())]);
    }

    #[test]
    fn two_interfaces_never_have_one_name() {
        for name in ["eth0", "net2", "not a name"] {
            let config = json!({ "name": "n", "delegates": [
                { "name": "a", "type": "x", "ifnameRequest": name },
                { "name": "b", "type": "x" },
            ] });
            assert!(read(&config).is_err(), "{name}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_reader_panic(config: String) {
            let _ = delegates(&format!("{config} delegates"), &"eth0".parse().unwrap());
        }
    }
}
