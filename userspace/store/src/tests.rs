//! Tests of the store: contents survive a restart, and a damaged file is refused.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr};

use model::{
    Assigned, Attachment, Bandwidth, HairpinMode, InterfaceAddress, Limit, Mac, Netns, PodName,
    PortMapping, Prefixes, Protocol, Range, RangeSet, Route, ShapedSubnets, State,
};
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

mod journal_and_database;

/// On a tmpfs where there is one, as in production.
fn directory() -> TempDir {
    let memory = tempfile::tempdir_in("/dev/shm");
    memory.or_else(|_| tempfile::tempdir()).unwrap()
}

fn record(container: u8, state: State) -> Record {
    let address = |text: &str| Assigned {
        address: text.parse::<InterfaceAddress>().unwrap(),
        gateway: Some("10.1.0.1".parse().unwrap()),
    };
    let mapping = PortMapping {
        host_port: 8080.try_into().unwrap(),
        container_port: 80.try_into().unwrap(),
        protocol: Protocol::Tcp,
        host_address: Some(IpAddr::from([192, 0, 2, 7])),
    };
    Record {
        attachment: Attachment {
            key: key(container),
            netns: Netns {
                path: "/run/netns/x".parse().unwrap(),
                device: 4,
                inode: 4_026_532_000 + u64::from(container),
            },
            pod: Some(PodName {
                namespace: "default".to_owned(),
                name: format!("pod {container}"),
            }),
            bridge: "cbr0".parse().unwrap(),
            mac: Mac::local([1, 2, 3, 4, container]),
            mtu: 1500,
            addresses: vec![address(&format!("10.1.0.{container}/24"))],
            routes: vec![Route {
                destination: "0.0.0.0/0".parse().unwrap(),
                gateway: Some("10.1.0.1".parse().unwrap()),
                options: model::RouteOptions::default(),
            }],
            port_mappings: vec![mapping],
            standby: BTreeSet::new(),
            bandwidth: Bandwidth {
                ingress: None,
                egress: Some(Limit {
                    rate: 1_000_000.try_into().unwrap(),
                    burst: 64_000.try_into().ok(),
                }),
                shaped_subnets: ShapedSubnets::Except(
                    Prefixes::new(["fd00::/8".parse().unwrap()]).unwrap(),
                ),
            },
            masquerade: true,
            hairpin: true,
            port: model::PortOptions::default(),
            adopted: None,
            slot: u32::from(container),
            generation: 77,
        },
        state,
        boot_id: "f00".to_owned(),
        created_at: 1_700_000_000,
    }
}

fn key(container: u8) -> AttachmentKey {
    AttachmentKey {
        network: "net".parse().unwrap(),
        container_id: format!("c{container}").parse().unwrap(),
        ifname: "eth0".parse().unwrap(),
    }
}

fn network(name: &str) -> Network {
    let first = Some(IpAddr::V4(Ipv4Addr::new(10, 1, 0, 9)));
    let range = Range::new("10.1.0.0/24".parse().unwrap(), first, None, None).unwrap();
    Network {
        name: name.parse().unwrap(),
        bridge: "cbr0".parse().unwrap(),
        ranges: vec![RangeSet::new(vec![range]).unwrap()],
        routes: vec![Route {
            destination: "::/0".parse().unwrap(),
            gateway: None,
            options: model::RouteOptions {
                priority: Some(50),
                table: Some(100),
                scope: None,
                mtu: Some(1400),
                advmss: Some(1200),
            },
        }],
        default_route: true,
        mtu: Some(1400),
        hairpin: HairpinMode::None,
        masquerade: false,
        options: model::BridgeOptions {
            gateway: false,
            force_address: true,
            detects_duplicates: true,
            limits: model::LimitPolicy {
                default: model::Rates::default(),
                ceiling: model::Rates {
                    ingress: None,
                    egress: 5_000.try_into().ok(),
                },
            },
            egress: model::EgressAddresses {
                v4: Some([192, 0, 2, 9].into()),
                v6: None,
            },
            trusted_links: ["eth1", "vxlan.1"].map(|link| link.parse().unwrap()).into(),
            port: model::PortOptions {
                isolated: true,
                trusted: true,
                left_down: true,
                ingress: model::IngressPolicy::Isolated,
                access: model::NetworkAccess::Internal,
                routed: model::Families {
                    v4: false,
                    v6: true,
                },
                vlans: model::PortVlans {
                    access: None,
                    trunk: [5, 7].into_iter().filter_map(model::VlanId::new).collect(),
                    keeps_default: true,
                },
            },
        },
    }
}

