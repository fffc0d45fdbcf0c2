//! Our netfilter table: it mirrors the hostports, and damage by other software is found.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::net::IpAddr;

use kernel::{Host, Observe as _};
use model::Protocol;
use steps::{
    Entry, EntryKey, NetfilterState, NetfilterStep, NetfilterTable, NodeQuery, Observed, Step,
};
use support::*;

fn table() -> NetfilterTable {
    NetfilterTable {
        links: ["lo", "cbr0", "a-long-name-012"].map(link).into(),
        pods: ["10.88.0.0/16", "fd88::/64"].map(parse).into(),
        closed: ["10.88.0.0/24", "fd88::/80"].map(parse).into(),
        routed: ["10.88.0.0/24", "fd88::/80"].map(parse).into(),
        hostports: true,
        output: true,
        hairpin: ["10.7.0.0/20", "fd07::/63"].map(parse).into(),
    }
}

fn put(table: &NetfilterTable) -> Step {
    Step::Netfilter(Box::new(NetfilterStep::Put {
        table: table.clone(),
        previous: NetfilterState::Absent,
    }))
}

fn state(host: &mut Host) -> NetfilterState {
    node(host).netfilter
}

fn node(host: &mut Host) -> Observed {
    host.observe(&NodeQuery::default()).unwrap()
}

fn hostport(address: Option<&str>, ipv4: bool, protocol: Protocol) -> EntryKey {
    EntryKey::Hostport {
        address: address.map(parse),
        ipv4,
        port: 8080,
        protocol,
    }
}

fn pod(last: u16, ipv4: bool) -> Entry {
    let address: IpAddr = if ipv4 {
        format!("10.88.0.{last}").parse().unwrap()
    } else {
        format!("fd88::{last}").parse().unwrap()
    };
    Entry::Hostport {
        address,
        port: 80,
        slot: 1,
        generation: 1,
    }
}

fn write(key: &EntryKey, entry: &Entry) -> Step {
    Step::PutEntry {
        key: key.clone(),
        entry: entry.clone(),
        previous: None,
    }
}

fn all() -> Vec<(EntryKey, Entry)> {
    let mut rows = Vec::new();
    for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
        rows.push((hostport(None, true, protocol), pod(2, true)));
        rows.push((hostport(None, false, protocol), pod(2, false)));
        rows.push((hostport(Some("192.0.2.1"), true, protocol), pod(3, true)));
        rows.push((
            hostport(Some("2001:db8::1"), false, protocol),
            pod(3, false),
        ));
    }
    rows.push((
        hostport(Some("127.0.0.1"), true, Protocol::Tcp),
        pod(4, true),
    ));
    rows
}

#[test]
fn the_netfilter_table_is_read_as_it_was_written_with_and_without_hostports() {
    on_a_node(|node| {
        let mut host = node.host();
        assert_eq!(state(&mut host), NetfilterState::Absent);
        let plain = NetfilterTable {
            hostports: false,
            output: false,
            hairpin: [].into(),
            ..table()
        };
        for table in [table(), plain, NetfilterTable::default(), table()] {
            execute(&mut host, &[put(&table)]);
            assert_eq!(state(&mut host), NetfilterState::Present(table));
        }
        let previous = NetfilterState::Absent;
        let remove = Step::Netfilter(Box::new(NetfilterStep::Remove { previous }));
        execute(&mut host, &[remove.clone(), remove]);
        assert_eq!(state(&mut host), NetfilterState::Absent);
        assert_eq!(run("nft list ruleset"), "");
    });
}

#[test]
fn the_netfilter_table_mirrors_hostports_written_before_and_after_it() {
    on_a_node(|node| {
        let mut host = node.host();
        let rows = all();
        let (before, after) = rows.split_at(5);
        for (key, entry) in before {
            execute(&mut host, &[write(key, entry)]);
        }
        execute(&mut host, &[put(&table())]);
        for (key, entry) in after {
            execute(&mut host, &[write(key, entry), write(key, entry)]);
        }
        assert_eq!(state(&mut host), NetfilterState::Present(table()));
        let listed = run("nft list table inet viaduct");
        for text in [
            "tcp . 8080 : 10.88.0.2 . 80",
            "sctp . 8080 : fd88::2 . 80",
            "192.0.2.1 . udp . 8080 : 10.88.0.3 . 80",
            "2001:db8::1 . tcp . 8080 : fd88::3 . 80",
        ] {
            assert!(listed.contains(text), "{text}: {listed}");
        }
        assert!(!listed.contains("10.88.0.4"), "{listed}");
        // Another owner, then none.
        for (key, entry) in &rows {
            let EntryKey::Hostport { ipv4, .. } = key else {
                panic!("{key}");
            };
            let other = pod(9, *ipv4);
            execute(&mut host, &[write(key, &other)]);
            assert_eq!(
                state(&mut host),
                NetfilterState::Present(table()),
                "{entry}"
            );
            let previous = other.clone();
            let key = key.clone();
            let remove = Step::RemoveEntry { key, previous };
            execute(&mut host, &[remove.clone(), remove]);
        }
        assert_eq!(state(&mut host), NetfilterState::Present(table()));
        let listed = run("nft list table inet viaduct");
        assert!(!listed.contains("8080"), "{listed}");
    });
}

#[test]
fn damage_of_the_netfilter_table_is_found_and_hostports_do_not_fail_meanwhile() {
    on_a_node(|node| {
        let mut host = node.host();
        let rows = all();
        for (key, entry) in &rows {
            execute(&mut host, &[write(key, entry)]);
        }
        let damages = [
            "nft flush chain inet viaduct hostports",
            "nft delete element inet viaduct ports4 { tcp . 8080 }",
            "nft add element inet viaduct ports6 { tcp . 9 : fd88::2 . 80 }",
            "nft add element inet viaduct links { eth7 }",
            "nft add chain inet viaduct other",
            "nft add rule inet viaduct hairpin accept",
            "nft flush table inet viaduct",
        ];
        for damage in damages {
            execute(&mut host, &[put(&table())]);
            assert_eq!(state(&mut host), NetfilterState::Present(table()));
            run(damage);
            let found = state(&mut host);
            assert_ne!(found, NetfilterState::Present(table()), "{damage}");
        }
        execute(&mut host, &[put(&table())]);
        run("nft flush ruleset");
        let (key, entry) = &rows[0];
        let other = pod(9, true);
        let (again, previous) = (key.clone(), entry.clone());
        let remove = Step::RemoveEntry {
            key: again,
            previous,
        };
        execute(&mut host, &[write(key, &other), remove, write(key, entry)]);
        assert_eq!(state(&mut host), NetfilterState::Absent);
    });
}

#[test]
fn our_netfilter_table_is_no_foreign_rule() {
    on_a_node(|at| {
        let mut host = at.host();
        execute(&mut host, &[put(&table())]);
        assert_eq!(node(&mut host).foreign_rules, [].into());
    });
}
