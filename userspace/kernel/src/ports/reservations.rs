//! Reserves ports of the node with sockets, so that no other process can bind them.
//!
//! The sockets never receive data: the datapath redirects packets for a hostport before the stack
//! sees them. Connections that it does not see, such as those of processes outside of the agent's
//! cgroup, are refused: TCP sockets listen, so that no other socket can bind the port, and an eBPF
//! program (`BPF_PROG_TYPE_SK_REUSEPORT`) finds no socket for any packet. The kernel then answers
//! as if the port was closed.
//!
//! A wildcard address and a particular address with one port may belong to two pods, and two such
//! sockets conflict unless they share the port by `SO_REUSEPORT`. The kernel lets sockets share
//! only if they have the same user id, and a socket's user id can be set (`fchown`). So all of ours
//! have an unused user id, drawn at the start. Another process that sets `SO_REUSEPORT`, even as
//! root, still gets `EADDRINUSE`.
//!
//! TCP sockets also have `SO_REUSEADDR`. Without it, connections in `TIME_WAIT` of the process that
//! served the port before would conflict; a listening socket does not share its port by this
//! option. UDP sockets do not have it: for UDP, it would let every socket bind the port. SCTP
//! sockets neither listen nor have it: an association that the datapath does not see is aborted
//! then, and no program could refuse it.
//!
//! A container runtime may hold a port with a socket of its own; the agent has none then.
//!
//! Which attachment reserves which port is the planner's decision.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::fchown;
use std::path::Path;
use std::{fs, io};

use model::Protocol;
use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockProtocol, SockType, SockaddrStorage, bind, listen,
    setsockopt, socket, sockopt,
};
use rustix::net::sockopt::{
    Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, set_ip_mtu_discover, set_ipv6_mtu_discover,
};
use steps::{PortLeave, PortReservation, PortReservations, ReservationOwner, ReservedBy};

use crate::bpf::instructions::{EXIT, MOVE, instruction};
use crate::error::{Failed, is};
use crate::ports::users;
use crate::syscall;

/// Listen backlog, in connections: none is ever accepted.
const BACKLOG: i32 = 1;

/// File descriptors for everything but reservations.
const OTHER_FILES: u64 = 4096;

/// Directory that exists where the kernel has SCTP. To open an SCTP socket instead would load the
/// module, which disturbs processes that implement SCTP in user space.
const SCTP: &str = "/proc/thread-self/net/sctp";

/// All reservations of one agent.
pub(crate) struct PortReservationSockets {
    held: BTreeMap<PortReservation, ReservationSocket>,
    /// User id of the sockets, which no other process has.
    user_id: u32,
    /// Program that refuses packets; `None` if the kernel does not load it.
    refusal: Option<OwnedFd>,
}

struct ReservationSocket {
    generation: u32,
    holder: Holder,
}

/// What keeps other processes from binding a port.
enum Holder {
    /// A socket of the agent, open for as long as this.
    Socket { _open: OwnedFd },
    /// The hostport entry: this kernel has no sockets of the protocol or family.
    Table,
    /// A socket of the container's runtime; the hostport entry while the socket is awaited.
    Runtime { awaited: bool },
}

impl PortReservationSockets {
    /// Raises the limit of open files and draws the user id.
    pub(crate) fn new() -> io::Result<Self> {
        raise_file_limit()?;
        Ok(Self {
            held: BTreeMap::new(),
            user_id: draw_user_id()?,
            refusal: load_refusal(),
        })
    }

    /// Reserves a port for this generation. A port that is reserved already gets the new
    /// generation; one that was left to a runtime is taken again.
    pub(crate) fn reserve(
        &mut self,
        reservation: PortReservation,
        generation: u32,
    ) -> Result<(), Failed> {
        if let Some(held) = self.held.get_mut(&reservation)
            && !held.is_left()
        {
            held.generation = generation;
            return Ok(());
        }
        let holder = match open(&reservation, self.user_id, self.refusal.as_ref()) {
            Ok(Some(socket)) => Holder::Socket { _open: socket },
            Ok(None) => Holder::Table,
            Err(error) if is(&error, Errno::EADDRINUSE) => {
                let in_use = users::find(reservation);
                return Err(Failed::new(
                    format!("reserve port {reservation}"),
                    io::Error::new(io::ErrorKind::AddrInUse, in_use),
                ));
            }
            Err(error) => return Err(Failed::new(format!("reserve port {reservation}"), error)),
        };
        self.held
            .insert(reservation, ReservationSocket { generation, holder });
        crash::point();
        Ok(())
    }

