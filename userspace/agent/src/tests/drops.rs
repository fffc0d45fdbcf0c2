//! Drop events through the API, with the names of their pods.

use abi::{DropHook, DropReason, DropRecord, DroppedPacket, DroppedPacketFlags as Flags};
use api::{DropEvent, DropQuery, EndsView};

use super::*;

/// Sends a report of a pod's packet as soon as the agent listens.
fn report(agent: &Agent, pod: &AttachmentView) {
    let tuple = |source: [u8; 4], destination: [u8; 4]| Tuple {
        source: Address::v4(source),
        destination: Address::v4(destination),
        source_port: Port::new(41_000),
        destination_port: Port::new(53),
        protocol: abi::protocol::UDP,
        reserved: [0; 3],
    };
    let record = DropRecord {
        count: 17,
        reason: DropReason::IngressPolicy as u32,
        pod: pod.slot,
        generation: pod.generation,
        interface: 7,
        length: 60,
        packet: DroppedPacket {
            tuple: tuple([10, 1, 2, 2], [10, 1, 2, 3]),
            ethertype: 0x0800,
            hook: DropHook::FromPod as u8,
            flags: Flags::ADDRESSES | Flags::PORTS,
            ..DroppedPacket::default()
        },
        ..DropRecord::default()
    };
    let reports = Arc::clone(&agent.reports);
    thread::spawn(move || {
        let sender = loop {
            match reports.lock().unwrap().clone() {
                Some(sender) => break sender,
                None => thread::yield_now(),
            }
        };
        let report = DropReport {
            record,
            interface: None,
            age: std::time::Duration::ZERO,
        };
        sender.blocking_send(vec![report]).unwrap();
    });
}

#[test]
fn a_drop_event_names_pod_reason_packet_and_advice() {
    let agent = Agent::start(&["--pod-cidr", "10.1.2.0/24"]);
    agent.add("c1").unwrap();
    let pod = agent
        .get::<Vec<AttachmentView>>(path::ATTACHMENTS)
        .remove(0);
    report(&agent, &pod);
    let query = DropQuery {
        pod: Some("default/web".to_owned()),
        reason: Some("ingress-policy".to_owned()),
        follow: true,
        ..DropQuery::default()
    };
    let mut lines = Vec::new();
    let reply = agent.client.follow(&query.to_path(), |line| {
        lines.push(line.to_owned());
        false
    });
    assert!(reply.unwrap().is_success());
    let event: DropEvent = serde_json::from_str(&lines[0]).unwrap();
    let expected = DropEvent {
        at_ms: event.at_ms,
        time: event.time.clone(),
        reason: "ingress-policy".to_owned(),
        advice: DropReason::IngressPolicy.advice().to_owned(),
        count: 17,
        hook: "from_pod".to_owned(),
        interface: "#7".to_owned(),
        pod: pod.pod,
        container_id: Some("c1".to_owned()),
        ifname: Some("eth0".to_owned()),
        length: 60,
        ethertype: "0x0800".to_owned(),
        protocol: "udp".to_owned(),
        packet: Some(EndsView {
            source: "10.1.2.2:41000".to_owned(),
            destination: "10.1.2.3:53".to_owned(),
        }),
        ..DropEvent::default()
    };
    assert_eq!(event, expected);
}

#[test]
fn an_unknown_drop_reason_is_refused() {
    let agent = Agent::start(&[]);
    let reply = agent.client.get("/v1/drops?reason=bad-luck").unwrap();
    assert!(!reply.is_success());
    assert!(
        reply.error().to_string().contains("bad-luck"),
        "{:?}",
        reply.error()
    );
}
