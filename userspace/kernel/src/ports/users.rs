//! Finds the sockets and the processes that use a port of the node.
//!
//! The result may be outdated when it is read, and fields that cannot be found are left out.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::{fmt, fs, io, iter};

use model::{Protocol, printable};
use steps::{Ancestor, PortReservation, Process};

/// Processes between the runtime and the plugin, such as shells and other plugins, at most.
const MAX_ANCESTORS: usize = 8;

/// A port of the node that another process uses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct PortInUse {
    /// The port that was to be reserved.
    pub reservation: PortReservation,
    /// Address of the conflicting socket, if it was found.
    pub socket: Option<SocketAddr>,
    /// Processes that have the socket open, as far as they were found.
    pub processes: Vec<Process>,
}

impl fmt::Display for PortInUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PortReservation {
            address,
            port,
            protocol,
        } = self.reservation;
        if address.is_unspecified() {
            write!(f, "host port {port}/{protocol} is in use")?;
        } else {
            write!(f, "host port {} is in use", self.reservation)?;
        }
        // Any user can give a process any name.
        let process = self.processes.first();
        let process = process.map(|process| (printable(&process.command), process.pid));
        match (process, self.socket) {
            (Some((command, pid)), Some(socket)) => {
                write!(f, " by {command} (pid {pid}, {socket})")
            }
            (Some((command, pid)), None) => write!(f, " by {command} (pid {pid})"),
            (None, Some(socket)) => write!(f, " by an unknown process ({socket})"),
            (None, None) => Ok(()),
        }
    }
}

/// Returns the socket and the processes that conflict with `reservation`.
pub(crate) fn find(reservation: PortReservation) -> PortInUse {
    let mut candidates = sockets(reservation);
    candidates.sort_by_key(|other| other.rank);
    let found = candidates.into_iter().next();
    let inodes: BTreeSet<u64> = found.iter().map(|other| other.inode).collect();
    PortInUse {
        reservation,
        socket: found.map(|other| other.address),
        processes: open_sockets(&inodes).into_values().flatten().collect(),
    }
}

/// Returns the processes that have sockets on these ports, this process left out.
pub(crate) fn holders(
    reservations: &BTreeSet<PortReservation>,
) -> BTreeMap<PortReservation, Vec<Process>> {
    let inodes: BTreeMap<PortReservation, BTreeSet<u64>> = reservations
        .iter()
        .map(|reservation| {
            let inodes = sockets(*reservation)
                .iter()
                .map(|other| other.inode)
                .collect();
            (*reservation, inodes)
        })
        .collect();
    let all = inodes.values().flatten().copied().collect();
    let processes = open_sockets(&all);
    inodes
        .into_iter()
        .map(|(reservation, inodes)| {
            let holders = inodes.iter().filter_map(|inode| processes.get(inode));
            (reservation, holders.flatten().cloned().collect())
        })
        .collect()
}

/// Returns whether a process exists.
pub(crate) fn exists(pid: u32) -> bool {
    folder(pid).exists()
}

/// Returns the processes that led to the execution of a process, nearest first, without that of PID
/// 1. Each is read on demand: an ADD with published ports waits for it.
pub fn ancestors(pid: u32) -> impl Iterator<Item = Ancestor> {
    let mut next = stat(pid).map(|(_, parent)| parent);
    let ancestor = move || {
        let pid = next.filter(|pid| *pid > 1)?;
        let (command, parent) = stat(pid)?;
        next = Some(parent);
        Some(Ancestor {
            pid,
            command,
            is_root: is_of_root(&folder(pid)),
        })
    };
    iter::from_fn(ancestor).take(MAX_ANCESTORS)
}

/// Reads the command and the parent of a process (`/proc/<pid>/stat`, `proc_pid_stat(5)`).
fn stat(pid: u32) -> Option<(String, u32)> {
    let mut file = File::open(folder(pid).join("stat")).ok()?;
    // The kernel gives all of it to one call: 52 numbers, and a name of 15 bytes.
    let mut text = [0; 2048];
    let length = file.read(&mut text).ok()?;
    command_and_parent(&String::from_utf8_lossy(text.get(..length)?))
}

/// The command is in parentheses, and may contain some. State and parent are behind it.
fn command_and_parent(text: &str) -> Option<(String, u32)> {
    let (front, fields) = text.rsplit_once(')')?;
    let (_, command) = front.split_once('(')?;
    let parent = fields.split_whitespace().nth(1)?.parse().ok()?;
    Some((command.to_owned(), parent))
}

fn folder(pid: u32) -> PathBuf {
    Path::new("/proc").join(pid.to_string())
}

/// Returns whether the effective user of a process is root. Other than its files, the folder of a
/// process that cannot be dumped has its owner as well.
fn is_of_root(process: &Path) -> bool {
    fs::metadata(process).is_ok_and(|folder| folder.uid() == 0)
}

/// A socket that may conflict.
struct Candidate {
    address: SocketAddr,
    inode: u64,
    /// Sort key: listening sockets come first, and of these, those of the reservation's family.
    rank: u8,
}

fn sockets(reservation: PortReservation) -> Vec<Candidate> {
    let names = match reservation.protocol {
        Protocol::Tcp => ["tcp", "tcp6"],
        Protocol::Udp => ["udp", "udp6"],
        Protocol::Sctp => return Vec::new(),
    };
    let mut candidates = Vec::new();
    for name in names {
        let path = Path::new("/proc/thread-self/net").join(name);
        let list = fs::read_to_string(path).unwrap_or_default();
        candidates.extend(list.lines().filter_map(|line| candidate(line, reservation)));
    }
    candidates
}

