//! The table's chains and rules, and how they are read back.

use std::collections::BTreeSet;
use std::io;

use model::Cidr;
use steps::NetfilterTable;

use super::elements::{ANY_V4, ANY_V6, ONE_V4, ONE_V6, octets};
use crate::firewall::nftables::{
    Batch, Chain, Element, Expression, Family, Hook, Map, Nftables, Position, Register, Rule,
    Verdict, expr,
};

pub(super) const FAMILY: Family = Family::Inet;
pub(crate) const TABLE: &str = "viaduct";
/// Set of the links whose packets our programs decide about.
pub(super) const LINKS: &str = "links";

/// Chains.
const SOURCES: &str = "sources";
const CLOSED: &str = "closed";
const HOSTPORTS: &str = "hostports";
const OUTPUT: &str = "output";
const HAIRPIN: &str = "hairpin";

/// Comments of rules for routed addresses, before the subnet.
const ECHO: &str = "echo requests to ";
const PORTS: &str = "published ports of ";

/// Protocol and type of echo requests in IPv4 and IPv6.
const ECHO_V4: (u8, u8) = (1, 8);
const ECHO_V6: (u8, u8) = (58, 128);

/// `NFPROTO_IPV4` and `NFPROTO_IPV6`.
const IPV4: u8 = 2;
const IPV6: u8 = 10;

/// Offset and length of the source and the destination address in IPv4 and IPv6 headers.
const SOURCE_V4: (u32, u32) = (12, 4);
const DESTINATION_V4: (u32, u32) = (16, 4);
const SOURCE_V6: (u32, u32) = (8, 16);
const DESTINATION_V6: (u32, u32) = (24, 16);
/// Offset and length of the destination port in TCP, UDP and SCTP headers.
const DESTINATION_PORT: (u32, u32) = (2, 2);

/// `RTN_LOCAL`, the type of the node's own addresses.
const LOCAL: u32 = 2;
/// `NFTA_FIB_F_DADDR`: the type of the destination address.
const DESTINATION_TYPE: u32 = 2;

/// Type numbers of `nft` (`src/datatype.c`); parts of a concatenation are six bits each.
const IPV4_ADDRESS: u32 = 7;
const IPV6_ADDRESS: u32 = 8;
const PROTOCOL: u32 = 12;
const SERVICE: u32 = 13;
const INTERFACE_NAME: u32 = 41;
const PORT_KEY: u32 = PROTOCOL << 6 | SERVICE;

/// Bytes of an interface name (`IFNAMSIZ`).
const NAME_BYTES: u32 = 16;

/// A chain with its rules, each with the comment by which it is recognised.
struct Planned {
    name: &'static str,
    hook: Hook,
    rules: Vec<(String, Vec<Expression>)>,
}

/// Adds the table with its chains, rules and links.
pub(super) fn add(batch: &mut Batch, table: &NetfilterTable) {
    batch.add_table(FAMILY, TABLE);
    add_maps(batch, table);
    let names: Vec<Element> = table
        .links
        .iter()
        .map(|link| named(link.as_str()))
        .collect();
    batch.add_elements(FAMILY, TABLE, LINKS, &names);
    for chain in chains(table) {
        batch.add_chain(&Chain {
            family: FAMILY,
            table: TABLE,
            name: chain.name,
            hook: Some(chain.hook),
        });
        for (comment, expressions) in &chain.rules {
            batch.add_rule(&Rule {
                family: FAMILY,
                table: TABLE,
                chain: chain.name,
                position: Position::Last,
                expressions,
                comment,
                xt_protocol: None,
            });
        }
    }
}

fn named(link: &str) -> Element {
    let mut name = link.as_bytes().to_vec();
    name.resize(NAME_BYTES as usize, 0);
    Element::Key(name)
}

fn add_maps(batch: &mut Batch, table: &NetfilterTable) {
    let map = |name, key, value, id| Map {
        family: FAMILY,
        table: TABLE,
        name,
        key,
        value,
        id,
    };
    batch.add_map(&map(LINKS, (INTERFACE_NAME, NAME_BYTES), None, 1));
    if !table.hostports {
        return;
    }
    let families = [
        (IPV4_ADDRESS, 4, [ANY_V4, ONE_V4]),
        (IPV6_ADDRESS, 16, [ANY_V6, ONE_V6]),
    ];
    for (id, (address, length, [any, one])) in (2..).step_by(2).zip(families) {
        let value = Some((address << 6 | SERVICE, length + 4));
        batch.add_map(&map(any, (PORT_KEY, 8), value, id));
        let key = (address << 12 | PORT_KEY, length + 8);
        batch.add_map(&map(one, key, value, id + 1));
    }
}

