//! Tests of tunnels to peers.

use model::{IfName, Mac};
use steps::{
    NodeLink, ObservedTunnel, TUNNEL_ALIAS, TunnelChange, TunnelEntry, TunnelSpec, TunnelStep,
};

use super::*;
use crate::Plan;
use crate::hooks::UPLINK_HOOKS;
use crate::peers::tunnels::mac_of;

pub(super) const V4: &str = "viaduct.vx";
pub(super) const V6: &str = "viaduct.vx6";

pub(super) fn tunnelled(mode: BetweenNodes, peers: impl IntoIterator<Item = Peer>) -> NodeIntent {
    let mut intent = intent(peers);
    intent.peers.options.between_nodes = mode;
    intent.peers.options.tunnel.node = Some(parse("here"));
    intent
}

/// The node of [`connected`], which has default routes.
fn routed() -> Observed {
    connected()
}

/// Executes a plan as the kernel does.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "plans of peers have no other steps"
)]
fn run(plan: &Plan, observed: &mut Observed) {
    for step in plan.steps() {
        match step {
            Step::ChangeRoutes(_) => execute(
                &PeerPlan {
                    plan: Plan::of([step.clone()]),
                    ..PeerPlan::default()
                },
                observed,
            ),
            Step::Tunnel(TunnelStep::Create(spec)) => create(spec, observed),
            Step::Tunnel(TunnelStep::Delete(name)) => delete(name, observed),
            Step::Tunnel(TunnelStep::Change(changes)) => {
                for one in changes {
                    change(one, observed);
                }
            }
            Step::SetMac { link, mac } => of(link, observed).mac = Some(*mac),
            Step::SetMtu { link, mtu } => of(link, observed).mtu = *mtu,
            Step::SetUp { link } => of(link, observed).up = true,
            Step::AddAddress { link, address } => of(link, observed).addresses.push(*address),
            Step::RemoveAddress { link, address } => {
                of(link, observed).addresses.retain(|own| own != address);
            }
            other => panic!("{other}"),
        }
    }
}

fn of<'a>(link: &IfName, observed: &'a mut Observed) -> &'a mut NodeLink {
    observed.links.get_mut(link).unwrap()
}

fn create(spec: &TunnelSpec, observed: &mut Observed) {
    assert!(!observed.tunnels.contains_key(&spec.name));
    let index = if spec.ipv6 { 71 } else { 70 };
    let mut made = link(index, LinkKind::Ethernet, &[]);
    (made.up, made.mac, made.mtu) = (false, Some(spec.mac), spec.mtu);
    made.alias = Some(TUNNEL_ALIAS.to_owned());
    observed.links.insert(spec.name.clone(), made);
    let tunnel = ObservedTunnel {
        ipv6: spec.ipv6,
        vni: spec.vni,
        port: spec.port,
        ..ObservedTunnel::default()
    };
    observed.tunnels.insert(spec.name.clone(), tunnel);
}

fn delete(name: &IfName, observed: &mut Observed) {
    observed.tunnels.remove(name);
    let gone = observed.links.remove(name).unwrap();
    observed.routes.retain(|route| route.link != gone.index);
}

fn change(change: &TunnelChange, observed: &mut Observed) {
    let entries = &mut observed.tunnels.get_mut(&change.link).unwrap().entries;
    if !change.add {
        assert!(entries.remove(&change.entry), "{change}");
        return;
    }
    entries.retain(|other| match (&change.entry, other) {
        (TunnelEntry::Neighbour { gateway, .. }, TunnelEntry::Neighbour { gateway: other, .. }) => {
            gateway != other
        }
        (TunnelEntry::Forwarding { mac, .. }, TunnelEntry::Forwarding { mac: other, .. }) => {
            mac != other
        }
        _ => true,
    });
    entries.insert(change.entry.clone());
}

/// Plans and executes until nothing is left, with the programs that the plan of the node attaches.
pub(super) fn settle(intent: &NodeIntent, observed: &mut Observed) -> PeerPlan {
    for _ in 0..4 {
        let plan = plan_peers(intent, observed);
        if plan.plan.is_empty() {
            return plan;
        }
        run(&plan.plan, observed);
        for name in [V4, V6] {
            if let Some(link) = observed.links.get_mut(&parse::<IfName>(name)) {
                link.hooks.extend(UPLINK_HOOKS);
            }
        }
    }
    panic!("{}", plan_peers(intent, observed).plan);
}

