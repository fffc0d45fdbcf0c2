//! Names from CNI configurations and environment variables, each validated when it is parsed.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

/// Error of a text that is not valid for a name type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid {what} {value:?}: {why}")]
pub struct InvalidName {
    /// Kind of the name, for example `network name`.
    pub what: &'static str,
    /// Rejected text.
    pub value: String,
    /// Violated rule.
    pub why: &'static str,
}

fn invalid(what: &'static str, value: &str, why: &'static str) -> InvalidName {
    InvalidName {
        what,
        value: value.to_owned(),
        why,
    }
}

/// `^[a-zA-Z0-9][a-zA-Z0-9_.\-]*$` (CNI spec 1.1.0, "Section 2", for container IDs and network
/// names).
fn check_identifier(what: &'static str, value: &str) -> Result<(), InvalidName> {
    let mut bytes = value.bytes();
    match bytes.next() {
        None => return Err(invalid(what, value, "must not be empty")),
        Some(first) if !first.is_ascii_alphanumeric() => {
            return Err(invalid(what, value, "must start with a letter or a digit"));
        }
        Some(_) => {}
    }
    if bytes.all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-')) {
        Ok(())
    } else {
        Err(invalid(
            what,
            value,
            "may hold only letters, digits, '_', '.' and '-'",
        ))
    }
}

macro_rules! text_type {
    ($(#[$doc:meta])* $name:ident, $what:literal, $check:path) => {
        $(#[$doc])*
        ///
        /// Cheap to clone.
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Returns the name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = InvalidName;

            fn from_str(value: &str) -> Result<Self, InvalidName> {
                $check($what, value)?;
                Ok(Self(value.into()))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

text_type!(
    /// The name of a CNI network.
    NetworkName, "network name", check_identifier
);
text_type!(
    /// A container ID; the runtime guarantees that it is unique on the node.
    ContainerId, "container ID", check_identifier
);
text_type!(
    /// An interface name: 1 to 15 bytes, by the rules of `dev_valid_name` in the kernel's
    /// net/core/dev.c.
    IfName, "interface name", check_interface
);

text_type!(
    /// The name of another node: at most 253 bytes, as the names of Kubernetes' nodes.
    PeerName, "peer name", check_peer
);

fn check_peer(what: &'static str, value: &str) -> Result<(), InvalidName> {
    if value.len() > 253 {
        return Err(invalid(what, value, "must not be longer than 253 bytes"));
    }
    check_identifier(what, value)
}

impl IfName {
    /// Wraps a name that this crate derives, which is valid by construction.
    pub(crate) fn derived(name: String) -> Self {
        debug_assert_eq!(check_interface("interface name", &name), Ok(()));
        Self(name.into())
    }
}

fn check_interface(what: &'static str, value: &str) -> Result<(), InvalidName> {
    if value.is_empty() {
        Err(invalid(what, value, "must not be empty"))
    } else if value.len() > 15 {
        Err(invalid(what, value, "must not be longer than 15 bytes"))
    } else if value == "." || value == ".." {
        Err(invalid(what, value, "must not be '.' or '..'"))
    } else if value
        .chars()
        .any(|c| c == '/' || c == ':' || c == '\0' || c.is_whitespace())
    {
        Err(invalid(
            what,
            value,
            "invalid character: must not hold '/', ':' or white space",
        ))
    } else {
        Ok(())
    }
}

/// Path of a network namespace; always absolute.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NetnsPath(PathBuf);

impl NetnsPath {
    /// Path of the namespace of the thread that opens it: for the agent, the node's.
    const NODE: &'static str = "/proc/thread-self/ns/net";

    /// Returns the path of the node's own namespace. Attachments have it whose runtime moves the
    /// pod's end into the container itself.
    pub fn of_node() -> Self {
        Self(PathBuf::from(Self::NODE))
    }

    /// Returns whether it is the path of the node's own namespace.
    pub fn is_of_node(&self) -> bool {
        self.0 == Path::new(Self::NODE)
    }

    /// Returns the path.
    pub fn as_path(&self) -> &Path {
        &self.0
    }
}

impl FromStr for NetnsPath {
    type Err = InvalidName;

    fn from_str(value: &str) -> Result<Self, InvalidName> {
        if value.contains('\0') {
            Err(invalid(
                "network namespace path",
                value,
                "must not hold a NUL byte",
            ))
        } else if value.starts_with('/') {
            Ok(Self(PathBuf::from(value)))
        } else {
            Err(invalid("network namespace path", value, "must be absolute"))
        }
    }
}

impl fmt::Display for NetnsPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_follow_the_cni_pattern() {
        for good in ["a", "0", "cni-net_1.2", "A-"] {
            assert!(ContainerId::from_str(good).is_ok(), "{good}");
        }
        for bad in ["", "-a", ".a", "a/b", "a b", "é", "a\n"] {
            assert!(ContainerId::from_str(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn interface_names_follow_the_kernel() {
        for good in ["eth0", "a", "fifteen-bytes-1", "net1@x"] {
            assert!(IfName::from_str(good).is_ok(), "{good}");
        }
        for bad in ["", ".", "..", "a/b", "a:b", "a b", "sixteen-bytes-12"] {
            assert!(IfName::from_str(bad).is_err(), "{bad:?}");
        }
    }
}
