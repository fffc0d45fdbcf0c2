//! Steps for links, addresses, routes and sysctls, which leave foreign objects alone.

mod support;

use std::collections::BTreeSet;

use kernel::{Kernel, Observe as _};
use model::{Mac, Route};
use nix::errno::Errno;
use nix::mount::MsFlags;
use planner::attachment_query;
use steps::{AttachmentNetns, LinkKind, NetnsQuery, NodeLink, NodeQuery, Step, SysctlKey};
use support::*;

#[test]
fn a_bridge_is_created_with_mac_mtu_and_alias_and_keeps_its_mtu() {
    on_a_node(|node| {
        let mut host = node.host();
        execute(&mut host, &bridge_steps());
        let seen = observe(&mut host);
        let bridge = &seen.links[&bridge().name];
        assert_eq!(bridge.kind, LinkKind::Bridge);
        assert_eq!(bridge.mac, Some(Mac([2, 0, 0, 0, 0, 1])));
        assert_eq!(bridge.alias.as_deref(), Some(BRIDGE_ALIAS));
        assert_eq!(bridge.mtu, 1450);
        assert!(bridge.up);
        let output = run("ip -d link show cbr0");
        assert!(output.contains("mtu 1450"), "{output}");
        assert!(output.contains("02:00:00:00:00:01"), "{output}");
        assert!(output.contains("stp_state 0"), "{output}");
        // A port of another MTU comes and goes.
        run("ip link add port0 mtu 1280 type veth peer name port1");
        run("ip link set port0 master cbr0");
        run("ip link del port0");
        assert_eq!(observe(&mut host).links[&link("cbr0")].mtu, 1450);
        let output = run("ip -6 addr show dev cbr0");
        assert!(output.contains("fd88::1/64"), "{output}");
        assert!(
            !output.contains("fd88::1/64 scope global tentative"),
            "{output}"
        );
    });
}

#[test]
fn a_veth_is_created_with_its_peer_in_the_pod_and_both_ends_are_set_up() {
    on_a_node(|node| {
        let mut host = node.host();
        let netns = node.add_netns("pod");
        let attachment = attachment(&netns, 2);
        execute(&mut host, &bridge_steps());
        execute(&mut host, &pod_steps(&attachment));

        let seen = host.observe(&NodeQuery::default()).unwrap();
        let end = &seen.links[host_of(&attachment).name()];
        assert_eq!(end.addresses, [], "no link-local address on a bridge port");
        let seen = host.observe(&attachment_query(&attachment)).unwrap();
        let end = seen.host.host_link.as_ref().unwrap();
        let bridge = seen.host.bridge.as_ref().unwrap();
        assert_eq!(end.kind, LinkKind::Veth);
        assert_eq!(end.mac, Some(attachment.key.host_mac()));
        assert_eq!(end.alias, Some(attachment.alias()));
        assert_eq!(end.controller, Some(bridge.index));
        assert!(end.hairpin && end.up);
        assert_eq!(seen.host.hooks, pod_hooks());
        assert_eq!(end.mtu, 1450);

        let pod = seen.pod().unwrap();
        assert_eq!(pod.mac, Some(attachment.mac));
        assert_eq!((pod.mtu, pod.up), (1450, true));
        assert_eq!(pod.addresses, addresses(&attachment).into_iter().collect());
        assert_eq!(pod.routes, attachment.routes.iter().copied().collect());
        assert_eq!(pod.peer, Some(end.index));

        // The same links in the view of the whole node.
        let whole = observe(&mut host).links;
        let expected = NodeLink {
            hooks: pod_hooks(),
            ..end.clone().into()
        };
        assert_eq!(whole[host_of(&attachment).name()], expected);
        let whole = &whole[&link("cbr0")];
        assert_eq!(whole.addresses[0], parse("10.88.0.1/24"));
        assert_eq!(whole.link, *bridge);

        let output = run_in(&netns, "ip addr show");
        assert!(output.contains("LOOPBACK,UP"), "{output}");
        assert!(
            output.contains("inet 10.88.0.2/24 brd 10.88.0.255"),
            "{output}"
        );
        assert!(!output.contains("tentative"), "{output}");
        let output = run_in(&netns, "ip route") + &run_in(&netns, "ip -6 route");
        assert!(
            output.contains("default via 10.88.0.1 dev eth0"),
            "{output}"
        );
        assert!(output.contains("default via fd88::1 dev eth0"), "{output}");
    });
}

#[test]
fn both_ends_of_a_veth_have_one_queue_each_way() {
    on_a_node(|node| {
        let netns = node.add_netns("pod");
        let attachment = attachment(&netns, 2);
        let steps = [bridge_steps(), pod_steps(&attachment)].concat();
        execute(&mut node.host(), &steps);
        let output = run("ip -d link show type veth") + &run_in(&netns, "ip -d link show eth0");
        let one_each = output.matches("numtxqueues 1 numrxqueues 1 ").count();
        assert_eq!(one_each, 2, "{output}");
    });
}

