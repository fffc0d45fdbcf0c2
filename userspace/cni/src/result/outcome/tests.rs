//! Tests of ADD results and errors: the JSON of every version, as a runtime parses it.

use model::{AttachmentKey, Netns};

use super::*;

fn dual_stack() -> Attachment {
    let assigned = |address: &str, gateway: &str| Assigned {
        address: address.parse().unwrap(),
        gateway: Some(gateway.parse().unwrap()),
    };
    let route = |destination: &str, gateway: &str| Route {
        destination: destination.parse().unwrap(),
        gateway: Some(gateway.parse().unwrap()),
        options: model::RouteOptions::default(),
    };
    Attachment {
        key: AttachmentKey {
            network: "net".parse().unwrap(),
            container_id: "c1".parse().unwrap(),
            ifname: "eth0".parse().unwrap(),
        },
        netns: Netns {
            path: "/run/netns/c1".parse().unwrap(),
            device: 4,
            inode: 4_026_532_000,
        },
        pod: None,
        bridge: "cbr0".parse().unwrap(),
        mac: "02:00:00:00:00:07".parse().unwrap(),
        mtu: 1450,
        addresses: vec![
            assigned("10.244.0.2/24", "10.244.0.1"),
            assigned("fd00::2/64", "fd00::1"),
        ],
        routes: vec![route("0.0.0.0/0", "10.244.0.1"), route("::/0", "fd00::1")],
        port_mappings: Vec::new(),
        standby: BTreeSet::new(),
        bandwidth: model::Bandwidth::default(),
        masquerade: true,
        hairpin: true,
        port: model::PortOptions::default(),
        adopted: None,
        slot: 1,
        generation: 1,
    }
}

fn json(attachment: &Attachment, dns: &Dns, version: Version) -> String {
    let outcome = Outcome {
        attachment,
        vlan_link: None,
        bridge_mac: Some(Mac([2, 0, 0, 0, 0, 1])),
        dns,
        implied: &BTreeSet::new(),
    };
    outcome.to_json(version)
}

fn resolver() -> Dns {
    Dns {
        nameservers: vec!["10.96.0.10".into()],
        domain: Some("cluster.local".into()),
        search: vec!["svc.cluster.local".into()],
        options: vec!["ndots:5".into()],
    }
}

/// behaviours S8, R2
#[test]
fn every_version_has_its_own_shape() {
    for version in Version::ALL {
        let text = json(&dual_stack(), &Dns::default(), version);
        insta::assert_snapshot!(format!("result-{version}"), text);
    }
}

/// behaviour S8
#[test]
fn a_result_has_the_cni_version_of_its_configuration() {
    for version in Version::ALL {
        let text = json(&dual_stack(), &Dns::default(), version);
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["cniVersion"], version.as_str());
    }
}

/// behaviour R6
#[test]
fn name_servers_of_the_configuration_are_repeated() {
    for version in [Version::V0_2_0, Version::V0_4_0, Version::V1_1_0] {
        let text = json(&dual_stack(), &resolver(), version);
        insta::assert_snapshot!(format!("dns-{version}"), text);
    }
}

/// behaviour S8: of several addresses of one family, versions before 0.3.0 report the first.
#[test]
fn results_before_0_3_0_have_one_address_per_family() {
    let mut attachment = dual_stack();
    let [v4, _] = attachment.addresses[..] else {
        panic!("two addresses");
    };
    attachment.addresses = vec![
        v4,
        Assigned {
            address: "10.9.0.2/24".parse().unwrap(),
            ..v4
        },
    ];
    let text = json(&attachment, &Dns::default(), Version::V0_2_0);
    assert!(text.contains("10.244.0.2/24"), "{text}");
    assert!(!text.contains("10.9.0.2"), "{text}");
    assert!(!text.contains("ip6"), "{text}");
}

/// behaviour R2: an unknown MAC address is left out, not made up.
#[test]
fn a_bridge_with_an_unknown_mac_has_no_mac_in_the_result() {
    let attachment = dual_stack();
    let outcome = Outcome {
        attachment: &attachment,
        bridge_mac: None,
        vlan_link: None,
        dns: &Dns::default(),
        implied: &BTreeSet::from(["0.0.0.0/0".parse().unwrap()]),
    };
    let text = outcome.to_json(Version::V1_0_0);
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["interfaces"][0], serde_json::json!({"name": "cbr0"}));
}

/// behaviour S4
#[test]
fn the_version_report_lists_all_seven() {
    insta::assert_snapshot!(crate::version_report());
}

/// behaviour S6
#[test]
fn an_error_has_the_cni_version_of_its_request() {
    let error = crate::Error::unsupported_field("vlan", "100").with_details("remove it");
    insta::assert_snapshot!(error.to_json("0.4.0"));
    assert!(
        !crate::Error::io("broken")
            .to_json("1.0.0")
            .contains("details")
    );
}
