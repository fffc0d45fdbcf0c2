//! Text of each rendered table and line.

use api::{
    AddressView, CounterView, DroppingDefaultView, FeatureView, ForwardingView, PodView, PoolView,
    PortReservationView, PortView, ReconcileItem, SandboxView, ShaperView,
};

use super::*;

fn list(attachments: &[AttachmentView]) -> String {
    super::list(attachments, TableStyle::PLAIN)
}

fn ports(ports: &[PortView], wanted: Option<u16>, now: u64) -> String {
    super::ports(ports, wanted, now, TableStyle::PLAIN)
}

fn address(address: &str) -> AddressView {
    AddressView {
        address: address.into(),
        gateway: None,
    }
}

fn port(host_address: Option<&str>, host_port: u16, protocol: &str) -> HostportView {
    HostportView {
        host_address: host_address.map(Into::into),
        host_port,
        container_port: 80,
        protocol: protocol.into(),
        ..HostportView::default()
    }
}

pub(super) fn web() -> AttachmentView {
    AttachmentView {
        network: "default".into(),
        container_id: "0123456789abcdef".into(),
        ifname: "eth0".into(),
        pod: Some(PodView {
            namespace: "shop".into(),
            name: "web-0".into(),
        }),
        host_link: "veth0a1b2c3d".into(),
        addresses: vec![address("10.244.0.2/24"), address("fd00::2/64")],
        hostports: vec![
            port(None, 8080, "tcp"),
            port(Some("192.0.2.7"), 53, "udp"),
            port(Some("2001:db8::7"), 53, "udp"),
        ],
        state: "attached".into(),
        counters: Some(CounterView {
            rx_packets: 1_234_567,
            tx_packets: 89,
            rx_dropped: 3,
            tx_dropped: 650,
            ..CounterView::default()
        }),
        ..AttachmentView::default()
    }
}

pub(super) fn bare() -> AttachmentView {
    AttachmentView {
        network: "nomad".into(),
        container_id: "fedcba9876543210".into(),
        ifname: "net1".into(),
        host_link: "veth00000001".into(),
        addresses: vec![address("172.26.64.9/20")],
        state: "pending".into(),
        ..AttachmentView::default()
    }
}

#[test]
fn each_attachment_is_one_line_with_pod_addresses_ports_and_packets() {
    insta::assert_snapshot!(list(&[web(), bare()]));
}

#[test]
fn list_without_attachments_is_a_sentence() {
    assert_eq!(list(&[]), "No attachments.\n");
}

fn two_features() -> Vec<FeatureView> {
    vec![
        FeatureView {
            name: "tcx".into(),
            available: true,
            chosen: "programs of uplinks are TCX links".into(),
            reason: String::new(),
        },
        FeatureView {
            name: "socket-hooks".into(),
            available: false,
            chosen: "processes of the node do not reach all hostports".into(),
            reason: "there is no cgroup".into(),
        },
    ]
}

fn two_networks() -> Vec<NetworkView> {
    vec![
        NetworkView {
            name: "default".into(),
            is_default: true,
            bridge: "cbr0".into(),
            mtu: Some(1500),
            masquerade: true,
            access: "direct".into(),
            attachments: 2,
            pools: vec![
                PoolView {
                    subnet: "10.244.0.0/24".into(),
                    gateway: "10.244.0.1".into(),
                    used: 2,
                    total: 253,
                },
                PoolView {
                    subnet: "fd00::/64".into(),
                    gateway: "fd00::1".into(),
                    used: 2,
                    total: u64::MAX,
                },
            ],
        },
        NetworkView {
            name: "nomad".into(),
            bridge: "nomad".into(),
            ..NetworkView::default()
        },
    ]
}

