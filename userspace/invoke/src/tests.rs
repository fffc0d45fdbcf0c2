//! Execution of network lists with plugins that are shell scripts.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cni::FileKind;
use serde_json::json;
use tempfile::TempDir;

use super::*;

/// Logs its arguments and stores its configuration; prints its own name in the result.
/// `FAIL-<command>` in the configuration makes it fail with an error message, `TAKEN-<command>`
/// with code 100, `MUTE-<command>` without a message.
const PLUGIN: &str = r#"#!/bin/sh
config=$(cat)
echo "$(basename "$0") $CNI_COMMAND $CNI_CONTAINERID $CNI_IFNAME $CNI_NETNS $CNI_ARGS" >> "$(dirname "$0")/calls"
printf '%s\n' "$config" > "$(dirname "$0")/$(basename "$0").$CNI_COMMAND"
case "$config" in *"FAIL-$CNI_COMMAND"*) echo '{"code": 123, "msg": "no", "details": "because"}'; exit 1;; esac
case "$config" in *"TAKEN-$CNI_COMMAND"*) echo '{"code": 100, "msg": "taken"}'; exit 1;; esac
case "$config" in *"MUTE-$CNI_COMMAND"*) exit 2;; esac
if [ "$CNI_COMMAND" = ADD ]; then echo "{\"cniVersion\": \"1.1.0\", \"by\": \"$(basename "$0")\"}"; fi
"#;

struct Node {
    directory: TempDir,
    invoker: Invoker,
}

impl Node {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        for name in ["a", "b", "c"] {
            let file = directory.path().join(name);
            fs::write(&file, PLUGIN).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let invoker = Invoker {
            path: vec!["/nonexistent".into(), directory.path().to_owned()],
            cache: directory.path().join("results"),
            timeouts: Timeouts::default(),
        };
        Self { directory, invoker }
    }

    fn calls(&self) -> Vec<String> {
        let file = self.directory.path().join("calls");
        let calls = fs::read_to_string(&file).unwrap_or_default();
        let _ = fs::remove_file(file);
        let words = calls.lines().map(|line| line.split(' ').take(2));
        words
            .map(|words| words.collect::<Vec<_>>().join(" "))
            .collect()
    }

    fn config_of(&self, plugin: &str, command: &str) -> Value {
        let file = self.directory.path().join(format!("{plugin}.{command}"));
        serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap()
    }
}

fn list(marks: [&str; 3]) -> NetworkList {
    let plugin = |(name, mark): (&str, &str)| json!({ "type": name, "mark": mark, "capabilities": { "ips": true } });
    let plugins: Vec<Value> = ["a", "b", "c"].into_iter().zip(marks).map(plugin).collect();
    let list = json!({ "cniVersion": "1.1.0", "name": "net", "plugins": plugins });
    NetworkList::parse(FileKind::List, &list.to_string()).unwrap()
}

fn attachment(netns: &str) -> RuntimeConf {
    let capabilities = json!({ "ips": ["10.1.0.9"], "mac": "x" });
    RuntimeConf {
        container_id: "c1".parse().unwrap(),
        ifname: "eth0".parse().unwrap(),
        netns: netns.to_owned(),
        args: vec![("IgnoreUnknown".to_owned(), "1".to_owned())],
        capabilities: capabilities.as_object().unwrap().clone(),
    }
}