/// Reads the contents of the table; `None` where a chain or a rule is missing, or one is there that
/// is not ours.
pub(super) fn read(socket: &mut Nftables) -> io::Result<Option<NetfilterTable>> {
    let mut chains: Vec<(String, (u32, i32))> = Vec::new();
    for chain in socket.chains()? {
        if chain.family == FAMILY && chain.table == TABLE {
            chains.push((chain.name, chain.hook.unwrap_or_default()));
        }
    }
    let mut comments = Vec::new();
    for (name, hook) in &chains {
        let rules = socket.rules(FAMILY, TABLE, name)?;
        let texts: Vec<String> = rules.into_iter().map(|rule| rule.comment).collect();
        comments.push((name.clone(), *hook, texts));
    }
    let marked = |chain: &str, mark: &str| -> BTreeSet<Cidr> {
        let of_chain = comments.iter().filter(|(name, ..)| name == chain);
        let texts = of_chain.flat_map(|(.., texts)| texts);
        let prefixes = texts.filter_map(|text| text.strip_prefix(mark)?.parse().ok());
        prefixes.collect()
    };
    let prefixes = |chain: &str| marked(chain, "");
    let links = super::links(socket)?;
    let table = NetfilterTable {
        links: links.iter().filter_map(|name| name.parse().ok()).collect(),
        pods: prefixes(SOURCES),
        closed: prefixes(CLOSED),
        routed: marked(CLOSED, ECHO),
        hostports: chains.iter().any(|(name, _)| name == HAIRPIN),
        output: chains.iter().any(|(name, _)| name == OUTPUT),
        hairpin: prefixes(HAIRPIN),
    };
    let mut expected: Vec<(String, (u32, i32), Vec<String>)> = self::chains(&table)
        .into_iter()
        .map(|chain| {
            let texts = chain.rules.into_iter().map(|(comment, _)| comment);
            let hook = (chain.hook.number, chain.hook.priority);
            (chain.name.to_owned(), hook, texts.collect())
        })
        .collect();
    expected.sort();
    comments.sort();
    Ok((expected == comments && links.len() == table.links.len()).then_some(table))
}

fn chains(table: &NetfilterTable) -> Vec<Planned> {
    let mut chains = Vec::new();
    if !table.pods.is_empty() {
        chains.push(sources(&table.pods));
    }
    if !table.closed.is_empty() {
        chains.push(closed(table));
    }
    if !table.hostports {
        return chains;
    }
    if !table.links.is_empty() {
        chains.push(hostports());
    }
    if table.output {
        chains.push(output());
    }
    chains.push(hairpin(&table.hairpin));
    chains
}

/// Drops packets with a pod's address that come by a link to which the kernel's route to this
/// address does not lead: what strict reverse path filters do, for these addresses and in both
/// families. Before connection tracking, so that they leave no entry.
fn sources(pods: &BTreeSet<Cidr>) -> Planned {
    let rule = |subnet: &Cidr| {
        let mut expressions = in_subnet(subnet, [SOURCE_V4, SOURCE_V6]);
        expressions.extend([
            expr::route_back(Register::One),
            expr::equal(Register::One, &[0; 4]),
            expr::counter(),
            expr::verdict(&Verdict::Drop),
        ]);
        (subnet.to_string(), expressions)
    };
    let mut rules = vec![skip_links()];
    rules.extend(pods.iter().map(rule));
    Planned {
        name: SOURCES,
        hook: Hook {
            kind: "filter",
            number: 0,
            priority: -310,
        },
        rules,
    }
}

