//! The host's end of an interface that another plugin has made, whose name is unknown.

mod support;

use std::collections::BTreeSet;

use kernel::Observe as _;
use model::Netns;
use steps::{LinkKind, NetnsQuery, ObservedNetns};
use support::*;

fn host_end_of(host: &mut kernel::Host, netns: &Netns, ifname: &str) -> ObservedNetns {
    let query = NetnsQuery {
        path: netns.path.clone(),
        ifname: link(ifname),
        links: BTreeSet::new(),
        host_end: true,
    };
    host.observe(&query).expect("the namespace is observed")
}

#[test]
fn the_host_end_of_a_veth_is_observed_with_its_bridge() {
    on_a_node(|node| {
        let mut host = node.host();
        let pod = node.add_netns("pod");
        run("ip link add br9 type bridge");
        run(&format!(
            "ip link add veth9 master br9 type veth peer name eth0 netns {}",
            pod.path
        ));
        let seen = host_end_of(&mut host, &pod, "eth0");
        let names: Vec<&str> = seen.links.keys().map(model::IfName::as_str).collect();
        assert_eq!(names, ["br9", "veth9"]);
        let end = &seen.links[&link("veth9")];
        assert_eq!(end.kind, LinkKind::Veth);
        assert_eq!(end.controller, Some(seen.links[&link("br9")].index));
        assert_eq!(seen.pod().unwrap().peer, Some(end.index));
        let missing = host_end_of(&mut host, &pod, "eth7");
        assert!(missing.links.is_empty() && missing.pod().is_none());
    });
}

/// The other end has the index of a veth of the host, which is the end of another pod.
#[test]
fn a_veth_that_leads_to_another_namespace_has_no_host_end() {
    on_a_node(|node| {
        let mut host = node.host();
        let (pod, between) = (node.add_netns("pod"), node.add_netns("between"));
        run("ip link add index 90 name veth9 type veth peer name veth8");
        let line = "ip link add index 90 name inner type veth peer name eth0 netns";
        run_in(&between, &format!("{line} {}", pod.path));
        let seen = host_end_of(&mut host, &pod, "eth0");
        assert_eq!(seen.pod().unwrap().peer, Some(90));
        assert!(seen.links.is_empty(), "{:?}", seen.links);
        // An interface without another end.
        run_in(&pod, "ip link add br7 type bridge");
        assert!(host_end_of(&mut host, &pod, "br7").links.is_empty());
    });
}
