//! Tests of kubenet's MTU rule (behaviour K1).

use steps::LinkKind;

use crate::network_mtu;
use crate::testing::{bare_node, link, network, node, parse};

#[test]
fn a_configured_mtu_wins() {
    let mut network = network();
    network.mtu = Some(9000);
    assert_eq!(network_mtu(&network, &bare_node()), 9000);
}

#[test]
fn the_smallest_mtu_of_links_that_are_up_is_used() {
    let mut observed = bare_node();
    let mut add = |name: &str, mtu: u32| {
        let mut link = link(10, LinkKind::Ethernet, &[]);
        link.mtu = mtu;
        observed.links.insert(parse(name), link);
    };
    add("eth1", 1400);
    add("down", 1300);
    add("ptp", 1200);
    observed.links.get_mut(&parse("down")).unwrap().up = false;
    observed
        .links
        .get_mut(&parse("ptp"))
        .unwrap()
        .point_to_point = true;
    assert_eq!(network_mtu(&network(), &observed), 1400);
}

#[test]
fn the_mtu_is_1460_without_a_link_or_with_one_out_of_range() {
    let mut observed = bare_node();
    for (mtu, expected) in [(575, 1460), (576, 576), (999_998, 999_998), (999_999, 1460)] {
        observed.links.get_mut(&parse("eth0")).unwrap().mtu = mtu;
        assert_eq!(network_mtu(&network(), &observed), expected, "{mtu}");
    }
    observed.links.remove(&parse("eth0"));
    assert_eq!(
        network_mtu(&network(), &observed),
        1460,
        "lo does not count"
    );
}

/// A deviation from kubenet, on purpose: otherwise the smallest value ever seen would stay for
/// ever.
#[test]
fn our_bridges_and_their_ports_do_not_count_for_the_mtu() {
    let mut observed = node();
    observed.links.get_mut(&parse("cbr0")).unwrap().mtu = 1280;
    let mut port = link(10, LinkKind::Veth, &[]);
    port.mtu = 1280;
    port.controller = Some(3);
    observed.links.insert(parse("veth00000000"), port);
    assert_eq!(network_mtu(&network(), &observed), 1500);
    let mut elsewhere = link(11, LinkKind::Veth, &[]);
    elsewhere.mtu = 1280;
    elsewhere.hooks = crate::hooks::POD_HOOKS.into();
    observed.links.insert(parse("veth00000001"), elsewhere);
    assert_eq!(network_mtu(&network(), &observed), 1500);
}
