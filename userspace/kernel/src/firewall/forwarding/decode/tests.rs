//! Decoding of expressions, as `nft` and iptables-nft generate them.

use super::*;
use crate::firewall::nftables::{Attributes, Expression, Register, Verdict};

fn read(expressions: &[Expression]) -> (Vec<Condition>, Action) {
    let expressions = expressions.iter().map(Expression::reread).collect();
    let rule = ReadRule {
        handle: 1,
        expressions,
        comment: String::new(),
    };
    super::rule(&rule, Family::Ip)
}

fn accept() -> Expression {
    expr::verdict(&Verdict::Accept)
}

#[test]
fn a_rule_of_counters_and_a_verdict_is_unconditional() {
    let log = Expression::new("log", &Attributes::default());
    let drop = expr::verdict(&Verdict::Drop);
    assert_eq!(read(&[expr::counter(), log, drop]), (vec![], Action::Drop));
    let jump = expr::verdict(&Verdict::Jump("DOCKER-USER".to_owned()));
    let target = Action::Jump("DOCKER-USER".to_owned());
    assert_eq!(read(&[expr::counter(), jump]), (vec![], target));
    let reject = Expression::new("target", &Attributes::default().text(1, "REJECT"));
    assert_eq!(read(&[reject]), (vec![], Action::Drop));
    let unknown = Expression::new("queue", &Attributes::default());
    assert_eq!(read(&[unknown]), (vec![], Action::Other));
}

#[test]
fn interfaces_and_patterns_are_told_apart() {
    let of = |bytes: &[u8]| {
        let compare = expr::equal(Register::One, bytes);
        read(&[expr::meta(expr::IIFNAME, Register::One), compare, accept()]).0
    };
    let input = |name: &str| {
        vec![Condition::Input {
            name: name.to_owned(),
            negated: false,
        }]
    };
    assert_eq!(of(b"docker0\0"), input("docker0"));
    assert_eq!(of(b"docker0\0\0\0\0\0\0\0\0\0"), input("docker0"));
    assert_eq!(of(b"docker"), input("docker*"));
}

#[test]
fn states_without_new_are_recognised() {
    let state = expr::ct(expr::CT_STATE, Register::One);
    let mask = |bits: u32| expr::mask(Register::One, &bits.to_ne_bytes());
    let some = expr::not_equal(Register::One, &[0; 4]);
    let of = |bits| read(&[state.clone(), mask(bits), some.clone(), accept()]).0;
    assert_eq!(of(2 | 4), [Condition::NotNew]);
    assert_eq!(of(2 | 8), [Condition::Other]);
    let conntrack = expr::xt_match("conntrack", 3, &entry::answers());
    assert_eq!(read(&[conntrack, accept()]).0, [Condition::NotNew]);
}

#[test]
fn addresses_have_their_prefix_length() {
    let address = |prefix_len| Condition::Address {
        source: true,
        network: "10.0.0.0".parse().unwrap(),
        prefix_len,
        negated: false,
    };
    let load = |length| expr::payload(expr::NETWORK, 12, length, Register::One);
    let short = expr::equal(Register::One, &[10]);
    assert_eq!(read(&[load(1), short, accept()]).0, [address(8)]);
    let mask = expr::mask(Register::One, &[0xff, 0xfe, 0, 0]);
    let compare = expr::equal(Register::One, &[10, 0, 0, 0]);
    assert_eq!(read(&[load(4), mask, compare, accept()]).0, [address(15)]);
}

#[test]
fn ports_and_destinations_of_the_node_are_recognised() {
    let payload = |offset: u32| {
        let loads = Attributes::default().be32(1, 1).be32(2, expr::TRANSPORT);
        Expression::new("payload", &loads.be32(3, offset).be32(4, 2))
    };
    let port = |source: bool| Condition::Port {
        source,
        ranges: vec![(443, 443)],
        negated: !source,
    };
    let number = 443_u16.to_be_bytes();
    let of_source = read(&[payload(0), expr::equal(Register::One, &number), accept()]);
    assert_eq!(of_source.0, [port(true)]);
    let other = expr::not_equal(Register::One, &number);
    assert_eq!(read(&[payload(2), other, accept()]).0, [port(false)]);
    let fib = |flags: u32| {
        let loads = Attributes::default().be32(1, 1).be32(2, 3);
        Expression::new("fib", &loads.be32(3, flags))
    };
    let local = expr::equal(Register::One, &2_u32.to_ne_bytes());
    let of = |flags| read(&[fib(flags), local.clone(), accept()]).0;
    assert_eq!(of(2), [Condition::LocalDestination { negated: false }]);
    // Of the source address.
    assert_eq!(of(1), [Condition::Other]);
}
