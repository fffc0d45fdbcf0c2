//! Tests of ADD plans and refusals.

use std::net::Ipv4Addr;

use insta::assert_snapshot;
use model::{HairpinMode, Mac, PodName, Range, RangeSet, Route, RouteOptions, State};
use steps::LinkKind;

use super::pod_spec;
use crate::testing::{World, attachment, empty_netns, intent, link, node, parse, pod, port, seen};
use crate::{Category, Refusal, plan_attach};

fn refusal(intent: &model::Intent, observed: &steps::ObservedNetns, world: &World) -> Refusal {
    plan_attach(intent, observed, &world.context()).unwrap_err()
}

/// Ports are reserved before anything else, tables are written before programs, programs are
/// attached before the pod's first packet, and ports are published last.
#[test]
fn attach_reserves_ports_first_and_publishes_them_last() {
    let mut request = intent("c1");
    request.port_mappings = vec![port("8080->80/tcp"), port("192.0.2.10@53->5353/udp")];
    request.pod = Some(PodName {
        namespace: "default".to_owned(),
        name: "web".to_owned(),
    });
    let (_, plan) =
        plan_attach(&request, &empty_netns(&node()), &World::empty().context()).unwrap();
    assert_snapshot!(plan, @r#"
     1. reserve port 0.0.0.0:8080/tcp
     2. reserve port 192.0.2.10:53/udp
     3. reserve port [::]:8080/tcp
     4. make veth vethb2b0ff9d (02:07:e2:2e:0d:5f, alias "net default/web eth0") with eth0 (02:5a:e2:fa:81:8a) in /run/netns/a, MTU 1500
     5. write pod 7: 10.1.0.2, fd00:1::2, 02:5a:e2:fa:81:8a behind vethb2b0ff9d on cbr0, generation 40, masqueraded
     6. write interface vethb2b0ff9d: pod 7
     7. write endpoint 10.1.0.2: pod 7 generation 40, 02:5a:e2:fa:81:8a behind vethb2b0ff9d, masqueraded, published
     8. write endpoint fd00:1::2: pod 7 generation 40, 02:5a:e2:fa:81:8a behind vethb2b0ff9d, masqueraded, published
     9. attach from_pod, to_pod to vethb2b0ff9d
    10. set up eth0 in /run/netns/a: 10.1.0.2/24, fd00:1::2/64; 0.0.0.0/0 via 10.1.0.1; ::/0 via fd00:1::1
    11. make vethb2b0ff9d a port of cbr0 with hairpin, up
    12. write hostport [::]:8080/tcp: [fd00:1::2]:80 of pod 7 generation 40
    13. write hostport 0.0.0.0:8080/tcp: 10.1.0.2:80 of pod 7 generation 40
    14. write hostport 192.0.2.10:53/udp: 10.1.0.2:5353 of pod 7 generation 40
    "#);
}

/// behaviour K24.
#[test]
fn addresses_are_ordered_ipv4_first_regardless_of_the_range_sets() {
    let mut request = intent("c1");
    request.network.ranges.reverse();
    let addresses = attachment(&request).addresses;
    let families: Vec<bool> = addresses
        .iter()
        .map(|a| a.address.address.is_ipv4())
        .collect();
    assert_eq!(families, [true, false]);
}

/// behaviour K13.
#[test]
fn a_pod_gets_a_default_route_per_family_where_the_network_configures_it() {
    let mut request = intent("c1");
    let routes = |request: &model::Intent| -> Vec<String> {
        let routes = attachment(request).routes;
        routes
            .iter()
            .map(|r| format!("{} {}", r.destination, r.gateway.unwrap()))
            .collect()
    };
    assert_eq!(routes(&request), ["0.0.0.0/0 10.1.0.1", "::/0 fd00:1::1"]);
    // Another network of the pod is the default of its family (behaviour C14).
    request.requested.default_gateways = vec![parse("10.8.0.1")];
    assert_eq!(routes(&request), ["::/0 fd00:1::1"]);
    request.requested.default_gateways.clear();
    request.network.ranges.remove(0);
    assert_eq!(routes(&request), ["::/0 fd00:1::1"]);
    request.network.default_route = false;
    assert!(routes(&request).is_empty());
}

/// behaviour R8: the kernel crate sets routes with a gateway on-link, so the gateway need not be in
/// the subnet.
#[test]
fn a_default_route_leads_to_a_gateway_outside_of_the_subnet() {
    let mut request = intent("c1");
    let subnet = parse("10.1.0.0/24");
    let range = Range::new(subnet, None, None, Some(parse("10.8.0.1"))).unwrap();
    request.network.ranges = vec![RangeSet::new(vec![range]).unwrap()];
    let attachment = attachment(&request);
    assert_eq!(attachment.addresses[0].address, parse("10.1.0.1/24"));
    assert_eq!(attachment.routes.len(), 1);
    assert_eq!(attachment.routes[0].destination, parse("0.0.0.0/0"));
    assert_eq!(attachment.routes[0].gateway, Some(parse("10.8.0.1")));
}

#[test]
fn a_configured_route_uses_its_own_gateway_or_that_of_its_family() {
    let route = |destination: &str, gateway: Option<&str>| Route {
        destination: parse(destination),
        gateway: gateway.map(parse),
        options: RouteOptions::default(),
    };
    let mut request = intent("c1");
    request.network.ranges.truncate(1);
    request.network.default_route = false;
    request.network.routes = vec![
        route("172.16.0.0/12", None),
        route("172.31.0.0/16", Some("10.1.0.9")),
        route("::/0", None),
    ];
    let expected = [
        route("172.16.0.0/12", Some("10.1.0.1")),
        route("172.31.0.0/16", Some("10.1.0.9")),
    ];
    assert_eq!(
        attachment(&request).routes,
        expected,
        "no IPv6 address, so no IPv6 route"
    );
}

/// behaviour F16: routes to one destination are different where metric or table differ; the
/// kernel's defaults are left out.
#[test]
fn routes_differ_by_metric_and_table_and_link_scope_routes_have_no_gateway() {
    let route = |destination: &str, options: RouteOptions| Route {
        destination: parse(destination),
        gateway: None,
        options,
    };
    let usual = RouteOptions::default();
    let far = RouteOptions {
        priority: Some(100),
        ..usual
    };
    let other = RouteOptions {
        table: Some(77),
        ..usual
    };
    let direct = RouteOptions {
        scope: Some(RouteOptions::SCOPE_LINK),
        ..usual
    };
    let by_itself = RouteOptions {
        priority: Some(1024),
        table: Some(RouteOptions::MAIN),
        scope: Some(0),
        ..usual
    };
    let mut request = intent("c1");
    request.network.default_route = false;
    request.network.routes = vec![
        route("10.7.0.0/16", usual),
        route("10.7.0.0/16", far),
        route("10.7.0.0/16", other),
        route("10.7.0.0/16", usual),
        route("10.8.0.0/16", direct),
        route("fd07::/16", by_itself),
    ];
    let routes = attachment(&request).routes;
    let found: Vec<_> = routes
        .iter()
        .map(|route| (route.gateway.map(|own| own.to_string()), route.options))
        .collect();
    let v4 = || Some("10.1.0.1".to_owned());
    let v6 = Some("fd00:1::1".to_owned());
    assert_eq!(
        found,
        [
            (v4(), usual),
            (v4(), far),
            (v4(), other),
            (None, usual),
            (v6, usual)
        ]
    );
}

/// As with the bridge plugin: a configured default route counts only with a gateway.
#[test]
fn is_default_gateway_adds_a_default_route_unless_one_with_a_gateway_is_configured() {
    let default = |gateway: Option<&str>, priority| Route {
        destination: parse("0.0.0.0/0"),
        gateway: gateway.map(parse),
        options: RouteOptions {
            priority,
            ..RouteOptions::default()
        },
    };
    let mut request = intent("c1");
    request.network.ranges.truncate(1);
    let mut routes_with = |route: Route| {
        request.network.routes = vec![route];
        attachment(&request).routes
    };
    let by_bridge = default(Some("10.1.0.1"), None);
    assert_eq!(routes_with(default(None, None)), [by_bridge]);
    let other = default(Some("10.1.0.9"), Some(5));
    assert_eq!(routes_with(other), [other]);
    let backup = default(Some("10.1.0.1"), Some(5));
    assert_eq!(routes_with(default(None, Some(5))), [backup, by_bridge]);
}

/// behaviour C14: one container, several networks.
#[test]
fn a_second_attachment_in_a_namespace_gets_no_implicit_default_route() {
    let world = World::with(&attachment(&intent("c1")));
    let mut second = intent("c1");
    second.key.ifname = parse("net1");
    let routes = |request: &model::Intent| {
        let (attachment, _) =
            plan_attach(request, &empty_netns(&node()), &world.context()).unwrap();
        attachment.routes.len()
    };
    assert_eq!(routes(&second), 0);
    second.network.routes = vec![Route {
        destination: parse("172.16.0.0/12"),
        gateway: None,
        options: RouteOptions::default(),
    }];
    assert_eq!(routes(&second), 1);
}

#[test]
fn of_two_equal_routes_the_first_wins() {
    let route = |gateway: Option<&str>| Route {
        destination: parse("172.16.0.0/12"),
        gateway: gateway.map(parse),
        options: RouteOptions::default(),
    };
    let mut request = intent("c1");
    request.network.default_route = false;
    request.network.routes = vec![route(Some("10.1.0.9")), route(None)];
    assert_eq!(attachment(&request).routes, [route(Some("10.1.0.9"))]);
}

#[test]
fn many_routes_keep_their_order_without_duplicates() {
    let route = |number: u32| {
        let destination = Ipv4Addr::from_bits(0xac10_0000 + number % 10_000);
        Route {
            destination: model::Cidr::containing(destination.into(), 32).unwrap(),
            gateway: Some(parse("10.1.0.9")),
            options: RouteOptions::default(),
        }
    };
    let mut request = intent("c1");
    request.network.default_route = false;
    request.network.routes = (0..20_000).rev().map(route).collect();
    let expected = &request.network.routes[..10_000];
    assert_eq!(attachment(&request).routes, expected);
}

#[test]
fn only_hairpin_mode_hairpin_veth_sets_the_hairpin_flag_of_the_port() {
    let mut request = intent("c1");
    assert!(attachment(&request).hairpin);
    for mode in [HairpinMode::PromiscuousBridge, HairpinMode::None] {
        request.network.hairpin = mode;
        assert!(!attachment(&request).hairpin);
    }
}

#[test]
fn a_pod_with_an_egress_limit_may_send_large_segments() {
    let large = |request: &model::Intent| pod_spec(&attachment(request), false).large_packets;
    let limit = model::Limit {
        rate: parse("1000000"),
        burst: None,
    };
    let mut request = intent("c1");
    request.bandwidth.ingress = Some(limit);
    assert!(!large(&request));
    request.bandwidth.egress = Some(limit);
    assert!(large(&request));
}

/// behaviour S10.
#[test]
fn a_second_add_is_refused_in_any_state_of_the_first_attachment() {
    let first = attachment(&intent("c1"));
    for state in [State::Pending, State::Attached, State::Removing] {
        let mut world = World::empty();
        world.remember(&first, state);
        let refusal = refusal(&intent("c1"), &empty_netns(&node()), &world);
        assert_eq!(refusal.to_string(), "net/c1/eth0 is attached already");
        assert_eq!(refusal.category(), Category::Conflict);
    }
}

/// behaviour S10.
#[test]
fn an_interface_that_exists_in_the_pod_is_refused() {
    let mut observed = empty_netns(&node());
    observed.inside.as_mut().unwrap().pod = Some(pod(&attachment(&intent("c1"))));
    let refusal = refusal(&intent("c1"), &observed, &World::empty());
    assert_eq!(
        refusal.to_string(),
        "interface eth0 already exists in network namespace /run/netns/a"
    );
}

#[test]
fn a_missing_network_namespace_is_refused() {
    let mut observed = empty_netns(&node());
    observed.inside = None;
    let refusal = refusal(&intent("c1"), &observed, &World::empty());
    assert_eq!(
        refusal.to_string(),
        "there is no network namespace at /run/netns/a"
    );
    assert_eq!(refusal.category(), Category::InvalidEnvironment);
}

/// behaviour R4.
#[test]
fn a_missing_bridge_or_a_link_of_another_kind_is_refused() {
    let mut observed = empty_netns(&node());
    observed
        .links
        .insert(parse("cbr0"), link(3, LinkKind::Ethernet, &[]).link);
    let not_a_bridge = refusal(&intent("c1"), &observed, &World::empty());
    assert_eq!(
        not_a_bridge.to_string(),
        "\"cbr0\" already exists but is not a bridge"
    );
    observed.links.remove(&parse("cbr0"));
    let missing = refusal(&intent("c1"), &observed, &World::empty());
    assert_eq!(missing.category(), Category::Unavailable);
}

#[test]
fn a_foreign_link_with_our_name_is_never_changed() {
    let name = attachment(&intent("c1")).host_link();
    let mut observed = empty_netns(&node());
    observed
        .links
        .insert(name.name().clone(), link(9, LinkKind::Veth, &[]).link);
    let refusal = refusal(&intent("c1"), &observed, &World::empty());
    assert_eq!(
        refusal.to_string(),
        format!("{name} already exists on the host and is not ours")
    );
}

#[test]
fn a_veth_left_by_an_earlier_add_is_deleted_first() {
    let observed = empty_netns(&seen(&attachment(&intent("c1"))));
    let (_, plan) = plan_attach(&intent("c1"), &observed, &World::empty().context()).unwrap();
    assert_snapshot!(plan.steps()[0], @r#"delete veth vethb2b0ff9d if its alias is "net c1 eth0""#);
    assert_snapshot!(plan.steps()[1], @r#"make veth vethb2b0ff9d (02:07:e2:2e:0d:5f, alias "net c1 eth0") with eth0 (02:5a:e2:fa:81:8a) in /run/netns/a, MTU 1500"#);
}

#[test]
fn a_host_port_belongs_to_one_pod() {
    let mut first = intent("c1");
    first.port_mappings = vec![port("8080->80/tcp")];
    let world = World::with(&attachment(&first));
    let mut second = intent("c2");
    second.port_mappings = vec![port("8080->8080/tcp")];
    let refusal = refusal(&second, &empty_netns(&node()), &world);
    assert_eq!(
        refusal.to_string(),
        "host port 8080/tcp is in use by container net/c1/eth0"
    );
    second.port_mappings = vec![port("8080->80/udp"), port("8081->80/tcp")];
    assert!(plan_attach(&second, &empty_netns(&node()), &world.context()).is_ok());
}

/// The datapath looks up the exact address first, then the wildcard.
#[test]
fn a_wildcard_and_a_specific_address_of_one_hostport_may_have_different_owners() {
    let mut first = intent("c1");
    first.port_mappings = vec![port("8080->80/tcp")];
    let world = World::with(&attachment(&first));
    let mut second = intent("c2");
    second.port_mappings = vec![port("192.0.2.10@8080->80/tcp")];
    assert!(plan_attach(&second, &empty_netns(&node()), &world.context()).is_ok());
    second.port_mappings = vec![port("0.0.0.0@8080->80/tcp")];
    assert!(
        plan_attach(&second, &empty_netns(&node()), &world.context()).is_err(),
        "the unspecified address is the wildcard of its family"
    );
}

/// behaviour R12.
#[test]
fn a_repeated_port_mapping_counts_once_and_a_conflicting_one_is_refused() {
    let mut request = intent("c1");
    request.port_mappings = vec![port("8080->80/tcp"), port("8080->80/tcp")];
    assert_eq!(attachment(&request).port_mappings.len(), 1);
    request.port_mappings = vec![port("8080->80/tcp"), port("8080->81/tcp")];
    let refusal = refusal(&request, &empty_netns(&node()), &World::empty());
    assert_eq!(
        refusal.to_string(),
        "host port 8080->81/tcp conflicts with 8080->80/tcp of the same request"
    );
    assert_eq!(refusal.category(), Category::InvalidConfig);
}

/// behaviour R13: skipped silently.
#[test]
fn a_port_mapping_of_a_family_that_the_pod_lacks_is_skipped() {
    let mut request = intent("c1");
    request.network.ranges.truncate(1);
    request.port_mappings = vec![port("2001:db8::10@8080->80/tcp")];
    let (_, plan) =
        plan_attach(&request, &empty_netns(&node()), &World::empty().context()).unwrap();
    assert!(!plan.steps().iter().any(steps::Step::publishes));
}

#[test]
fn a_requested_mac_address_is_used_unless_it_is_multicast_or_zero() {
    let mut request = intent("c1");
    request.requested.mac = Some(parse("0a:00:00:00:00:01"));
    assert_eq!(attachment(&request).mac, Mac([0x0a, 0, 0, 0, 0, 1]));
    for bad in ["01:00:5e:00:00:01", "00:00:00:00:00:00"] {
        request.requested.mac = Some(parse(bad));
        let refusal = refusal(&request, &empty_netns(&node()), &World::empty());
        assert_eq!(refusal, Refusal::UnusableMac { mac: parse(bad) });
    }
}
