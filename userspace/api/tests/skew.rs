//! Version skew between plugin, agent and `viaductctl`. Messages of the first minor version are
//! recorded in `recorded/`; messages of the next minor version are simulated by adding unknown
//! fields.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use viaduct_client::{
    AttachmentView, CniRequest, CounterView, ErrorBody, Event, EventOutcome, FlowsView,
    HairpinModeSetting, Lease, NetworkView, PodCidrs, PortView, Status,
};

fn recorded(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded/1.0");
    fs::read_to_string(folder.join(name)).unwrap()
}

/// Returns the values of `old` that are missing or different in `new`.
fn lost(old: &Value, new: &Value, place: &str) -> Vec<String> {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => old
            .iter()
            .flat_map(|(key, value)| lost(value, &new[key], &format!("{place}.{key}")))
            .collect(),
        (Value::Array(old), Value::Array(new)) if old.len() == new.len() => old
            .iter()
            .zip(new)
            .flat_map(|(old, new)| lost(old, new, &format!("{place}[]")))
            .collect(),
        (old, new) if old == new => Vec::new(),
        (old, new) => vec![format!("{place}: {old} became {new}")],
    }
}

/// Adds unknown keys to every object. The keys of `drops` are drop reasons, of which any is
/// accepted.
fn newer(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let known = map.into_iter().map(|(key, value)| {
                let words = key == "drops";
                (
                    key,
                    if words {
                        json!({ "a-new-reason": 1 })
                    } else {
                        newer(value)
                    },
                )
            });
            let unknown = [
                ("a new flag", json!(true)),
                ("a new list", json!([{ "of": 1 }])),
                ("a new thing", json!({ "name": null })),
            ]
            .map(|(key, value)| (key.to_owned(), value));
            Value::Object(known.chain(unknown).collect())
        }
        Value::Array(list) => Value::Array(list.into_iter().map(newer).collect()),
        other @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => other,
    }
}

/// Asserts that the current type parses the recording without losing a value, and ignores newer
/// fields.
fn holds<T: Serialize + DeserializeOwned>(name: &str, text: &str) {
    let old: Value = serde_json::from_str(text).unwrap();
    let read: T = serde_json::from_value(old.clone()).unwrap();
    let today = serde_json::to_value(&read).unwrap();
    assert_eq!(lost(&old, &today, name), [""; 0]);
    let read: T = serde_json::from_value(newer(old)).unwrap();
    let read = serde_json::to_value(&read).unwrap();
    assert_eq!(lost(&today, &read, name), [""; 0]);
}

#[test]
fn responses_of_the_first_minor_version_are_parsed_and_newer_fields_are_ignored() {
    let file = |name: &'static str| (name, recorded(name));
    let (name, text) = file("status.json");
    holds::<Status>(name, &text);
    let (name, text) = file("networks.json");
    holds::<Vec<NetworkView>>(name, &text);
    let (name, text) = file("attachments.json");
    holds::<Vec<AttachmentView>>(name, &text);
    let (name, text) = file("leases.json");
    holds::<Vec<Lease>>(name, &text);
    let (name, text) = file("hostports.json");
    holds::<Vec<PortView>>(name, &text);
    let (name, text) = file("flows.json");
    holds::<FlowsView>(name, &text);
    let (name, text) = file("counters.json");
    holds::<CounterView>(name, &text);
    let (name, text) = file("pod-cidrs.json");
    holds::<PodCidrs>(name, &text);
    let (name, text) = file("hairpin-mode.json");
    holds::<HairpinModeSetting>(name, &text);
    let (name, text) = file("non-masquerade-cidrs.json");
    holds::<Vec<String>>(name, &text);
    let (name, text) = file("error.json");
    holds::<ErrorBody>(name, &text);
    let (name, text) = file("events.jsonl");
    assert!(text.lines().count() > 2, "{text}");
    for line in text.lines() {
        holds::<Event>(name, line);
    }
}

/// The network configuration must be passed on unchanged, whatever fields surround it.
#[test]
fn requests_of_plugins_of_the_first_minor_version_and_of_the_next_are_parsed() {
    for name in ["add", "del", "check", "gc", "status"] {
        let text = recorded(&format!("{name}.request.json"));
        let old: CniRequest = serde_json::from_str(&text).unwrap();
        assert!(
            text.contains(old.config.get()) && old.version.is_empty(),
            "{name}"
        );
        assert_eq!(old.plugin, "viaduct");
        let written = serde_json::to_string(&old).unwrap();
        let (before, after): (Value, Value) = (
            serde_json::from_str(&text).unwrap(),
            serde_json::from_str(&written).unwrap(),
        );
        assert_eq!(lost(&before, &after, name), [""; 0]);
        let next = text.replacen('{', r#"{"version":"0.9.0","a new thing":{"x":[null]},"#, 1);
        let next: CniRequest = serde_json::from_str(&next).unwrap();
        assert_eq!(next.config.get(), old.config.get());
        assert_eq!(next.container_id, old.container_id);
    }
}

#[test]
fn an_unknown_enum_value_leaves_the_rest_of_the_message_intact() {
    let event = recorded("events.jsonl")
        .lines()
        .next()
        .unwrap()
        .replace("\"done\"", "\"postponed\"");
    let event: Event = serde_json::from_str(&event).unwrap();
    assert_eq!(event.outcome, EventOutcome::Other);
    let mut status: Value = serde_json::from_str(&recorded("status.json")).unwrap();
    status["last_reconcile"] = json!({
        "finished_at": 1, "duration_ms": 1,
        "items": [{ "subject": "node", "outcome": "postponed", "message": "" }],
    });
    let status: Status = serde_json::from_value(status).unwrap();
    let items = status.last_reconcile.unwrap().items;
    assert_eq!(items[0].outcome, viaduct_client::Outcome::Other);
}
