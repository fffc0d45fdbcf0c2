//! Expressions of rules: one operation on a packet and the registers each.

use super::attributes::Attributes;

/// Registers of 16 bytes (`NFT_REG_1` and on). The verdict is register 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Register {
    One = 1,
    /// Bytes 4 to 7 of [`Register::One`] (`NFT_REG32_01`), for concatenated keys.
    OneSecondWord = 9,
    /// Bytes 8 to 11 of [`Register::One`].
    OneThirdWord = 10,
    /// The word after an IPv6 address in [`Register::One`]: first of the second register.
    TwoFirstWord = 12,
    /// Bytes 4 to 7 of the second register.
    TwoSecondWord = 13,
}

/// Verdict of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Accept,
    Drop,
    Return,
    Jump(String),
}

impl Verdict {
    /// `NFTA_VERDICT_CODE` and `NFTA_VERDICT_CHAIN`, in `NFTA_DATA_VERDICT`.
    pub(crate) fn encode(&self) -> Attributes {
        let (code, chain) = match self {
            Self::Accept => (1, None),
            Self::Drop => (0, None),
            Self::Jump(chain) => (-3, Some(chain)),
            Self::Return => (-5_i32, None),
        };
        let verdict = Attributes::default().be32(1, code.cast_unsigned());
        let verdict = match chain {
            Some(chain) => verdict.text(2, chain),
            None => verdict,
        };
        Attributes::default().nested(2, &verdict)
    }
}

/// An encoded expression (`NFTA_EXPR_NAME`, `NFTA_EXPR_DATA`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Expression(pub(super) Attributes);

impl Expression {
    pub(crate) fn new(name: &str, data: &Attributes) -> Self {
        Self(Attributes::default().text(1, name).nested(2, data))
    }
}

/// Constructors of expressions.
pub(crate) mod expr {
    use super::{Attributes, Expression, Register, Verdict};

    /// Keys of [`meta`] (`NFT_META_*`).
    pub(crate) const MARK: u32 = 3;
    pub(crate) const IIFNAME: u32 = 6;
    pub(crate) const OIFNAME: u32 = 7;
    pub(crate) const NFPROTO: u32 = 15;
    pub(crate) const L4PROTO: u32 = 16;

    /// Bases of [`payload`] (`NFT_PAYLOAD_*_HEADER`).
    pub(crate) const NETWORK: u32 = 1;
    pub(crate) const TRANSPORT: u32 = 2;

    /// Key of [`ct`] for the state of the connection (`NFT_CT_STATE`).
    pub(crate) const CT_STATE: u32 = 0;

    /// Loads metadata into a register.
    pub(crate) fn meta(key: u32, to: Register) -> Expression {
        let data = Attributes::default().be32(1, to as u32).be32(2, key);
        Expression::new("meta", &data)
    }

    /// Loads a property of the connection into a register.
    pub(crate) fn ct(key: u32, to: Register) -> Expression {
        let data = Attributes::default().be32(1, to as u32).be32(2, key);
        Expression::new("ct", &data)
    }

    /// Loads bytes of the packet into a register.
    pub(crate) fn payload(base: u32, offset: u32, length: u32, to: Register) -> Expression {
        let data = Attributes::default()
            .be32(1, to as u32)
            .be32(2, base)
            .be32(3, offset)
            .be32(4, length);
        Expression::new("payload", &data)
    }

    /// Continues where the register is equal to these bytes.
    pub(crate) fn equal(register: Register, value: &[u8]) -> Expression {
        compare(register, 0, value)
    }

    /// Continues where the register is different from these bytes.
    pub(crate) fn not_equal(register: Register, value: &[u8]) -> Expression {
        compare(register, 1, value)
    }

    /// Continues where the register is at most these bytes, as a number in network byte order.
    pub(crate) fn at_most(register: Register, value: &[u8]) -> Expression {
        compare(register, 3, value)
    }

    /// Continues where the register is at least these bytes, as a number in network byte order.
    pub(crate) fn at_least(register: Register, value: &[u8]) -> Expression {
        compare(register, 5, value)
    }

