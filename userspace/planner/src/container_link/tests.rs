//! Tests of the classification of links, and of the entries that follow from it.

use std::collections::BTreeSet;

use model::{Attachment, Cidr, IfName, State};
use proptest::prelude::*;
use steps::{Entries, Entry, EntryKey, LinkKind, LinkRef, Observed, RouteEntry, Step};

use crate::testing::{World, attachment, intent, link, network, network_of, node, parse};
use crate::{ContainerLinks, NodeIntent, NodePlan, Overlap, Records, plan_node};

fn node_intent() -> NodeIntent {
    NodeIntent {
        networks: vec![network()],
        ..NodeIntent::default()
    }
}

fn plan(observed: &Observed) -> NodePlan {
    plan_node(&node_intent(), observed, &Records::new())
}

fn names(texts: &[&str]) -> BTreeSet<IfName> {
    texts.iter().map(|text| parse(text)).collect()
}

fn written(plan: &NodePlan) -> Entries {
    let steps = plan.plan.steps().iter();
    let put = steps.filter_map(|step| {
        let Step::PutEntry { key, entry, .. } = step else {
            return None;
        };
        Some((key.clone(), entry.clone()))
    });
    put.collect()
}

fn uplinks(plan: &NodePlan) -> BTreeSet<IfName> {
    let entries = written(plan);
    let name = |key| {
        let EntryKey::Uplink(LinkRef::Name(name)) = key else {
            return None;
        };
        Some(name)
    };
    entries.into_keys().filter_map(name).collect()
}

/// A node with other software's link `name`.
struct Foreign(Observed);

impl Foreign {
    fn new(name: &str, kind: LinkKind, addresses: &[&str]) -> Self {
        let mut observed = node();
        let mut foreign = link(20, kind, addresses);
        foreign.mac = Some(model::Mac::local([0, 0, 0, 0, 20]));
        for own in &foreign.addresses {
            let subnet = own.subnet().unwrap();
            if own.prefix_len < 32 {
                observed.routes.push(route(&subnet.to_string(), None));
            }
        }
        observed.links.insert(parse(name), foreign);
        Self(observed)
    }

    fn route(mut self, destination: &str, gateway: Option<&str>) -> Self {
        self.0.routes.push(route(destination, gateway));
        self
    }

    fn port(mut self, name: &str, kind: LinkKind) -> Self {
        let mut port = link(30, kind, &[]);
        port.controller = Some(20);
        self.0.links.insert(parse(name), port);
        self
    }

    /// Whether the link is taken for one that leads to containers; checks that it is then no
    /// uplink, and else one.
    fn leads_to_containers(&self) -> bool {
        let plan = plan(&self.0);
        let containers = &plan.containers.names;
        let found = uplinks(&plan);
        assert!(found.is_disjoint(containers), "{found:?} {containers:?}");
        assert_eq!(
            found.len() + containers.len(),
            2,
            "{found:?} {containers:?}"
        );
        !containers.is_empty()
    }
}

fn route(destination: &str, gateway: Option<&str>) -> RouteEntry {
    RouteEntry {
        destination: parse(destination),
        gateway: gateway.map(parse),
        link: 20,
        table: 254,
        mtu: None,
        protocol: 3,
    }
}

#[test]
fn a_bridge_of_containers_is_no_uplink_and_one_to_the_outside_is() {
    let docker0 = || Foreign::new("docker0", LinkKind::Bridge, &["172.17.0.1/16"]);
    assert!(docker0().leads_to_containers(), "without ports");
    assert!(
        docker0()
            .port("veth1", LinkKind::Veth)
            .leads_to_containers()
    );
    let virbr0 = || Foreign::new("virbr0", LinkKind::Bridge, &["192.168.122.1/24"]);
    assert!(virbr0().port("vnet0", LinkKind::Tap).leads_to_containers());
    assert!(
        virbr0()
            .port("virbr0-nic", LinkKind::Dummy)
            .leads_to_containers()
    );
    let br0 = || Foreign::new("br0", LinkKind::Bridge, &["192.0.2.20/24"]);
    assert!(!br0().port("eth1", LinkKind::Ethernet).leads_to_containers());
    assert!(
        !br0()
            .route("0.0.0.0/0", Some("192.0.2.1"))
            .leads_to_containers()
    );
    assert!(!br0().route("::/0", Some("fe80::1")).leads_to_containers());
    assert!(
        !br0()
            .route("10.9.0.0/16", Some("192.0.2.9"))
            .leads_to_containers()
    );
    assert!(!br0().route("0.0.0.0/0", None).leads_to_containers());
    assert!(br0().route("10.9.0.0/16", None).leads_to_containers());
}

