//! Sockets that hold ports of the node, so that nobody else can serve them.
//!
//! They never speak: the datapath takes packets for a hostport away before the stack sees them. A wildcard and a
//! particular address of one port may belong to two pods, and two sockets of that kind are in each other's way unless
//! they share the port by `SO_REUSEPORT`. The kernel lets sockets share only with those of the same user, and which
//! user's a socket is can be set (`fchown`): so all of ours belong to a user that nobody is, drawn at the start, and
//! whoever else sets `SO_REUSEPORT`, root included, is refused as if nobody had. TCP's also have `SO_REUSEADDR`, or
//! the closed connections of whoever served the port before would be in the way; a listening socket shares by it with
//! nobody. UDP's have not: there it would let everybody in.
//!
//! Knows nothing of who is to have which port.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::fchown;
use std::path::Path;

use model::Protocol;
use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockProtocol, SockType, SockaddrStorage, bind, listen,
    setsockopt, socket, sockopt,
};
use planner::{Claim, Held, HeldPorts, Holding};

use crate::error::{Failed, is};
use crate::port_user;

/// Connections that may wait to be accepted: nobody will.
const BACKLOG: i32 = 1;

/// Descriptors for everything but holders.
const OTHERS: u64 = 4096;

/// Where a kernel that has SCTP shows its endpoints. Asking for a socket instead would load the module, which takes
/// SCTP away from those who speak it without the kernel.
const SCTP: &str = "/proc/thread-self/net/sctp";

/// The sockets of one agent.
pub(crate) struct Holders {
    held: BTreeMap<Claim, Holder>,
    /// Whose sockets they are: nobody's else.
    user: u32,
}

struct Holder {
    generation: u32,
    /// `None` where this kernel has no such sockets.
    socket: Option<OwnedFd>,
}

impl Holders {
    /// Draws the user and makes room for sockets.
    pub(crate) fn new() -> io::Result<Self> {
        make_room()?;
        Ok(Self {
            held: BTreeMap::new(),
            user: draw_user()?,
        })
    }

    /// Holds a port; one that is held already is from now on held for this generation.
    pub(crate) fn hold(&mut self, claim: Claim, generation: u32) -> Result<(), Failed> {
        if let Some(holder) = self.held.get_mut(&claim) {
            holder.generation = generation;
            return Ok(());
        }
        let socket = match open(&claim, self.user) {
            Ok(socket) => socket,
            Err(error) if is(&error, Errno::EADDRINUSE) => {
                let in_use = port_user::find(claim);
                return Err(Failed::new(
                    format!("hold port {claim}"),
                    io::Error::new(io::ErrorKind::AddrInUse, in_use),
                ));
            }
            Err(error) => return Err(Failed::new(format!("hold port {claim}"), error)),
        };
        self.held.insert(claim, Holder { generation, socket });
        crash::point();
        Ok(())
    }

    /// Lets go of a port that is held for this generation.
    pub(crate) fn release(&mut self, claim: &Claim, generation: u32) {
        let holder = self.held.get(claim);
        if holder.is_some_and(|holder| holder.generation == generation) {
            self.held.remove(claim);
            crash::point();
        }
    }

    /// Everything that is held.
    pub(crate) fn all(&self) -> HeldPorts {
        self.held
            .iter()
            .map(|(claim, holder)| (*claim, holder.seen()))
            .collect()
    }

    /// Those of `claims` that are held.
    pub(crate) fn some(&self, claims: impl IntoIterator<Item = Claim>) -> HeldPorts {
        claims
            .into_iter()
            .filter_map(|claim| Some((claim, self.held.get(&claim)?.seen())))
            .collect()
    }
}

impl Holder {
    fn seen(&self) -> Held {
        let by = match self.socket {
            Some(_) => Holding::Socket,
            None => Holding::Table,
        };
        Held {
            generation: self.generation,
            by,
        }
    }
}

/// A socket that holds the port; none where the kernel has no such protocol or family.
fn open(claim: &Claim, user: u32) -> io::Result<Option<OwnedFd>> {
    let Some(socket) = make(claim)? else {
        return Ok(None);
    };
    fchown(&socket, Some(user), None)?;
    setsockopt(&socket, sockopt::ReusePort, &true)?;
    if claim.protocol != Protocol::Udp {
        setsockopt(&socket, sockopt::ReuseAddr, &true)?;
    }
    if claim.address.is_ipv6() {
        setsockopt(&socket, sockopt::Ipv6V6Only, &true)?;
    }
    if !claim.address.is_unspecified() {
        // The address may come later: the claim is good from then on. IPv6 sockets take the option as well.
        setsockopt(&socket, sockopt::IpFreebind, &true)?;
    }
    // The mark lets it pass the guard of claimed ports. Nothing that it ever sends is to bear it.
    setsockopt(&socket, sockopt::Mark, &abi::HOLDER_MARK)?;
    bind(socket.as_raw_fd(), &storage(claim.socket()))?;
    setsockopt(&socket, sockopt::Mark, &0)?;
    if claim.protocol != Protocol::Udp {
        listen(&socket, Backlog::new(BACKLOG)?)?;
    }
    Ok(Some(socket))
}

fn make(claim: &Claim) -> io::Result<Option<OwnedFd>> {
    let family = if claim.address.is_ipv4() {
        AddressFamily::Inet
    } else {
        AddressFamily::Inet6
    };
    let (sort, protocol) = match claim.protocol {
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

/// A user with a number of ten digits, which no account has, and no other agent on this node either.
fn draw_user() -> io::Result<u32> {
    let random = fs::read_to_string("/proc/sys/kernel/random/uuid")?;
    let digits = random.get(..8).unwrap_or_default();
    let number = u32::from_str_radix(digits, 16).map_err(io::Error::other)?;
    Ok(number & 0x3fff_ffff | 0x4000_0000)
}

/// One descriptor for each port that can be claimed, and some for the rest; less where the node does not allow it.
fn make_room() -> io::Result<()> {
    let wanted = u64::from(abi::maps::HOSTPORTS_CAPACITY) + OTHERS;
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft >= wanted {
        return Ok(());
    }
    // Root may raise the limit; who may not takes what there is.
    if setrlimit(Resource::RLIMIT_NOFILE, wanted, hard.max(wanted)).is_err() {
        tracing::warn!(
            wanted,
            hard,
            "few ports can be held: the limit of open files is low"
        );
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    }
    Ok(())
}
