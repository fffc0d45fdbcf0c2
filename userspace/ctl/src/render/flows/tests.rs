//! Text of flows, and of the usage of their table.

use api::{EndsView, FlowsView, PodView};

use super::*;

fn flows(view: &FlowsView) -> String {
    super::flows(view, None, TableStyle::PLAIN)
}

fn flow_table(view: &FlowTableView) -> String {
    super::flow_table(view, TableStyle::PLAIN)
}

fn ends(source: &str, destination: &str) -> EndsView {
    EndsView {
        source: source.into(),
        destination: destination.into(),
    }
}

fn outward() -> FlowView {
    FlowView {
        container_id: Some("0123456789abcdef".into()),
        pod: Some(PodView {
            namespace: "shop".into(),
            name: "web-0".into(),
        }),
        protocol: "tcp".into(),
        kind: "masqueraded".into(),
        state: "established".into(),
        path: "offloaded".into(),
        stack_reason: String::new(),
        seen: ends("10.244.0.2:40000", "198.51.100.7:443"),
        translated: ends("192.0.2.1:50001", "198.51.100.7:443"),
        age_seconds: Some(3_700),
        idle_seconds: Some(4),
        sent_packets: Some(12_345),
        sent_bytes: Some(1_234_567),
        answered_packets: Some(20_000),
        answered_bytes: Some(27_000_000_000),
        ..FlowView::default()
    }
}

fn between_pods() -> FlowView {
    FlowView {
        kind: "pod-to-pod".into(),
        peer_container_id: Some("c2".into()),
        peer_pod: Some(PodView {
            namespace: "shop".into(),
            name: "db-0".into(),
        }),
        path: "bypass".into(),
        seen: ends("10.244.0.2:40000", "10.244.0.3:5432"),
        translated: ends("10.244.0.2:40000", "10.244.0.3:5432"),
        age_seconds: None,
        ..outward()
    }
}

fn of_node() -> FlowView {
    FlowView {
        kind: "node-to-pod".into(),
        protocol: "udp".into(),
        state: "connected".into(),
        path: "stack".into(),
        seen: ends("10.244.0.1:40000", "10.244.0.2:53"),
        translated: ends("10.244.0.1:40000", "10.244.0.2:53"),
        age_seconds: None,
        idle_seconds: None,
        sent_packets: None,
        sent_bytes: None,
        answered_packets: None,
        answered_bytes: None,
        ..outward()
    }
}

#[test]
fn each_flow_is_one_line_with_pod_tuples_state_and_traffic() {
    let inward = FlowView {
        pod: None,
        protocol: "udp".into(),
        kind: "published".into(),
        state: "single".into(),
        path: "stack".into(),
        stack_reason: "not established".into(),
        seen: ends("[2001:db8::7]:33000", "[2001:db8::1]:8080"),
        translated: ends("[2001:db8::7]:33000", "[fd00::3]:80"),
        age_seconds: Some(9),
        sent_packets: Some(1),
        sent_bytes: Some(60),
        answered_packets: Some(0),
        answered_bytes: Some(0),
        ..outward()
    };
    let nodes = FlowView {
        container_id: None,
        pod: None,
        ..outward()
    };
    let direct = FlowView {
        seen: ends("198.51.100.7", "10.244.0.2"),
        translated: ends("198.51.100.7", "10.244.0.2"),
        protocol: "47".into(),
        state: "other".into(),
        path: String::new(),
        ..outward()
    };
    insta::assert_snapshot!(flows(&FlowsView {
        flows: vec![outward(), inward, nodes, direct, between_pods(), of_node()],
        matching: 6,
        truncated_pods: 2,
        stack_reasons: vec!["table ip house has rules".into(), "another rule".into()],
        ..FlowsView::default()
    }));
}

#[test]
fn flows_beyond_the_limit_are_counted() {
    let text = flows(&FlowsView {
        flows: vec![outward()],
        matching: 1_001,
        ..FlowsView::default()
    });
    assert!(text.ends_with("and 1000 more: see --limit\n"), "{text}");
    assert_eq!(flows(&FlowsView::default()), "No flows.\n");
}

#[test]
fn flows_usage_shows_table_entries_and_flows_per_pod() {
    let pod = |container: &str, flows, evicted_flows| PodFlowsView {
        container_id: container.to_owned(),
        pod: None,
        flows,
        evicted_flows,
    };
    let mut named = pod("0123", 16_384, 7);
    named.pod = Some(PodView {
        namespace: "shop".to_owned(),
        name: "web-0".to_owned(),
    });
    insta::assert_snapshot!(flow_table(&FlowTableView {
        entries: 131_072,
        used_entries: 32_770,
        quota: 16_384,
        pods: vec![named, pod("0123456789abcdef", 1, 0)],
    }), @r"
    32770 of 131072 entries used, 2 per flow
    POD           FLOWS  QUOTA  EVICTED
    shop/web-0    16384  16384        7
    0123456789ab      1  16384        0
    ");
}
