//! Encodes our rules as nftables' expressions.
//!
//! In tables of iptables, only expressions that iptables-nft generates itself are used, in its
//! order: it refuses to list a table with others.

use std::net::IpAddr;

use model::{Cidr, Protocol};
use steps::{ADMIN_CHAIN, AcceptRule};

use super::entry;
use crate::firewall::nftables::{Expression, Family, Register, Verdict, expr};

/// `IFNAMSIZ`.
const NAME_SIZE: usize = 16;
/// Connection states ESTABLISHED and RELATED (`NF_CT_STATE_BIT`).
const ANSWERS: u32 = 2 | 4;

/// Returns a jump to a chain.
pub(super) fn jump(chain: &str) -> Expression {
    expr::verdict(&Verdict::Jump(chain.to_owned()))
}

/// Returns the comment of the jump to a chain of ours.
pub(super) fn jump_comment(own: &str) -> &'static str {
    if own == ADMIN_CHAIN {
        "viaduct: chains of the firewall plugin"
    } else {
        "viaduct: packets of pods, before the default"
    }
}

/// Returns the expressions of a rule, and the protocol that a match of xtables checks.
pub(super) fn rule(
    rule: &AcceptRule,
    family: Family,
    as_iptables: bool,
) -> (Vec<Expression>, Option<u8>) {
    let mut all = Vec::new();
    let mut xt_protocol = None;
    match rule {
        AcceptRule::From(link) => {
            all.extend(interface(expr::IIFNAME, link.as_str(), as_iptables));
        }
        AcceptRule::AnswersTo(link) => {
            all.extend(interface(expr::OIFNAME, link.as_str(), as_iptables));
            all.extend(answers(as_iptables));
        }
        AcceptRule::FromAddress(address) => all.extend(host(*address, true, family)),
        AcceptRule::AnswersToAddress(address) => {
            all.extend(host(*address, false, family));
            all.extend(answers(as_iptables));
        }
        AcceptRule::Direct(prefix, link) => {
            all.extend(interface(expr::OIFNAME, link.as_str(), as_iptables));
            all.extend(network(prefix, family));
        }
        AcceptRule::Peers {
            input,
            source,
            link,
        } => {
            all.extend(interface(expr::IIFNAME, input.as_str(), as_iptables));
            all.extend(interface(expr::OIFNAME, link.as_str(), as_iptables));
            all.extend(source.iter().flat_map(|prefix| network(prefix, family)));
        }
        AcceptRule::ToPorts {
            address,
            protocol,
            ports,
        } => {
            let number = protocol.number();
            all.push(expr::meta(expr::L4PROTO, Register::One));
            all.push(expr::equal(Register::One, &[number]));
            all.extend(host(*address, false, family));
            let (first, last) = *ports;
            if as_iptables && (*protocol == Protocol::Sctp || first != last) {
                xt_protocol = Some(number);
                all.push(expr::xt_match("multiport", 1, &entry::to_ports(*ports)));
            } else {
                all.push(expr::payload(expr::TRANSPORT, 2, 2, Register::One));
                if first == last {
                    all.push(expr::equal(Register::One, &first.to_be_bytes()));
                } else {
                    all.push(expr::at_least(Register::One, &first.to_be_bytes()));
                    all.push(expr::at_most(Register::One, &last.to_be_bytes()));
                }
            }
        }
        AcceptRule::Admin(chain) => {
            return (vec![expr::counter(), jump(chain)], None);
        }
    }
    all.push(expr::counter());
    all.push(expr::verdict(&Verdict::Accept));
    (all, xt_protocol)
}

/// iptables compares the name with its final NUL, nftables all of the field.
fn interface(key: u32, name: &str, as_iptables: bool) -> [Expression; 2] {
    let mut bytes = name.as_bytes().to_vec();
    bytes.resize(
        if as_iptables {
            bytes.len() + 1
        } else {
            NAME_SIZE
        },
        0,
    );
    [
        expr::meta(key, Register::One),
        expr::equal(Register::One, &bytes),
    ]
}

fn answers(as_iptables: bool) -> Vec<Expression> {
    if as_iptables {
        return vec![expr::xt_match("conntrack", 3, &entry::answers())];
    }
    vec![
        expr::ct(expr::CT_STATE, Register::One),
        expr::mask(Register::One, &ANSWERS.to_ne_bytes()),
        expr::not_equal(Register::One, &[0; 4]),
    ]
}

fn host(address: IpAddr, source: bool, family: Family) -> Vec<Expression> {
    let (offset, bytes) = place(address, source);
    let mut all = protocol_family(address, family);
    all.push(load(offset, bytes.len()));
    all.push(expr::equal(Register::One, &bytes));
    all
}

/// Source prefix. Whole bytes are compared alone, as iptables does.
fn network(prefix: &Cidr, family: Family) -> Vec<Expression> {
    let (offset, mut bytes) = place(prefix.network(), true);
    let mut all = protocol_family(prefix.network(), family);
    let length = usize::from(prefix.prefix_len());
    if length.is_multiple_of(8) {
        bytes.truncate(length / 8);
        all.push(load(offset, bytes.len()));
    } else {
        let bits = |at: usize| 0xff00_u16 >> length.saturating_sub(at * 8).min(8);
        let mask: Vec<u8> = (0..bytes.len())
            .map(|at| bits(at).to_le_bytes()[0])
            .collect();
        all.push(load(offset, bytes.len()));
        all.push(expr::mask(Register::One, &mask));
    }
    all.push(expr::equal(Register::One, &bytes));
    all
}

fn load(offset: u32, length: usize) -> Expression {
    let length = u32::try_from(length).unwrap_or(0);
    expr::payload(expr::NETWORK, offset, length, Register::One)
}

/// Returns offset in the IP header and bytes of the address.
fn place(address: IpAddr, source: bool) -> (u32, Vec<u8>) {
    match address {
        IpAddr::V4(v4) => (if source { 12 } else { 16 }, v4.octets().to_vec()),
        IpAddr::V6(v6) => (if source { 8 } else { 24 }, v6.octets().to_vec()),
    }
}

/// In tables of both families, the offset of an address depends on the family.
fn protocol_family(address: IpAddr, family: Family) -> Vec<Expression> {
    if family != Family::Inet {
        return Vec::new();
    }
    let number = if address.is_ipv4() {
        Family::Ip
    } else {
        Family::Ip6
    };
    vec![
        expr::meta(expr::NFPROTO, Register::One),
        expr::equal(Register::One, &[number as u8]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_of_whole_bytes_is_compared_without_a_mask() {
        let names = |prefix: &str| network(&prefix.parse().unwrap(), Family::Ip).len();
        assert_eq!(names("10.0.0.0/8"), 2);
        assert_eq!(names("10.0.0.0/9"), 3);
        let masked = network(&"10.16.0.0/12".parse().unwrap(), Family::Ip);
        assert_eq!(masked[1], expr::mask(Register::One, &[0xff, 0xf0, 0, 0]));
    }
}
