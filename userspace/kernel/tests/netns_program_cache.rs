//! Program cache: programs are verified once and reused by the next agent, after a check of their
//! maps.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::collections::BTreeMap;
use std::path::PathBuf;

use aya::programs::ProgramInfo;
use kernel::{Host, HostOptions, OpenError};
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
