//! Probes of optional kernel features, and what is used on a kernel without them.

mod support;

use std::collections::BTreeSet;

use kernel::{Host, HostOptions, Kernel as _};
use steps::{Hook, Step};
use support::skip::lacks_tcx;
use support::*;

fn attach_uplink() -> Step {
    Step::Attach {
        link: link("up0"),
        hooks: uplink_hooks(),
    }
}

fn hooks(host: &mut Host) -> BTreeSet<Hook> {
    observe(host).links[&link("up0")].hooks.clone()
}

#[test]
fn every_feature_is_listed_with_what_is_used() {
    on_a_node(|node| {
        let features = node.host().features();
        let names: BTreeSet<&str> = features.iter().map(|it| it.name).collect();
        assert_eq!(names.len(), features.len(), "{features:?}");
        for name in ["tcx", "checksum-of-ipv6", "routes-by-mark", "peers-scrub"] {
            assert!(names.contains(name), "{names:?}");
        }
        for feature in features {
            // On a kernel without the flag, the helper returns the error; the verifier accepts the
            // program.
            let said = feature.reason.contains("Invalid argument");
            assert!(feature.name != "routes-by-mark" || feature.available || said);
            assert!(!feature.chosen.is_empty(), "{feature:?}");
            assert_eq!(feature.available, feature.reason.is_empty(), "{feature:?}");
        }
    });
}

#[test]
fn a_node_without_a_cgroup_lists_socket_hooks_as_missing() {
    on_a_node(|node| {
        let features = node.host_below(None).features();
        let sockets = features
            .iter()
            .find(|it| it.name == "socket-hooks")
            .unwrap();
        assert!(!sockets.available);
        assert!(sockets.reason.contains("there is no cgroup"), "{sockets:?}");
    });
}

#[test]
fn without_tcx_uplink_programs_are_filters_that_survive_the_agent() {
    if !lacks_tcx() {
        return;
    }
    on_a_node(|node| {
        let mut host = node.host();
        run("ip link add up0 type bridge");
        execute(&mut host, &[attach_uplink(), attach_uplink()]);
        assert_eq!(hooks(&mut host), uplink_hooks());
        for (side, program) in [
            ("ingress", "viaduct/uplink_in"),
            ("egress", "viaduct/uplink_out"),
        ] {
            let output = run(&format!("tc filter show dev up0 {side}"));
            assert_eq!(output.matches(program).count(), 1, "{output}");
        }
        drop(host);
        let mut host = node.host();
        assert_eq!(hooks(&mut host), uplink_hooks());
        let detach = Step::Detach {
            link: link("up0"),
            hooks: uplink_hooks(),
        };
        host.execute(&detach).unwrap();
        assert_eq!(hooks(&mut host), BTreeSet::new());
        assert_eq!(run("tc filter show dev up0 ingress"), "");
    });
}

#[test]
fn a_flow_table_keeps_its_size_for_the_next_agent() {
    on_a_node(|node| {
        let entries = |flow_entries| {
            let options = HostOptions {
                flow_entries,
                ..node.options()
            };
            observe(&mut Host::open(&options).unwrap()).flow_entries
        };
        assert_eq!(entries(4_096), 4_096);
        assert_eq!(entries(8_192), 4_096);
    });
}
