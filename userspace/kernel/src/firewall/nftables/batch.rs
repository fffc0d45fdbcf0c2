//! Transactions: messages between a begin and an end, which take effect together.

use super::attributes::Attributes;
use super::expression::Expression;
use super::family::{FAMILY_HEADER, Family, HEADER};

/// `NFNL_SUBSYS_NFTABLES`.
pub(super) const SUBSYSTEM: u16 = 10 << 8;
/// `NFNL_MSG_BATCH_BEGIN` and `NFNL_MSG_BATCH_END`.
const BEGIN: u16 = 16;
const END: u16 = 17;

/// Message types (`enum nf_tables_msg_types`).
const NEW_TABLE: u16 = 0;
const DELETE_TABLE: u16 = 2;
const NEW_CHAIN: u16 = 3;
const DELETE_CHAIN: u16 = 5;
const NEW_RULE: u16 = 6;
const DELETE_RULE: u16 = 8;
const NEW_SET: u16 = 9;
const NEW_ELEMENT: u16 = 12;
const DELETE_ELEMENT: u16 = 14;

/// `NLM_F_REQUEST`, `NLM_F_ACK`, `NLM_F_CREATE` and `NLM_F_APPEND`.
const REQUEST: u16 = 0x1;
const ACK: u16 = 0x4;
const CREATE: u16 = 0x400;
const APPEND: u16 = 0x800;

/// `NFTA_LIST_ELEM`.
const LIST_ELEMENT: u16 = 1;

/// Attachment of a base chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hook {
    /// `filter` or `nat`.
    pub(crate) kind: &'static str,
    /// `enum nf_inet_hooks`: 0 prerouting, 1 input, 2 forward, 3 output, 4 postrouting.
    pub(crate) number: u32,
    /// Priority; lower ones run first.
    pub(crate) priority: i32,
}

/// A chain. The policy of a base chain is accept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chain<'a> {
    pub(crate) family: Family,
    pub(crate) table: &'a str,
    pub(crate) name: &'a str,
    /// `None` for a chain that is reached by jumps only.
    pub(crate) hook: Option<Hook>,
}

/// Place of a new rule in its chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Position {
    First,
    Last,
    /// Before the rule with this handle.
    Before(u64),
}

/// A rule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule<'a> {
    pub(crate) family: Family,
    pub(crate) table: &'a str,
    pub(crate) chain: &'a str,
    pub(crate) position: Position,
    pub(crate) expressions: &'a [Expression],
    /// Comment that `nft` and `iptables` show, of at most 128 bytes; empty for none.
    pub(crate) comment: &'a str,
    /// Protocol that the rule is limited to, for matches of xtables that check it.
    pub(crate) xt_protocol: Option<u8>,
}

/// A map or, without a value, a set. Keys are hashed: no intervals.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Map<'a> {
    pub(crate) family: Family,
    pub(crate) table: &'a str,
    pub(crate) name: &'a str,
    /// Type number of the key as `nft` numbers types (`src/datatype.c`), and length in bytes. The
    /// types of a concatenation are in six bits each, its parts padded to four bytes.
    pub(crate) key: (u32, u32),
    /// Type number and length of the value; `Some((0xffff_ff00, 0))` for verdicts.
    pub(crate) value: Option<(u32, u32)>,
    /// Number that identifies the map in its batch; unique in it.
    pub(crate) id: u32,
}

/// An element of a map or a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    Key(Vec<u8>),
    Value(Vec<u8>, Vec<u8>),
}

impl Element {
    /// `NFTA_SET_ELEM_KEY` and `NFTA_SET_ELEM_DATA`.
    fn encode(&self) -> Attributes {
        let value = |bytes: &[u8]| Attributes::default().bytes(1, bytes);
        let key = |bytes: &[u8]| Attributes::default().nested(1, &value(bytes));
        match self {
            Self::Key(bytes) => key(bytes),
            Self::Value(bytes, data) => key(bytes).nested(2, &value(data)),
        }
    }
}