fn entries(observed: &Observed, name: &str) -> Vec<String> {
    let tunnel = &observed.tunnels[&parse::<IfName>(name)];
    tunnel.entries.iter().map(ToString::to_string).collect()
}

fn far() -> Peer {
    peer("far", &["10.3.0.0/24", "fd00:3::/64"], &["203.0.113.3"])
}

#[test]
fn a_tunnel_is_made_down_and_used_when_it_has_the_programs() {
    let mut observed = routed();
    let intent = tunnelled(BetweenNodes::Auto, [far()]);
    let first = plan_peers(&intent, &observed);
    let mac = mac_of(&parse("here"));
    assert_eq!(
        first.plan.to_string().trim(),
        format!("1. create tunnel viaduct.vx over IPv4, VNI 118, UDP port 8118, {mac}, MTU 1450")
    );
    run(&first.plan, &mut observed);
    let again = plan_peers(&intent, &observed);
    assert!(
        again
            .plan
            .steps()
            .iter()
            .all(|step| matches!(step, Step::AddAddress { .. })),
        "{}",
        again.plan
    );
    of(&parse(V4), &mut observed).hooks.extend(UPLINK_HOOKS);
    let second = plan_peers(&intent, &observed);
    let place = |wanted: fn(&Step) -> bool| second.plan.steps().iter().position(wanted);
    let up = place(|step| matches!(step, Step::SetUp { .. }));
    let entries = place(|step| matches!(step, Step::Tunnel(TunnelStep::Change(_))));
    let routes = place(|step| matches!(step, Step::ChangeRoutes(_)));
    assert!(
        up.is_some() && up < entries && entries < routes,
        "{}",
        second.plan
    );
    assert_eq!(states(&second), [PeerState::Unreachable], "no route yet");
    run(&second.plan, &mut observed);
    let third = plan_peers(&intent, &observed);
    assert!(third.plan.is_empty());
    assert_eq!(states(&third), [PeerState::Routed]);
    assert_eq!(third.peers[0].tunnel, Some(parse("203.0.113.3")));
}

#[test]
fn auto_uses_routes_to_neighbours_and_tunnels_to_others() {
    let near = peer(
        "near",
        &["10.2.0.0/24", "fd00:2::/64"],
        &["192.0.2.20", "2001:db8::20"],
    );
    let mut observed = routed();
    let plan = settle(
        &tunnelled(BetweenNodes::Auto, [near.clone(), far()]),
        &mut observed,
    );
    assert_eq!(states(&plan), [PeerState::Routed, PeerState::Routed]);
    assert_eq!(
        routes(&observed),
        [
            "10.2.0.0/24 via 192.0.2.20",
            "10.3.0.0/24 via 10.3.0.0",
            "fd00:2::/64 via 2001:db8::20",
            "fd00:3::/64 via fd00:3::",
        ]
    );
    // Without a peer that needs it, the tunnel goes.
    settle(
        &tunnelled(BetweenNodes::Auto, [near.clone()]),
        &mut observed,
    );
    assert!(observed.tunnels.is_empty());
    assert_eq!(routes(&observed).len(), 2);
    // To a neighbour as well, on request; and back.
    settle(
        &tunnelled(BetweenNodes::Tunnel, [near.clone()]),
        &mut observed,
    );
    assert_eq!(
        routes(&observed),
        ["10.2.0.0/24 via 10.2.0.0", "fd00:2::/64 via fd00:2::"]
    );
    settle(&tunnelled(BetweenNodes::Direct, [near]), &mut observed);
    assert!(observed.tunnels.is_empty());
}

