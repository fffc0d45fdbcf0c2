//! Tests of the MTU of bridges that networks of different MTUs share (decision 90).

use super::*;

/// Returns an intent of two networks on one bridge, with these MTUs.
fn shared_bridge(mtus: [u32; 2]) -> NodeIntent {
    let mut intent = node_intent();
    let mut networks = [
        network_of("a", "cbr0", &["10.1.0.0/24"]),
        network_of("b", "cbr0", &["10.2.0.0/24"]),
    ];
    for (network, mtu) in networks.iter_mut().zip(mtus) {
        network.mtu = Some(mtu);
    }
    intent.networks = networks.into();
    intent
}

/// Returns a node on which the bridge was created for the first of the two networks.
fn node_of_first(intent: &NodeIntent, mtu: u32) -> Observed {
    let mut observed = node();
    let bridge = observed.links.get_mut(&parse("cbr0")).unwrap();
    let owner = &intent.networks[0];
    bridge.alias = Some(crate::bridge_alias(&owner.name));
    bridge.mac = Some(owner.bridge_mac());
    bridge.mtu = mtu;
    observed
}

fn changes(plan: &str) -> Vec<&str> {
    let lines = plan.lines();
    lines.filter(|line| line.contains("set the MTU")).collect()
}

#[test]
fn a_bridge_has_the_smallest_mtu_of_the_networks_on_it() {
    for mtus in [[1500, 1400], [1400, 1500]] {
        let intent = shared_bridge(mtus);
        let text = plan(&intent, &bare_node()).plan.to_string();
        assert!(text.contains("MTU 1400, alias"), "{text}");
        assert_eq!(changes(&text), Vec::<&str>::new());

        let text = plan(&intent, &node_of_first(&intent, 1500))
            .plan
            .to_string();
        assert_eq!(changes(&text).len(), 1, "{text}");
        assert!(text.contains("set the MTU of cbr0 to 1400"), "{text}");

        let text = plan(&intent, &node_of_first(&intent, 1400))
            .plan
            .to_string();
        assert_eq!(changes(&text), Vec::<&str>::new());
    }
}

#[test]
fn a_network_without_a_gateway_does_not_reduce_the_mtu_of_a_bridge() {
    let mut intent = shared_bridge([1500, 1400]);
    intent.networks[1].options.gateway = false;
    let text = plan(&intent, &node_of_first(&intent, 1500))
        .plan
        .to_string();
    assert_eq!(changes(&text), Vec::<&str>::new(), "{text}");
}
