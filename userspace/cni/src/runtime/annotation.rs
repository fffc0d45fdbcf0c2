//! Hostports from a pod annotation, for runtimes that pass no `portMappings` (CRI-O, behaviour C5).
//!
//! The annotation has the form of `portMappings`: a list of `hostPort`, `containerPort`, `protocol`
//! and `hostIP`. It is copied from pod specifications, where ports without a host port are usual,
//! so a `hostPort` of 0 or less is skipped as kubelet does (behaviour K30). In `portMappings` it is
//! an error, as with the portmap plugin (behaviour R12).

use std::collections::BTreeSet;

use model::PortMapping;

use crate::json::{Node, Object, parse_text};
use crate::runtime::port_mapping::port_mapping;
use crate::values::CAPABILITY;
use crate::{AddRequest, Error};

impl AddRequest {
    /// Adds the ports of the pod annotation `key` to those of the runtime. Without the annotation
    /// it adds none.
    pub fn add_annotated_ports(&mut self, key: &str) -> Result<(), Error> {
        let annotations = &self.requested.annotations;
        let Some(text) = annotations.get(&key.to_ascii_lowercase()) else {
            return Ok(());
        };
        let path = format!("runtimeConfig.{CAPABILITY}.{key}");
        let wrong = |why| Error::invalid_config(format!("{path}: {why}"));
        let list = parse_text(text).map_err(wrong)?;
        let mut known: BTreeSet<PortMapping> =
            self.requested.port_mappings.iter().copied().collect();
        for node in Node::new(path.clone(), &list).list()? {
            let mapping = node.object()?;
            if is_published(&mapping)? {
                let mapping = port_mapping(&mapping)?;
                if known.insert(mapping) {
                    self.requested.port_mappings.push(mapping);
                }
            }
        }
        Ok(())
    }
}

fn is_published(mapping: &Object<'_>) -> Result<bool, Error> {
    Ok(mapping.number("hostPort")?.unwrap_or_default() > 0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::request::tests::add_with;

    const KEY: &str = "example.org/hostPorts";

    fn published(annotation: &str) -> Result<Vec<String>, Error> {
        let config = json!({
            "cniVersion": "1.0.0",
            "name": "crio",
            "runtimeConfig": {
                "portMappings": [{"hostPort": 53, "containerPort": 53, "protocol": "udp"}],
                CAPABILITY: {KEY: annotation, "other": "[{"},
            },
        });
        let mut request = add_with(&config.to_string(), "").unwrap();
        request.add_annotated_ports("no.such/key").unwrap();
        request.add_annotated_ports(KEY)?;
        let mappings = request.requested.port_mappings.iter();
        Ok(mappings.map(ToString::to_string).collect())
    }

    /// behaviour K30
    #[test]
    fn an_annotations_ports_are_published_but_not_those_without_a_host_port() {
        let annotation = json!([
            {"hostPort": 8080, "containerPort": 80},
            {"HostPort": 8443, "containerPort": 443, "protocol": "TCP", "hostIP": "192.0.2.1"},
            {"containerPort": 9},
            {"hostPort": 0, "containerPort": 10},
            {"hostPort": 53, "containerPort": 53, "protocol": "UDP"},
        ]);
        assert_eq!(
            published(&annotation.to_string()).unwrap(),
            ["53->53/udp", "8080->80/tcp", "192.0.2.1:8443->443/tcp"]
        );
        assert_eq!(published("").unwrap(), ["53->53/udp"]);
    }

    #[test]
    fn an_invalid_port_annotation_is_refused_by_its_key() {
        for (annotation, words) in [
            ("8080", "hostPorts: expected a list"),
            ("[{", "hostPorts: "),
            (
                r#"[{"hostPort": 70000, "containerPort": 80}]"#,
                "Invalid host port number: 70000",
            ),
            (r#"[{"hostPort": 80}]"#, "Invalid container port number: 0"),
            (
                r#"[{"hostPort": 80, "containerPort": 80, "protocol": "icmp"}]"#,
                "icmp",
            ),
        ] {
            let error = published(annotation).unwrap_err();
            let message = format!("{} {}", error.msg, error.details);
            assert!(message.contains(words), "{message}");
            assert!(matches!(error.code, 6 | 7), "{message}");
        }
    }
}