/// A transaction in the making.
#[derive(Clone, Debug, Default)]
pub(crate) struct Batch {
    generation: Option<u32>,
    messages: Vec<(u16, u16, Family, Attributes)>,
}

impl Batch {
    /// Begins a transaction that is refused where the ruleset is no longer of this generation.
    pub(crate) fn of_generation(generation: u32) -> Self {
        Self {
            generation: Some(generation),
            messages: Vec::new(),
        }
    }

    /// Returns whether there is nothing to do.
    pub(crate) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Creates a table unless it exists.
    pub(crate) fn add_table(&mut self, family: Family, name: &str) {
        let table = Attributes::default().text(1, name);
        self.push(NEW_TABLE, CREATE, family, table);
    }

    /// Deletes a table with everything in it; an error where there is none.
    pub(crate) fn delete_table(&mut self, family: Family, name: &str) {
        let table = Attributes::default().text(1, name);
        self.push(DELETE_TABLE, 0, family, table);
    }

    /// Deletes a table that has no chains, sets or objects; an error for others.
    pub(crate) fn delete_empty_table(&mut self, family: Family, name: &str) {
        /// `NLM_F_NONREC`.
        const NOT_RECURSIVE: u16 = 0x100;
        let table = Attributes::default().text(1, name);
        self.push(DELETE_TABLE, NOT_RECURSIVE, family, table);
    }

    /// Creates a chain unless it exists.
    pub(crate) fn add_chain(&mut self, chain: &Chain<'_>) {
        let mut attributes = name(chain.table, chain.name);
        if let Some(hook) = chain.hook {
            let place = Attributes::default()
                .be32(1, hook.number)
                .be32(2, hook.priority.cast_unsigned());
            attributes = attributes.nested(4, &place).be32(5, 1).text(7, hook.kind);
        }
        self.push(NEW_CHAIN, CREATE, chain.family, attributes);
    }

    /// Deletes an empty chain without references.
    pub(crate) fn delete_chain(&mut self, family: Family, table: &str, chain: &str) {
        self.push(DELETE_CHAIN, 0, family, name(table, chain));
    }

    /// Deletes all rules of a chain.
    pub(crate) fn flush_chain(&mut self, family: Family, table: &str, chain: &str) {
        let attributes = Attributes::default().text(1, table).text(2, chain);
        self.push(DELETE_RULE, 0, family, attributes);
    }

    /// Adds a rule.
    pub(crate) fn add_rule(&mut self, rule: &Rule<'_>) {
        let expressions = rule.expressions.iter().map(|it| it.0.clone());
        let mut attributes = Attributes::default()
            .text(1, rule.table)
            .text(2, rule.chain)
            .list(4, LIST_ELEMENT, expressions);
        let flags = match rule.position {
            Position::First => CREATE,
            Position::Last => CREATE | APPEND,
            Position::Before(handle) => {
                attributes = attributes.be64(6, handle);
                CREATE
            }
        };
        if let Some(protocol) = rule.xt_protocol {
            let compat = Attributes::default().be32(1, protocol.into()).be32(2, 0);
            attributes = attributes.nested(5, &compat);
        }
        if !rule.comment.is_empty() {
            attributes = attributes.bytes(7, &comment(rule.comment));
        }
        self.push(NEW_RULE, flags, rule.family, attributes);
    }

    /// Deletes the rule with this handle.
    pub(crate) fn delete_rule(&mut self, family: Family, table: &str, chain: &str, handle: u64) {
        let attributes = Attributes::default()
            .text(1, table)
            .text(2, chain)
            .be64(3, handle);
        self.push(DELETE_RULE, 0, family, attributes);
    }

    /// Creates a map or a set unless it exists.
    pub(crate) fn add_map(&mut self, map: &Map<'_>) {
        /// `NFT_SET_MAP`.
        const MAP: u32 = 8;
        let mut attributes = Attributes::default()
            .text(1, map.table)
            .text(2, map.name)
            .be32(3, if map.value.is_some() { MAP } else { 0 })
            .be32(4, map.key.0)
            .be32(5, map.key.1);
        if let Some((kind, length)) = map.value {
            attributes = attributes.be32(6, kind);
            if length > 0 {
                attributes = attributes.be32(7, length);
            }
        }
        self.push(NEW_SET, CREATE, map.family, attributes.be32(10, map.id));
    }