    fn compare(register: Register, operation: u32, value: &[u8]) -> Expression {
        let value = Attributes::default().bytes(1, value);
        let data = Attributes::default()
            .be32(1, register as u32)
            .be32(2, operation)
            .nested(3, &value);
        Expression::new("cmp", &data)
    }

    /// Clears the bits of the register that are not in the mask.
    pub(crate) fn mask(register: Register, mask: &[u8]) -> Expression {
        let value = |bytes: &[u8]| Attributes::default().bytes(1, bytes);
        let length = u32::try_from(mask.len()).unwrap_or(0);
        let data = Attributes::default()
            .be32(1, register as u32)
            .be32(2, register as u32)
            .be32(3, length)
            .nested(4, &value(mask))
            .nested(5, &value(&vec![0; mask.len()]));
        Expression::new("bitwise", &data)
    }

    /// Counts packets and bytes.
    pub(crate) fn counter() -> Expression {
        let data = Attributes::default().be64(1, 0).be64(2, 0);
        Expression::new("counter", &data)
    }

    /// Ends the rule with a verdict.
    pub(crate) fn verdict(verdict: &Verdict) -> Expression {
        let data = Attributes::default()
            .be32(1, 0)
            .nested(2, &verdict.encode());
        Expression::new("immediate", &data)
    }

    /// Looks the register up in a set or map of the table, by name. A map's value goes into `to`.
    pub(crate) fn lookup(set: &str, key: Register, to: Option<Register>) -> Expression {
        let data = Attributes::default().text(1, set).be32(2, key as u32);
        let data = match to {
            Some(to) => data.be32(3, to as u32),
            None => data,
        };
        Expression::new("lookup", &data)
    }

    /// Translates the destination to the address and port in these registers (network byte order).
    /// `family` is `NFPROTO_IPV4` or `NFPROTO_IPV6`.
    pub(crate) fn dnat(family: u32, address: Register, port: Register) -> Expression {
        /// `NF_NAT_RANGE_MAP_IPS | NF_NAT_RANGE_PROTO_SPECIFIED`.
        const FLAGS: u32 = 3;
        let data = Attributes::default()
            .be32(1, 1)
            .be32(2, family)
            .be32(3, address as u32)
            .be32(5, port as u32)
            .be32(7, FLAGS);
        Expression::new("nat", &data)
    }

    /// Translates the source to the address of the outgoing interface.
    pub(crate) fn masquerade() -> Expression {
        Expression::new("masq", &Attributes::default())
    }

    /// Looks an address of the packet up in the routing tables and loads the type of the route
    /// (`NFT_FIB_RESULT_ADDRTYPE`). `flags` are `NFTA_FIB_F_*`: 1 for the source, 2 for the
    /// destination address.
    pub(crate) fn address_type(flags: u32, to: Register) -> Expression {
        let data = Attributes::default()
            .be32(1, to as u32)
            .be32(2, 3)
            .be32(3, flags);
        Expression::new("fib", &data)
    }

    /// Looks the route to the source address up and loads the index of the incoming link, if the
    /// route leads through it; 0 otherwise (`NFT_FIB_RESULT_OIF`, by source and link).
    pub(crate) fn route_back(to: Register) -> Expression {
        /// `NFTA_FIB_F_SADDR | NFTA_FIB_F_IIF`.
        const SOURCE_AND_LINK: u32 = 1 | 8;
        let data = Attributes::default()
            .be32(1, to as u32)
            .be32(2, 1)
            .be32(3, SOURCE_AND_LINK);
        Expression::new("fib", &data)
    }

    /// A match of xtables, as iptables-nft generates it. `info` has the layout of its module.
    pub(crate) fn xt_match(name: &str, revision: u32, info: &[u8]) -> Expression {
        let data = Attributes::default()
            .text(1, name)
            .be32(2, revision)
            .bytes(3, info);
        Expression::new("match", &data)
    }
}

#[cfg(test)]
impl Expression {
    /// Returns the expression as a dump has it.
    pub(crate) fn reread(&self) -> super::ReadExpression {
        let get = |kind| super::dump::get(self.0.as_bytes(), kind).unwrap_or_default();
        super::ReadExpression {
            name: super::text(get(1)),
            data: get(2).to_vec(),
        }
    }
}