fn healthy() -> Status {
    Status {
        version: api::Version {
            agent: "0.1.0".into(),
            commit: String::new(),
            api: String::new(),
            abi: 1,
            cni: Vec::new(),
        },
        uptime_seconds: 93_784,
        flow_entries: 131_072,
        flow_entries_wanted: 131_072,
        bypass: bypass::example(),
        forwarding: ForwardingView {
            mode: "auto".to_owned(),
            defaults: vec![DroppingDefaultView {
                what: "policy DROP of chain FORWARD of table ip filter".to_owned(),
                state: "carried".to_owned(),
                reason: String::new(),
            }],
        },
        shaper: ShaperView {
            mode: "auto".to_owned(),
            chosen: "pace".to_owned(),
            paces: true,
            heeds_departure: false,
        },
        networks: two_networks(),
        uplinks: vec![UplinkView {
            name: "ens3".into(),
            mtu: 1500,
            addresses: vec![address("192.0.2.7/24"), address("2001:db8::7/64")],
            attached: true,
            xdp_prefilter: true,
        }],
        attachments: 2,
        last_reconcile: Some(Reconcile {
            finished_at: 1_800_000_000,
            finished_time: "2027-01-15T08:00:00Z".to_owned(),
            duration_ms: 12,
            items: Vec::new(),
        }),
        features: two_features(),
        sandbox: Some(SandboxView {
            capabilities: vec!["net_admin".to_owned(), "sys_admin".to_owned()],
            no_new_privs: true,
            seccomp: true,
        }),
        ..Status::default()
    }
}

#[test]
fn status_of_a_healthy_agent_shows_networks_and_uplinks() {
    insta::assert_snapshot!(status(&healthy()));
}

#[test]
fn status_shows_the_datapath_log_unless_it_is_off() {
    let shown = |level: &str| {
        status(&Status {
            datapath_log: level.to_owned(),
            ..healthy()
        })
    };
    assert!(!shown("off").contains("Datapath log"));
    assert!(
        shown("debug").contains("Datapath log"),
        "{}",
        shown("debug")
    );
}

#[test]
fn status_shows_a_long_operation_and_the_requests_queued_behind_it() {
    let operation = |verb: &str, running, milliseconds| OperationView {
        verb: verb.to_owned(),
        attachment: Some("default/c1/eth0".to_owned()),
        running,
        milliseconds,
    };
    let busy = |operations| {
        let text = status(&Status {
            operations,
            ..healthy()
        });
        text.lines()
            .find_map(|line| line.strip_prefix("Busy with"))
            .map(|line| line.trim().to_owned())
    };
    let waits = [operation("DEL", false, 2000), operation("ADD", false, 100)];
    let adding =
        |milliseconds| [vec![operation("ADD", true, milliseconds)], waits.to_vec()].concat();
    assert_eq!(busy(adding(999)), None);
    let shown = "ADD of default/c1/eth0, requested 1 min 5 s ago, 2 waiting".to_owned();
    assert_eq!(busy(adding(65_000)), Some(shown));
}

#[test]
fn status_shows_every_degradation_before_anything_else() {
    let item = |subject: &str, outcome, message: &str| ReconcileItem {
        subject: subject.into(),
        outcome,
        message: message.into(),
    };
    let degraded = |reason: &str, message: &str| Degraded {
        reason: reason.into(),
        message: message.into(),
        advice: "Read the manual.".into(),
    };
    let degraded = Status {
        degraded: vec![
            degraded(
                "no-pod-cidr",
                "there is no pod CIDR yet: give one with --pod-cidr",
            ),
            degraded("no-uplink", "no route leads out of this node"),
        ],
        last_reconcile: Some(Reconcile {
            finished_at: 1_800_000_000,
            finished_time: "2027-01-15T08:00:00Z".to_owned(),
            duration_ms: 340,
            items: vec![
                item("default/c1/eth0", Outcome::Repaired, "bridge port was down"),
                item("vethdeadbeef", Outcome::LeftAlone, "has no alias of ours"),
                item("default/c2/eth0", Outcome::Removed, ""),
                item("hostport 8080/tcp", Outcome::Failed, "table is full"),
            ],
        }),
        networks: Vec::new(),
        uplinks: Vec::new(),
        attachments: 0,
        ..healthy()
    };
    insta::assert_snapshot!(status(&degraded));
}

#[test]
fn status_shows_missing_uplink_programs_in_capitals() {
    let uplink = UplinkView {
        name: "ens3".into(),
        ..UplinkView::default()
    };
    assert!(uplinks(&[uplink]).contains("MISSING"));
}

#[test]
fn durations_have_two_units() {
    for (seconds, text) in [
        (0, "0 s"),
        (61, "1 min 1 s"),
        (3_660, "1 h 1 min"),
        (90_000, "1 d 1 h"),
    ] {
        assert_eq!(duration(seconds), text);
    }
}