#[test]
fn a_second_agent_is_refused_while_the_first_has_the_store_open() {
    let directory = directory();
    let path = directory.path().join("store.redb");
    let first = Store::open(&path).unwrap();
    let error = Store::open(&path).unwrap_err();
    assert!(matches!(error, StoreError::InUse { .. }), "{error:?}");
    assert!(error.to_string().contains(path.to_str().unwrap()));
    drop(first);
    Store::open(&path).unwrap();
}

#[test]
fn an_empty_truncated_or_overwritten_store_is_refused_by_name() {
    let directory = directory();
    let path = directory.path().join("store.redb");
    let mut store = Store::open(&path).unwrap();
    for container in 2..40 {
        store.put(&record(container, State::Attached)).unwrap();
    }
    store.compact_journal().unwrap();
    drop(store);
    let whole = fs::read(&path).unwrap();
    let half = whole.len() / 2;
    let noise: Vec<u8> = (0..=250).cycle().take(whole.len()).collect();
    let mut scratched = whole.clone();
    for at in 0..whole.len() - 4 {
        if &whole[at..at + 4] == b"1500" {
            scratched[at + 3] = b'1';
        }
    }
    assert_ne!(scratched, whole);
    for broken in [
        &[][..],
        &whole[..100],
        &whole[..half],
        &noise,
        &scratched,
        b"text",
    ] {
        fs::write(&path, broken).unwrap();
        let error = Store::open(&path).unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }), "{error:?}");
        assert!(error.to_string().contains(path.to_str().unwrap()));
        assert_eq!(fs::read(&path).unwrap().is_empty(), broken.is_empty());
    }
}

/// The database library does not detect by itself that all of its pages are gone.
#[test]
fn a_store_with_only_its_first_page_intact_is_refused() {
    let directory = directory();
    let path = directory.path().join("store.redb");
    let mut store = Store::open(&path).unwrap();
    for container in 2..40 {
        store.put(&record(container, State::Attached)).unwrap();
    }
    store.compact_journal().unwrap();
    drop(store);
    let whole = fs::read(&path).unwrap();
    for byte in [0, 0x55, 0xff] {
        let mut broken = whole.clone();
        broken[4096..].fill(byte);
        fs::write(&path, &broken).unwrap();
        let error = Store::open(&path).unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }), "{error:?}");
    }
    assert!(!is_catching_panics());
}

#[test]
fn a_damaged_store_is_renamed_not_removed() {
    let directory = directory();
    let path = directory.path().join("store.redb");
    fs::write(&path, b"text").unwrap();
    Store::open(&path).unwrap_err();
    let (store, aside) = Store::replace(&path).unwrap();
    assert!(store.records().is_empty());
    assert_eq!(fs::read(aside).unwrap(), b"text");
}

#[test]
fn a_store_of_another_format_is_refused_and_unchanged() {
    let directory = directory();
    let path = directory.path().join("store.redb");
    let store = Store::open(&path).unwrap();
    store.file.put_format(FORMAT + 1).unwrap();
    drop(store);
    let error = Store::open(&path).unwrap_err();
    assert!(
        matches!(
            error,
            StoreError::Format {
                found: 4,
                known: 3,
                ..
            }
        ),
        "{error:?}"
    );
}

/// Versions of the previous format have no journal and would ignore it.
#[test]
fn a_store_of_the_previous_format_is_read_and_upgraded() {
    let directory = directory();
    let path = directory.path().join("store.redb");
    let mut store = Store::open(&path).unwrap();
    store.put(&record(5, State::Attached)).unwrap();
    store.compact_journal().unwrap();
    store.file.put_format(database::WITHOUT_JOURNAL).unwrap();
    drop(store);
    fs::remove_file(journal::path_beside(&path)).unwrap();
    let store = Store::open(&path).unwrap();
    assert!(store.get(&key(5)).is_some());
    assert_eq!(store.file.format(), FORMAT);
}

