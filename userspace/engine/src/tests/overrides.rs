//! Overrides at run time: pod CIDRs, hairpin mode and non-masquerade CIDRs.

use kernel::fake::Errno;
use steps::Step;

use super::*;
use crate::UpdateOutcome;

fn ranges(cidrs: &[&str]) -> Vec<RangeSet> {
    let set = |cidr: &&str| RangeSet::of_cidr(cidr.parse().unwrap()).unwrap();
    cidrs.iter().map(set).collect()
}

impl Node {
    fn set_cidrs(&mut self, cidrs: &[&str]) -> Result<UpdateOutcome, EngineError> {
        let chosen = self.engine().set_pod_cidrs(ranges(cidrs));
        self.default_network_now();
        chosen
    }

    /// Returns the current default network of the engine.
    fn default_network_now(&mut self) -> Network {
        self.engine().status().networks[0].network.clone()
    }

    fn bridge_addresses(&self) -> Vec<String> {
        let links = self.fake.snapshot().links;
        let bridge = links.get(&self.default_network.bridge);
        let mut texts: Vec<String> = bridge
            .map(|bridge| bridge.addresses.clone())
            .unwrap_or_default()
            .iter()
            .map(ToString::to_string)
            .filter(|text| !text.starts_with("fe80:"))
            .collect();
        texts.sort();
        texts
    }

    fn add_now(&mut self, container: &str) -> Attachment {
        let network = self.default_network_now();
        let intent = self.intent_on(&network, container);
        self.add(&intent).unwrap()
    }
}

fn without_cidrs() -> Node {
    Node::with(network("default", "cbr0", &[]))
}

/// behaviour K11: the first event wins.
#[test]
fn the_first_pod_cidrs_are_accepted_and_later_ones_refused_while_pods_use_them() {
    let mut node = without_cidrs();
    assert_eq!(
        node.set_cidrs(&["10.1.0.0/24", "fd00:1::/64"]).unwrap(),
        UpdateOutcome::Updated
    );
    assert_eq!(node.bridge_addresses(), ["10.1.0.1/24", "fd00:1::1/64"]);
    node.add_now("c1");
    assert_eq!(
        node.set_cidrs(&["10.1.0.0/24", "fd00:1::/64"]).unwrap(),
        UpdateOutcome::Unchanged
    );
    let error = node.set_cidrs(&["10.9.0.0/24"]).unwrap_err().to_string();
    assert_eq!(
        error,
        "Ignoring subsequent pod CIDR update to 10.9.0.0/24: pods have addresses of 10.1.0.0/24,fd00:1::/64"
    );
    assert_eq!(node.bridge_addresses(), ["10.1.0.1/24", "fd00:1::1/64"]);
}

/// behaviour K15: the old gateway addresses are removed, foreign addresses stay.
#[test]
fn unused_pod_cidrs_are_replaced_with_their_gateways() {
    let mut node = without_cidrs();
    node.set_cidrs(&["10.1.0.0/24", "fd00:1::/64"]).unwrap();
    node.fake.add_address("cbr0", "172.30.0.1/24");
    assert_eq!(
        node.set_cidrs(&["10.9.0.0/24"]).unwrap(),
        UpdateOutcome::Updated
    );
    assert_eq!(node.bridge_addresses(), ["10.9.0.1/24", "172.30.0.1/24"]);
    let pod = node.add_now("c1");
    assert_eq!(pod.addresses[0].address, "10.9.0.2/24".parse().unwrap());
}

/// The intent of a queued ADD has the network of the time of its request.
#[test]
fn an_add_queued_before_a_pod_cidr_change_gets_an_address_of_the_new_cidr() {
    let mut node = without_cidrs();
    node.set_cidrs(&["10.1.0.0/24"]).unwrap();
    let before = node.default_network_now();
    let queued = node.intent_on(&before, "c1");
    node.set_cidrs(&["10.9.0.0/24"]).unwrap();
    let pod = node.add(&queued).unwrap();
    assert_eq!(pod.addresses[0].address, "10.9.0.2/24".parse().unwrap());
    assert_eq!(node.default_network_now().ranges, ranges(&["10.9.0.0/24"]));
}