/// Between nodes that have only IPv4, IPv6 travels inside.
#[test]
fn ipv6_prefixes_of_a_neighbour_without_an_ipv6_address_travel_in_ipv4() {
    let mut observed = routed();
    let near = peer("near", &["10.2.0.0/24", "fd00:2::/64"], &["192.0.2.20"]);
    settle(&tunnelled(BetweenNodes::Auto, [near]), &mut observed);
    assert_eq!(
        routes(&observed),
        ["10.2.0.0/24 via 192.0.2.20", "fd00:2::/64 via fd00:2::"]
    );
    let mac = mac_of(&parse("near"));
    assert_eq!(
        entries(&observed, V4),
        [
            format!("neighbour fd00:2:: at {mac}"),
            format!("{mac} to 192.0.2.20")
        ]
    );
}

#[test]
fn peers_with_only_ipv6_addresses_have_a_tunnel_of_their_own() {
    let mut observed = routed();
    let six = peer("six", &["10.4.0.0/24"], &["2001:db8:f::4"]);
    settle(
        &tunnelled(BetweenNodes::Tunnel, [far(), six]),
        &mut observed,
    );
    let mtu = |name: &str| observed.links[&parse::<IfName>(name)].mtu;
    assert_eq!((mtu(V4), mtu(V6)), (1_450, 1_430));
    assert_eq!(entries(&observed, V6).len(), 2);
}

#[test]
fn a_readdressed_peer_changes_one_entry_and_a_lost_one_comes_back() {
    let mut observed = routed();
    settle(&tunnelled(BetweenNodes::Auto, [far()]), &mut observed);
    let moved = peer("far", &["10.3.0.0/24", "fd00:3::/64"], &["203.0.113.33"]);
    let plan = plan_peers(&tunnelled(BetweenNodes::Auto, [moved.clone()]), &observed);
    let mac = mac_of(&parse("far"));
    assert_eq!(
        plan.plan.to_string().trim(),
        format!("1. change tunnels: {mac} to 203.0.113.33 on viaduct.vx")
    );
    let intent = tunnelled(BetweenNodes::Auto, [moved]);
    settle(&intent, &mut observed);
    let before = observed.clone();
    let tunnel = observed.tunnels.get_mut(&parse::<IfName>(V4)).unwrap();
    tunnel.entries.clear();
    of(&parse(V4), &mut observed).mac = Some(Mac([2, 0, 0, 0, 0, 9]));
    of(&parse(V4), &mut observed).up = false;
    settle(&intent, &mut observed);
    assert_eq!(observed, before);
    delete(&parse(V4), &mut observed);
    settle(&intent, &mut observed);
    assert_eq!(observed.tunnels, before.tunnels);
    assert_eq!(routes(&observed), routes(&before));
}

#[test]
fn a_tunnel_follows_the_mtu_of_the_way_and_the_configuration() {
    let mut observed = routed();
    let mut intent = tunnelled(BetweenNodes::Auto, [far()]);
    settle(&intent, &mut observed);
    let mtu = |observed: &Observed| observed.links[&parse::<IfName>(V4)].mtu;
    for route in observed
        .routes
        .iter_mut()
        .filter(|one| one.destination.prefix_len() == 0)
    {
        route.mtu = Some(1_400);
    }
    settle(&intent, &mut observed);
    assert_eq!(mtu(&observed), 1_350);
    of(&parse("eth0"), &mut observed).mtu = 1_300;
    settle(&intent, &mut observed);
    assert_eq!(mtu(&observed), 1_280, "IPv6 needs as much");
    intent.peers.options.tunnel.vni = 7;
    settle(&intent, &mut observed);
    assert_eq!(observed.tunnels[&parse::<IfName>(V4)].vni, 7);
    assert_eq!(routes(&observed).len(), 2);
}

#[test]
fn a_link_of_other_software_with_the_name_stays_and_is_reported() {
    let mut observed = routed();
    observed
        .links
        .insert(parse(V4), link(90, LinkKind::Ethernet, &[]));
    let plan = plan_peers(&tunnelled(BetweenNodes::Auto, [far()]), &observed);
    assert!(plan.plan.is_empty(), "{}", plan.plan);
    assert_eq!(states(&plan), [PeerState::Unreachable]);
    assert_eq!(
        problems(&plan),
        ["link viaduct.vx is not Viaduct's: there is no tunnel until it has another name"]
    );
}

