//! Who has a port of the node: the socket as the kernel lists it, and the process that has it open.
//!
//! Only for telling people: by the time it is read it may be true no more, and what cannot be found out is left out.

use std::fmt;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use model::Protocol;
use planner::Claim;

/// A port of the node that somebody else has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct PortInUse {
    /// The port that was wanted.
    pub claim: Claim,
    /// The socket that is in the way, if it was found.
    pub socket: Option<SocketAddr>,
    /// Whose it is, if that was found.
    pub process: Option<Process>,
}

/// A process of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Process ID.
    pub pid: u32,
    /// Name of the command.
    pub command: String,
}

impl fmt::Display for PortInUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Claim {
            address,
            port,
            protocol,
        } = self.claim;
        if address.is_unspecified() {
            write!(f, "host port {port}/{protocol} is in use")?;
        } else {
            write!(f, "host port {} is in use", self.claim)?;
        }
        match (&self.process, self.socket) {
            (Some(Process { pid, command }), Some(socket)) => {
                write!(f, " by {command} (pid {pid}, {socket})")
            }
            (Some(Process { pid, command }), None) => write!(f, " by {command} (pid {pid})"),
            (None, Some(socket)) => write!(f, " by an unknown process ({socket})"),
            (None, None) => Ok(()),
        }
    }
}

/// Who keeps us from `claim`.
pub(crate) fn find(claim: Claim) -> PortInUse {
    let mut others = sockets(claim);
    others.sort_by_key(|other| other.rank);
    let found = others.into_iter().next();
    let process = found.as_ref().and_then(|other| process(other.inode));
    PortInUse {
        claim,
        socket: found.map(|other| other.address),
        process,
    }
}

/// A socket that may be in the way.
struct Other {
    address: SocketAddr,
    inode: u64,
    /// Those that serve come first, and of these the claim's own family.
    rank: u8,
}

fn sockets(claim: Claim) -> Vec<Other> {
    let names = match claim.protocol {
        Protocol::Tcp => ["tcp", "tcp6"],
        Protocol::Udp => ["udp", "udp6"],
        Protocol::Sctp => return Vec::new(),
    };
    let mut others = Vec::new();
    for name in names {
        let path = Path::new("/proc/thread-self/net").join(name);
        let list = fs::read_to_string(path).unwrap_or_default();
        others.extend(list.lines().filter_map(|line| other(line, claim)));
    }
    others
}

/// `sl local remote state queues timer retransmits uid timeout inode …`
fn other(line: &str, claim: Claim) -> Option<Other> {
    let words: Vec<&str> = line.split_whitespace().take(10).collect();
    let [_, local, _, state, .., inode] = words[..] else {
        return None;
    };
    let address = address(local)?;
    let inode = inode.parse().ok().filter(|inode| *inode != 0)?;
    let theirs = Claim {
        address: address.ip(),
        port: address.port(),
        protocol: claim.protocol,
    };
    // A wildcard of IPv6 may serve IPv4 too; the list does not tell.
    let both = address.port() == claim.port && address.ip() == Ipv6Addr::UNSPECIFIED;
    let own = theirs.overlaps(&claim);
    let serves = matches!(state, "0A" | "07");
    (own || both).then(|| Other {
        address,
        inode,
        rank: u8::from(!serves) * 2 + u8::from(!own),
    })
}

/// An address as `/proc/net` writes it: words of 32 bits as the machine reads them, and the port in plain hexadecimal.
fn address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let mut bytes = Vec::new();
    for start in (0..address.len()).step_by(8) {
        let word = u32::from_str_radix(address.get(start..start + 8)?, 16).ok()?;
        bytes.extend(word.to_ne_bytes());
    }
    let v4 = <[u8; 4]>::try_from(bytes.as_slice()).map(|bytes| Ipv4Addr::from(bytes).into());
    let v6 = <[u8; 16]>::try_from(bytes.as_slice()).map(|bytes| Ipv6Addr::from(bytes).into());
    let address: IpAddr = v4.or(v6).ok()?;
    Some(SocketAddr::new(address, port))
}

/// A process that has the socket open: the first in `/proc`.
fn process(inode: u64) -> Option<Process> {
    let wanted = format!("socket:[{inode}]");
    let mut pids = fs::read_dir("/proc")
        .ok()?
        .filter_map(Result::ok)
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let pid = pids.find(|pid| has_open(*pid, &wanted).unwrap_or(false))?;
    let command = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(Process {
        pid,
        command: command.trim_end().to_owned(),
    })
}

fn has_open(pid: u32, wanted: &str) -> io::Result<bool> {
    for file in fs::read_dir(format!("/proc/{pid}/fd"))? {
        let target = fs::read_link(file?.path());
        if target.is_ok_and(|target| target == Path::new(wanted)) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(address: &str, protocol: Protocol) -> Claim {
        let socket: SocketAddr = address.parse().unwrap();
        Claim {
            address: socket.ip(),
            port: socket.port(),
            protocol,
        }
    }

    #[cfg(target_endian = "little")]
    #[test]
    fn the_kernels_lists_are_read() {
        let line = "   1: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0";
        let wanted = claim("0.0.0.0:8080", Protocol::Tcp);
        let found = other(line, wanted).unwrap();
        assert_eq!(found.address.to_string(), "127.0.0.1:8080");
        assert_eq!((found.inode, found.rank), (4711, 0));
        assert!(other(line, claim("127.0.0.2:8080", Protocol::Tcp)).is_none());
        assert!(other(line, claim("[::]:8080", Protocol::Tcp)).is_none());
        assert!(other("  sl  local_address rem_address   st", wanted).is_none());
        let v6 = "B80D0120000000000000000002000000:0035";
        assert_eq!(address(v6).unwrap().to_string(), "[2001:db8::2]:53");
        assert!(address("0100007:1F90").is_none());
    }

    #[test]
    fn what_is_known_of_the_owner_is_said() {
        let mut in_use = PortInUse {
            claim: claim("0.0.0.0:8080", Protocol::Tcp),
            socket: Some("0.0.0.0:8080".parse().unwrap()),
            process: Some(Process {
                pid: 1234,
                command: "nginx".to_owned(),
            }),
        };
        assert_eq!(
            in_use.to_string(),
            "host port 8080/tcp is in use by nginx (pid 1234, 0.0.0.0:8080)"
        );
        in_use.process = None;
        assert_eq!(
            in_use.to_string(),
            "host port 8080/tcp is in use by an unknown process (0.0.0.0:8080)"
        );
        in_use.claim.address = "192.0.2.1".parse().unwrap();
        in_use.socket = None;
        assert_eq!(in_use.to_string(), "host port 192.0.2.1:8080/tcp is in use");
    }
}