#[test]
fn pod_cidrs_that_cannot_be_set_up_change_nothing() {
    let mut node = without_cidrs();
    node.set_cidrs(&["10.1.0.0/24"]).unwrap();
    let before = (node.default_network_now(), node.traces());
    node.fake.fail_next(
        |step| matches!(step, Step::RemoveAddress { .. }),
        Errno::EIO,
    );
    node.set_cidrs(&["10.9.0.0/24"]).unwrap_err();
    assert_eq!((node.default_network_now(), node.traces()), before);
}

#[test]
fn pod_cidrs_of_another_network_are_refused() {
    let mut node = without_cidrs();
    let own = network("own", "br1", &["10.2.0.0/24"]);
    let intent = node.intent_on(&own, "c1");
    node.add(&intent).unwrap();
    let error = node.set_cidrs(&["10.2.0.0/16"]).unwrap_err();
    assert!(matches!(error, EngineError::Clash(_)), "{error}");
}

#[test]
fn overrides_survive_a_restart_until_the_configuration_changes() {
    let mut node = without_cidrs();
    node.set_cidrs(&["10.1.0.0/24"]).unwrap();
    node.engine()
        .set_hairpin_mode(HairpinMode::None, NOW)
        .unwrap();
    node.restart();
    let now = node.default_network_now();
    assert_eq!(now.ranges, ranges(&["10.1.0.0/24"]));
    assert_eq!(now.hairpin, HairpinMode::None);

    node.default_network = network("default", "cbr0", &["10.7.0.0/24"]);
    node.default_network.hairpin = HairpinMode::PromiscuousBridge;
    node.restart();
    let now = node.default_network_now();
    assert_eq!(now, node.default_network);
    assert_eq!(node.bridge_addresses(), ["10.7.0.1/24"]);
}

/// behaviours K19, K20.
#[test]
fn ports_and_bridge_follow_the_hairpin_mode() {
    let mut node = Node::start();
    let attachment = node.add_now("c1");
    let seen = |node: &Node| {
        let links = node.fake.snapshot().links;
        let port = &links[attachment.host_link().name()];
        let bridge = &links[&node.default_network.bridge];
        (port.hairpin, bridge.promiscuous)
    };
    let modes = [
        (HairpinMode::PromiscuousBridge, (false, true)),
        (HairpinMode::None, (false, false)),
        (HairpinMode::HairpinVeth, (true, false)),
    ];
    for (mode, expected) in modes {
        node.engine().set_hairpin_mode(mode, NOW).unwrap();
        assert_eq!(seen(&node), expected, "{mode}");
        node.engine().check(&attachment.key).unwrap();
    }
}

#[test]
fn non_masquerade_overrides_survive_a_restart_until_the_configuration_changes() {
    let set = |prefixes: &[&str]| -> BTreeSet<Cidr> {
        prefixes
            .iter()
            .map(|prefix| prefix.parse().unwrap())
            .collect()
    };
    let mut node = Node::start();
    let overrides = [set(&["10.0.0.0/8", "fd00::/8"]), set(&[])];
    for chosen in overrides {
        node.engine().set_non_masquerade(chosen.clone()).unwrap();
        node.restart();
        assert_eq!(node.engine().choices.settings.non_masquerade, chosen);
    }
    node.engine()
        .set_non_masquerade(set(&["10.0.0.0/8"]))
        .unwrap();
    node.non_masquerade = set(&["172.16.0.0/12"]);
    node.restart();
    assert_eq!(
        node.engine().choices.settings.non_masquerade,
        set(&["172.16.0.0/12"])
    );
}

#[test]
fn non_masquerade_cidrs_that_fail_in_the_kernel_are_not_stored() {
    let mut node = Node::start();
    node.fake
        .fail_next(|step| matches!(step, Step::PutEntry { .. }), Errno::EIO);
    let prefixes = BTreeSet::from(["10.0.0.0/8".parse().unwrap()]);
    node.engine().set_non_masquerade(prefixes).unwrap_err();
    node.restart();
    assert!(node.engine().choices.settings.non_masquerade.is_empty());
}
