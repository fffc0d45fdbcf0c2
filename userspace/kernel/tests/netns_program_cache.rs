//! Program cache: programs are verified once and reused by the next agent, after a check of their
//! maps.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::collections::BTreeMap;
use std::path::PathBuf;

use aya::programs::ProgramInfo;
use kernel::{Host, HostOptions, Kernel as _, OpenError};
use model::DatapathLogLevel;
use steps::Step;
use support::*;

fn below(directory: PathBuf) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

fn name(path: &std::path::Path) -> String {
    path.file_name().unwrap().to_str().unwrap().to_owned()
}

/// Returns the name of the only cached set, and the ids of its programs.
fn cached(node: &Node) -> (String, BTreeMap<String, u32>) {
    let sets = below(node.pins("programs"));
    let [set] = sets.as_slice() else {
        panic!("one set, not {sets:?}");
    };
    let ids = below(set.clone()).into_iter().map(|pin| {
        let info = ProgramInfo::from_pin(&pin).unwrap();
        (name(&pin), info.id())
    });
    (name(set), ids.collect())
}

/// Opens the kernel, which must verify all programs again, and returns the name of the new set.
fn reverified(node: &Node, options: &HostOptions) -> String {
    let (_, before) = cached(node);
    drop(Host::open(options).unwrap());
    let (set, after) = cached(node);
    assert_eq!(after.len(), 6, "{after:?}");
    for (name, id) in after {
        assert_ne!(before.get(&name), Some(&id), "{name}");
    }
    set
}

#[test]
fn a_restarted_agent_reuses_the_cached_programs() {
    on_a_node(|node| {
        let netns = node.add_netns("pod");
        let attachment = attachment(&netns, 2);
        let link = model::ManagedLink::of(&attachment.key);
        let mut host = node.host();
        execute(&mut host, &[Step::CreateVeth(veth(&attachment))]);
        drop(host);
        let (set, ids) = cached(node);
        let mut next = node.host();
        assert_eq!(cached(node), (set, ids.clone()));
        execute(&mut next, &[attach(&attachment), Step::Sweep]);
        let shown = run(&format!("tc -j filter show dev {} ingress", link.name()));
        assert!(
            shown.contains(&format!("\"id\":{},", ids["from_pod"])),
            "{shown}"
        );
    });
}

#[test]
fn programs_of_another_object_are_verified_and_replace_the_cache() {
    on_a_node(|node| {
        drop(node.host());
        let (before, _) = cached(node);
        assert_ne!(reverified(node, &node.upgrade()), before);
        assert_eq!(reverified(node, &node.options()), before);
    });
}

#[test]
fn cached_programs_with_other_maps_are_not_reused() {
    on_a_node(|node| {
        drop(node.host());
        std::fs::remove_file(node.pins("maps/SWEPT")).unwrap();
        reverified(node, &node.options());
    });
}

#[test]
fn an_incomplete_program_cache_is_verified_again() {
    on_a_node(|node| {
        drop(node.host());
        let (set, _) = cached(node);
        std::fs::remove_file(node.pins("programs").join(set).join("sweep")).unwrap();
        reverified(node, &node.options());
    });
}

#[test]
fn a_pinned_map_of_another_layout_is_refused() {
    on_a_node(|node| {
        drop(node.host());
        for pin in below(node.pins("maps")) {
            let aside = node.pins("aside");
            std::fs::rename(&pin, &aside).unwrap();
            run(&format!(
                "bpftool map create {} type hash key 3 value 5 entries 7 name other",
                pin.display()
            ));
            let error = Host::open(&node.options()).err().unwrap();
            let named =
                matches!(&error, OpenError::Map { name: table, .. } if *table == name(&pin));
            assert!(named, "{}: {error}", pin.display());
            std::fs::remove_file(&pin).unwrap();
            std::fs::rename(&aside, &pin).unwrap();
        }
        drop(node.host());
    });
}

/// Returns the id of `from_pod` on the host's end of a veth.
fn attached(attachment: &model::Attachment) -> String {
    let link = model::ManagedLink::of(&attachment.key);
    let shown = run(&format!("tc -j filter show dev {} ingress", link.name()));
    let (_, id) = shown.split_once("\"id\":").unwrap();
    id.split(',').next().unwrap().to_owned()
}

#[test]
fn another_datapath_log_level_is_another_set_of_programs_that_replaces_the_attached_one() {
    on_a_node(|node| {
        let netns = node.add_netns("pod");
        let attachment = attachment(&netns, 2);
        let mut host = node.host();
        let create = Step::CreateVeth(veth(&attachment));
        execute(&mut host, &[create, attach(&attachment)]);
        let (off, before) = (cached(node).0, attached(&attachment));

        host.set_datapath_log(DatapathLogLevel::Trace).unwrap();
        assert_eq!(host.datapath_log().level, DatapathLogLevel::Trace);
        let (trace, ids) = cached(node);
        assert_ne!(trace, off);
        assert_eq!(host.datapath_log().program, ids["uplink_in"]);
        // The old program runs on until it is replaced.
        assert_eq!(attached(&attachment), before);
        execute(&mut host, &[attach(&attachment), Step::Sweep]);
        assert_eq!(attached(&attachment), ids["from_pod"].to_string());
        drop(host);

        // The set of the level is reused; without a log it is another one again.
        let logging = HostOptions {
            datapath_log: DatapathLogLevel::Trace,
            ..node.options()
        };
        drop(Host::open(&logging).unwrap());
        assert_eq!(cached(node), (trace, ids));
        assert_eq!(reverified(node, &node.options()), off);
    });
}

#[test]
fn programs_of_a_changed_object_file_are_not_loaded_for_another_datapath_log_level() {
    on_a_node(|node| {
        let options = node.upgrade();
        let mut host = Host::open(&options).unwrap();
        let before = cached(node);
        std::fs::write(&options.object, b"another version").unwrap();
        let error = host.set_datapath_log(DatapathLogLevel::Debug).unwrap_err();
        assert!(
            chain(&error).contains("the file has changed"),
            "{}",
            chain(&error)
        );
        assert_eq!(host.datapath_log().level, DatapathLogLevel::Off);
        assert_eq!(cached(node), before);
        execute(&mut host, &[Step::Sweep]);
    });
}
