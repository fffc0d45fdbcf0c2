//! Netlink attributes of nftables.

use rtnetlink::packet_core::NlasIterator;

/// `NLA_F_NESTED`.
const NESTED: u16 = 0x8000;
/// Size of `struct nlattr`.
const HEADER: usize = 4;

/// A list of encoded attributes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Attributes(Vec<u8>);

impl Attributes {
    /// Adds an attribute with these bytes.
    pub(crate) fn bytes(self, kind: u16, value: &[u8]) -> Self {
        self.push(kind, value)
    }

    /// Adds a text with its final NUL.
    pub(crate) fn text(self, kind: u16, value: &str) -> Self {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.push(kind, &bytes)
    }

    /// Adds a 32-bit number.
    pub(crate) fn be32(self, kind: u16, value: u32) -> Self {
        self.push(kind, &value.to_be_bytes())
    }

    /// Adds a 64-bit number.
    pub(crate) fn be64(self, kind: u16, value: u64) -> Self {
        self.push(kind, &value.to_be_bytes())
    }

    /// Adds nested attributes.
    pub(crate) fn nested(self, kind: u16, value: &Self) -> Self {
        self.push(kind | NESTED, &value.0)
    }

    /// Adds a list: one nested attribute of kind `item` (`NFTA_LIST_ELEM` and the like) for each.
    pub(crate) fn list(self, kind: u16, item: u16, values: impl IntoIterator<Item = Self>) -> Self {
        let all = values
            .into_iter()
            .fold(Self::default(), |all, value| all.nested(item, &value));
        self.nested(kind, &all)
    }

    /// Returns the encoded attributes.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    fn push(mut self, kind: u16, value: &[u8]) -> Self {
        let length = u16::try_from(value.len() + HEADER).unwrap_or(u16::MAX);
        self.0.extend(length.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }
}

/// Returns the attributes of an encoded list, without the flags of their kinds. Stops at a
/// truncated one.
pub(crate) fn parse(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    // The iterator of the library borrows each attribute from itself, so positions are tracked
    // here.
    let mut at = 0;
    NlasIterator::new(bytes)
        .map_while(Result::ok)
        .filter_map(move |attribute| {
            let length = usize::from(attribute.length());
            let value = bytes.get(at + HEADER..at + length)?;
            at += length.next_multiple_of(4);
            Some((attribute.kind(), value))
        })
}

/// Returns the 32-bit number.
pub(crate) fn be32(value: &[u8]) -> Option<u32> {
    value.first_chunk::<4>().map(|it| u32::from_be_bytes(*it))
}

/// Returns the 64-bit number.
pub(crate) fn be64(value: &[u8]) -> Option<u64> {
    value.first_chunk::<8>().map(|it| u64::from_be_bytes(*it))
}

/// Returns the text before the first NUL.
pub(crate) fn text(value: &[u8]) -> String {
    let text = value.split(|byte| *byte == 0).next().unwrap_or(value);
    String::from_utf8_lossy(text).into_owned()
}
