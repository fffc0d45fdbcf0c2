//! Further networks of a pod, by any plugin: what Multus does (behaviour C14).
//!
//! The configuration has them as `delegates`, each a plugin's configuration or a list; or the pod's annotation names them,
//! and they are looked up in a folder. The pod's first interface is ours, the others are `net1`, `net2`, … unless a name is
//! asked for.

use std::collections::BTreeSet;
use std::net::IpAddr;

use model::IfName;
use serde_json::{Map, Value};

use crate::annotation::CAPABILITY;
use crate::json::{self as text, Object};
use crate::selection::{ANNOTATION, Selection, selections};
use crate::{Error, FileKind, NetworkList};

/// Where networks that an annotation names are looked up, unless `delegateDir` says otherwise.
pub const DEFAULT_DELEGATES: &str = "/etc/cni/multus/net.d";

/// One more network of the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delegate {
    /// The network.
    pub network: DelegateNetwork,
    /// The interface in the pod.
    pub ifname: IfName,
    /// What the annotation asks for, as capability arguments: `ips`, `mac`, `bandwidth`, …
    pub capabilities: Map<String, Value>,
    /// The same as `CNI_ARGS`, beside those of the runtime.
    pub args: Vec<(String, String)>,
    /// What every plugin of the network gets as `args.cni`.
    pub cni_args: Map<String, Value>,
    /// Gateways by which the pod's default routes go, instead of ours.
    pub gateways: Vec<IpAddr>,
}

impl Delegate {
    /// Its network as the pod wants it.
    pub fn adapt(&self, list: NetworkList) -> Result<NetworkList, Error> {
        list.with_args(&self.cni_args)
            .with_default_routes(&self.gateways)
    }
}

/// Where a delegate's configuration is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DelegateNetwork {
    /// In our own.
    Inline(Box<NetworkList>),
    /// In a file of this folder, by the network's name.
    Named {
        /// The folder.
        folder: String,
        /// The name.
        name: String,
    },
}

/// The delegates of a configuration, in the order of their ADDs; `own` is the interface that is ours.
pub fn delegates(config: &str, own: &IfName) -> Result<Vec<Delegate>, Error> {
    // Most configurations have none, and need not be read once more.
    if !config.contains("elegate") && !config.contains(ANNOTATION) {
        return Ok(Vec::new());
    }
    let parsed: Value = serde_json::from_str(config)
        .map_err(|error| Error::decode(format!("network configuration: {error}")))?;
    let mut wishes = inline(&parsed)?;
    wishes.extend(annotated(config)?);
    let mut taken = BTreeSet::from([own.clone()]);
    let mut delegates = Vec::new();
    for (index, Asked { network, wish }) in wishes.into_iter().enumerate() {
        let ifname = match wish.ifname {
            Some(name) => name,
            None => format!("net{}", index + 1),
        };
        let ifname: IfName = ifname
            .parse()
            .map_err(|error| Error::invalid_config(format!("delegates: {error}")))?;
        if !taken.insert(ifname.clone()) {
            return Err(Error::invalid_config(format!(
                "delegates: {ifname} is the name of two interfaces"
            )));
        }
        delegates.push(Delegate {
            network,
            ifname,
            capabilities: wish.capabilities,
            args: wish.args,
            cni_args: wish.cni_args,
            gateways: wish.gateways,
        });
    }
    Ok(delegates)
}

struct Asked {
    network: DelegateNetwork,
    wish: Selection,
}

fn inline(config: &Value) -> Result<Vec<Asked>, Error> {
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
            let wish = Selection {
                ifname: delegate["ifnameRequest"].as_str().map(str::to_owned),
                ..Selection::default()
            };
            Ok(Asked {
                network: DelegateNetwork::Inline(Box::new(list)),
                wish,
            })
        })
        .collect()
}

fn annotated(config: &str) -> Result<Vec<Asked>, Error> {
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
    let asked = selected.into_iter().map(|wish| Asked {
        network: DelegateNetwork::Named {
            folder: folder.to_owned(),
            name: wish.name.clone(),
        },
        wish,
    });
    Ok(asked.collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn read(config: &Value) -> Result<Vec<(String, String)>, String> {
        let found = delegates(&config.to_string(), &"eth0".parse().unwrap());
        let told = |delegate: Delegate| {
            let network = match delegate.network {
                DelegateNetwork::Inline(list) => list.name,
                DelegateNetwork::Named { folder, name } => format!("{folder}:{name}"),
            };
            (network, delegate.ifname.to_string())
        };
        found
            .map(|found| found.into_iter().map(told).collect())
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
    fn an_annotation_names_networks_in_either_form() {
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