#[test]
fn every_step_may_be_executed_twice_on_the_real_kernel() {
    on_a_node(|node| {
        let mut host = node.host();
        let netns = node.add_netns("pod");
        let attachment = attachment(&netns, 2);
        let mut steps = bridge_steps();
        steps.extend(pod_steps(&attachment));
        execute(&mut host, &steps);
        let once = observe(&mut host);
        let pod = pod_of(&mut host, &attachment);
        execute(&mut host, &steps);
        for step in &steps {
            execute(&mut host, std::slice::from_ref(step));
        }
        assert_eq!(observe(&mut host), once);
        assert_eq!(pod_of(&mut host, &attachment), pod);

        let bridge = bridge();
        let removal = [
            delete(&attachment),
            Step::RemoveAddress {
                link: bridge.name.clone(),
                address: parse("10.88.0.1/24"),
            },
            Step::DeleteBridge {
                name: bridge.name,
                alias: bridge.alias,
            },
        ];
        for step in &removal {
            execute(&mut host, &[step.clone(), step.clone()]);
        }
        execute(&mut host, &removal);
        assert_eq!(pod_of(&mut host, &attachment), None);
    });
}

#[test]
fn undo_of_a_pod_and_its_bridge_restores_the_node() {
    on_a_node(|node| {
        let mut host = node.host();
        let netns = node.add_netns("pod");
        let attachment = attachment(&netns, 2);
        let empty = observe(&mut host);
        execute(&mut host, &bridge_steps());
        let with_bridge = observe(&mut host);
        execute(&mut host, &pod_steps(&attachment));
        execute(&mut host, &[delete(&attachment)]);
        let mut seen = observe(&mut host);
        assert_eq!(seen, with_bridge);
        assert!(run_in(&netns, "ip -o link").lines().count() == 1);
        let bridge = bridge();
        let gone = Step::DeleteBridge {
            name: bridge.name,
            alias: bridge.alias,
        };
        execute(&mut host, &[gone]);
        seen = observe(&mut host);
        assert_eq!(seen, empty);
    });
}

#[test]
fn the_error_says_which_name_of_a_veth_exists_and_no_end_is_left() {
    on_a_node(|node| {
        let mut host = node.host();
        let netns = node.add_netns("pod");
        let attachment = attachment(&netns, 2);
        let step = Step::CreateVeth(veth(&attachment));

        run_in(&netns, "ip link add eth0 type bridge");
        let error = host.execute(&step).unwrap_err();
        assert!(error.is_taken());
        assert!(error.call.contains("eth0 in"), "{}", error.call);
        assert_eq!(run("ip -o link").lines().count(), 1);
        run_in(&netns, "ip link del eth0");

        let name = host_of(&attachment);
        run(&format!("ip link add {name} type bridge"));
        let error = host.execute(&step).unwrap_err();
        assert!(error.is_taken());
        assert!(error.call.contains(&name.to_string()), "{}", error.call);
        assert_eq!(run_in(&netns, "ip -o link").lines().count(), 1);
    });
}

#[test]
fn links_without_our_alias_are_not_deleted() {
    on_a_node(|node| {
        let mut host = node.host();
        let netns = node.add_netns("pod");
        let attachment = attachment(&netns, 2);
        let name = host_of(&attachment);
        run(&format!("ip link add {name} type veth peer name other"));
        assert_eq!(
            errno(host.execute(&delete(&attachment))),
            Some(Errno::EPERM)
        );
        run(&format!("ip link set {name} alias foreign"));
        assert_eq!(
            errno(host.execute(&delete(&attachment))),
            Some(Errno::EPERM)
        );
        run("ip link add cbr0 type bridge");
        let bridge = bridge();
        let gone = Step::DeleteBridge {
            name: bridge.name.clone(),
            alias: bridge.alias.clone(),
        };
        assert_eq!(errno(host.execute(&gone)), Some(Errno::EPERM));
        assert_eq!(
            errno(host.execute(&Step::CreateBridge(bridge))),
            Some(Errno::EEXIST)
        );
        assert_eq!(run("ip -o link").lines().count(), 4);
    });
}