    /// Leaves a port to a container runtime, and closes the agent's socket.
    pub(crate) fn leave(&mut self, leave: &PortLeave) {
        let awaited = leave.process.is_some();
        let left = ReservationSocket {
            generation: leave.generation,
            holder: Holder::Runtime { awaited },
        };
        self.held.insert(leave.reservation, left);
        crash::point();
    }

    /// Returns whether a port is left to a container runtime.
    pub(crate) fn is_left(&self, reservation: &PortReservation) -> bool {
        let held = self.held.get(reservation);
        held.is_some_and(ReservationSocket::is_left)
    }

    /// Releases a port that is reserved for this generation; does nothing for another generation.
    pub(crate) fn release(&mut self, reservation: &PortReservation, generation: u32) {
        let held = self.held.get(reservation);
        if held.is_some_and(|held| held.generation == generation) {
            self.held.remove(reservation);
            crash::point();
        }
    }

    /// Returns all reservations in force.
    pub(crate) fn all(&self) -> PortReservations {
        self.held
            .iter()
            .filter(|(reservation, held)| self.is_in_force(reservation, held))
            .map(|(reservation, held)| (*reservation, held.owner()))
            .collect()
    }

    /// Returns those of `reservations` that are in force.
    pub(crate) fn some(
        &self,
        reservations: impl IntoIterator<Item = PortReservation>,
    ) -> PortReservations {
        reservations
            .into_iter()
            .filter_map(|reservation| Some((reservation, self.held.get(&reservation)?)))
            .filter(|(reservation, held)| self.is_in_force(reservation, held))
            .map(|(reservation, held)| (reservation, held.owner()))
            .collect()
    }

    /// Returns whether a port is still reserved. The socket of a runtime may have been closed: then
    /// a bind succeeds.
    fn is_in_force(&self, reservation: &PortReservation, held: &ReservationSocket) -> bool {
        match held.holder {
            Holder::Socket { .. } | Holder::Table | Holder::Runtime { awaited: true } => true,
            Holder::Runtime { awaited: false } => {
                open(reservation, self.user_id, self.refusal.as_ref()).is_err()
            }
        }
    }
}

impl ReservationSocket {
    fn is_left(&self) -> bool {
        matches!(self.holder, Holder::Runtime { .. })
    }

    fn owner(&self) -> ReservationOwner {
        let by = match self.holder {
            Holder::Socket { .. } => ReservedBy::Socket,
            Holder::Table => ReservedBy::Table,
            Holder::Runtime { .. } => ReservedBy::Runtime,
        };
        ReservationOwner {
            generation: self.generation,
            by,
        }
    }
}

/// Opens a socket that is bound to the port; `None` where the kernel has no such protocol or
/// family.
fn open(
    reservation: &PortReservation,
    user_id: u32,
    refusal: Option<&OwnedFd>,
) -> io::Result<Option<OwnedFd>> {
    let Some(socket) = open_unbound(reservation)? else {
        return Ok(None);
    };
    fchown(&socket, Some(user_id), None)?;
    setsockopt(&socket, sockopt::ReusePort, &true)?;
    if reservation.protocol == Protocol::Tcp {
        setsockopt(&socket, sockopt::ReuseAddr, &true)?;
    }
    if reservation.address.is_ipv6() {
        setsockopt(&socket, sockopt::Ipv6V6Only, &true)?;
    }
    if !reservation.address.is_unspecified() {
        // The address may be added to the node later: the reservation holds from then on. IPv6
        // sockets accept this option as well.
        setsockopt(&socket, sockopt::IpFreebind, &true)?;
    }
    if reservation.protocol == Protocol::Udp {
        ignore_path_mtu(&socket, reservation.address.is_ipv4())?;
    }
    // The bind hook lets this mark pass; it refuses published ports to all other sockets. Cleared
    // after the bind, because no packet of the socket is to have it.
    setsockopt(&socket, sockopt::Mark, &abi::HOLDER_MARK)?;
    bind(socket.as_raw_fd(), &storage(reservation.socket()))?;
    setsockopt(&socket, sockopt::Mark, &0)?;
    if reservation.protocol == Protocol::Tcp {
        listen(&socket, Backlog::new(BACKLOG)?)?;
    }
    // After the bind: a socket with a program does not share its port with one that is bound
    // already. The kernel has no such programs for SCTP.
    if let Some(refusal) = refusal.filter(|_| reservation.protocol != Protocol::Sctp) {
        syscall::attach_socket_selector(&socket, refusal)?;
    }
    Ok(Some(socket))
}

