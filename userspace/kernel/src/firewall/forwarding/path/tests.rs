//! Decoding of statements, as `nft` and iptables-nft generate them.

use super::*;
use crate::firewall::nftables::{Attributes, Expression, Register, Verdict};

/// Decodes a rule of a table with these sets, whose elements are all `elements`.
fn decode_with(
    expressions: &[Expression],
    sets: &[(&str, u32)],
    elements: &[ReadElement],
) -> Vec<Statement> {
    let rule = ReadRule {
        handle: 1,
        expressions: expressions.iter().map(Expression::reread).collect(),
        comment: String::new(),
    };
    let sets = sets
        .iter()
        .map(|(name, flags)| ((*name).to_owned(), *flags));
    let mut elements = |_: &str| Ok(elements.to_vec());
    decode_rule(&rule, Family::Inet, &sets.collect(), &mut elements)
        .unwrap()
        .statements
}

fn decode(expressions: &[Expression]) -> Vec<Statement> {
    decode_with(expressions, &[], &[])
}

fn named(name: &str) -> Statement {
    Statement::Named(name.to_owned())
}

fn new(name: &str, data: &Attributes) -> Expression {
    Expression::new(name, data)
}

fn of(name: &str) -> Expression {
    new(name, &Attributes::default())
}

/// A condition that established connections, and those without a reply, meet or do not.
const fn state(established: bool, new: bool) -> Statement {
    Statement::State { established, new }
}

const ESTABLISHED_ONLY: Statement = state(true, false);
const NEW_ONLY: Statement = state(false, true);
const NEITHER: Statement = state(false, false);
const BOTH: Statement = state(true, true);

#[test]
fn statements_of_nftables_have_their_names() {
    let writes = |name, key: u32| new(name, &Attributes::default().be32(2, key).be32(3, 1));
    let option = |kind, writes: bool| {
        let data = Attributes::default().bytes(2, &[kind]).be32(6, 1);
        let data = if writes {
            data.be32(7, 1)
        } else {
            data.be32(1, 1)
        };
        new("exthdr", &data)
    };
    let payload = |base, offset, length| expr::payload(base, offset, length, Register::One);
    for (expression, name) in [
        (of("limit"), "limit"),
        (of("log"), "log"),
        (expr::counter(), "counter"),
        (writes("meta", expr::MARK), "meta mark set"),
        (writes("meta", 2), "meta set"),
        (writes("ct", 3), "ct mark set"),
        (writes("ct", 13), "ct set"),
        (expr::meta(expr::IIFNAME, Register::One), "meta iifname"),
        (expr::meta(0, Register::One), "meta length"),
        (expr::meta(99, Register::One), "meta of another kind"),
        (expr::ct(14, Register::One), "ct packets"),
        (payload(expr::NETWORK, 12, 4), "payload address"),
        (payload(expr::NETWORK, 8, 16), "payload address"),
        (payload(expr::NETWORK, 8, 1), "payload"),
        (payload(expr::NETWORK, 1, 1), "payload"),
        (payload(expr::TRANSPORT, 2, 2), "payload ports"),
        (payload(expr::TRANSPORT, 8, 4), "payload"),
        (payload(0, 6, 6), "payload link"),
        (payload(3, 0, 4), "payload"),
        (
            new("payload", &Attributes::default().be32(5, 1)),
            "payload set",
        ),
        (option(2, true), "exthdr maxseg set"),
        (option(3, true), "exthdr set"),
        (option(2, false), "exthdr"),
        (
            new("objref", &Attributes::default().be32(1, 2)),
            "objref quota",
        ),
        (new("objref", &Attributes::default().be32(3, 1)), "objref"),
    ] {
        assert_eq!(decode(&[expression]), [named(name)], "{name}");
    }
    let drop = Statement::Verdict(Action::Drop);
    assert_eq!(
        decode(&[expr::verdict(&Verdict::Drop)]),
        std::slice::from_ref(&drop)
    );
    assert_eq!(decode(&[of("reject")]), [drop]);
}

#[test]
fn conditions_on_the_state_tell_which_connections_meet_them() {
    let compared = |mask: Option<u32>, compare: Expression| {
        let load = expr::ct(expr::CT_STATE, Register::One);
        let mask = mask.map(|bits| expr::mask(Register::One, &bits.to_ne_bytes()));
        let all: Vec<Expression> = [load].into_iter().chain(mask).chain([compare]).collect();
        decode(&all)
    };
    let some = || expr::not_equal(Register::One, &[0; 4]);
    assert_eq!(compared(Some(2 | 4), some()), [ESTABLISHED_ONLY]);
    assert_eq!(compared(Some(1), some()), [NEITHER]);
    assert_eq!(compared(Some(8), some()), [NEW_ONLY]);
    assert_eq!(compared(Some(2 | 8), some()), [BOTH]);
    let equal = |value: u32| expr::equal(Register::One, &value.to_ne_bytes());
    assert_eq!(compared(None, equal(2)), [ESTABLISHED_ONLY]);
    assert_eq!(compared(None, equal(8)), [NEW_ONLY]);
    assert_eq!(compared(Some(8), equal(0)), [ESTABLISHED_ONLY]);
}