#[test]
fn links_that_an_agent_left_without_alias_are_finished_or_deleted() {
    on_a_node(|node| {
        let mut host = node.host();
        let netns = node.add_netns("pod");
        let attachment = attachment(&netns, 2);
        let (name, mac) = (host_of(&attachment), attachment.key.host_mac());
        run(&format!(
            "ip link add {name} address {mac} type veth peer name other"
        ));
        execute(&mut host, &[delete(&attachment)]);
        let bridge = bridge();
        run(&format!(
            "ip link add cbr0 address {} type bridge",
            bridge.mac
        ));
        execute(&mut host, &[Step::CreateBridge(bridge.clone())]);
        let seen = observe(&mut host);
        assert_eq!(seen.links.len(), 2);
        assert_eq!(seen.links[&bridge.name].alias, Some(bridge.alias));
        assert_eq!(seen.links[&bridge.name].mtu, bridge.mtu);
    });
}

#[test]
fn a_bridge_with_a_foreign_port_is_not_deleted() {
    on_a_node(|node| {
        let mut host = node.host();
        execute(&mut host, &bridge_steps());
        run("ip link add port0 type veth peer name port1");
        run("ip link set port0 master cbr0");
        let bridge = bridge();
        let gone = Step::DeleteBridge {
            name: bridge.name,
            alias: bridge.alias,
        };
        assert_eq!(errno(host.execute(&gone)), Some(Errno::EBUSY));
        run("ip link set port0 nomaster");
        execute(&mut host, &[gone]);
        assert_eq!(run("ip -o link").lines().count(), 3);
    });
}

#[test]
fn a_veth_of_a_vanished_namespace_is_deleted_at_once() {
    on_a_node(|node| {
        let mut host = node.host();
        let netns = node.add_netns("pod");
        let attachment = attachment(&netns, 2);
        execute(&mut host, &bridge_steps());
        execute(&mut host, &pod_steps(&attachment));
        node.remove_netns("pod");
        execute(&mut host, &[delete(&attachment)]);
        let seen = host.observe(&attachment_query(&attachment)).unwrap();
        assert_eq!(seen.netns, AttachmentNetns::Missing);
        assert_eq!(seen.host.host_link, None);
    });
}

#[test]
fn a_deleted_veth_is_gone_when_the_step_returns() {
    on_a_node(|node| {
        let mut host = node.host();
        execute(&mut host, &bridge_steps());
        for number in 2..12 {
            let netns = node.add_netns(&format!("pod{number}"));
            let attachment = attachment(&netns, number);
            execute(&mut host, &pod_steps(&attachment));
            execute(&mut host, &[delete(&attachment)]);
            assert!(!succeeds(&format!("ip link show {}", host_of(&attachment))));
            assert_eq!(run_in(&netns, "ip -o link").lines().count(), 1);
        }
    });
}

#[test]
fn another_namespace_at_the_same_path_is_not_entered() {
    on_a_node(|node| {
        let mut host = node.host();
        let netns = node.add_netns("pod");
        let attachment = attachment(&netns, 2);
        // Inode numbers are reused, but not that of a namespace that is mounted elsewhere as well.
        let elsewhere = node.path().join("elsewhere");
        std::fs::write(&elsewhere, "").unwrap();
        let (from, none) = (netns.path.as_path(), None::<&str>);
        nix::mount::mount(Some(from), &elsewhere, none, MsFlags::MS_BIND, none).unwrap();
        node.remove_netns("pod");
        let step = Step::CreateVeth(veth(&attachment));
        assert_eq!(errno(host.execute(&step)), Some(Errno::ENOENT));
        let second = node.add_netns("pod");
        assert_ne!(second.inode, netns.inode);
        let error = host.execute(&step).unwrap_err();
        assert!(error.is_gone());
        let seen = host.observe(&attachment_query(&attachment)).unwrap();
        assert_eq!(seen.netns, AttachmentNetns::Replaced);
        assert_eq!(second.path, netns.path);
    });
}

#[test]
fn a_path_without_a_namespace_is_observed_as_absent() {
    on_a_node(|node| {
        let mut host = node.host();
        let file = node.path().join("plain");
        std::fs::write(&file, "").unwrap();
        let missing = [
            "/nowhere/at/all",
            "/proc/4194999/ns/net",
            file.to_str().unwrap(),
        ];
        for path in missing {
            let query = NetnsQuery {
                path: netns_path(path),
                ifname: link("eth0"),
                links: BTreeSet::from([link("cbr0")]),
                host_end: true,
            };
            let seen = host.observe(&query).unwrap();
            assert!(seen.links.is_empty() && seen.inside.is_none(), "{path}");
        }
    });
}

#[test]
fn a_failed_pod_set_up_leaves_no_address_or_route() {
    on_a_node(|node| {
        let mut host = node.host();
        let netns = node.add_netns("pod");
        let attachment = attachment(&netns, 2);
        execute(&mut host, &[Step::CreateVeth(veth(&attachment))]);
        let before = pod_of(&mut host, &attachment);
        let mut spec = inside(&attachment);
        // An address of the pod itself cannot be its gateway.
        spec.routes.push(Route {
            destination: parse("192.0.2.0/24"),
            gateway: Some(parse("10.88.0.2")),
            options: model::RouteOptions::default(),
        });
        let error = host.execute(&Step::SetUpPod(spec)).unwrap_err();
        assert!(error.call.contains("192.0.2.0/24"), "{}", chain(&error));
        assert_eq!(pod_of(&mut host, &attachment), before);
    });
}