#[test]
fn add_passes_each_result_on_and_del_runs_in_reverse_with_the_last() {
    let node = Node::new();
    let list = list(["", "", ""]);
    let result = node
        .invoker
        .add(&list, &attachment("/run/netns/a"))
        .unwrap();
    assert_eq!(result["by"], "c");
    assert_eq!(node.calls(), ["a ADD", "b ADD", "c ADD"]);
    assert!(node.config_of("a", "ADD").get("prevResult").is_none());
    assert_eq!(node.config_of("c", "ADD")["prevResult"]["by"], "b");
    assert_eq!(
        node.config_of("c", "ADD")["runtimeConfig"],
        json!({ "ips": ["10.1.0.9"] })
    );

    node.invoker
        .check(&list, &attachment("/run/netns/a"))
        .unwrap();
    assert_eq!(node.config_of("a", "CHECK")["prevResult"]["by"], "c");
    node.calls();
    node.invoker.del(&list, &attachment("")).unwrap();
    assert_eq!(node.calls(), ["c DEL", "b DEL", "a DEL"]);
    assert_eq!(node.config_of("a", "DEL")["prevResult"]["by"], "c");
    let uncached = node.invoker.check(&list, &attachment("/run/netns/a"));
    assert!(uncached.unwrap_err().msg.contains("no cached result"));
}

#[test]
fn a_failed_add_is_undone_and_names_the_failed_plugin() {
    let node = Node::new();
    let list = list(["", "FAIL-ADD", ""]);
    let error = node
        .invoker
        .add(&list, &attachment("/run/netns/a"))
        .unwrap_err();
    assert_eq!((error.code, error.msg.as_str()), (123, "plugin b: no"));
    assert_eq!(error.details, "because");
    assert_eq!(node.calls(), ["a ADD", "b ADD", "c DEL", "b DEL", "a DEL"]);
}

/// Returns an attachment that exists as far as the invoker can see: the interface `lo` of this
/// process's own namespace.
fn existing() -> RuntimeConf {
    RuntimeConf {
        ifname: "lo".parse().unwrap(),
        ..attachment("/proc/self/ns/net")
    }
}

#[test]
fn a_repeated_add_returns_the_cached_result_and_runs_no_add_and_no_del() {
    let node = Node::new();
    let list = list(["", "", ""]);
    let first = node.invoker.add(&list, &existing()).unwrap();
    node.calls();
    assert_eq!(node.invoker.add(&list, &existing()).unwrap(), first);
    assert_eq!(node.calls(), ["a CHECK", "b CHECK", "c CHECK"]);
}

#[test]
fn a_repeated_add_whose_check_fails_is_an_error_and_runs_no_del() {
    let node = Node::new();
    let list = list(["", "FAIL-CHECK", ""]);
    node.invoker.add(&list, &existing()).unwrap();
    node.calls();
    let error = node.invoker.add(&list, &existing()).unwrap_err();
    assert!(
        error.msg.contains("attached to network net as lo already") && error.code == 123,
        "{error:?}"
    );
    assert_eq!(node.calls(), ["a CHECK", "b CHECK"]);
}

#[test]
fn a_repeated_add_with_other_arguments_names_them_and_runs_nothing() {
    let node = Node::new();
    let marks = ["", "", ""];
    node.invoker.add(&list(marks), &existing()).unwrap();
    node.calls();
    let other_args = RuntimeConf {
        args: Vec::new(),
        ..existing()
    };
    let other_capabilities = RuntimeConf {
        capabilities: Map::new(),
        ..existing()
    };
    let other_netns = RuntimeConf {
        netns: "/proc/thread-self/ns/net".to_owned(),
        ..existing()
    };
    for (attachment, marks, differs) in [
        (other_args, marks, "CNI_ARGS"),
        (other_capabilities, marks, "capability arguments"),
        (other_netns, marks, "network namespace"),
        (existing(), ["", "", "new"], "configuration"),
    ] {
        let error = node.invoker.add(&list(marks), &attachment).unwrap_err();
        assert!(
            error.code == 100 && error.msg.contains(differs),
            "{differs}: {error:?}"
        );
    }
    assert!(node.calls().is_empty());
    node.invoker.add(&list(marks), &existing()).unwrap();
}

#[test]
fn an_attachment_without_its_namespace_is_deleted_and_added_again() {
    let node = Node::new();
    let list = list(["", "", ""]);
    let gone = attachment("/nonexistent/netns");
    node.invoker.add(&list, &gone).unwrap();
    node.calls();
    node.invoker.add(&list, &existing()).unwrap();
    assert_eq!(node.calls(), ["a ADD", "b ADD", "c ADD"]);
    node.invoker.add(&list, &gone).unwrap();
    assert_eq!(
        node.calls(),
        ["c DEL", "b DEL", "a DEL", "a ADD", "b ADD", "c ADD"]
    );
}

