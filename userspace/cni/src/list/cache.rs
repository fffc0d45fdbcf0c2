//! Entries of the result cache that runtimes keep, in libcni's format.
//!
//! With one format, the DEL of one runtime finds the result of another runtime's ADD.

use model::{ContainerId, IfName};
use serde_json::{Map, Value, json};

use crate::{Error, PluginResult};

/// Value of `kind` in libcni's cache files.
const KIND: &str = "cniCacheV1";

/// The cached ADD of one attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cached {
    /// The container's ID.
    pub container_id: ContainerId,
    /// The interface's name in the container.
    pub ifname: IfName,
    /// The network's name.
    pub network: String,
    /// Path of the network namespace, as ADD received it.
    pub netns: String,
    /// The network configuration of the ADD.
    pub config: String,
    /// The pairs of `CNI_ARGS`.
    pub args: Vec<(String, String)>,
    /// Capability arguments: the members of `runtimeConfig`, for plugins that declare them.
    pub capabilities: Map<String, Value>,
    /// The result of the list's last plugin.
    pub result: Value,
}

impl Cached {
    /// Returns the name of the file in the directory `results`.
    pub fn file_name(network: &str, container_id: &ContainerId, ifname: &IfName) -> String {
        format!("{network}-{container_id}-{ifname}")
    }

    /// Returns the text of the file.
    pub fn to_json(&self) -> String {
        json!({
            "kind": KIND,
            "containerId": self.container_id.as_str(),
            "config": encode(self.config.as_bytes()),
            "ifName": self.ifname.as_str(),
            "networkName": self.network,
            "netns": self.netns,
            "cniArgs": self.args,
            "capabilityArgs": self.capabilities,
            "result": self.result,
        })
        .to_string()
    }

    /// Returns the interface as an entry of the annotation `k8s.v1.cni.cncf.io/network-status`.
    pub fn network_status(&self) -> Value {
        let prev_result = PluginResult::parse(&self.result.to_string());
        let addresses = prev_result
            .as_ref()
            .map(|prev_result| prev_result.addresses_of(&self.ifname))
            .ok()
            .and_then(Result::ok)
            .unwrap_or_default();
        let ips: Vec<String> = addresses
            .iter()
            .map(|own| own.address.address.to_string())
            .collect();
        let interfaces = self.result["interfaces"].as_array().into_iter().flatten();
        let mut own = interfaces.filter(|it| it["name"] == self.ifname.as_str());
        let mut routes = self.result["routes"].as_array().into_iter().flatten();
        let leads_out = routes.any(|it| {
            ["0.0.0.0/0", "::/0"]
                .map(Some)
                .contains(&it["dst"].as_str())
        });
        json!({
            "name": self.network,
            "default": leads_out,
            "interface": self.ifname.as_str(),
            "ips": ips,
            "mac": own.next().map(|it| it["mac"].clone()),
            "dns": self.result.get("dns").cloned().unwrap_or_else(|| json!({})),
        })
    }

    /// Parses the text of a file.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let file: Value = serde_json::from_str(text)
            .map_err(|error| Error::decode(format!("cached result: {error}")))?;
        if file["kind"] != KIND {
            return Err(Error::decode("cached result: kind is not cniCacheV1"));
        }
        let string = |key: &str| file[key].as_str().unwrap_or_default().to_owned();
        let wrong = |what: &str| Error::decode(format!("cached result: no {what}"));
        let config = decode(&string("config")).and_then(|bytes| String::from_utf8(bytes).ok());
        let pairs = file["cniArgs"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|pair| Some((pair[0].as_str()?.to_owned(), pair[1].as_str()?.to_owned())));
        Ok(Self {
            container_id: string("containerId")
                .parse()
                .map_err(|_| wrong("container"))?,
            ifname: string("ifName").parse().map_err(|_| wrong("interface"))?,
            network: string("networkName"),
            netns: string("netns"),
            config: config.ok_or_else(|| wrong("configuration"))?,
            args: pairs.collect(),
            capabilities: file["capabilityArgs"]
                .as_object()
                .cloned()
                .unwrap_or_default(),
            result: file["result"].clone(),
        })
    }
}

const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Encodes as base64 with padding (RFC 4648), as Go does for bytes in JSON.
fn encode(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let value = |at: usize| u32::from(chunk.get(at).copied().unwrap_or(0));
        let bits = value(0) << 16 | value(1) << 8 | value(2);
        for (place, shift) in [18, 12, 6, 0].into_iter().enumerate() {
            let letter = LETTERS[(bits >> shift & 63) as usize];
            text.push(if place > chunk.len() {
                '='
            } else {
                char::from(letter)
            });
        }
    }
    text
}

/// Decodes base64; `None` if there is another character.
fn decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let (mut bits, mut count) = (0_u32, 0);
    for letter in text.trim_end_matches('=').bytes() {
        let value = LETTERS.iter().position(|known| *known == letter)?;
        bits = (bits << 6 | u32::try_from(value).ok()?) & 0x00ff_ffff;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count & 0xff).to_be_bytes()[3]);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_cached_result_round_trips_and_base64_matches_rfc_4648() {
        let cached = Cached {
            container_id: "c1".parse().unwrap(),
            ifname: "eth0".parse().unwrap(),
            network: "net".to_owned(),
            netns: "/run/netns/a".to_owned(),
            config: "{\"name\":\"net\"}".to_owned(),
            args: vec![("IgnoreUnknown".to_owned(), "1".to_owned())],
            capabilities: Map::new(),
            result: json!({ "cniVersion": "1.0.0" }),
        };
        assert_eq!(Cached::parse(&cached.to_json()).unwrap(), cached);
        for (plain, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foob", "Zm9vYg=="),
        ] {
            assert_eq!(encode(plain.as_bytes()), text);
        }
        assert!(Cached::parse("{}").is_err());
        let name = Cached::file_name("net", &cached.container_id, &cached.ifname);
        assert_eq!(name, "net-c1-eth0");
    }

    proptest! {
        #[test]
        fn bytes_come_back_from_base64(bytes: Vec<u8>, text: String) {
            prop_assert_eq!(decode(&encode(&bytes)), Some(bytes));
            let _ = decode(&text);
            let _ = Cached::parse(&text);
        }
    }
}