#[test]
fn a_draft_store_left_by_a_crash_is_replaced() {
    let directory = directory();
    let path = directory.path().join("store.redb");
    fs::write(path.with_extension("draft"), b"half").unwrap();
    Store::open(&path).unwrap();
    assert!(!path.with_extension("draft").exists());
}

#[test]
fn leases_are_the_addresses_of_records_in_any_state() {
    let directory = directory();
    let mut store = Store::open(&directory.path().join("store.redb")).unwrap();
    store.put(&record(5, State::Pending)).unwrap();
    store.put(&record(6, State::Removing)).unwrap();
    let leases = store.leases();
    let expected = [5, 6].map(|c| (IpAddr::from([10, 1, 0, c]), key(c)));
    assert_eq!(leases, BTreeMap::from(expected));
}

#[test]
fn standby_ports_of_a_record_survive_the_stored_form() {
    let mut standing = record(5, State::Attached);
    let mapping = standing.attachment.port_mappings[0];
    standing.attachment.standby = [model::StandbyPort {
        mapping,
        ipv4: true,
    }]
    .into();
    let stored = format::write_record(&standing);
    assert_eq!(format::read_record(&stored).unwrap(), standing);
}

/// A range of ports is one entry of a record, in each family that stands by.
#[test]
fn a_range_of_ports_is_one_entry_of_a_record() {
    let mut record = record(5, State::Attached);
    let first = record.attachment.port_mappings[0];
    let range = model::PortRange::new(first, 1_000.try_into().unwrap()).unwrap();
    record.attachment.port_mappings = range.mappings().collect();
    record.attachment.standby = range
        .mappings()
        .flat_map(|mapping| [true, false].map(|ipv4| model::StandbyPort { mapping, ipv4 }))
        .collect();
    let stored = String::from_utf8(format::write_record(&record)).unwrap();
    assert_eq!(stored.matches(r#""count":1000"#).count(), 3, "{stored}");
    assert_eq!(format::read_record(stored.as_bytes()).unwrap(), record);
    let damaged = stored.replace(r#""host_port":8080"#, r#""host_port":65000"#);
    let error = format::read_record(damaged.as_bytes()).unwrap_err();
    assert!(error.contains("end above 65535"), "{error}");
}

/// A limit that is set again, while the pod runs, applies to the same subnets as before.
#[test]
fn shaped_subnets_of_a_record_without_a_limit_survive_the_stored_form() {
    let mut unlimited = record(5, State::Attached);
    let bandwidth = &mut unlimited.attachment.bandwidth;
    (bandwidth.ingress, bandwidth.egress) = (None, None);
    assert_ne!(bandwidth.shaped_subnets, ShapedSubnets::All);
    let stored = format::write_record(&unlimited);
    assert_eq!(format::read_record(&stored).unwrap(), unlimited);
}

/// Records of format 1 must stay readable in both formats.
#[test]
fn the_stored_json_of_a_record_does_not_change_by_accident() {
    let written = format::write_record(&record(5, State::Attached));
    let expected = concat!(
        r#"{"state":"attached","boot_id":"f00","created_at":1700000000,"attachment":{"#,
        r#""network":"net","container_id":"c5","ifname":"eth0","#,
        r#""netns":{"path":"/run/netns/x","device":4,"inode":4026532005},"#,
        r#""pod":{"namespace":"default","name":"pod 5"},"bridge":"cbr0","#,
        r#""mac":"02:01:02:03:04:05","mtu":1500,"#,
        r#""addresses":[{"address":"10.1.0.5/24","gateway":"10.1.0.1"}],"#,
        r#""routes":[{"destination":"0.0.0.0/0","gateway":"10.1.0.1"}],"#,
        r#""port_mappings":[{"host_port":8080,"container_port":80,"protocol":"tcp","#,
        r#""host_address":"192.0.2.7"}],"bandwidth":{"egress":{"rate":1000000,"burst":64000},"#,
        r#""peers":{"except":["fd00::/8"]}},"#,
        r#""masquerade":true,"hairpin":true,"slot":5,"#,
        r#""generation":77}}"#,
    );
    assert_eq!(String::from_utf8(written).unwrap(), expected);
}

#[derive(Clone, Copy, Debug)]
enum Operation {
    Put(u8, State),
    Remove(u8),
    PutNetwork(u8),
    RemoveNetwork(u8),
    PutWithLastReserved(u8, usize, u32),
    RaiseGeneration(u32),
    /// A range of host ports.
    ReservePorts(u16, u16),
    /// The same, together with a stored record.
    PutReserving(u8, u16),
    /// The same, together with a removed record.
    RemoveReserving(u8, u16),
    Compact,
    Reopen,
}

fn operation() -> impl Strategy<Value = Operation> {
    let state = prop_oneof![
        Just(State::Pending),
        Just(State::Linked),
        Just(State::Attached),
        Just(State::Removing)
    ];
    prop_oneof![
        (2u8..8, state).prop_map(|(c, state)| Operation::Put(c, state)),
        (2u8..8).prop_map(Operation::Remove),
        (0u8..3).prop_map(Operation::PutNetwork),
        (0u8..3).prop_map(Operation::RemoveNetwork),
        (2u8..8, 0usize..2, any::<u32>())
            .prop_map(|(c, set, a)| Operation::PutWithLastReserved(c, set, a)),
        (0u32..150).prop_map(Operation::RaiseGeneration),
        (1u16..30, 1u16..30).prop_map(|(first, last)| Operation::ReservePorts(first, last)),
        (2u8..8, 1u16..30).prop_map(|(c, last)| Operation::PutReserving(c, last)),
        (2u8..8, 1u16..30).prop_map(|(c, last)| Operation::RemoveReserving(c, last)),
        Just(Operation::Compact),
        Just(Operation::Reopen),
    ]
}

fn remember(model: &mut Contents, record: Record) {
    model.generation = model.generation.max(record.attachment.generation);
    model.records.insert(record.attachment.key.clone(), record);
}

fn apply(operation: Operation, mut store: Store, model: &mut Contents, path: &Path) -> Store {
    let name = |n: u8| format!("n{n}").parse::<NetworkName>().unwrap();
    match operation {
        Operation::Put(container, state) => {
            let record = record(container, state);
            store.put(&record).unwrap();
            remember(model, record);
        }
        Operation::Remove(container) => {
            store.remove(&key(container)).unwrap();
            model.records.remove(&key(container));
        }
        Operation::PutNetwork(n) => {
            let network = network(name(n).as_str());
            store.put_network(&network).unwrap();
            model.networks.insert(name(n), network);
        }
        Operation::RemoveNetwork(n) => {
            store.remove_network(&name(n)).unwrap();
            model.networks.remove(&name(n));
        }
        Operation::PutWithLastReserved(container, set, bits) => {
            let address = IpAddr::V4(Ipv4Addr::from_bits(bits));
            let addresses = BTreeMap::from([(set, address)]);
            let record = record(container, State::Attached);
            store.put_with_last_reserved(&record, &addresses).unwrap();
            let network = key(container).network;
            model.last_reserved.insert((network, set), address);
            remember(model, record);
        }
        Operation::RaiseGeneration(seen) => {
            store.raise_generation(seen).unwrap();
            model.generation = model.generation.max(seen);
        }
        Operation::ReservePorts(first, last) => {
            model.reserved_ports = (first..last).collect();
            store.put_reserved_ports(&model.reserved_ports).unwrap();
        }
        Operation::PutReserving(container, last) => {
            let record = record(container, State::Pending);
            model.reserved_ports = (1..last).collect();
            let ports = &model.reserved_ports;
            store.put_reserving(&record, ports).unwrap();
            remember(model, record);
        }
        Operation::RemoveReserving(container, last) => {
            model.reserved_ports = (1..last).collect();
            let ports = &model.reserved_ports;
            store.remove_reserving(&key(container), ports).unwrap();
            model.records.remove(&key(container));
        }
        Operation::Compact => store.compact_journal().unwrap(),
        Operation::Reopen => {
            drop(store);
            store = Store::open(path).unwrap();
        }
    }
    store
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn store_contents_survive_reopening(
        operations in prop::collection::vec(operation(), 1..40)
    ) {
        let directory = directory();
        let path = directory.path().join("store.redb");
        let mut store = Store::open(&path).unwrap();
        let mut model = Contents::default();
        for operation in operations {
            store = apply(operation, store, &mut model, &path);
            prop_assert_eq!(store.contents(), &model);
        }
        drop(store);
        let reopened = Store::open(&path).unwrap();
        prop_assert_eq!(reopened.contents(), &model);
    }
}