    /// Adds elements to a map. One that exists with another value is an error.
    pub(crate) fn add_elements(
        &mut self,
        family: Family,
        table: &str,
        map: &str,
        elements: &[Element],
    ) {
        self.elements(NEW_ELEMENT, CREATE, family, [table, map], elements);
    }

    /// Removes elements from a map by their keys. One that does not exist is an error.
    pub(crate) fn delete_elements(
        &mut self,
        family: Family,
        table: &str,
        map: &str,
        elements: &[Element],
    ) {
        self.elements(DELETE_ELEMENT, 0, family, [table, map], elements);
    }

    /// An attribute is shorter than 64 kB, so a message takes a part of the elements.
    fn elements(
        &mut self,
        kind: u16,
        flags: u16,
        family: Family,
        [table, map]: [&str; 2],
        elements: &[Element],
    ) {
        const PART: usize = 256;
        for part in elements.chunks(PART) {
            let attributes = Attributes::default().text(1, table).text(2, map);
            let encoded = part.iter().map(Element::encode);
            let attributes = attributes.list(3, LIST_ELEMENT, encoded);
            self.push(kind, flags, family, attributes);
        }
    }

    fn push(&mut self, kind: u16, flags: u16, family: Family, attributes: Attributes) {
        self.messages.push((kind, flags, family, attributes));
    }

    /// Returns the encoded batch and its number of messages.
    pub(super) fn finish(self) -> (Vec<u8>, usize) {
        let count = self.messages.len();
        let mut bytes = Vec::new();
        let generation = match self.generation {
            // `NFNL_BATCH_GENID`.
            Some(generation) => Attributes::default().be32(1, generation),
            None => Attributes::default(),
        };
        let subsystem = SUBSYSTEM >> 8;
        encode(&mut bytes, BEGIN, REQUEST, 0, [0, subsystem], &generation);
        for (number, (kind, flags, family, attributes)) in (1_u32..).zip(&self.messages) {
            let ack = if number as usize == count { ACK } else { 0 };
            let (kind, flags) = (SUBSYSTEM | kind, REQUEST | flags | ack);
            encode(
                &mut bytes,
                kind,
                flags,
                number,
                [*family as u16, 0],
                attributes,
            );
        }
        let last = u32::try_from(count + 1).unwrap_or(u32::MAX);
        let none = Attributes::default();
        encode(&mut bytes, END, REQUEST, last, [0, subsystem], &none);
        (bytes, count)
    }
}

/// `NFTA_CHAIN_TABLE` and `NFTA_CHAIN_NAME`.
fn name(table: &str, chain: &str) -> Attributes {
    Attributes::default().text(1, table).text(3, chain)
}

/// Encodes a comment as libnftnl does (`NFTNL_UDATA_RULE_COMMENT`): type, length, text with NUL.
fn comment(text: &str) -> Vec<u8> {
    let text = text.get(..text.len().min(128)).unwrap_or("");
    let length = u8::try_from(text.len() + 1).unwrap_or(u8::MAX);
    let mut bytes = vec![0, length];
    bytes.extend(text.as_bytes());
    bytes.push(0);
    bytes
}

/// Adds a message: `struct nlmsghdr`, then `struct nfgenmsg` with family and resource id, then
/// attributes.
pub(super) fn encode(
    bytes: &mut Vec<u8>,
    kind: u16,
    flags: u16,
    sequence: u32,
    [family, resource]: [u16; 2],
    attributes: &Attributes,
) {
    let body = attributes.as_bytes();
    let length = u32::try_from(HEADER + FAMILY_HEADER + body.len()).unwrap_or(u32::MAX);
    bytes.extend(length.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.push(u8::try_from(family).unwrap_or(0));
    bytes.push(0);
    bytes.extend(resource.to_be_bytes());
    bytes.extend(body);
}
