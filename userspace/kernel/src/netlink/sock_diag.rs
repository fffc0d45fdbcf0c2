//! Lists connected TCP and UDP sockets of the node and its pods by `NETLINK_SOCK_DIAG`
//! (`sock_diag(7)`).
//!
//! The kernel's sockets are many, and pods make them, so both their number and the time are bounded
//! (decision 167). The bounds are per namespace: a pod with many sockets hides only its own.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use model::Netns;
use netlink_packet_sock_diag::constants::{
    AF_INET, AF_INET6, INET_DIAG_INFO, IPPROTO_TCP, IPPROTO_UDP, SOCK_DIAG_BY_FAMILY, TCP_CLOSE,
    TCP_CLOSE_WAIT, TCP_CLOSING, TCP_ESTABLISHED, TCP_FIN_WAIT1, TCP_FIN_WAIT2, TCP_LAST_ACK,
    TCP_LISTEN, TCP_SYN_RECV, TCP_SYN_SENT,
};
use netlink_packet_sock_diag::inet::nlas::TcpInfo;
use netlink_packet_sock_diag::inet::{
    ExtensionFlags, InetRequest, InetResponseHeader, SocketId, StateFlags,
};
use netlink_packet_sock_diag::message::SockDiagMessage;
use rtnetlink::packet_core::{
    NLM_F_DUMP, NLM_F_REQUEST, NetlinkBuffer, NetlinkMessage, NetlinkPayload, NlasIterator,
    Parseable as _,
};
use rtnetlink::sys::Socket;
use rtnetlink::sys::protocols::NETLINK_SOCK_DIAG;
use steps::{ConnectedSocket, NamespaceSockets, SocketQuery, SocketState, SocketTable, Traffic};

use crate::ObserveError;
use crate::error::{Attempt as _, is_gone};
use crate::netlink::addresses;
use crate::netlink::socket::{self, Netlink};
use crate::pod::netns::OpenNetns;

/// Numbers of sockets that are read per namespace, family and protocol. The namespaces that have
/// more than the first are read again, after all others.
const SOCKETS: [usize; 2] = [1 << 10, 1 << 14];
/// Connections of all namespaces, at most; some 150 bytes each. Each namespace keeps as many as
/// others leave it.
const CONNECTIONS: usize = 1 << 16;
/// Time for all namespaces.
const TIME: Duration = Duration::from_secs(2);

/// Families and protocols, each a dump of its own, and the states of the wanted sockets. Those in
/// `TIME_WAIT` have no process. A UDP socket without a peer is in `TCP_CLOSE`.
const DUMPS: [(u8, u8, StateFlags); 4] = [
    (AF_INET, IPPROTO_TCP, TCP_STATES),
    (AF_INET6, IPPROTO_TCP, TCP_STATES),
    (AF_INET, IPPROTO_UDP, UDP_STATES),
    (AF_INET6, IPPROTO_UDP, UDP_STATES),
];
const TCP_STATES: StateFlags = StateFlags::all()
    .difference(StateFlags::TIME_WAIT)
    .difference(StateFlags::CLOSE);
const UDP_STATES: StateFlags = StateFlags::ESTABLISHED.union(StateFlags::CLOSE);

/// Length of `struct inet_diag_msg`, before the attributes.
const HEADER: usize = 72;

/// Reads the sockets that `query` selects, and the addresses of the node, which are those of peers
/// too. Blocks for some two seconds at most, and enters the namespaces with the calling thread.
///
/// Skips a namespace that is gone or cannot be entered. A kernel without `tcp_diag` or `udp_diag`
/// has no sockets of this protocol.
pub fn read_sockets(query: &SocketQuery) -> Result<SocketTable, ObserveError> {
    let until = Instant::now() + TIME;
    let own = own_addresses().attempt(|| "list the addresses of the node".to_owned())?;
    let peers = query.addresses.union(&own).copied().collect();
    let mut reader = Reader {
        peers,
        until,
        found: BTreeMap::new(),
    };
    for limit in SOCKETS {
        reader.read(None, limit);
        for netns in &query.namespaces {
            reader.read(Some(netns), limit);
        }
    }
    let node = reader.found.remove(&None).unwrap_or_default();
    let pods = reader.found.into_iter();
    Ok(SocketTable {
        node,
        pods: pods
            .filter_map(|(netns, sockets)| Some((netns?.clone(), sockets)))
            .collect(),
    })
}

/// Returns the addresses of the node by which pods reach it: without loopback and link-local ones,
/// which each namespace has.
fn own_addresses() -> io::Result<BTreeSet<IpAddr>> {
    let all = addresses::all(&mut Netlink::open()?)?.into_iter();
    Ok(all
        .map(|address| address.own.address)
        .filter(|address| match address {
            IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_link_local(),
            IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local(),
        })
        .collect())
}