/// Drops packets that open a connection to the own address of a pod in a closed network: behind
/// connection tracking, and before any destination NAT, whose packets are for another address here.
/// Of routed addresses, echo requests and published ports are left out, as at uplinks.
fn closed(table: &NetfilterTable) -> Planned {
    /// `NFT_CT_STATE`; established and related connections in it.
    const STATE: u32 = 0;
    const CONNECTED: u32 = 1 << 1 | 1 << 2;
    let connected = vec![
        expr::ct(STATE, Register::One),
        expr::mask(Register::One, &CONNECTED.to_ne_bytes()),
        expr::not_equal(Register::One, &[0; 4]),
        expr::verdict(&Verdict::Return),
    ];
    let rule = |subnet: &Cidr| {
        let mut expressions = in_subnet(subnet, [DESTINATION_V4, DESTINATION_V6]);
        expressions.extend([
            expr::address_type(DESTINATION_TYPE, Register::One),
            expr::not_equal(Register::One, &LOCAL.to_ne_bytes()),
            expr::counter(),
            expr::verdict(&Verdict::Drop),
        ]);
        (subnet.to_string(), expressions)
    };
    let mut rules = vec![skip_links(), ("connected".to_owned(), connected)];
    rules.extend(table.routed.iter().map(echo_requests));
    if table.hostports {
        rules.extend(table.routed.iter().map(routed_ports));
    }
    rules.extend(table.closed.iter().map(rule));
    Planned {
        name: CLOSED,
        hook: Hook {
            kind: "filter",
            number: 0,
            priority: -150,
        },
        rules,
    }
}

/// Ends the chain for echo requests to addresses of a subnet.
fn echo_requests(subnet: &Cidr) -> (String, Vec<Expression>) {
    let (protocol, kind) = if subnet.is_ipv4() { ECHO_V4 } else { ECHO_V6 };
    let mut expressions = in_subnet(subnet, [DESTINATION_V4, DESTINATION_V6]);
    expressions.extend([
        expr::meta(expr::L4PROTO, Register::One),
        expr::equal(Register::One, &[protocol]),
        expr::payload(expr::TRANSPORT, 0, 1, Register::One),
        expr::equal(Register::One, &[kind]),
        expr::verdict(&Verdict::Return),
    ]);
    (format!("{ECHO}{subnet}"), expressions)
}

/// Ends the chain for packets to a port that is published at an address of a subnet: one with an
/// element in the map of single addresses.
fn routed_ports(subnet: &Cidr) -> (String, Vec<Expression>) {
    let (family, map) = if subnet.is_ipv4() {
        (IPV4, ONE_V4)
    } else {
        (IPV6, ONE_V6)
    };
    let mut expressions = in_subnet(subnet, [DESTINATION_V4, DESTINATION_V6]);
    expressions.extend(find_address(family, map));
    expressions.push(expr::verdict(&Verdict::Return));
    (format!("{PORTS}{subnet}"), expressions)
}

/// Translates packets for hostports. Before the chains of other software at the usual priority of
/// -100: the ports of this node's sockets have one owner, and these are ours.
fn hostports() -> Planned {
    let mut rules = vec![skip_links()];
    rules.extend(translations());
    Planned {
        name: HOSTPORTS,
        hook: Hook {
            kind: "nat",
            number: 0,
            priority: -110,
        },
        rules,
    }
}

/// Translates packets of the node's own sockets for hostports. What the cgroup programs have
/// connected to a pod is for no address of the node, and returns at once.
fn output() -> Planned {
    Planned {
        name: OUTPUT,
        hook: Hook {
            kind: "nat",
            number: 3,
            priority: -110,
        },
        rules: translations(),
    }
}

/// Returns the rules that translate packets for addresses of the node. Packets for the loopback are
/// left out, because their source is the loopback's too, and no router forwards it; the sockets
/// that hold the ports refuse them. Link-local addresses name no link in a map.
fn translations() -> Vec<(String, Vec<Expression>)> {
    let returns = || expr::verdict(&Verdict::Return);
    let not_local = vec![
        expr::address_type(DESTINATION_TYPE, Register::One),
        expr::not_equal(Register::One, &LOCAL.to_ne_bytes()),
        returns(),
    ];
    let of = |network: Cidr| {
        let mut expressions = in_subnet(&network, [DESTINATION_V4, DESTINATION_V6]);
        expressions.push(returns());
        (network.to_string(), expressions)
    };
    let not_forwarded = ["127.0.0.0/8", "::1/128", "fe80::/10"]
        .into_iter()
        .filter_map(|text| text.parse().ok())
        .map(of);
    let mut rules = vec![("not local".to_owned(), not_local)];
    rules.extend(not_forwarded);
    rules.extend([
        (ONE_V4.to_owned(), translate_address(IPV4, ONE_V4)),
        (ANY_V4.to_owned(), translate_port(IPV4, ANY_V4)),
        (ONE_V6.to_owned(), translate_address(IPV6, ONE_V6)),
        (ANY_V6.to_owned(), translate_port(IPV6, ANY_V6)),
    ]);
    rules
}