#[test]
fn a_veth_with_host_routes_alone_leads_to_a_container() {
    let ptp = || Foreign::new("veth7", LinkKind::Veth, &["10.55.0.1/32", "fe80::7/64"]);
    assert!(ptp().route("10.55.0.2/32", None).leads_to_containers());
    assert!(ptp().route("fd55::2/128", None).leads_to_containers());
    let calico = Foreign::new("cali1", LinkKind::Veth, &[]).route("10.56.0.2/32", None);
    assert!(calico.leads_to_containers());
    assert!(!ptp().route("10.55.0.0/24", None).leads_to_containers());
    assert!(
        !ptp()
            .route("0.0.0.0/0", Some("10.55.0.2"))
            .leads_to_containers()
    );
    assert!(
        !ptp()
            .route("10.55.0.9/32", Some("10.55.0.2"))
            .leads_to_containers()
    );
    let uplink = Foreign::new("up0", LinkKind::Veth, &["198.51.100.2/24"]);
    assert!(!uplink.leads_to_containers());
}

#[test]
fn other_kinds_of_links_stay_uplinks() {
    for kind in [
        LinkKind::Ethernet,
        LinkKind::Raw,
        LinkKind::Tap,
        LinkKind::Dummy,
    ] {
        let foreign = Foreign::new("other0", kind, &["198.51.100.2/32"]);
        assert!(!foreign.leads_to_containers(), "{kind:?}");
    }
}

#[test]
fn a_configured_uplink_is_one_whatever_it_leads_to() {
    let observed = Foreign::new("docker0", LinkKind::Bridge, &["172.17.0.1/16"]).0;
    let intent = NodeIntent {
        uplinks: names(&["docker0"]),
        ..node_intent()
    };
    let plan = plan_node(&intent, &observed, &Records::new());
    assert_eq!(uplinks(&plan), names(&["docker0"]));
    assert_eq!(plan.containers.names, names(&[]));
}

#[test]
fn pods_may_leave_by_a_container_link_with_their_own_addresses() {
    let observed = Foreign::new("docker0", LinkKind::Bridge, &["172.17.0.1/16"]).0;
    let entry = &written(&plan(&observed))[&EntryKey::Network(LinkRef::Name(parse("docker0")))];
    assert!(
        matches!(entry, Entry::Network { v4: Some(v4), v6: None, .. } if *v4 == parse::<std::net::IpAddr>("172.17.0.1")),
        "{entry}"
    );
}

#[test]
fn overlaps_of_container_links_and_networks_are_listed_and_shared() {
    let ptp = Foreign::new("veth7", LinkKind::Veth, &["10.1.0.1/32"]);
    let observed = ptp.route("10.1.0.77/32", None).route("10.2.0.1/32", None).0;
    let plan = plan(&observed);
    let expected = Overlap {
        link: parse("veth7"),
        prefix: parse("10.1.0.77/32"),
        network: parse("net"),
    };
    assert_eq!(plan.containers.overlaps, [expected].into());
    let addresses = ["10.1.0.77", "10.2.0.1"].map(parse::<std::net::IpAddr>);
    assert_eq!(plan.containers.addresses, addresses.into());
    let entries = written(&plan);
    let prefix = |text| entries[&EntryKey::Prefix(parse(text))].to_string();
    assert_eq!(prefix("10.1.0.77/32"), "pods, shared");
    assert_eq!(prefix("10.1.0.0/24"), "pods, complete");
    let wide = Foreign::new("cni0", LinkKind::Bridge, &["10.1.0.1/16"]).0;
    let entries = written(&super::tests::plan(&wide));
    let whole = entries[&EntryKey::Prefix(parse("10.1.0.0/24"))].to_string();
    assert_eq!(whole, "pods, shared");
}

/// An adopted pod with this address, behind the bridge or veth `bridge`.
fn adopted(bridge: &str, address: &str) -> Attachment {
    let mut attachment = attachment(&intent("c1"));
    attachment.adopted = Some(parse("veth9"));
    attachment.bridge = parse(bridge);
    attachment.key.network = parse("other");
    let mut assigned = attachment.addresses[0];
    assigned.address = parse(address);
    attachment.addresses = vec![assigned];
    attachment
}