#[test]
fn a_plugin_that_refuses_what_another_owner_has_gets_no_del() {
    let node = Node::new();
    let list = list(["", "TAKEN-ADD", ""]);
    let error = node
        .invoker
        .add(&list, &attachment("/run/netns/a"))
        .unwrap_err();
    assert_eq!(error.code, 100);
    assert_eq!(node.calls(), ["a ADD", "b ADD", "a DEL"]);
}

#[test]
fn a_failed_del_runs_every_plugin_and_keeps_the_cached_result() {
    let node = Node::new();
    let list = list(["FAIL-DEL", "", "MUTE-DEL"]);
    node.invoker
        .add(&list, &attachment("/run/netns/a"))
        .unwrap();
    node.calls();
    let error = node.invoker.del(&list, &attachment("")).unwrap_err();
    assert!(
        error.msg.contains("plugin a: no") && error.msg.contains("no error message"),
        "{error}"
    );
    assert_eq!(node.calls(), ["c DEL", "b DEL", "a DEL"]);
    let key = attachment("");
    let cached = node
        .invoker
        .cached_result("net", &key.container_id, &key.ifname);
    assert_eq!(cached.unwrap().result["by"], "c");
}

/// behaviour S12
#[test]
fn gc_deletes_attachments_without_a_namespace_and_lists_the_others_as_valid() {
    let node = Node::new();
    let list = list(["", "", ""]);
    let live = node.directory.path().display().to_string();
    node.invoker.add(&list, &attachment(&live)).unwrap();
    let gone = RuntimeConf {
        container_id: "c2".parse().unwrap(),
        ..attachment("/nonexistent/netns")
    };
    node.invoker.add(&list, &gone).unwrap();
    node.calls();
    node.invoker.gc(&list, false).unwrap();
    assert_eq!(
        node.calls(),
        ["c DEL", "b DEL", "a DEL", "a GC", "b GC", "c GC"]
    );
    let valid = json!([{ "containerID": "c1", "ifname": "eth0" }]);
    assert_eq!(
        node.config_of("b", "GC")["cni.dev/valid-attachments"],
        valid
    );
    assert_eq!(node.invoker.cached_of_network("net").unwrap().len(), 1);
}

#[test]
fn status_executes_every_plugin_and_names_a_missing_one() {
    let node = Node::new();
    node.invoker.status(&list(["", "", ""])).unwrap();
    assert_eq!(node.calls(), ["a STATUS", "b STATUS", "c STATUS"]);
    let error = node
        .invoker
        .status(&list(["", "FAIL-STATUS", ""]))
        .unwrap_err();
    assert_eq!(error.code, 123);
    let single = r#"{"name":"n","type":"missing","cniVersion":"0.4.0"}"#;
    let missing = NetworkList::parse(FileKind::Single, single).unwrap();
    assert!(
        node.invoker
            .status(&missing)
            .unwrap_err()
            .msg
            .contains("no plugin \"missing\"")
    );
}