#[test]
fn a_verdict_map_of_states_gives_the_verdict_of_each_state() {
    let lookup = || {
        let data = Attributes::default()
            .text(1, "__map0")
            .be32(2, 1)
            .be32(3, 0);
        new("lookup", &data)
    };
    let load = || expr::ct(expr::CT_STATE, Register::One);
    let accept = Attributes::default().be32(1, 1).as_bytes().to_vec();
    let element = |state: u32| ReadElement {
        key: state.to_ne_bytes().to_vec(),
        value: accept.clone(),
    };
    let constant = [("__map0", 3)];
    let found = decode_with(&[load(), lookup()], &constant, &[element(1), element(2)]);
    let verdicts = |established, new| [Statement::Verdicts { established, new }];
    assert_eq!(found, verdicts(Some(Action::Accept), None));
    let found = decode_with(&[load(), lookup()], &constant, &[element(8)]);
    assert_eq!(found, verdicts(None, Some(Action::Accept)));
    // The state is the last part of the key.
    let concatenated = ReadElement {
        key: [7_u32, 2].map(u32::to_ne_bytes).concat(),
        value: accept.clone(),
    };
    let found = decode_with(&[load(), lookup()], &constant, &[concatenated]);
    assert_eq!(found, [named("lookup"), Statement::Verdict(Action::Other)]);
    // Elements with a timeout, and a map that is not known.
    let unknown = [
        named("lookup in a changing set"),
        Statement::Verdict(Action::Other),
    ];
    assert_eq!(
        decode_with(&[load(), lookup()], &[("__map0", 0x10)], &[]),
        unknown
    );
    assert_eq!(decode_with(&[load(), lookup()], &[], &[]), unknown);
}

#[test]
fn sets_whose_elements_change_unseen_have_a_name_of_their_own() {
    let lookup = || new("lookup", &Attributes::default().text(1, "set").be32(2, 1));
    for (flags, name) in [
        (0, "lookup"),
        (4, "lookup"),
        (0x10, "lookup in a changing set"),
        (0x20, "lookup in a changing set"),
    ] {
        let load = expr::payload(expr::NETWORK, 12, 4, Register::One);
        let found = decode_with(&[load, lookup()], &[("set", flags)], &[]);
        assert_eq!(found, [named("payload address"), named(name)]);
    }
}

#[test]
fn conditions_on_tcp_flags_tell_packets_with_ack_alone_apart() {
    for (mask, value, wanted, expected) in [
        (0x17, Some(0x02), true, NEITHER),
        (0x17, Some(0x02), false, ESTABLISHED_ONLY),
        (0x02, Some(0), false, NEITHER),
        (0x10, Some(0x10), true, ESTABLISHED_ONLY),
        (0x18, Some(0x18), true, named("match tcp flags")),
        (0xff, Some(0x10), true, named("match tcp flags")),
        (0x17, None, true, named("match tcp flags")),
    ] {
        assert_eq!(entry::tcp_flags(mask, value, wanted, true), expected);
    }
    let syn = || {
        [
            expr::payload(expr::TRANSPORT, 13, 1, Register::One),
            expr::mask(Register::One, &[0x02]),
            expr::not_equal(Register::One, &[0]),
        ]
    };
    // The byte may be of a UDP packet's payload, unless the protocol was compared.
    let of_udp = [NEW_ONLY, named("payload tcp flags")];
    assert_eq!(decode(&syn()), of_udp);
    let behind = |load: Expression, number: u8| {
        let compare = expr::equal(Register::One, &[number]);
        decode(&[&[load, compare][..], &syn()].concat())
    };
    let protocol = || expr::meta(expr::L4PROTO, Register::One);
    let conditions = [named("meta l4proto"), named("compare")];
    assert_eq!(
        behind(protocol(), 6),
        [&conditions[..], &[NEITHER]].concat()
    );
    assert_eq!(behind(protocol(), 17), [&conditions[..], &of_udp].concat());
    let in_header = expr::payload(expr::NETWORK, 9, 1, Register::One);
    let conditions = [named("payload address"), named("compare")];
    assert_eq!(behind(in_header, 6), [&conditions[..], &[NEITHER]].concat());
}

#[test]
fn extensions_of_iptables_have_their_names() {
    let conntrack = |flags: u16, state: u16, invert: u16| {
        let mut info = vec![0; 168];
        for (at, value) in [(146, flags), (148, invert), (150, state)] {
            info.splice(at..at + 2, value.to_ne_bytes());
        }
        entry::statements("conntrack", &info)
    };
    assert_eq!(conntrack(1, 2 | 4, 0), [ESTABLISHED_ONLY]);
    assert_eq!(conntrack(1, 8, 0), [NEW_ONLY]);
    assert_eq!(conntrack(1, 8, 1), [ESTABLISHED_ONLY]);
    assert_eq!(conntrack(1, 1, 1), [BOTH]);
    assert_eq!(conntrack(1 << 6, 0, 0), [named("match conntrack")]);
    assert_eq!(conntrack(1 << 7, 0, 0), [named("match conntrack expires")]);
    assert_eq!(
        entry::statements("state", &[2, 0, 0, 0]),
        [ESTABLISHED_ONLY]
    );
    assert_eq!(entry::statements("state", &[8, 0, 0, 0]), [NEW_ONLY]);
    assert_eq!(entry::statements("comment", &[]), []);
    assert_eq!(entry::statements("limit", &[]), [named("match limit")]);
    let tcp = |tail: [u8; 4]| entry::statements("tcp", &[&[0; 8], &tail[..]].concat());
    assert_eq!(tcp([0; 4]), [named("match tcp")]);
    assert_eq!(tcp([0, 0x17, 2, 0]), [named("match tcp"), NEITHER]);
    assert_eq!(tcp([0, 0x17, 2, 4]), [named("match tcp"), ESTABLISHED_ONLY]);
    assert_eq!(tcp([1, 0, 0, 0]), [named("match tcp options")]);
    assert_eq!(target("LOG"), [named("target LOG")]);
    assert_eq!(target("REJECT"), [Statement::Verdict(Action::Drop)]);
    assert_eq!(
        target("NFQUEUE"),
        [named("target NFQUEUE"), Statement::Verdict(Action::Other)]
    );
}
