//! Tests of the gateways of several networks on one bridge, and of its VLANs.

use model::is_link_local;

use super::*;

/// Several networks on one bridge: the order of planning must not matter, and their gateways do not
/// conflict.
#[test]
fn gateways_of_several_networks_share_a_bridge() {
    let networks = [
        network_of("net", "cbr0", &["10.1.0.0/24"]),
        network_of("other", "cbr0", &["10.2.0.0/24", "fd00:2::/64"]),
    ];
    for order in [[0, 1], [1, 0]] {
        let intent = NodeIntent {
            networks: order.map(|index| networks[index].clone()).into(),
            ..NodeIntent::default()
        };
        let node = plan_node(&intent, &bare_node(), &Records::new());
        assert_eq!(node.refused, BTreeMap::new());
        let mut gateways: Vec<String> = (node.plan.steps().iter())
            .filter_map(Step::added_address)
            .filter(|(_, own)| !is_link_local(own.address))
            .map(|(_, own)| own.to_string())
            .collect();
        gateways.sort();
        assert_eq!(gateways, ["10.1.0.1/24", "10.2.0.1/24", "fd00:2::1/64"]);
    }
}

/// Two networks, two VLANs, one bridge.
#[test]
fn each_vlan_of_a_bridge_has_its_own_gateway() {
    let networks = [(5, "10.1.0.0/24"), (7, "10.2.0.0/24")].map(|(number, cidr)| {
        let mut network = network_of(&format!("net{number}"), "cbr0", &[cidr]);
        network.options.port.vlans.access = model::VlanId::new(number);
        network
    });
    let intent = NodeIntent {
        networks: networks.into(),
        ..NodeIntent::default()
    };
    let node = plan_node(&intent, &bare_node(), &Records::new());
    assert_eq!(node.refused, BTreeMap::new());
    let gateways: Vec<String> = node
        .plan
        .steps()
        .iter()
        .filter_map(|step| step.added_address())
        .map(|(link, own)| format!("{own} on {link}"))
        .collect();
    // The VLAN interfaces have the MAC address of the bridge.
    let own = "fe80::3:e0ff:fe5f:473a/64";
    let link_local = |link| format!("{own} on {link}");
    let expected = [
        link_local("cbr0"),
        "10.1.0.1/24 on cbr0.5".to_owned(),
        link_local("cbr0.5"),
        "10.2.0.1/24 on cbr0.7".to_owned(),
        link_local("cbr0.7"),
    ];
    assert_eq!(gateways, expected);
}