#[test]
fn a_network_is_found_by_name_in_the_order_of_file_names() {
    let directory = tempfile::tempdir().unwrap();
    let put = |file: &str, text: &str| fs::write(directory.path().join(file), text).unwrap();
    put("20-b.conf", r#"{"name":"net","type":"second"}"#);
    put(
        "10-a.conflist",
        r#"{"name":"net","plugins":[{"type":"first"}]}"#,
    );
    put("05-broken.json", "{");
    put("README", r#"{"name":"readme","type":"x"}"#);
    let found = find_network(directory.path(), "net").unwrap();
    assert_eq!(found.plugins[0].kind, "first");
    let error = find_network(directory.path(), "readme").unwrap_err();
    assert!(error.details.contains("05-broken.json"), "{error:?}");
    assert!(find_network(Path::new("/nonexistent"), "net").is_err());
}

/// behaviour S17
#[test]
fn plugins_in_the_folder_of_a_network_run_after_inlined_plugins() {
    let directory = tempfile::tempdir().unwrap();
    let put = |file: &str, text: &str| {
        let file = directory.path().join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    };
    let kinds = || -> Vec<String> {
        let found = find_network(directory.path(), "net").unwrap();
        found
            .plugins
            .into_iter()
            .map(|plugin| plugin.kind)
            .collect()
    };
    let list = |more: &str| format!(r#"{{"name":"net","cniVersion":"1.1.0"{more}}}"#);
    put("10-net.conflist", &list(r#","plugins":[{"type":"own"}]"#));
    put("net/20-late.conf", r#"{"type":"late"}"#);
    put(
        "net/10-early.conf",
        r#"{"type":"early","capabilities":{"mac":true}}"#,
    );
    put("net/15-no.conflist", r#"{"type":"no"}"#);
    put("net/15-no.json", r#"{"type":"no"}"#);
    put("other/10-no.conf", r#"{"type":"no"}"#);
    assert_eq!(kinds(), ["own", "early", "late"]);
    put("10-net.conflist", &list(""));
    assert_eq!(kinds(), ["early", "late"]);
    let only_inlined = r#","loadOnlyInlinedPlugins":true,"plugins":[{"type":"own"}]"#;
    put("10-net.conflist", &list(only_inlined));
    assert_eq!(kinds(), ["own"]);

    put("10-net.conflist", &list(r#","plugins":[{"type":"own"}]"#));
    put("net/30-broken.conf", "{");
    let error = find_network(directory.path(), "net").unwrap_err();
    assert!(error.details.contains("plugin configuration"), "{error:?}");
    put("20-up.conflist", r#"{"name":"../other"}"#);
    let error = find_network(directory.path(), "../other").unwrap_err();
    assert!(
        error.details.contains("20-up"),
        "a directory outside: {error:?}"
    );
}

/// behaviour S14: also if a child of the plugin keeps the pipe open.
#[test]
fn a_plugin_that_hangs_is_killed_and_named() {
    let mut node = Node::new();
    node.invoker.timeouts.attach = Duration::from_millis(300);
    let file = node.directory.path().join("a");
    fs::write(
        &file,
        "#!/bin/sh\necho $$ > \"$0.pid\"; sleep 30 & sleep 30\n",
    )
    .unwrap();
    // On a busy machine the plugin may be killed before it has written its PID.
    let pid = loop {
        let began = std::time::Instant::now();
        let error = node.invoker.delegate("a", Command::Add, "{}").unwrap_err();
        assert!(began.elapsed() < Duration::from_secs(20));
        assert_eq!(error.code, 11);
        assert!(
            error.msg.starts_with("plugin a: did not answer"),
            "{error:?}"
        );
        match fs::read_to_string(file.with_extension("pid")) {
            Ok(pid) if pid.ends_with('\n') => break pid,
            Ok(_) | Err(_) => node.invoker.timeouts.attach *= 2,
        }
    };
    assert!(
        !Path::new("/proc").join(pid.trim()).exists(),
        "the plugin still runs"
    );
}

/// behaviour S18
#[test]
fn a_plugin_executable_that_is_being_written_is_retried() {
    let node = Node::new();
    let file = node.directory.path().join("a");
    let writer = fs::OpenOptions::new().append(true).open(&file).unwrap();
    let is_closing = Arc::new(AtomicBool::new(false));
    let closing = Arc::clone(&is_closing);
    let closes = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(500));
        // Before the close: the plugin may be executed before this thread ends.
        closing.store(true, Ordering::SeqCst);
        drop(writer);
    });
    node.invoker.delegate("a", Command::Status, "{}").unwrap();
    let was_closed = is_closing.load(Ordering::SeqCst);
    assert!(was_closed, "executed while it was being written");
    closes.join().unwrap();
    assert_eq!(node.calls(), ["a STATUS"]);
}