fn gateway_of(observed: &Observed, attachment: &Attachment) -> Option<std::net::IpAddr> {
    let mut world = World::empty();
    world.remember(attachment, State::Attached);
    let plan = plan_node(&node_intent(), observed, &world.records);
    let key = EntryKey::Network(LinkRef::Name(attachment.bridge.clone()));
    match written(&plan).remove(&key) {
        Some(Entry::Network { v4, .. }) => v4,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_gateway_of_an_adopted_pod_is_the_address_that_the_kernel_would_choose() {
    let rb0 = ["10.7.0.1/24", "10.8.0.1/24"];
    let observed = Foreign::new("rb0", LinkKind::Bridge, &rb0).0;
    let of = |address: &str| gateway_of(&observed, &adopted("rb0", address));
    assert_eq!(of("10.7.0.5/24"), Some(parse("10.7.0.1")));
    assert_eq!(of("10.8.0.5/24"), Some(parse("10.8.0.1")));
    assert_eq!(of("10.9.0.5/24"), Some(parse("10.7.0.1")));
    let calico = Foreign::new("cali1", LinkKind::Veth, &[]).route("10.56.0.2/32", None);
    let pod = adopted("cali1", "10.56.0.2/32");
    assert_eq!(gateway_of(&calico.0, &pod), Some(parse("192.0.2.10")));
}

#[test]
fn the_bridge_of_an_adopted_pod_stays_an_uplink_if_it_is_one() {
    let br0 = Foreign::new("br0", LinkKind::Bridge, &["192.0.2.20/24"]);
    let observed = br0.route("0.0.0.0/0", Some("192.0.2.1")).0;
    let mut world = World::empty();
    world.remember(&adopted("br0", "192.0.2.77/24"), State::Attached);
    let plan = plan_node(&node_intent(), &observed, &world.records);
    assert_eq!(uplinks(&plan), names(&["br0", "eth0"]));
}

fn arbitrary_link() -> impl Strategy<Value = (LinkKind, Vec<&'static str>, Option<u32>, bool)> {
    let kinds = [
        LinkKind::Bridge,
        LinkKind::Veth,
        LinkKind::Tap,
        LinkKind::Dummy,
        LinkKind::Ethernet,
        LinkKind::Raw,
    ];
    let addresses = ["172.17.0.1/16", "10.1.0.9/24", "10.55.0.1/32", "fe80::1/64"];
    (
        prop::sample::select(kinds.to_vec()),
        prop::sample::subsequence(addresses.to_vec(), 0..3),
        prop::option::of(20..26_u32),
        any::<bool>(),
    )
}

fn arbitrary_route() -> impl Strategy<Value = RouteEntry> {
    let destinations = [
        "0.0.0.0/0",
        "::/0",
        "10.55.0.2/32",
        "10.9.0.0/16",
        "fe80::/64",
    ];
    let destination = prop::sample::select(destinations.to_vec());
    let gateway = prop::option::of(Just("192.0.2.1"));
    (destination, gateway, 20..26_u32, prop::bool::weighted(0.1)).prop_map(
        |(destination, gateway, link, local)| RouteEntry {
            destination: parse(destination),
            gateway: gateway.map(parse),
            link,
            table: if local { 255 } else { 254 },
            mtu: None,
            protocol: 3,
        },
    )
}

fn observation() -> impl Strategy<Value = Observed> {
    let links = prop::collection::vec(arbitrary_link(), 0..6);
    let routes = prop::collection::vec(arbitrary_route(), 0..8);
    (links, routes).prop_map(|(links, routes)| {
        let mut observed = node();
        for (index, (kind, addresses, controller, up)) in (20..).zip(links) {
            let name = format!("link{index}");
            let mut foreign = link(index, kind, &addresses);
            foreign.controller = controller.filter(|other| *other != index);
            foreign.mac = Some(model::Mac::local([0; 5]));
            foreign.up = up;
            observed.links.insert(parse(&name), foreign);
        }
        observed.routes.extend(routes);
        observed
    })
}

proptest! {
    /// Every link that is up and has an address or a route is exactly one of three: ours, an
    /// uplink, or a container link; and a link is never a container link with a route to the
    /// outside through it.
    #[test]
    fn a_link_has_one_role(observed in observation()) {
        let plan = plan(&observed);
        let (uplinks, containers) = (uplinks(&plan), plan.containers.names.clone());
        prop_assert!(uplinks.is_disjoint(&containers));
        for name in &containers {
            let link = &observed.links[name];
            prop_assert!(matches!(link.kind, LinkKind::Bridge | LinkKind::Veth));
            prop_assert!(link.up && link.controller.is_none());
            let mut routes = observed.routes.iter().filter(|route| route.link == link.index);
            let outside = routes.any(|route| {
                let to_all: BTreeSet<Cidr> = ["0.0.0.0/0", "::/0"].map(parse).into();
                route.table != 255 && to_all.contains(&route.destination)
            });
            prop_assert!(!outside, "{name}");
        }
    }

    /// A network card as a port turns a bridge into an uplink, and a route with a next hop turns
    /// any container link into one.
    #[test]
    fn ways_to_the_outside_turn_container_links_into_uplinks(mut observed in observation()) {
        let before = plan(&observed).containers.names;
        for name in before {
            let index = observed.links[&name].index;
            if observed.links[&name].kind == LinkKind::Bridge {
                let mut card = link(index + 100, LinkKind::Ethernet, &[]);
                card.controller = Some(index);
                observed.links.insert(parse(&format!("card{index}")), card);
            } else {
                let mut to = route("10.99.0.0/16", Some("10.99.0.1"));
                to.link = index;
                observed.routes.push(to);
            }
        }
        prop_assert_eq!(plan(&observed).containers, ContainerLinks::default());
    }
}

#[test]
fn a_network_of_ours_is_no_container_link() {
    let observed = Foreign::new("rb0", LinkKind::Bridge, &["10.7.0.1/24"]).0;
    let intent = NodeIntent {
        networks: vec![network(), network_of("on-rb0", "rb0", &["10.7.0.0/24"])],
        ..NodeIntent::default()
    };
    let plan = plan_node(&intent, &observed, &Records::new());
    assert_eq!(plan.containers.names, names(&[]));
}