/// Masquerades translated packets between two addresses of one subnet: the server would answer the
/// client directly, past the node, and a pod accepts no packet from its own address.
fn hairpin(subnets: &BTreeSet<Cidr>) -> Planned {
    /// `NFT_CT_STATUS`, and `IPS_DST_NAT` in it.
    const STATUS: u32 = 2;
    const TRANSLATED: u32 = 1 << 5;
    let rule = |subnet: &Cidr| {
        let mut expressions = in_subnet(subnet, [SOURCE_V4, SOURCE_V6]);
        expressions.extend(in_subnet(subnet, [DESTINATION_V4, DESTINATION_V6]));
        expressions.extend([
            expr::ct(STATUS, Register::One),
            expr::mask(Register::One, &TRANSLATED.to_ne_bytes()),
            expr::not_equal(Register::One, &[0; 4]),
            expr::masquerade(),
        ]);
        (subnet.to_string(), expressions)
    };
    Planned {
        name: HAIRPIN,
        hook: Hook {
            kind: "nat",
            number: 4,
            priority: 90,
        },
        rules: subnets.iter().map(rule).collect(),
    }
}

/// Ends the chain for packets that our programs have decided about.
fn skip_links() -> (String, Vec<Expression>) {
    let expressions = vec![
        expr::meta(expr::IIFNAME, Register::One),
        expr::lookup(LINKS, Register::One, None),
        expr::verdict(&Verdict::Return),
    ];
    (LINKS.to_owned(), expressions)
}

fn of_family(family: u8) -> [Expression; 2] {
    [
        expr::meta(expr::NFPROTO, Register::One),
        expr::equal(Register::One, &[family]),
    ]
}

/// Continues for packets of the subnet's family with an address of it at `at`, the place in IPv4
/// and in IPv6 headers.
fn in_subnet(subnet: &Cidr, at: [(u32, u32); 2]) -> Vec<Expression> {
    let [v4, v6] = at;
    let (family, (offset, length)) = if subnet.is_ipv4() {
        (IPV4, v4)
    } else {
        (IPV6, v6)
    };
    let bits = u32::from(subnet.prefix_len());
    let mask: Vec<u8> = (0..length)
        .map(|byte| {
            let ones = bits.saturating_sub(8 * byte).min(8);
            !(0xff_u8.checked_shr(ones).unwrap_or(0))
        })
        .collect();
    let mut expressions = of_family(family).to_vec();
    expressions.extend([
        expr::payload(expr::NETWORK, offset, length, Register::One),
        expr::mask(Register::One, &mask),
        expr::equal(Register::One, &octets(subnet.network())),
    ]);
    expressions
}

/// Translates by protocol and port.
fn translate_port(family: u8, map: &str) -> Vec<Expression> {
    let (offset, length) = DESTINATION_PORT;
    let mut expressions = of_family(family).to_vec();
    expressions.extend([
        expr::meta(expr::L4PROTO, Register::One),
        expr::payload(expr::TRANSPORT, offset, length, Register::OneSecondWord),
        expr::lookup(map, Register::One, Some(Register::One)),
        dnat(family),
    ]);
    expressions
}

/// Translates by address, protocol and port.
fn translate_address(family: u8, map: &str) -> Vec<Expression> {
    let mut expressions = find_address(family, map);
    expressions.push(dnat(family));
    expressions
}

/// Looks address, protocol and port of the destination up in a map. Continues where it has them.
fn find_address(family: u8, map: &str) -> Vec<Expression> {
    let ((at, bytes), protocol, port) = if family == IPV4 {
        let (protocol, port) = (Register::OneSecondWord, Register::OneThirdWord);
        (DESTINATION_V4, protocol, port)
    } else {
        let (protocol, port) = (Register::TwoFirstWord, Register::TwoSecondWord);
        (DESTINATION_V6, protocol, port)
    };
    let (offset, length) = DESTINATION_PORT;
    let mut expressions = of_family(family).to_vec();
    expressions.extend([
        expr::payload(expr::NETWORK, at, bytes, Register::One),
        expr::meta(expr::L4PROTO, protocol),
        expr::payload(expr::TRANSPORT, offset, length, port),
        expr::lookup(map, Register::One, Some(Register::One)),
    ]);
    expressions
}

fn dnat(family: u8) -> Expression {
    let port = if family == IPV4 {
        Register::OneSecondWord
    } else {
        Register::TwoFirstWord
    };
    expr::dnat(family.into(), Register::One, port)
}
