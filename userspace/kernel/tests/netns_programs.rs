//! Programs and tables: attached, replaced without packet loss, adopted by the next agent, and
//! removed without touching foreign ones.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::collections::BTreeSet;
use std::time::Duration;

use aya::programs::tc::TcAttachOptions;
use aya::programs::{LinkOrder, ProgramInfo, SchedClassifier, TcAttachType};
use kernel::{Host, Kernel, Observe as _, OpenError};
use model::{PortMapping, Protocol};
use planner::attachment_query;
use steps::{AllowedKey, AllowedPorts, Entries, Entry, EntryKey, Hook, LinkRef, Step};
use support::foreign::ForeignProgram;
use support::skip::has_tcx;
use support::*;

fn hooks(host: &mut Host, name: &str) -> BTreeSet<Hook> {
    observe(host).links[&link(name)].hooks.clone()
}

#[test]
fn uplink_programs_are_attached_by_pinned_links_and_detached() {
    if !has_tcx() {
        return;
    }
    on_a_node(|node| {
        let mut host = node.host();
        add_uplink(node);
        assert_eq!(hooks(&mut host, "up0"), BTreeSet::new());
        execute(&mut host, &[attach_uplink(), attach_uplink()]);
        assert_eq!(hooks(&mut host, "up0"), uplink_hooks());
        assert_eq!(tcx("up0", TcAttachType::Ingress), ["uplink_in"]);
        assert_eq!(tcx("up0", TcAttachType::Egress), ["uplink_out"]);
        let detach = Step::Detach {
            link: link("up0"),
            hooks: BTreeSet::from([Hook::UplinkIn]),
        };
        execute(&mut host, &[detach.clone(), detach]);
        assert_eq!(hooks(&mut host, "up0"), BTreeSet::from([Hook::UplinkOut]));
    });
}

#[test]
fn a_new_link_with_a_reused_index_gets_its_own_programs() {
    on_a_node(|node| {
        let mut host = node.host();
        run("ip link add up0 index 77 type bridge");
        execute(&mut host, &[attach_uplink()]);
        run("ip link del up0");
        run("ip link add up0 index 77 type bridge");
        assert_eq!(hooks(&mut host, "up0"), BTreeSet::new());
        execute(&mut host, &[attach_uplink()]);
        assert_eq!(hooks(&mut host, "up0"), uplink_hooks());
    });
}

/// Returns the names of the TCX programs of one side.
fn tcx(link: &str, side: TcAttachType) -> Vec<String> {
    let (_, programs) = SchedClassifier::query_tcx(link, side).unwrap();
    let name = |info: &ProgramInfo| info.name_as_str().unwrap().to_owned();
    programs.iter().map(name).collect()
}

#[test]
fn foreign_filters_and_qdiscs_survive() {
    on_a_node(|node| {
        let mut host = node.host();
        let mut foreign = ForeignProgram::new(node);
        let netns = node.add_netns("pod");
        let attachment = attachment(&netns, 2);
        let name = model::ManagedLink::of(&attachment.key);
        let sides = [TcAttachType::Ingress, TcAttachType::Egress];
        execute(&mut host, &[Step::CreateVeth(veth(&attachment))]);
        run(&format!("tc qdisc add dev {name} clsact"));
        for side in sides {
            foreign.filter(name.name().as_str(), side, 1);
        }
        execute(&mut host, &[attach(&attachment), attach(&attachment)]);
        assert_eq!(hooks(&mut host, name.name().as_str()), pod_hooks());
        for side in sides {
            foreign.filter(name.name().as_str(), side, 50_000);
        }
        let detach = Step::Detach {
            link: name.name().clone(),
            hooks: pod_hooks(),
        };
        execute(&mut host, &[detach.clone(), detach]);
        assert_eq!(hooks(&mut host, name.name().as_str()), BTreeSet::new());
        for side in ["ingress", "egress"] {
            let output = run(&format!("tc filter show dev {name} {side}"));
            assert_eq!(output.matches("handle 0x1 to_pod").count(), 2, "{output}");
            assert!(!output.contains("viaduct"), "{output}");
        }
        let output = run(&format!("tc qdisc show dev {name}"));
        assert!(output.contains("clsact"), "{output}");
    });
}

