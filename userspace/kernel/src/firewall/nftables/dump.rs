//! Dumps: the chains, rules and elements that the kernel has.

use std::collections::BTreeMap;
use std::io;

use super::attributes::{Attributes, be32, be64, parse, text};
use super::batch::{SUBSYSTEM, encode};
use super::family::{FAMILY_HEADER, Family};
use super::socket::Nftables;

/// Message types (`enum nf_tables_msg_types`).
const NEW_TABLE: u16 = 0;
const GET_TABLE: u16 = 1;
const NEW_CHAIN: u16 = 3;
const GET_CHAIN: u16 = 4;
const NEW_RULE: u16 = 6;
const GET_RULE: u16 = 7;
const NEW_SET: u16 = 9;
const GET_SET: u16 = 10;
const NEW_ELEMENT: u16 = 12;
const GET_ELEMENT: u16 = 13;
const NEW_GENERATION: u16 = 15;
const GET_GENERATION: u16 = 16;

/// `NLM_F_REQUEST | NLM_F_DUMP`, and `NLM_F_REQUEST | NLM_F_ACK`.
const DUMP: u16 = 0x301;
const ONE: u16 = 0x5;

/// A chain as the kernel has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReadChain {
    pub(crate) family: Family,
    pub(crate) table: String,
    pub(crate) name: String,
    /// `enum nf_inet_hooks` and priority; `None` for a chain that is reached by jumps only.
    pub(crate) hook: Option<(u32, i32)>,
    /// Whether it is a base chain of type `filter`.
    pub(crate) is_filter: bool,
    /// Whether it is a base chain of type `nat`.
    pub(crate) is_nat: bool,
    /// Whether the policy is to drop.
    pub(crate) drops: bool,
    /// Number of rules, and of references by jumps and maps.
    pub(crate) users: u32,
}

/// A rule as the kernel has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReadRule {
    pub(crate) handle: u64,
    pub(crate) expressions: Vec<ReadExpression>,
    /// Comment; empty where there is none.
    pub(crate) comment: String,
}

/// An expression as the kernel has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReadExpression {
    pub(crate) name: String,
    /// Encoded attributes of its type.
    pub(crate) data: Vec<u8>,
}

impl ReadExpression {
    /// Returns the value of an attribute.
    pub(crate) fn get(&self, kind: u16) -> Option<&[u8]> {
        get(&self.data, kind)
    }

    /// Returns a 32-bit number of the expression.
    pub(crate) fn number(&self, kind: u16) -> Option<u32> {
        self.get(kind).and_then(be32)
    }
}

/// Key and value of an element of a map; the value of a set's is empty. A verdict is encoded.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ReadElement {
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
}

impl Nftables {
    /// Returns the generation of the ruleset, which each transaction increases.
    pub(crate) fn generation(&mut self) -> io::Result<u32> {
        let none = Attributes::default();
        let answers = self.get(GET_GENERATION, NEW_GENERATION, ONE, 0, &none)?;
        let answer = answers.first().and_then(|body| be32(field(body, 1)?));
        answer.ok_or_else(crate::netlink::socket::no_answer)
    }

    /// Returns whether the table exists.
    pub(crate) fn has_table(&mut self, family: Family, name: &str) -> io::Result<bool> {
        let table = Attributes::default().text(1, name);
        let answers = self.get(GET_TABLE, NEW_TABLE, ONE, family as u8, &table)?;
        Ok(!answers.is_empty())
    }

    /// Returns all chains of the families that [`Family`] has.
    pub(crate) fn chains(&mut self) -> io::Result<Vec<ReadChain>> {
        let none = Attributes::default();
        let answers = self.get(GET_CHAIN, NEW_CHAIN, DUMP, 0, &none)?;
        Ok(answers.iter().filter_map(|body| chain(body)).collect())
    }

    /// Returns the rules of a chain, in order.
    pub(crate) fn rules(
        &mut self,
        family: Family,
        table: &str,
        chain: &str,
    ) -> io::Result<Vec<ReadRule>> {
        let filter = Attributes::default().text(1, table).text(2, chain);
        let all = self.dump_rules(family, table, &filter)?;
        Ok(all
            .into_iter()
            .filter(|(of, _)| of == chain)
            .map(|(_, rule)| rule)
            .collect())
    }

    /// Returns the rules of all chains of a table with their chains, in order.
    pub(crate) fn rules_of_table(
        &mut self,
        family: Family,
        table: &str,
    ) -> io::Result<Vec<(String, ReadRule)>> {
        let filter = Attributes::default().text(1, table);
        self.dump_rules(family, table, &filter)
    }

