//! Keys of network policies in the datapath's tables.

use std::fmt;

use model::Protocol;

/// Ports that a key of a rule set allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AllowedPorts {
    /// All protocols, those without ports included.
    All,
    /// The ports of a protocol whose first `bits` bits are those of `port`.
    Block {
        /// The protocol.
        protocol: Protocol,
        /// The first port, in host byte order.
        port: u16,
        /// Number of significant bits; 0 for all ports.
        bits: u8,
    },
}

/// What a rule set of network policies allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AllowedKey {
    /// Number of the rule set.
    pub rules: u32,
    /// Identity of the other end; 0 for every address.
    pub identity: u32,
    /// Ports of the end that accepts the connection.
    pub ports: AllowedPorts,
}

impl fmt::Display for AllowedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            rules, identity, ..
        } = self;
        write!(f, "rule set {rules:08x}, identity {identity:08x}")?;
        match self.ports {
            AllowedPorts::All => Ok(()),
            AllowedPorts::Block {
                protocol,
                port,
                bits,
            } => write!(f, ", {protocol} {port}/{bits}"),
        }
    }
}