#[test]
fn a_peer_without_a_route_and_another_own_name_are_reported() {
    let lost = peer("lost", &["10.5.0.0/24", "fd00:5::/64"], &["198.51.100.5"]);
    let own = peer("this", &["10.1.0.0/24"], &["192.0.2.10"]);
    let mut alone = connected();
    alone
        .routes
        .retain(|route| route.destination.prefix_len() > 0);
    let plan = plan_peers(&tunnelled(BetweenNodes::Auto, [lost]), &alone);
    assert_eq!(
        problems(&plan),
        ["this node has no route to any address of peer lost"]
    );
    let plan = plan_peers(&tunnelled(BetweenNodes::Auto, [own, far()]), &routed());
    assert_eq!(
        problems(&plan),
        [
            "this node is this in the list of peers, and here by --node-name: tunnels of other nodes do not reach it"
        ]
    );
}

#[test]
fn without_a_list_the_tables_of_a_tunnel_stay() {
    let mut observed = routed();
    let intent = tunnelled(BetweenNodes::Auto, [far()]);
    settle(&intent, &mut observed);
    let tables = crate::peers::tunnel_tables(&intent, &observed);
    observed.entries.extend(tables.entries());
    let mut unknown = intent.clone();
    unknown.peers.peers = None;
    assert!(plan_peers(&unknown, &observed).plan.is_empty());
    let kept = crate::peers::tunnel_tables(&unknown, &observed);
    assert_eq!((kept.port, kept.addresses), (tables.port, tables.addresses));
}

#[test]
fn names_of_five_thousand_nodes_have_different_mac_addresses() {
    let macs: BTreeSet<Mac> = (0..5_000)
        .map(|number| mac_of(&parse(&format!("node-{number}.example.org"))))
        .collect();
    assert_eq!(macs.len(), 5_000);
    assert!(
        macs.iter().all(|mac| mac.0[0] & 3 == 2),
        "locally administered, no group"
    );
    assert_eq!(mac_of(&parse("Node-1")), mac_of(&parse("node-1")));
}

proptest! {
    /// Whatever the lists and modes are: each converges, every route through a tunnel has a
    /// neighbour and a forwarding entry to an address of the peer, and no other entries are left.
    #[test]
    fn tunnels_follow_any_sequence_of_lists(
        lists in prop::collection::vec((peers(), any::<bool>()), 1..4),
    ) {
        let mut observed = routed();
        for (list, all) in lists {
            let mode = if all { BetweenNodes::Tunnel } else { BetweenNodes::Auto };
            let plan = settle(&tunnelled(mode, list.clone()), &mut observed);
            let by_index = observed.links.iter().map(|(name, link)| (link.index, name.clone()));
            let names: std::collections::BTreeMap<u32, IfName> = by_index.collect();
            let mut used = BTreeSet::new();
            for route in observed.routes.iter().filter(|one| one.protocol == 118) {
                let Some(tunnel) = observed.tunnels.get(&names[&route.link]) else {
                    continue;
                };
                let gateway = route.gateway.unwrap();
                // Of peers with one prefix, one has the route.
                let owner = list.iter().find(|one| {
                    let mac = mac_of(one.name());
                    let leads_there = |entry: &TunnelEntry| matches!(entry,
                        TunnelEntry::Forwarding { mac: of, remote }
                            if *of == mac && one.addresses().contains(remote));
                    one.prefixes().contains(&route.destination)
                        && tunnel.entries.contains(&TunnelEntry::Neighbour { gateway, mac })
                        && tunnel.entries.iter().any(leads_there)
                });
                prop_assert!(owner.is_some(), "{:?}", route);
                let mac = mac_of(owner.unwrap().name());
                used.insert(TunnelEntry::Neighbour { gateway, mac });
            }
            let present: BTreeSet<TunnelEntry> = observed.tunnels.values()
                .flat_map(|tunnel| tunnel.entries.iter().cloned())
                .filter(|entry| matches!(entry, TunnelEntry::Neighbour { .. }))
                .collect();
            prop_assert_eq!(used, present);
            prop_assert!(plan.peers.iter().all(|one| one.state != PeerState::Unreachable
                || !plan.problems.is_empty()));
        }
    }
}
