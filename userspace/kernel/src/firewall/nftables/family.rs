//! Address families of tables, and sizes of headers.

/// Address family of a table (`NFPROTO_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Family {
    /// IPv4 and IPv6.
    Inet = 1,
    /// IPv4.
    Ip = 2,
    /// Frames of bridges.
    Bridge = 7,
    /// IPv6.
    Ip6 = 10,
}

impl Family {
    /// Returns the family of the number; `None` for ARP, netdev and unknown ones.
    pub(crate) fn of(number: u8) -> Option<Self> {
        [Self::Inet, Self::Ip, Self::Bridge, Self::Ip6]
            .into_iter()
            .find(|family| *family as u8 == number)
    }
}

/// Size of `struct nlmsghdr`.
pub(super) const HEADER: usize = 16;

/// Size of `struct nfgenmsg`.
pub(super) const FAMILY_HEADER: usize = 4;