/// Three days and two hours after the first port of [`published`] was reserved.
const NOW: u64 = 1_700_266_400;

fn published() -> Vec<PortView> {
    let claim = |socket: &str, held_by: &str| PortReservationView {
        socket: socket.into(),
        held_by: held_by.into(),
    };
    let web = PortView {
        port: port(None, 8080, "tcp"),
        network: "default".into(),
        container_id: "0123456789abcdef".into(),
        pod: Some(PodView {
            namespace: "shop".into(),
            name: "web-0".into(),
        }),
        state: "attached".into(),
        since: 1_700_000_000,
        since_time: "2023-11-14T22:13:20Z".to_owned(),
        claims: vec![
            claim("0.0.0.0:8080", "socket"),
            claim("[::]:8080", "nothing"),
        ],
        flows: Some(1_024),
    };
    let bare = PortView {
        port: port(Some("192.0.2.7"), 9899, "sctp"),
        network: "nomad".into(),
        container_id: "fedcba9876543210".into(),
        state: "pending".into(),
        since: 1_700_266_395,
        claims: vec![claim("192.0.2.7:9899", "table")],
        ..PortView::default()
    };
    vec![web, bare]
}

#[test]
fn ports_are_listed_with_pod_and_reservation() {
    insta::assert_snapshot!(ports(&published(), None, NOW), @r"
    PORT                     POD         CONTAINER     NETWORK  AGE      FLOWS  RESERVED BY                            STATE
    8080->80/tcp             shop/web-0  0123456789ab  default  3 d 2 h   1024  0.0.0.0:8080,[::]:8080 (NOT RESERVED)  attached
    192.0.2.7:9899->80/sctp  -           fedcba987654  nomad        5 s      ?  192.0.2.7:9899 (table)                 pending
    ");
    insta::assert_snapshot!(ports(&published(), Some(9899), NOW), @r"
    PORT                     POD  CONTAINER     NETWORK  AGE  FLOWS  RESERVED BY             STATE
    192.0.2.7:9899->80/sctp  -    fedcba987654  nomad    5 s      ?  192.0.2.7:9899 (table)  pending
    ");
    assert_eq!(
        ports(&published(), Some(80), NOW),
        "No pod publishes host port 80.\n"
    );
    assert_eq!(ports(&[], None, NOW), "No published ports.\n");
}

#[test]
fn list_shows_the_whole_id_of_a_pod_that_viaductctl_has_attached() {
    let pods = ["viaductctl-5000000000000001", "viaductctl-5000000000000002"];
    let views = pods.map(|id| AttachmentView {
        container_id: id.to_owned(),
        ..AttachmentView::default()
    });
    let text = list(&views);
    for id in pods {
        assert!(text.contains(id), "{text}");
    }
}

#[test]
fn an_uninstall_lists_installed_files_and_how_to_remove_them() {
    let mut done = Uninstalled {
        removed: vec!["delete bridge cbr0".to_owned()],
        left: vec!["sysctl net.ipv4.ip_forward was changed".to_owned()],
        ..Uninstalled::default()
    };
    insta::assert_snapshot!(uninstalled(&done), @r"
    done: delete bridge cbr0
    left alone: sysctl net.ipv4.ip_forward was changed
    Viaduct is uninstalled from this node.
    ");
    done.remaining = vec!["/opt/cni/bin/viaduct: plugin".to_owned()];
    insta::assert_snapshot!(uninstalled(&done), @r"
    done: delete bridge cbr0
    left alone: sysctl net.ipv4.ip_forward was changed
    still installed: /opt/cni/bin/viaduct: plugin
    Viaduct is off this node, and the files that are still installed remain. To remove those that are Viaduct's alone, run `viaductd --uninstall --purge` as root, with --config and the agent's configuration.
    ");
}

#[test]
fn a_reload_lists_keys_in_effect_and_keys_that_need_a_restart() {
    let none = Reloaded::default();
    assert_eq!(reloaded(&none), "Configuration reloaded.\n");
    let some = Reloaded {
        applied: vec!["uplink".to_owned(), "log-level".to_owned()],
        needs_restart: vec!["mtu".to_owned()],
    };
    insta::assert_snapshot!(reloaded(&some), @r"
    Configuration reloaded.
    In effect: uplink, log-level
    After a restart of the agent: mtu
    ");
}