/// `sl local remote state queues timer retransmits uid timeout inode …`
fn candidate(line: &str, reservation: PortReservation) -> Option<Candidate> {
    let words: Vec<&str> = line.split_whitespace().take(10).collect();
    let [_, local, _, state, .., inode] = words[..] else {
        return None;
    };
    let address = address(local)?;
    let inode = inode.parse().ok().filter(|inode| *inode != 0)?;
    let foreign = PortReservation {
        address: address.ip(),
        port: address.port(),
        protocol: reservation.protocol,
    };
    // An IPv6 wildcard may serve IPv4 as well; the list does not contain `IPV6_V6ONLY`.
    let both = address.port() == reservation.port && address.ip() == Ipv6Addr::UNSPECIFIED;
    let own = foreign.overlaps(&reservation);
    let serves = matches!(state, "0A" | "07");
    (own || both).then(|| Candidate {
        address,
        inode,
        rank: u8::from(!serves) * 2 + u8::from(!own),
    })
}

/// Parses an address of `/proc/net`: words of 32 bits in host byte order, and the port as plain
/// hexadecimal number.
pub(crate) fn address(text: &str) -> Option<SocketAddr> {
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

/// Returns the processes in `/proc` that have these sockets open, by inode; this process left out.
fn open_sockets(inodes: &BTreeSet<u64>) -> BTreeMap<u64, Vec<Process>> {
    let mut found: BTreeMap<u64, Vec<Process>> = BTreeMap::new();
    if inodes.is_empty() {
        return found;
    }
    let pids = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(Result::ok)
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| *pid != std::process::id());
    for pid in pids {
        let open: BTreeSet<u64> = sockets_of(pid).unwrap_or_default();
        for inode in open.intersection(inodes) {
            found.entry(*inode).or_default().extend(process(pid));
        }
    }
    found
}

/// Returns the inodes of the sockets that a process has open.
fn sockets_of(pid: u32) -> io::Result<BTreeSet<u64>> {
    let mut inodes = BTreeSet::new();
    for file in fs::read_dir(format!("/proc/{pid}/fd"))? {
        let Ok(target) = fs::read_link(file?.path()) else {
            continue;
        };
        let inode: Option<u64> = target.to_str().and_then(|text| {
            text.strip_prefix("socket:[")?
                .strip_suffix(']')?
                .parse()
                .ok()
        });
        inodes.extend(inode);
    }
    Ok(inodes)
}

/// Reads name, arguments and user of a process.
fn process(pid: u32) -> Option<Process> {
    let folder = folder(pid);
    // Not always UTF-8.
    let command = fs::read(folder.join("comm")).ok()?;
    let command = String::from_utf8_lossy(&command);
    let arguments = fs::read(folder.join("cmdline")).unwrap_or_default();
    Some(Process {
        pid,
        // The kernel adds one line break; others are the name's.
        command: command.strip_suffix('\n').unwrap_or(&command).to_owned(),
        arguments: String::from_utf8_lossy(&arguments)
            .split_terminator('\0')
            .map(str::to_owned)
            .collect(),
        is_root: is_of_root(&folder),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reservation(address: &str, protocol: Protocol) -> PortReservation {
        let socket: SocketAddr = address.parse().unwrap();
        PortReservation {
            address: socket.ip(),
            port: socket.port(),
            protocol,
        }
    }

    #[cfg(target_endian = "little")]
    #[test]
    fn sockets_of_proc_net_tcp_are_parsed() {
        let line = "   1: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0";
        let wanted = reservation("0.0.0.0:8080", Protocol::Tcp);
        let found = candidate(line, wanted).unwrap();
        assert_eq!(found.address.to_string(), "127.0.0.1:8080");
        assert_eq!((found.inode, found.rank), (4711, 0));
        assert!(candidate(line, reservation("127.0.0.2:8080", Protocol::Tcp)).is_none());
        assert!(candidate(line, reservation("[::]:8080", Protocol::Tcp)).is_none());
        assert!(candidate("  sl  local_address rem_address   st", wanted).is_none());
        let v6 = "B80D0120000000000000000002000000:0035";
        assert_eq!(address(v6).unwrap().to_string(), "[2001:db8::2]:53");
        assert!(address("0100007:1F90").is_none());
    }

    #[test]
    fn the_command_of_a_process_may_contain_parentheses() {
        let some = |command: &str, parent| Some((command.to_owned(), parent));
        assert_eq!(
            command_and_parent("12 (podman) S 7 12 12 0"),
            some("podman", 7)
        );
        assert_eq!(command_and_parent("12 (a) (b) S 7 12"), some("a) (b", 7));
        assert_eq!(command_and_parent("12 (a b"), None);
    }

    #[test]
    fn the_ancestors_of_this_process_begin_with_its_parent() {
        let parent = std::os::unix::process::parent_id();
        let found = ancestors(std::process::id()).next();
        assert_eq!(found.map(|it| it.pid), (parent > 1).then_some(parent));
    }

    #[test]
    fn port_in_use_names_the_process_and_socket_that_were_found() {
        let mut in_use = PortInUse {
            reservation: reservation("0.0.0.0:8080", Protocol::Tcp),
            socket: Some("0.0.0.0:8080".parse().unwrap()),
            processes: vec![Process {
                pid: 1234,
                command: "nginx".to_owned(),
                ..Process::default()
            }],
        };
        assert_eq!(
            in_use.to_string(),
            "host port 8080/tcp is in use by nginx (pid 1234, 0.0.0.0:8080)"
        );
        in_use.processes.clear();
        assert_eq!(
            in_use.to_string(),
            "host port 8080/tcp is in use by an unknown process (0.0.0.0:8080)"
        );
        in_use.reservation.address = "192.0.2.1".parse().unwrap();
        in_use.socket = None;
        assert_eq!(in_use.to_string(), "host port 192.0.2.1:8080/tcp is in use");
    }
}