#[test]
fn a_foreign_filter_with_our_priority_and_handle_is_not_replaced() {
    on_a_node(|node| {
        let mut host = node.host();
        let mut foreign = ForeignProgram::new(node);
        let netns = node.add_netns("pod");
        let attachment = attachment(&netns, 2);
        let name = model::ManagedLink::of(&attachment.key);
        execute(&mut host, &[Step::CreateVeth(veth(&attachment))]);
        run(&format!("tc qdisc add dev {name} clsact"));
        foreign.filter(name.name().as_str(), TcAttachType::Ingress, 49_000);
        let before = observe(&mut host);
        assert!(host.execute(&attach(&attachment)).unwrap_err().is_taken());
        assert_eq!(observe(&mut host), before);
        let detach = Step::Detach {
            link: name.name().clone(),
            hooks: pod_hooks(),
        };
        execute(&mut host, &[detach]);
        let output = run(&format!("tc filter show dev {name} ingress"));
        assert!(output.contains("handle 0x1 to_pod"), "{output}");
        let output = run(&format!("tc filter show dev {name} egress"));
        assert_eq!(
            output, "",
            "the egress filter that was attached first is detached again"
        );
    });
}

#[test]
fn a_foreign_tcx_program_survives() {
    if !has_tcx() {
        return;
    }
    on_a_node(|node| {
        let mut host = node.host();
        let mut foreign = ForeignProgram::new(node);
        add_uplink(node);
        for side in [TcAttachType::Ingress, TcAttachType::Egress] {
            let order = TcAttachOptions::TcxOrder(LinkOrder::default());
            foreign.attach("up0", side, order);
        }
        execute(&mut host, &[attach_uplink()]);
        assert_eq!(tcx("up0", TcAttachType::Ingress), ["to_pod", "uplink_in"]);
        // On egress ours runs first, so that foreign programs see packets as they leave the node.
        assert_eq!(tcx("up0", TcAttachType::Egress), ["uplink_out", "to_pod"]);
        let detach = Step::Detach {
            link: link("up0"),
            hooks: uplink_hooks(),
        };
        execute(&mut host, &[detach]);
        assert_eq!(hooks(&mut host, "up0"), BTreeSet::new());
        // The kernel releases a link some time after its pin is removed.
        let gone = || tcx("up0", TcAttachType::Ingress) == ["to_pod"];
        wait_until(gone);
    });
}

#[test]
fn programs_and_tables_survive_the_agent_and_are_adopted_by_the_next() {
    on_a_node(|node| {
        let mut host = node.host();
        add_uplink(node);
        let netns = node.add_netns("pod");
        let attachment = attachment(&netns, 2);
        execute(&mut host, &bridge_steps());
        execute(&mut host, &pod_steps(&attachment));
        execute(&mut host, &entry_steps(&attachment));
        execute(&mut host, &[attach_uplink()]);
        let before = observe(&mut host);
        let ids = run("bpftool -j net show");
        drop(host);

        let mut host = Host::open(&node.upgrade()).unwrap();
        let mut seen = observe(&mut host);
        let renewal = planner::plan_program_upgrade(&seen);
        for link in seen.links.values_mut() {
            assert_eq!(std::mem::take(&mut link.outdated), link.hooks);
        }
        assert_eq!(seen, before);
        assert_eq!(
            run("bpftool -j net show"),
            ids,
            "the old programs are still attached"
        );
        execute(&mut host, renewal.steps());
        assert_eq!(observe(&mut host), before);
        assert_ne!(
            run("bpftool -j net show"),
            ids,
            "the new programs are attached"
        );
    });
}

#[test]
fn no_packet_is_lost_while_programs_are_replaced() {
    on_a_node(|node| {
        let mut host = node.host();
        let netns = node.add_netns("pod");
        let attachment = attachment(&netns, 2);
        let world = add_uplink(node);
        execute(&mut host, &bridge_steps());
        execute(&mut host, &pod_steps(&attachment));
        execute(&mut host, &entry_steps(&attachment));
        execute(&mut host, &[attach_uplink()]);
        let pings = [(&netns, "10.88.0.1"), (&world, "192.0.2.10")];
        let flood = |(netns, to): (&model::Netns, &str)| {
            start(&format!(
                "nsenter --net={} ping -q -i 0.001 -c 1500 -W 10 {to}",
                netns.path
            ))
        };
        let flying = pings.map(flood);
        for options in [node.upgrade(), node.options()].iter().cycle().take(10) {
            drop(host);
            host = Host::open(options).unwrap();
            execute(&mut host, &[attach(&attachment), attach_uplink()]);
            std::thread::sleep(Duration::from_millis(20));
        }
        for ping in flying {
            let output = ping.wait_with_output().unwrap();
            let output = String::from_utf8(output.stdout).unwrap();
            assert!(output.contains(" 0% packet loss"), "{output}");
        }
    });
}

