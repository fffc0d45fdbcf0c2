//! XDP prefilter: attached, detached, replaced by the next agent without a gap, and never in the
//! place of a foreign program.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use aya::Ebpf;
use aya::programs::Xdp;
use aya::programs::xdp::XdpMode;
use kernel::{Host, Kernel as _};
use steps::{AttachedPrefilter, Entry, EntryKey, LinkRef, Step, XdpPrefilterStep};
use support::*;

fn attach() -> Step {
    Step::XdpPrefilter(XdpPrefilterStep::Attach(link("up0")))
}

fn detach() -> Step {
    Step::XdpPrefilter(XdpPrefilterStep::Detach(link("up0")))
}

fn add_uplink() {
    run("ip link add up0 index 77 type veth peer name far0");
    run("ip link set up0 up");
    run("ip link set far0 up");
}

fn attached(host: &mut Host) -> Option<AttachedPrefilter> {
    observe(host).xdp_prefilters.get(&link("up0")).copied()
}

const CURRENT: Option<AttachedPrefilter> = Some(AttachedPrefilter { is_current: true });

/// Returns the names of the pins of links.
fn pins(node: &Node) -> Vec<String> {
    let pins = std::fs::read_dir(node.pins("links")).unwrap();
    pins.map(|pin| pin.unwrap().file_name().into_string().unwrap())
        .collect()
}

/// Returns the number of the prefilter's pins.
fn prefilter_pins(node: &Node) -> usize {
    let is_prefilter = |name: &String| name.contains("guard");
    pins(node).into_iter().filter(is_prefilter).count()
}

#[test]
fn an_xdp_prefilter_is_attached_and_detached_a_hundred_times() {
    on_a_node(|node| {
        let mut host = node.host();
        add_uplink();
        assert_eq!(attached(&mut host), None);
        // Without an explicit detach, the kernel releases a link some time later.
        for _ in 0..100 {
            execute(&mut host, &[attach(), attach()]);
            assert_eq!(attached(&mut host), CURRENT);
            execute(&mut host, &[detach(), detach()]);
            assert_eq!(attached(&mut host), None);
        }
        assert_eq!(prefilter_pins(node), 0);
    });
}

#[test]
fn the_next_agent_replaces_the_program_of_the_xdp_prefilter() {
    on_a_node(|node| {
        add_uplink();
        execute(&mut node.host(), &[attach()]);
        let mut next = node.host();
        let is_current = false;
        assert_eq!(attached(&mut next), Some(AttachedPrefilter { is_current }));
        execute(&mut next, &[attach()]);
        assert_eq!(attached(&mut next), CURRENT);
        assert_eq!(prefilter_pins(node), 1);
    });
}

#[test]
fn a_new_link_with_a_reused_index_gets_its_own_xdp_prefilter() {
    on_a_node(|node| {
        let mut host = node.host();
        for _ in 0..2 {
            add_uplink();
            assert_eq!(attached(&mut host), None);
            execute(&mut host, &[attach()]);
            assert_eq!(attached(&mut host), CURRENT);
            run("ip link del up0");
        }
        drop(host);
        drop(node.host());
        assert_eq!(prefilter_pins(node), 0, "no pin of a link that is gone");
    });
}

#[test]
fn the_pins_of_a_deleted_uplink_are_removed_with_its_entry() {
    on_a_node(|node| {
        let mut host = node.host();
        add_uplink();
        let attach_programs = Step::Attach {
            link: link("up0"),
            hooks: uplink_hooks(),
        };
        let entry = Entry::Uplink {
            ethernet: true,
            mtu: 1500,
            sources: Vec::new(),
            open: true,
            tunnel: false,
        };
        let put = Step::PutEntry {
            key: EntryKey::Uplink(LinkRef::Name(link("up0"))),
            entry,
            previous: None,
        };
        execute(&mut host, &[attach_programs, attach(), put]);
        assert_eq!(prefilter_pins(node), 1);
        run("ip link del up0");
        let mut entries = observe(&mut host).entries.into_iter();
        let (key, previous) = entries
            .find(|(key, _)| matches!(key, EntryKey::Uplink(LinkRef::Gone(_))))
            .unwrap();
        execute(&mut host, &[Step::RemoveEntry { key, previous }]);
        assert_eq!(pins(node), Vec::<String>::new());
    });
}

/// Attaches a foreign XDP program to the uplink.
fn attach_foreign_xdp(node: &Node) -> Ebpf {
    let mut object = load_foreign_object(node);
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
fn a_foreign_xdp_program_stays_attached() {
    on_a_node(|node| {
        let mut host = node.host();
        add_uplink();
        let object = attach_foreign_xdp(node);
        host.execute(&attach()).unwrap_err();
        execute(&mut host, &[detach()]);
        assert_eq!(attached(&mut host), None);
        let shown = run("ip -j link show up0");
        assert!(shown.contains("\"xdp\""), "{shown}");
        drop(object);
        execute(&mut host, &[attach()]);
        assert_eq!(attached(&mut host), CURRENT);
    });
}