/// Excludes a socket from path MTU discovery. An ICMP error that quotes the port, and belongs to no
/// flow, finds the socket (`__udp4_lib_err`, whatever its program says): a forged one would change
/// the path MTU of the node, also for pods.
fn ignore_path_mtu(socket: &OwnedFd, is_ipv4: bool) -> io::Result<()> {
    if is_ipv4 {
        set_ip_mtu_discover(socket, Ipv4PathMtuDiscovery::OMIT)?;
    } else {
        set_ipv6_mtu_discover(socket, Ipv6PathMtuDiscovery::OMIT)?;
    }
    Ok(())
}

/// Loads the program `return SK_DROP`.
fn load_refusal() -> Option<OwnedFd> {
    const DROP: u64 = 0;
    let program = [instruction(MOVE, 0, DROP), instruction(EXIT, 0, 0)];
    syscall::load_socket_selector(&program)
        .inspect_err(|error| {
            tracing::warn!(
                %error,
                "connections to published ports that the datapath does not see are not refused, but time out"
            );
        })
        .ok()
}

fn open_unbound(reservation: &PortReservation) -> io::Result<Option<OwnedFd>> {
    let family = if reservation.address.is_ipv4() {
        AddressFamily::Inet
    } else {
        AddressFamily::Inet6
    };
    let (sort, protocol) = match reservation.protocol {
        Protocol::Tcp => (SockType::Stream, SockProtocol::Tcp),
        Protocol::Udp => (SockType::Datagram, SockProtocol::Udp),
        Protocol::Sctp if !Path::new(SCTP).exists() => return Ok(None),
        Protocol::Sctp => (SockType::Stream, SockProtocol::Sctp),
    };
    match socket(family, sort, SockFlag::SOCK_CLOEXEC, protocol) {
        Ok(socket) => Ok(Some(socket)),
        Err(Errno::EAFNOSUPPORT | Errno::EPROTONOSUPPORT | Errno::ESOCKTNOSUPPORT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn storage(address: SocketAddr) -> SockaddrStorage {
    match address {
        SocketAddr::V4(v4) => v4.into(),
        SocketAddr::V6(v6) => v6.into(),
    }
}

/// Returns a random user id of ten digits, which no account has, and no other agent of this node.
fn draw_user_id() -> io::Result<u32> {
    let random = fs::read_to_string("/proc/sys/kernel/random/uuid")?;
    let digits = random.get(..8).unwrap_or_default();
    let number = u32::from_str_radix(digits, 16).map_err(io::Error::other)?;
    Ok(number & 0x3fff_ffff | 0x4000_0000)
}

/// Raises the limit of open files to one for each hostport and some thousand others; to the hard
/// limit where the node does not allow more. Raising the hard limit needs `CAP_SYS_RESOURCE`.
pub fn raise_file_limit() -> io::Result<()> {
    let wanted = u64::from(abi::maps::HOSTPORTS.capacity) + OTHER_FILES;
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft >= wanted {
        return Ok(());
    }
    // Root may raise the hard limit; without the privilege, the soft limit is raised to it.
    if setrlimit(Resource::RLIMIT_NOFILE, wanted, hard.max(wanted)).is_err() {
        tracing::warn!(
            wanted,
            hard,
            "few ports can be reserved: the limit of open files is low: raise LimitNOFILE of the service"
        );
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    }
    Ok(())
}