#[test]
fn entries_of_an_attachment_are_found_by_its_keys_and_removed() {
    on_a_node(|node| {
        let mut host = node.host();
        let netns = node.add_netns("pod");
        let mut attachment = attachment(&netns, 2);
        attachment.port_mappings = vec![PortMapping {
            host_port: 8080.try_into().unwrap(),
            container_port: 80.try_into().unwrap(),
            protocol: Protocol::Tcp,
            host_address: None,
        }];
        execute(&mut host, &bridge_steps());
        execute(&mut host, &pod_steps(&attachment));
        let steps = entry_steps(&attachment);
        execute(&mut host, &steps);
        execute(&mut host, &steps);
        let query = attachment_query(&attachment);
        let seen = host.observe(&query).unwrap().host.entries;
        assert_eq!(seen.len(), 6);
        assert_eq!(observe(&mut host).entries, seen);
        for step in &steps {
            let Step::PutEntry { key, entry, .. } = step else {
                panic!("{step:?}");
            };
            assert_eq!(seen[key], *entry);
            let remove = Step::RemoveEntry {
                key: key.clone(),
                previous: entry.clone(),
            };
            execute(&mut host, &[remove.clone(), remove]);
        }
        assert!(host.observe(&query).unwrap().host.entries.is_empty());
        assert!(observe(&mut host).entries.is_empty());
    });
}

fn of_prefix(pods: bool) -> Entry {
    Entry::Prefix {
        no_masquerade: !pods,
        pods,
        shared: pods,
        complete: pods,
        peer: !pods,
    }
}

/// Returns entries of network policies.
fn of_policies() -> [(EntryKey, Entry); 5] {
    let sets = Entry::RuleSets {
        generation: 7,
        ingress: 1,
        egress: 0,
    };
    let rule = |ports| {
        let key = AllowedKey {
            rules: 1,
            identity: 2,
            ports,
        };
        (EntryKey::PolicyRule(key), Entry::PolicyRule)
    };
    let block = AllowedPorts::Block {
        protocol: Protocol::Sctp,
        port: 8_080,
        bits: 12,
    };
    [
        (EntryKey::RuleSets(3), sets),
        (EntryKey::Identity(parse("0.0.0.0/0")), Entry::Identity(1)),
        (EntryKey::Identity(parse("::/0")), Entry::Identity(0)),
        rule(AllowedPorts::All),
        rule(block),
    ]
}

#[test]
fn node_entries_are_read_back_and_a_free_slot_keeps_its_generation() {
    on_a_node(|node| {
        let mut host = node.host();
        add_uplink(node);
        let mut wanted = Vec::from(of_policies());
        wanted.extend([
            (EntryKey::Pod(3), Entry::FreePod { generation: 7 }),
            (
                EntryKey::Uplink(LinkRef::Name(link("up0"))),
                Entry::Uplink {
                    ethernet: true,
                    mtu: 1500,
                    sources: vec![parse("192.0.2.10/24"), parse("2001:db8::10/64")],
                    open: true,
                    tunnel: false,
                },
            ),
            (EntryKey::Local(parse("192.0.2.10")), Entry::Local),
            (EntryKey::Prefix(parse("10.88.0.0/16")), of_prefix(true)),
            (EntryKey::Prefix(parse("10.0.0.0/8")), of_prefix(false)),
            (
                EntryKey::Settings,
                Entry::Settings(abi::Settings::default()),
            ),
        ]);
        for (key, entry) in &wanted {
            let put = Step::PutEntry {
                key: key.clone(),
                entry: entry.clone(),
                previous: None,
            };
            execute(&mut host, &[put]);
        }
        let seen = observe(&mut host).entries;
        assert_eq!(seen, Entries::from_iter(wanted));
        let index = observe(&mut host).links[&link("up0")].index;
        run("ip link del up0");
        let seen = observe(&mut host).entries;
        let gone = EntryKey::Uplink(LinkRef::Gone(index));
        assert!(seen.contains_key(&gone));
        let remove = Step::RemoveEntry {
            previous: seen[&gone].clone(),
            key: gone.clone(),
        };
        execute(&mut host, &[remove]);
        assert!(!observe(&mut host).entries.contains_key(&gone));
    });
}

