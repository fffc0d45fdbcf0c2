//! The OpenAPI document of the API: schemas and parameters from the types, and the list of
//! operations.

mod builder;

use serde_json::{Value, json};

use builder::{Content, Document, JSON, POST, PUT, strings};

use crate::{
    AttachmentView, BandwidthSetting, BypassSetting, CniRequest, CniVerb, CounterView, DropEvent,
    DropQuery, Event, FlowQuery, FlowsView, HairpinModeSetting, InterfacePresence, InterfaceQuery,
    KeepConnections, KeptConnections, Lease, LogLevelSetting, NetworkView, PeerSetting,
    PeerSourceSetting, PeerView, PodCidrs, PoliciesSetting, PoliciesView, PortView, Reloaded,
    Status, UninstallRequest, Uninstalled, WhyQuery, WhyView, path,
};

/// Returns the document as indented JSON with a line feed at its end.
pub fn document() -> String {
    let mut document = Document::default();
    document.state();
    document.pods();
    document.settings();
    document.streams();
    document.actions();
    document.commands();
    document.print()
}

impl Document {
    fn state(&mut self) {
        let content = self.json::<Status>();
        self.query(
            path::STATUS,
            "State of the agent and of its networks",
            content,
        );
        let content = self.list::<NetworkView>();
        self.query(
            path::NETWORKS,
            "Networks, the default network first",
            content,
        );
        let content = self.json::<CounterView>();
        self.query(
            path::COUNTERS,
            "Traffic and drops, summed over all pods of the node",
            content,
        );
        let content = self.list::<Lease>();
        self.query(path::LEASES, "Addresses of pods", content)
            .page();
        let content = self.list::<PortView>();
        self.query(
            path::HOSTPORTS,
            "Published ports with their reservations",
            content,
        )
        .page();
        let content = self.json::<FlowsView>();
        self.query(
            path::FLOWS,
            "Live flows, at most `limit`; `matching` counts all",
            content,
        )
        .parameters::<FlowQuery>();
        let content = self.json::<WhyView>();
        self.query(path::WHY, "What happens to a packet, and why", content)
            .parameters::<WhyQuery>();
        let content = Content("text/plain", json!({ "type": "string" }));
        self.query(
            path::METRICS,
            "Metrics, in the format that `Accept` prefers",
            content,
        );
        let content = Content(JSON, json!({ "type": "object" }));
        self.query(path::OPENAPI, "This document", content);
    }

    fn pods(&mut self) {
        let content = self.list::<AttachmentView>();
        self.query(path::ATTACHMENTS, "Interfaces of pods", content)
            .page();
        let content = self.list::<AttachmentView>();
        self.query(path::ATTACHMENT, "Interfaces of one container", content)
            .parameter(
                "netns",
                "Path of the network namespace to inspect if there is no record",
            )
            .parameter("ifname", "With `netns`: the interface; `eth0` if absent");
        let content = self.json::<BandwidthSetting>();
        self.change(
            PUT,
            path::BANDWIDTH,
            "Set the limits of an interface",
            content,
        )
        .body::<BandwidthSetting>();
        let content = self.json::<BandwidthSetting>();
        let what = "Set the limits of a container that has one interface";
        self.change(PUT, path::ONLY_BANDWIDTH, what, content)
            .body::<BandwidthSetting>();
        let content = self.json::<InterfacePresence>();
        let what = "Query whether a namespace has an interface";
        self.change(POST, path::INSIDE, what, content)
            .body::<InterfaceQuery<String>>();
    }

    fn settings(&mut self) {
        let content = self.json::<PodCidrs>();
        self.query(path::POD_CIDRS, "Pod CIDRs of the default network", content);
        let content = self.json::<PodCidrs>();
        self.change(PUT, path::POD_CIDRS, "Replace the pod CIDRs", content)
            .body::<PodCidrs>();
        let content = self.list::<PeerView>();
        self.query(path::PEERS, "Other nodes of the cluster", content);
        let (content, body) = (self.list::<PeerView>(), self.list::<PeerSetting>());
        self.change(PUT, path::PEERS, "Replace the list of other nodes", content)
            .content(body);
        let content = self.json::<PeerSourceSetting>();
        let what = "Say whether the list of other nodes can be out of date";
        self.change(PUT, path::PEER_SOURCE, what, content)
            .body::<PeerSourceSetting>();
        let content = self.json::<PoliciesView>();
        let what = "Network policies, and the containers to which each applies";
        self.query(path::POLICIES, what, content);
        let content = self.json::<PoliciesView>();
        self.change(PUT, path::POLICIES, "Replace all network policies", content)
            .body::<PoliciesSetting>();
        let content = self.json::<HairpinModeSetting>();
        self.query(
            path::HAIRPIN_MODE,
            "Hairpin mode of the default network",
            content,
        );
        let content = self.json::<HairpinModeSetting>();
        self.change(PUT, path::HAIRPIN_MODE, "Set the hairpin mode", content)
            .body::<HairpinModeSetting>();
        let content = self.json::<BypassSetting>();
        let what = "Set the mode of the netfilter bypass for a limited time";
        self.change(PUT, path::BYPASS, what, content)
            .body::<BypassSetting>();
        let content = self.json::<LogLevelSetting>();
        self.change(PUT, path::LOG_LEVEL, "Set the log levels", content)
            .body::<LogLevelSetting>();
        let what = "Destinations that see the pods' own addresses, as prefixes";
        self.query(path::NON_MASQUERADE_CIDRS, what, strings());
        let what = "Replace the destinations that see the pods' own addresses";
        self.change(PUT, path::NON_MASQUERADE_CIDRS, what, strings())
            .content(strings());
    }