/// Sockets that are read, by namespace; `None` is the node's.
struct Reader<'a> {
    /// Addresses of peers whose connections are wanted.
    peers: BTreeSet<IpAddr>,
    until: Instant,
    found: BTreeMap<Option<&'a Netns>, NamespaceSockets>,
}

impl<'a> Reader<'a> {
    /// Reads the sockets of a namespace, unless they are known already. Keeps those of an earlier
    /// read with a lower limit if the time ends meanwhile.
    fn read(&mut self, netns: Option<&'a Netns>, limit: usize) {
        let before = self.found.get(&netns);
        let is_first = limit == SOCKETS[0];
        if !is_first && before.is_none_or(|sockets| !sockets.is_truncated) {
            return;
        }
        let sockets = match self.list(netns, limit) {
            Ok(Some(sockets)) => sockets,
            Ok(None) => return,
            Err(error) => {
                let path = netns.map(|netns| netns.path.as_path());
                tracing::debug!(?path, %error, "skipped the sockets of a network namespace");
                return;
            }
        };
        if before.is_some_and(|before| sockets.connected.len() < before.connected.len()) {
            return;
        }
        self.found.insert(netns, sockets);
        keep(&mut self.found, CONNECTIONS);
    }

    /// Lists the sockets of a namespace; `None` if it is gone.
    fn list(&self, netns: Option<&Netns>, limit: usize) -> io::Result<Option<NamespaceSockets>> {
        let mut sockets = NamespaceSockets::default();
        if Instant::now() >= self.until {
            sockets.is_truncated = true;
            return Ok(Some(sockets));
        }
        let netns = match netns.map(OpenNetns::find_same) {
            None => None,
            Some(found) => match found? {
                Some(found) => Some(found),
                None => return Ok(None),
            },
        };
        let open = || match &netns {
            Some(netns) => netns.run(open),
            None => open(),
        };
        let Some(mut socket) = open()? else {
            return Ok(Some(sockets));
        };
        for (sequence, dump) in (1..).zip(DUMPS) {
            if !self.dump(&socket, sequence, dump, limit, &mut sockets)? {
                sockets.is_truncated = true;
                // The rest of the dump is discarded with its socket.
                let Some(next) = open()? else { break };
                socket = next;
            }
        }
        Ok(Some(sockets))
    }

    /// Adds the sockets of one family and protocol, `limit` at most. Returns whether these are all.
    fn dump(
        &self,
        socket: &Socket,
        sequence: u32,
        (family, protocol, states): (u8, u8, StateFlags),
        limit: usize,
        sockets: &mut NamespaceSockets,
    ) -> io::Result<bool> {
        socket.send(&request(sequence, family, protocol, states), 0)?;
        let mut buffer = Vec::with_capacity(socket::BUFFER);
        let mut count = 0;
        loop {
            socket::receive(socket, &mut buffer)?;
            for part in socket::messages(&buffer) {
                let message = NetlinkBuffer::new(part);
                if message.sequence_number() != sequence {
                    continue;
                }
                if message.message_type() != SOCK_DIAG_BY_FAMILY {
                    return end_of_dump(part);
                }
                count += 1;
                match parse(message.payload(), protocol) {
                    Some(Listed::Connected(socket)) if self.is_wanted(&socket) => {
                        sockets.connected.push(socket);
                    }
                    Some(Listed::Listening(port)) => {
                        sockets.listening.insert((protocol, port));
                    }
                    Some(Listed::Connected(_)) | None => {}
                }
            }
            if count >= limit || Instant::now() >= self.until {
                return Ok(false);
            }
        }
    }

    fn is_wanted(&self, socket: &ConnectedSocket) -> bool {
        socket.local.ip() != socket.peer.ip() && self.peers.contains(&socket.peer.ip())
    }
}

/// Opens a socket in the namespace of the calling thread; `None` where the kernel has no
/// `sock_diag`.
fn open() -> io::Result<Option<Socket>> {
    let Some(mut socket) = socket::if_supported(Socket::new(NETLINK_SOCK_DIAG))? else {
        return Ok(None);
    };
    socket.bind_auto()?;
    socket::set_receive_timeout(&socket)?;
    Ok(Some(socket))
}

