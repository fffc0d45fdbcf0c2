//! Tests of undo steps.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::str::FromStr;

use crate::{Entry, EntryKey, Hook, LinkRef, Step};

fn parse<T: FromStr<Err: Debug>>(text: &str) -> T {
    text.parse().unwrap()
}

fn undone(step: &Step) -> Option<String> {
    step.undo().map(|step| step.to_string())
}

fn free(generation: u32) -> Entry {
    Entry::FreePod { generation }
}

#[test]
fn undo_of_an_undo_is_the_step_itself() {
    let steps = [
        Step::AddAddress {
            link: parse("cbr0"),
            address: parse("10.1.0.1/24"),
        },
        Step::SetSysctl {
            key: crate::SysctlKey("net/ipv4/ip_forward".to_owned()),
            value: "1".to_owned(),
            previous: "0".to_owned(),
        },
        Step::Attach {
            link: parse("eth0"),
            hooks: BTreeSet::from([Hook::UplinkIn]),
        },
    ];
    for step in steps {
        let again = step.undo().and_then(|undo| undo.undo());
        assert_eq!(again, Some(step));
    }
}

#[test]
fn undo_restores_an_overwritten_entry() {
    let step = Step::PutEntry {
        key: EntryKey::Interface(LinkRef::Name(parse("veth00000000"))),
        entry: Entry::Interface {
            slot: 2,
            limited: false,
        },
        previous: Some(Entry::Interface {
            slot: 1,
            limited: false,
        }),
    };
    assert_eq!(
        undone(&step).unwrap(),
        "write interface veth00000000: pod 1"
    );
}

/// A flow may carry the generation already.
#[test]
fn undo_keeps_the_generation_of_a_pod_row() {
    let step = Step::PutEntry {
        key: EntryKey::Pod(7),
        entry: Entry::Pod {
            v4: None,
            v6: None,
            mac: parse("02:00:00:00:00:01"),
            link: LinkRef::Name(parse("veth00000000")),
            bridge: LinkRef::Name(parse("cbr0")),
            generation: 5,
            masquerade: model::Families::both(true),
            trusted: false,
            isolated: true,
            ingress: model::IngressPolicy::SameBridge,
            access: model::NetworkAccess::Published,
            routed: model::Families::NONE,
            bypass: true,
        },
        previous: Some(free(4)),
    };
    assert_eq!(
        undone(&step).unwrap(),
        "write pod 7: free, last generation 5"
    );
}

#[test]
fn undo_does_not_restore_entries_of_a_gone_link() {
    let step = Step::RemoveEntry {
        key: EntryKey::Uplink(LinkRef::Gone(9)),
        previous: Entry::Interface {
            slot: 1,
            limited: false,
        },
    };
    assert_eq!(undone(&step), None);
}
