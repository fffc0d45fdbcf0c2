//! Tunnels to peers: both kernels do the same, and devices of other software are not touched.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use kernel::Kernel;
use kernel::fake::Fake;
use model::Mac;
use nix::errno::Errno;
use steps::{NodeQuery, ObservedTunnel, Step, TunnelChange, TunnelEntry, TunnelSpec, TunnelStep};
use support::*;

fn spec(name: &str) -> TunnelSpec {
    TunnelSpec {
        name: link(name),
        ipv6: name.ends_with('6'),
        vni: 118,
        port: 8118,
        mac: Mac([2, 0, 0, 0, 0, 1]),
        mtu: 1_400,
    }
}

fn neighbour(gateway: &str, last: u8) -> TunnelEntry {
    TunnelEntry::Neighbour {
        gateway: parse(gateway),
        mac: Mac([2, 0, 0, 0, 0, last]),
    }
}

fn forwarding(last: u8, remote: &str) -> TunnelEntry {
    TunnelEntry::Forwarding {
        mac: Mac([2, 0, 0, 0, 0, last]),
        remote: parse(remote),
    }
}

fn change(name: &str, entries: &[TunnelEntry], add: bool) -> TunnelStep {
    let changes = entries.iter().map(|entry| TunnelChange {
        link: link(name),
        entry: entry.clone(),
        add,
    });
    TunnelStep::Change(changes.collect())
}

type Seen = Vec<(String, ObservedTunnel, u32, Option<Mac>, bool)>;

/// Executes the step, and returns the error and the tunnels with their links.
fn outcome(kernel: &mut impl Kernel, step: &TunnelStep) -> (Option<Errno>, Seen) {
    let error = errno(kernel.execute(&Step::Tunnel(step.clone())));
    let observed = kernel.observe(&NodeQuery::default()).unwrap();
    let seen = observed.tunnels.iter().map(|(name, tunnel)| {
        let link = &observed.links[name];
        (
            name.to_string(),
            tunnel.clone(),
            link.mtu,
            link.mac,
            link.up,
        )
    });
    (error, seen.collect())
}

#[test]
fn tunnels_are_made_changed_and_deleted_as_the_fake_kernel_does() {
    on_a_node(|node| {
        let mut host = node.host();
        let mut fake = Fake::bare();
        let entries = [
            neighbour("10.2.0.0", 2),
            neighbour("fd02::", 2),
            forwarding(2, "192.0.2.2"),
        ];
        let script = [
            TunnelStep::Create(spec("viaduct.vx")),
            TunnelStep::Create(spec("viaduct.vx6")),
            change("viaduct.vx", &entries, true),
            change("viaduct.vx", &entries, true),
            change("viaduct.vx6", &[forwarding(3, "2001:db8::3")], true),
            // Entries with the same keys are replaced.
            change(
                "viaduct.vx",
                &[neighbour("10.2.0.0", 4), forwarding(2, "192.0.2.9")],
                true,
            ),
            // Removed twice, and of a device that does not exist.
            change("viaduct.vx", &[neighbour("10.2.0.0", 4)], false),
            change("viaduct.vx", &[neighbour("10.2.0.0", 4)], false),
            change("none", &[neighbour("10.2.0.0", 4)], false),
            change("none", &[neighbour("10.2.0.0", 4)], true),
            TunnelStep::Delete(link("viaduct.vx")),
            TunnelStep::Delete(link("viaduct.vx")),
        ];
        for step in &script {
            let real = outcome(&mut host, step);
            assert_eq!(real, outcome(&mut fake, step), "{step}");
            if matches!(step, TunnelStep::Create(_)) {
                for name in real.1.iter().map(|one| &one.0) {
                    let up = Step::SetUp { link: link(name) };
                    host.execute(&up).unwrap();
                    fake.execute(&up).unwrap();
                }
            }
        }
    });
}

#[test]
fn devices_of_other_software_are_neither_completed_nor_deleted() {
    on_a_node(|node| {
        let mut host = node.host();
        for kind in ["bridge", "vxlan id 118 dstport 8118 nolearning"] {
            run(&format!("ip link add viaduct.vx type {kind}"));
            let create = TunnelStep::Create(spec("viaduct.vx"));
            let (error, seen) = outcome(&mut host, &create);
            assert_eq!((error, seen.len()), (Some(Errno::EEXIST), 0), "{kind}");
            let delete = TunnelStep::Delete(link("viaduct.vx"));
            let (error, _) = outcome(&mut host, &delete);
            assert_eq!(error, Some(Errno::EPERM), "{kind}");
            run("ip link del viaduct.vx");
        }
        // Left half-made by an agent that was killed: its MAC address, and no alias yet.
        run(
            "ip link add viaduct.vx address 02:00:00:00:00:01 type vxlan id 118 dstport 8118 nolearning",
        );
        let create = TunnelStep::Create(spec("viaduct.vx"));
        let (error, seen) = outcome(&mut host, &create);
        assert_eq!((error, seen.len()), (None, 1));
        assert_eq!(seen[0].2, 1_400);
    });
}