    fn dump_rules(
        &mut self,
        family: Family,
        table: &str,
        filter: &Attributes,
    ) -> io::Result<Vec<(String, ReadRule)>> {
        let answers = self.get(GET_RULE, NEW_RULE, DUMP, family as u8, filter)?;
        Ok(answers
            .iter()
            // Old kernels ignore the filter.
            .filter(|body| field(body, 1).is_some_and(|it| text(it) == table))
            .filter_map(|body| Some((text(field(body, 2)?), rule(body)?)))
            .collect())
    }

    /// Returns the sets of a table with their flags (`NFTA_SET_FLAGS`).
    pub(crate) fn sets(
        &mut self,
        family: Family,
        table: &str,
    ) -> io::Result<BTreeMap<String, u32>> {
        let filter = Attributes::default().text(1, table);
        let answers = self.get(GET_SET, NEW_SET, DUMP, family as u8, &filter)?;
        let set = |body: &Vec<u8>| {
            let flags = field(body, 3).and_then(be32).unwrap_or(0);
            let is_of_table = field(body, 1).is_some_and(|it| text(it) == table);
            Some((text(field(body, 2)?), flags)).filter(|_| is_of_table)
        };
        Ok(answers.iter().filter_map(set).collect())
    }

    /// Returns the elements of a map or set.
    pub(crate) fn elements(
        &mut self,
        family: Family,
        table: &str,
        map: &str,
    ) -> io::Result<Vec<ReadElement>> {
        let filter = Attributes::default().text(1, table).text(2, map);
        let answers = self.get(GET_ELEMENT, NEW_ELEMENT, DUMP, family as u8, &filter)?;
        let mut found = Vec::new();
        for body in &answers {
            let list = field(body, 3).unwrap_or_default();
            found.extend(parse(list).filter_map(|(_, element)| read_element(element)));
        }
        Ok(found)
    }

    fn get(
        &mut self,
        get: u16,
        answer: u16,
        flags: u16,
        family: u8,
        filter: &Attributes,
    ) -> io::Result<Vec<Vec<u8>>> {
        let mut request = Vec::new();
        let family = [u16::from(family), 0];
        encode(&mut request, SUBSYSTEM | get, flags, 0, family, filter);
        self.request(&request, SUBSYSTEM | answer)
    }
}

fn chain(body: &[u8]) -> Option<ReadChain> {
    let hook = field(body, 4).and_then(|hook| {
        let priority = get(hook, 2).and_then(be32)?.cast_signed();
        Some((get(hook, 1).and_then(be32)?, priority))
    });
    let is_of = |kind: &str| hook.is_some() && field(body, 7).is_some_and(|it| text(it) == kind);
    Some(ReadChain {
        family: Family::of(*body.first()?)?,
        table: text(field(body, 1)?),
        name: text(field(body, 3)?),
        hook,
        is_filter: is_of("filter"),
        is_nat: is_of("nat"),
        drops: hook.is_some() && field(body, 5).and_then(be32) == Some(0),
        users: field(body, 6).and_then(be32).unwrap_or(0),
    })
}

fn rule(body: &[u8]) -> Option<ReadRule> {
    let expressions =
        parse(field(body, 4).unwrap_or_default()).map(|(_, expression)| ReadExpression {
            name: get(expression, 1).map(text).unwrap_or_default(),
            data: get(expression, 2).unwrap_or_default().to_vec(),
        });
    Some(ReadRule {
        handle: field(body, 3).and_then(be64)?,
        expressions: expressions.collect(),
        comment: field(body, 7).and_then(comment).unwrap_or_default(),
    })
}

fn read_element(element: &[u8]) -> Option<ReadElement> {
    let key = get(get(element, 1)?, 1)?.to_vec();
    let value = get(element, 2).and_then(|data| parse(data).next());
    let value = value.map(|(_, value)| value.to_vec()).unwrap_or_default();
    Some(ReadElement { key, value })
}

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(body: &[u8]) -> Option<ReadRule> {
    let _ = (chain(body), field(body, 1).map(text));
    for (_, element) in parse(field(body, 3).unwrap_or_default()) {
        let _ = read_element(element);
    }
    rule(body)
}

/// Returns the comment of a rule's user data: elements of type, length and value.
fn comment(mut data: &[u8]) -> Option<String> {
    while let [kind, length, rest @ ..] = data {
        let (value, rest) = rest.split_at_checked(usize::from(*length))?;
        if *kind == 0 {
            return Some(text(value));
        }
        data = rest;
    }
    None
}

/// Returns an attribute of a message: `struct nfgenmsg`, then attributes.
fn field(body: &[u8], kind: u16) -> Option<&[u8]> {
    get(body.get(FAMILY_HEADER..)?, kind)
}

/// Returns an attribute of a list.
pub(in crate::firewall::nftables) fn get(attributes: &[u8], kind: u16) -> Option<&[u8]> {
    parse(attributes)
        .find(|(this, _)| *this == kind)
        .map(|(_, value)| value)
}