fn request(sequence: u32, family: u8, protocol: u8, states: StateFlags) -> Vec<u8> {
    let mut message = NetlinkMessage::from(SockDiagMessage::InetRequest(InetRequest {
        family,
        protocol,
        extensions: ExtensionFlags::INFO,
        states,
        socket_id: match family {
            AF_INET => SocketId::new_v4(),
            _ => SocketId::new_v6(),
        },
    }));
    message.header.flags = NLM_F_REQUEST | NLM_F_DUMP;
    message.header.sequence_number = sequence;
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

/// Parses the message that ends a dump, which has then listed all sockets. The kernel does not have
/// a protocol whose module (`tcp_diag`, `udp_diag`) it cannot load.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "netlink's enums are open: unknown values are skipped"
)]
fn end_of_dump(part: &[u8]) -> io::Result<bool> {
    let ended = NetlinkMessage::<SockDiagMessage>::deserialize(part)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    let error = match ended.payload {
        NetlinkPayload::Done(done) if done.code < 0 => io::Error::from_raw_os_error(-done.code),
        NetlinkPayload::Error(error) if error.code.is_some() => error.to_io(),
        _ => return Ok(true),
    };
    if is_gone(&error) {
        Ok(true)
    } else {
        Err(error)
    }
}

/// A socket of a dump.
#[derive(Debug, PartialEq, Eq)]
enum Listed {
    Connected(ConnectedSocket),
    /// Port of a socket that accepts packets of any peer.
    Listening(u16),
}

/// Parses `struct inet_diag_msg` and its attributes; `None` if it is truncated, or in a state that
/// was not requested.
fn parse(payload: &[u8], protocol: u8) -> Option<Listed> {
    let header = InetResponseHeader::parse(payload).ok()?;
    let id = &header.socket_id;
    if let TCP_LISTEN | TCP_CLOSE = header.state {
        return Some(Listed::Listening(id.source_port));
    }
    let end = |address: IpAddr, port| SocketAddr::new(address.to_canonical(), port);
    let info = (protocol == IPPROTO_TCP)
        .then(|| tcp_info(payload.get(HEADER..)?))
        .flatten();
    let traffic = |segments: u32, bytes| Traffic {
        packets: segments.into(),
        bytes,
    };
    Some(Listed::Connected(ConnectedSocket {
        protocol,
        local: end(id.source_address, id.source_port),
        peer: end(id.destination_address, id.destination_port),
        state: state(header.state, protocol)?,
        idle: info.as_ref().map(idle_seconds),
        sent: (info.as_ref()).map(|info| traffic(info.segs_out, info.bytes_acked)),
        received: (info.as_ref()).map(|info| traffic(info.segs_in, info.bytes_received)),
    }))
}

/// Finds `struct tcp_info`. The kernel adds other attributes unrequested, which are not decoded.
fn tcp_info(attributes: &[u8]) -> Option<TcpInfo> {
    let info = NlasIterator::new(attributes)
        .map_while(Result::ok)
        .find(|attribute| attribute.kind() == INET_DIAG_INFO)?;
    TcpInfo::parse(info.value()).ok()
}

fn idle_seconds(info: &TcpInfo) -> u32 {
    let latest = info.last_data_sent.min(info.last_data_recv);
    latest.min(info.last_ack_recv) / 1_000
}

fn state(state: u8, protocol: u8) -> Option<SocketState> {
    Some(match state {
        TCP_ESTABLISHED if protocol == IPPROTO_UDP => SocketState::Connected,
        TCP_ESTABLISHED => SocketState::Established,
        TCP_SYN_SENT => SocketState::SynSent,
        TCP_SYN_RECV => SocketState::SynReceived,
        TCP_FIN_WAIT1 => SocketState::FinWait1,
        TCP_FIN_WAIT2 => SocketState::FinWait2,
        TCP_CLOSE_WAIT => SocketState::CloseWait,
        TCP_LAST_ACK => SocketState::LastAck,
        TCP_CLOSING => SocketState::Closing,
        _ => return None,
    })
}

/// Keeps `total` connections at most: those beyond the share of a namespace are removed.
fn keep<K>(found: &mut BTreeMap<K, NamespaceSockets>, total: usize) {
    let share = fair_share(found.values().map(|it| it.connected.len()), total);
    for sockets in found.values_mut() {
        if sockets.connected.len() > share {
            sockets.connected.truncate(share);
            sockets.is_truncated = true;
        }
    }
}

/// Returns the largest share with which all counts together are at most `total`, if each is limited
/// to it (max-min fairness).
fn fair_share(counts: impl Iterator<Item = usize>, total: usize) -> usize {
    let mut counts: Vec<usize> = counts.collect();
    counts.sort_unstable();
    let (mut rest, all) = (total, counts.len());
    for (position, count) in counts.into_iter().enumerate() {
        let share = rest / (all - position);
        if count > share {
            return share;
        }
        rest -= count;
    }
    usize::MAX
}

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(bytes: &[u8]) {
    for part in socket::messages(bytes) {
        let _ = end_of_dump(part);
        for protocol in [IPPROTO_TCP, IPPROTO_UDP] {
            let _ = parse(NetlinkBuffer::new(part).payload(), protocol);
        }
    }
}

#[cfg(test)]
mod tests;