#[test]
fn an_entry_of_a_missing_link_is_refused() {
    on_a_node(|node| {
        let mut host = node.host();
        let key = EntryKey::Interface(LinkRef::Name(link("none")));
        let put = Step::PutEntry {
            key: key.clone(),
            entry: Entry::Interface {
                slot: 1,
                limited: false,
            },
            previous: None,
        };
        assert!(host.execute(&put).unwrap_err().is_gone());
        let remove = Step::RemoveEntry {
            key,
            previous: Entry::Interface {
                slot: 1,
                limited: false,
            },
        };
        execute(&mut host, &[remove]);
    });
}

#[test]
fn the_sweep_runs_and_counters_are_read() {
    on_a_node(|node| {
        let mut host = node.host();
        let netns = node.add_netns("pod");
        let attachment = attachment(&netns, 2);
        execute(&mut host, &bridge_steps());
        execute(&mut host, &pod_steps(&attachment));
        execute(&mut host, &entry_steps(&attachment));
        // The pod's IPv6 stack may have sent packets already.
        let before = host.measure().unwrap().pods[&2].egress.packets;
        run_in(&netns, "ping -q -c 3 -i 0.01 10.88.0.1");
        let measured = host.measure().unwrap();
        let sent = measured.pods[&2].egress.packets - before;
        assert!(sent >= 3, "{measured:?}");
        assert_eq!(measured.flow_entries, 0);
        // A spoofed Ethernet source address.
        run_in(&netns, "ip link set eth0 address 02:00:00:00:00:77");
        assert!(!succeeds(&format!(
            "nsenter --net={} ping -q -c 1 -W 1 10.88.0.1",
            netns.path
        )));
        let drops = host.measure().unwrap().drops;
        assert!(
            drops.contains_key(&abi::DropReason::SpoofedMac),
            "{drops:?}"
        );
        execute(&mut host, &[Step::Sweep, Step::Sweep]);
    });
}

#[test]
fn a_second_agent_and_maps_of_another_layout_are_refused() {
    on_a_node(|node| {
        let host = node.host();
        let options = node.options();
        let second = Host::open(&options).err();
        assert!(matches!(second, Some(OpenError::Locked(_))), "{second:?}");
        drop(host);
        let pin = node.pins("maps/LOCALS");
        std::fs::remove_file(&pin).unwrap();
        run(&format!(
            "bpftool map create {} type hash key 16 value 4 entries 7 name LOCALS",
            pin.display()
        ));
        let error = Host::open(&options).err().unwrap();
        assert!(
            matches!(error, OpenError::Map { name: "LOCALS", .. }),
            "{error}"
        );
        assert!(pin.exists());
    });
}

#[test]
fn removing_the_pins_detaches_all_uplink_programs() {
    on_a_node(|node| {
        let mut host = node.host();
        add_uplink(node);
        execute(&mut host, &[attach_uplink()]);
        // By a TCX link or, on a kernel without TCX, as a filter.
        let there = || {
            let links = SchedClassifier::query_tcx("up0", TcAttachType::Ingress)
                .map(|(_, programs)| programs.len())
                .unwrap_or_default();
            links > 0 || run("tc filter show dev up0 ingress").contains("viaduct/uplink_in")
        };
        assert!(there());
        let refused = kernel::remove_pins(&node.bpffs());
        assert!(matches!(refused, Err(OpenError::Locked(_))), "{refused:?}");
        drop(host);
        kernel::remove_pins(&node.bpffs()).unwrap();
        kernel::remove_pins(&node.bpffs()).unwrap();
        assert!(!node.bpffs().exists());
        wait_until(|| !there());
    });
}