    fn streams(&mut self) {
        let content = self.lines::<Event>();
        self.query(path::EVENTS, "Events, one JSON object per line", content)
            .flag("follow", "Whether the response goes on with new events")
            .flag(
                "last",
                "Whether only the latest event of each subject is returned",
            );
        let content = self.lines::<DropEvent>();
        self.query(
            path::DROPS,
            "Dropped packets, one JSON object per line",
            content,
        )
        .parameters::<DropQuery>();
    }

    fn actions(&mut self) {
        let content = self.json::<Reloaded>();
        self.change(
            POST,
            path::RELOAD,
            "Read the configuration file again",
            content,
        );
        let content = self.json::<Uninstalled>();
        let what = "Remove Viaduct from the node; the agent exits after the response";
        self.change(POST, path::UNINSTALL, what, content)
            .body::<UninstallRequest>();
        let content = Content(JSON, json!({ "type": "null" }));
        let what = "Unpublish the ports of an adopted interface; established flows go on";
        self.change(POST, path::DRAIN, what, content);
        let content = self.json::<KeptConnections>();
        let what = "Keep the connections that netfilter translates to pods";
        self.change(POST, path::KEPT_CONNECTIONS, what, content)
            .body::<KeepConnections>();
    }

    fn commands(&mut self) {
        for (verb, what) in [
            (
                CniVerb::Add,
                "CNI ADD: the response is the CNI result, or netavark's status block",
            ),
            (CniVerb::Del, "CNI DEL: the response is empty"),
            (CniVerb::Check, "CNI CHECK: the response is empty"),
            (CniVerb::Gc, "CNI GC: the response is empty"),
            (CniVerb::Status, "CNI STATUS: the response is empty"),
        ] {
            let schema = match verb {
                CniVerb::Add => json!({ "type": "object" }),
                CniVerb::Del | CniVerb::Check | CniVerb::Gc | CniVerb::Status => Value::Null,
            };
            self.change(POST, verb.path(), what, Content(JSON, schema))
                .body::<CniRequest>();
        }
        let network = || Content(JSON, json!({ "type": "object" }));
        let what = "Complete and validate a network in netavark's JSON";
        self.change(POST, path::NETAVARK_CREATE, what, network())
            .content(network());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reference_in_the_document_has_its_schema() {
        fn references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
            match value {
                Value::Object(map) => {
                    if let Some(Value::String(to)) = map.get("$ref") {
                        found.push(to);
                    }
                    map.values().for_each(|value| references(value, found));
                }
                Value::Array(items) => items.iter().for_each(|value| references(value, found)),
                Value::String(_) | Value::Number(_) | Value::Bool(_) | Value::Null => {}
            }
        }
        let document: Value = serde_json::from_str(&document()).unwrap();
        let mut found = Vec::new();
        references(&document, &mut found);
        assert!(found.len() > 30, "{found:?}");
        for to in found {
            let place = to.strip_prefix('#').unwrap();
            assert!(document.pointer(place).is_some(), "{to}");
        }
    }

    #[test]
    fn operations_of_the_document_have_unique_ids_and_each_schema_a_description() {
        let document: Value = serde_json::from_str(&document()).unwrap();
        let paths = document["paths"].as_object().unwrap();
        let methods = paths
            .values()
            .flat_map(|it| it.as_object().unwrap().values());
        let mut ids: Vec<&str> = methods
            .filter_map(|it| it["operationId"].as_str())
            .collect();
        let all = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), all);
        for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
            assert!(schema["description"].is_string(), "{name}");
        }
    }
}
