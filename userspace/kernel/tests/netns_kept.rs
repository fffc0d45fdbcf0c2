//! Programs are verified once, and the next agent takes them as they are; tables are looked at before they are taken.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::collections::BTreeMap;
use std::path::PathBuf;

use aya::programs::ProgramInfo;
use kernel::{Host, HostOptions, OpenError};
use planner::Step;
use support::*;

fn below(directory: PathBuf) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

fn name(path: &std::path::Path) -> String {
    path.file_name().unwrap().to_str().unwrap().to_owned()
}

/// The one set of programs that is kept, with their ids.
fn kept(node: &Node) -> (String, BTreeMap<String, u32>) {
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

/// Opens the kernel, which has to load all programs anew.
fn anew(node: &Node, options: &HostOptions) -> String {
    let (_, before) = kept(node);
    drop(Host::open(options).unwrap());
    let (set, after) = kept(node);
    assert_eq!(after.len(), 6, "{after:?}");
    for (name, id) in after {
        assert_ne!(before.get(&name), Some(&id), "{name}");
    }
    set
}

#[test]
fn an_agent_that_starts_again_takes_what_is_verified() {
    on_a_node(|node| {
        let netns = node.add_netns("pod");
        let attachment = attachment(&netns, 2);
        let link = model::ManagedLink::of(&attachment.key);
        let mut host = node.host();
        execute(&mut host, &[Step::CreateVeth(veth(&attachment))]);
        drop(host);
        let (set, ids) = kept(node);
        let mut next = node.host();
        assert_eq!(kept(node), (set, ids.clone()));
        execute(&mut next, &[attach(&attachment), Step::Sweep]);
        let shown = run(&format!("tc -j filter show dev {} ingress", link.name()));
        assert!(
            shown.contains(&format!("\"id\":{},", ids["from_pod"])),
            "{shown}"
        );
    });
}

#[test]
fn programs_of_another_object_are_verified_and_replace_what_was_kept() {
    on_a_node(|node| {
        drop(node.host());
        let (before, _) = kept(node);
        assert_ne!(anew(node, &node.upgrade()), before);
        assert_eq!(anew(node, &node.options()), before);
    });
}

#[test]
fn programs_that_know_tables_that_are_gone_are_not_taken() {
    on_a_node(|node| {
        drop(node.host());
        std::fs::remove_file(node.pins("maps/SWEPT")).unwrap();
        anew(node, &node.options());
    });
}

#[test]
fn where_one_program_is_missing_all_are_verified_anew() {
    on_a_node(|node| {
        drop(node.host());
        let (set, _) = kept(node);
        std::fs::remove_file(node.pins("programs").join(set).join("sweep")).unwrap();
        anew(node, &node.options());
    });
}

#[test]
fn no_table_is_taken_without_a_look_at_it() {
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