#[test]
fn a_foreign_secondary_address_survives_the_removal_of_ours() {
    on_a_node(|node| {
        let mut host = node.host();
        execute(&mut host, &bridge_steps());
        run("ip addr add 10.88.0.7/24 dev cbr0");
        let ours = Step::RemoveAddress {
            link: link("cbr0"),
            address: parse("10.88.0.1/24"),
        };
        execute(&mut host, &[ours]);
        let output = run("ip addr show dev cbr0");
        assert!(output.contains("10.88.0.7/24"), "{output}");
        assert!(!output.contains("10.88.0.1/24"), "{output}");
    });
}

#[test]
fn mac_and_mtu_of_a_link_are_changed() {
    on_a_node(|node| {
        let mut host = node.host();
        execute(&mut host, &bridge_steps());
        let mac = Mac([2, 0, 0, 0, 0, 9]);
        let name = link("cbr0");
        let steps = [
            Step::SetMac {
                link: name.clone(),
                mac,
            },
            Step::SetMtu {
                link: name.clone(),
                mtu: 1400,
            },
        ];
        execute(&mut host, &steps);
        let seen = observe(&mut host);
        assert_eq!(
            (seen.links[&name].mac, seen.links[&name].mtu),
            (Some(mac), 1400)
        );
        let missing = Step::SetUp { link: link("none") };
        assert!(host.execute(&missing).unwrap_err().is_gone());
    });
}

#[test]
fn sysctls_are_read_and_written_in_the_nodes_own_namespace() {
    on_a_node(|node| {
        let mut host = node.host();
        let key = SysctlKey("net/ipv4/ip_forward".to_owned());
        let missing = SysctlKey("net/ipv4/no_such_thing".to_owned());
        let query = NodeQuery {
            sysctls: BTreeSet::from([key.clone(), missing.clone()]),
        };
        let before = host.observe(&query).unwrap().sysctls;
        assert_eq!(before[&missing], None);
        let before = before[&key].clone().unwrap();
        let value = if before == "1" { "0" } else { "1" };
        let step = Step::SetSysctl {
            key: key.clone(),
            value: value.to_owned(),
            previous: before,
        };
        execute(&mut host, &[step]);
        let after = host.observe(&query).unwrap().sysctls;
        assert_eq!(after[&key].as_deref(), Some(value));
        for outside in ["../kernel/hostname", "/etc/hostname"] {
            let step = Step::SetSysctl {
                key: SysctlKey(outside.to_owned()),
                value: "x".to_owned(),
                previous: String::new(),
            };
            host.execute(&step).unwrap_err();
        }
    });
}

#[test]
fn routes_are_observed_with_every_next_hop_and_table() {
    on_a_node(|node| {
        let mut host = node.host();
        for index in [0, 1] {
            run(&format!(
                "ip link add up{index} type veth peer name far{index}"
            ));
            run(&format!("ip link set up{index} up"));
            run(&format!("ip link set far{index} up"));
            run(&format!("ip addr add 192.0.{index}.10/24 dev up{index}"));
        }
        run("ip route add default nexthop via 192.0.0.1 dev up0 nexthop via 192.0.1.1 dev up1");
        run("ip route add 198.51.100.0/24 via 192.0.1.1 table 1000");
        run("ip route add blackhole 203.0.113.0/24");
        run("ip route add 203.0.114.0/24 via inet6 fe80::1 dev up0");
        let seen = observe(&mut host);
        let index = |name: &str| seen.links[&link(name)].index;
        let has = |destination: &str, gateway: Option<&str>, name: &str, table: u32| {
            let gateway = gateway.map(parse);
            seen.routes.iter().any(|route| {
                route.destination == parse(destination)
                    && route.gateway == gateway
                    && route.link == index(name)
                    && route.table == table
            })
        };
        assert!(has("0.0.0.0/0", Some("192.0.0.1"), "up0", 254));
        assert!(has("0.0.0.0/0", Some("192.0.1.1"), "up1", 254));
        assert!(has("198.51.100.0/24", Some("192.0.1.1"), "up1", 1000));
        assert!(has("192.0.0.0/24", None, "up0", 254));
        assert!(has("203.0.114.0/24", Some("fe80::1"), "up0", 254));
        assert!(
            seen.routes
                .iter()
                .all(|route| route.destination != parse("203.0.113.0/24"))
        );
        assert_eq!(
            seen.links[&link("up0")].addresses[0],
            parse("192.0.0.10/24")
        );
    });
}
