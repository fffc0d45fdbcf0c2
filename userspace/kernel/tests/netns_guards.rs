//! Guards: posted and withdrawn, relieved without a gap, and never in the place of somebody else's.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use aya::Ebpf;
use aya::programs::Xdp;
use aya::programs::xdp::XdpMode;
use kernel::{Host, Kernel as _};
use planner::{Entry, EntryKey, GuardStep, LinkRef, Posted, Step};
use support::*;

fn post() -> Step {
    Step::Guard(GuardStep::Post(link("up0")))
}

fn withdraw() -> Step {
    Step::Guard(GuardStep::Withdraw(link("up0")))
}

fn add_uplink() {
    run("ip link add up0 index 77 type veth peer name far0");
    run("ip link set up0 up");
    run("ip link set far0 up");
}

fn posted(host: &mut Host) -> Option<Posted> {
    observe(host).guards.get(&link("up0")).copied()
}

const CURRENT: Option<Posted> = Some(Posted { is_current: true });

/// What is pinned to links.
fn pins(node: &Node) -> Vec<String> {
    let pins = std::fs::read_dir(node.pins("links")).unwrap();
    pins.map(|pin| pin.unwrap().file_name().into_string().unwrap())
        .collect()
}

/// The pins of guards.
fn guards(node: &Node) -> usize {
    let is_guard = |name: &String| name.contains("guard");
    pins(node).into_iter().filter(is_guard).count()
}

#[test]
fn a_guard_is_posted_and_withdrawn_as_often_as_one_likes() {
    on_a_node(|node| {
        let mut host = node.host();
        add_uplink();
        assert_eq!(posted(&mut host), None);
        // The kernel lets go of a link when it has time, unless it is told to.
        for _ in 0..100 {
            execute(&mut host, &[post(), post()]);
            assert_eq!(posted(&mut host), CURRENT);
            execute(&mut host, &[withdraw(), withdraw()]);
            assert_eq!(posted(&mut host), None);
        }
        assert_eq!(guards(node), 0);
    });
}

#[test]
fn the_next_agent_relieves_the_guard_of_the_last() {
    on_a_node(|node| {
        add_uplink();
        execute(&mut node.host(), &[post()]);
        let mut next = node.host();
        let is_current = false;
        assert_eq!(posted(&mut next), Some(Posted { is_current }));
        execute(&mut next, &[post()]);
        assert_eq!(posted(&mut next), CURRENT);
        assert_eq!(guards(node), 1);
    });
}

#[test]
fn a_link_with_the_index_of_one_that_is_gone_gets_a_guard_of_its_own() {
    on_a_node(|node| {
        let mut host = node.host();
        for _ in 0..2 {
            add_uplink();
            assert_eq!(posted(&mut host), None);
            execute(&mut host, &[post()]);
            assert_eq!(posted(&mut host), CURRENT);
            run("ip link del up0");
        }
        drop(host);
        drop(node.host());
        assert_eq!(guards(node), 0, "a pin of a link that is gone");
    });
}

#[test]
fn the_pins_of_an_uplink_that_is_gone_go_with_its_entry() {
    on_a_node(|node| {
        let mut host = node.host();
        add_uplink();
        let attach = Step::Attach {
            link: link("up0"),
            hooks: uplink_hooks(),
        };
        let entry = Entry::Uplink {
            ethernet: true,
            mtu: 1500,
            sources: Vec::new(),
            open: true,
        };
        let put = Step::PutEntry {
            key: EntryKey::Uplink(LinkRef::Name(link("up0"))),
            entry,
            previous: None,
        };
        execute(&mut host, &[attach, post(), put]);
        assert_eq!(guards(node), 1);
        run("ip link del up0");
        let mut entries = observe(&mut host).entries.into_iter();
        let (key, previous) = entries
            .find(|(key, _)| matches!(key, EntryKey::Uplink(LinkRef::Gone(_))))
            .unwrap();
        execute(&mut host, &[Step::RemoveEntry { key, previous }]);
        assert_eq!(pins(node), Vec::<String>::new());
    });
}

/// Somebody else's program on the uplink.
fn stranger(node: &Node) -> Ebpf {
    let mut object = theirs(node);
    let program: &mut Xdp = object
        .program_mut(abi::maps::programs::XDP_GUARD)
        .unwrap()
        .try_into()
        .unwrap();
    program.load().unwrap();
    program.attach("up0", XdpMode::Driver).unwrap();
    object
}

#[test]
fn a_program_of_somebody_else_keeps_its_place() {
    on_a_node(|node| {
        let mut host = node.host();
        add_uplink();
        let object = stranger(node);
        host.execute(&post()).unwrap_err();
        execute(&mut host, &[withdraw()]);
        assert_eq!(posted(&mut host), None);
        let shown = run("ip -j link show up0");
        assert!(shown.contains("\"xdp\""), "{shown}");
        drop(object);
        execute(&mut host, &[post()]);
        assert_eq!(posted(&mut host), CURRENT);
    });
}
