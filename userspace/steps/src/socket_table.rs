//! The connected TCP and UDP sockets of the node and its pods, and the flows that are read from
//! them: those between pods, and between the node and its pods, which pass no uplink and so have no
//! entry in the flow table.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use model::{Attachment, Netns};

use crate::flow::{FlowEndpoints, FlowKind, FlowPath, FlowState, FlowTable, LiveFlow, Traffic};

/// Selects the sockets to read: those of these namespaces and of the node that are connected to a
/// pod or to the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SocketQuery {
    /// Network namespaces of pods.
    pub namespaces: BTreeSet<Netns>,
    /// Addresses of pods.
    pub addresses: BTreeSet<IpAddr>,
}

/// Sockets of the node and of its pods, read one namespace after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SocketTable {
    /// Sockets of the node's own namespace.
    pub node: NamespaceSockets,
    /// Sockets of pods, by namespace. A namespace that is gone, or cannot be entered, is missing.
    pub pods: BTreeMap<Netns, NamespaceSockets>,
}

/// Sockets of one network namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespaceSockets {
    /// Sockets that are connected to a pod or to the node.
    pub connected: Vec<ConnectedSocket>,
    /// Protocol number and port of each socket that accepts packets of any peer.
    pub listening: BTreeSet<(u8, u16)>,
    /// Whether sockets are missing: there are more than a reader accepts, or the time was over.
    pub is_truncated: bool,
}

/// A connected socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectedSocket {
    /// IP protocol number: TCP or UDP.
    pub protocol: u8,
    /// Its own address, with an IPv4-mapped one as IPv4 address.
    pub local: SocketAddr,
    /// Address of the peer, with an IPv4-mapped one as IPv4 address.
    pub peer: SocketAddr,
    /// State of the connection.
    pub state: SocketState,
    /// Seconds since the last segment of either direction; `None` for UDP.
    pub idle: Option<u32>,
    /// Segments that it has sent, and payload bytes of them that are acknowledged; `None` for UDP.
    pub sent: Option<Traffic>,
    /// Segments that it has received, and their payload bytes; `None` for UDP.
    pub received: Option<Traffic>,
}

/// State of a connected socket: of TCP as in RFC 9293.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SocketState {
    /// TCP: SYN sent.
    SynSent,
    /// TCP: SYN received and sent.
    SynReceived,
    /// TCP: both SYNs are acknowledged.
    Established,
    /// TCP: FIN sent.
    FinWait1,
    /// TCP: FIN sent and acknowledged.
    FinWait2,
    /// TCP: FIN received; the application has not closed its socket.
    CloseWait,
    /// TCP: FIN sent and received, the own one not acknowledged.
    Closing,
    /// TCP: FIN received, then sent, the own one not acknowledged.
    LastAck,
    /// UDP: connected to a peer.
    Connected,
}

impl SocketState {
    /// Returns the name in the API and in output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SynSent => "syn-sent",
            Self::SynReceived => "syn-received",
            Self::Established => "established",
            Self::FinWait1 => "fin-wait-1",
            Self::FinWait2 => "fin-wait-2",
            Self::CloseWait => "close-wait",
            Self::Closing => "closing",
            Self::LastAck => "last-ack",
            Self::Connected => "connected",
        }
    }
}

impl SocketQuery {
    /// Selects the sockets of all namespaces that these attachments are in. One that the runtime
    /// moves is in a namespace that is unknown; the other ends of its connections are read.
    pub fn of<'a>(attachments: impl IntoIterator<Item = &'a Attachment>) -> Self {
        let mut query = Self::default();
        for attachment in attachments {
            if !attachment.is_moved_by_runtime() {
                query.namespaces.insert(attachment.netns.clone());
            }
            query.addresses.extend(addresses(attachment));
        }
        query
    }
}

fn addresses(attachment: &Attachment) -> impl Iterator<Item = IpAddr> + '_ {
    (attachment.addresses.iter()).map(|assigned| assigned.address.address)
}

/// A connection in both directions: protocol, and its endpoints as [`FlowEndpoints::undirected`].
type Connection = (u8, FlowEndpoints);

/// One end of a connection: a pod by its attachment, or the node.
type End<'a> = Option<&'a Attachment>;

impl SocketTable {
    /// Returns the number of pods' namespaces whose sockets are not all read.
    pub fn truncated_namespaces(&self) -> usize {
        let truncated = self.pods.values().filter(|it| it.is_truncated);
        truncated.count()
    }

    /// Returns the connections between these attachments, and between them and the node, but for
    /// those that `translated` has. Both sockets of a connection make one flow.
    ///
    /// A socket does not tell which end has opened its connection. It is the end whose peer
    /// listens on its port; if both or none do, the end with the higher port.
    pub fn flows<'a>(
        &self,
        attachments: impl IntoIterator<Item = &'a Attachment>,
        table: &FlowTable,
        translated: &[LiveFlow],
    ) -> Vec<LiveFlow> {
        let pods: BTreeMap<IpAddr, &Attachment> = attachments
            .into_iter()
            .flat_map(|it| addresses(it).map(move |address| (address, it)))
            .collect();
        let mut connections = self.connections(&pods);
        for flow in translated {
            for ends in [flow.original, flow.translated] {
                connections.remove(&(flow.protocol, ends.undirected()));
            }
        }
        connections
            .into_iter()
            .filter_map(|(connection, sockets)| self.flow(&pods, table, connection, &sockets))
            .collect()
    }

    /// Returns the one or two sockets of each connection.
    fn connections(
        &self,
        pods: &BTreeMap<IpAddr, &Attachment>,
    ) -> BTreeMap<Connection, Vec<&ConnectedSocket>> {
        let mut connections = BTreeMap::<Connection, Vec<&ConnectedSocket>>::new();
        let of_pods = self.pods.iter().flat_map(|(netns, sockets)| {
            let own = move |socket: &&ConnectedSocket| {
                let [local, peer] = [socket.local, socket.peer].map(|it| pods.get(&it.ip()));
                // A connection of a pod with itself does not leave it.
                local.is_some_and(|pod| is_in(pod, netns))
                    && peer.is_none_or(|pod| !is_in(pod, netns))
            };
            sockets.connected.iter().filter(own)
        });
        let of_node = self.node.connected.iter().filter(|socket| {
            let [local, peer] = [socket.local, socket.peer].map(|it| pods.contains_key(&it.ip()));
            peer && !local
        });
        for socket in of_pods.chain(of_node) {
            let ends = FlowEndpoints {
                source: socket.local,
                destination: socket.peer,
            };
            let both = connections.entry((socket.protocol, ends.undirected()));
            both.or_default().push(socket);
        }
        connections
    }

    fn flow(
        &self,
        pods: &BTreeMap<IpAddr, &Attachment>,
        table: &FlowTable,
        (protocol, ends): Connection,
        sockets: &[&ConnectedSocket],
    ) -> Option<LiveFlow> {
        let pod = |end: SocketAddr| pods.get(&end.ip()).copied();
        let listens = |end| self.listens(pod(end), protocol, end.port());
        let (one, other) = (ends.source, ends.destination);
        let is_opened_by_one = match (listens(one), listens(other)) {
            (false, true) => true,
            (true, false) => false,
            (true, true) | (false, false) => one.port() > other.port(),
        };
        let ends = if is_opened_by_one {
            ends
        } else {
            FlowEndpoints {
                source: other,
                destination: one,
            }
        };
        let (kind, own, peer_pod) = match (pod(ends.source), pod(ends.destination)) {
            (Some(source), Some(destination)) => (FlowKind::PodToPod, source, Some(destination)),
            (Some(source), None) => (FlowKind::PodToNode, source, None),
            (None, Some(destination)) => (FlowKind::NodeToPod, destination, None),
            (None, None) => return None,
        };
        // The stack delivers what is for the node, and makes what the node sends.
        let path = match peer_pod {
            Some(_) => table.path_between_pods(ends, protocol),
            None => FlowPath::Stack(0),
        };
        let mut flow = LiveFlow {
            pod: own.slot,
            generation: own.generation,
            peer_pod: peer_pod.map(|pod| (pod.slot, pod.generation)),
            kind,
            protocol,
            original: ends,
            translated: ends,
            state: FlowState::Socket(SocketState::Connected),
            path,
            age: None,
            idle: None,
            sent: None,
            replied: None,
        };
        // The socket of the end that opened the connection has precedence.
        let mut sockets = sockets.to_vec();
        sockets.sort_by_key(|socket| socket.local == ends.source);
        for socket in sockets {
            let (sent, replied) = if socket.local == ends.source {
                (socket.sent, socket.received)
            } else {
                (socket.received, socket.sent)
            };
            flow.state = FlowState::Socket(socket.state);
            flow.idle = socket.idle.or(flow.idle);
            flow.sent = sent.or(flow.sent);
            flow.replied = replied.or(flow.replied);
        }
        Some(flow)
    }

    fn listens(&self, end: End<'_>, protocol: u8, port: u16) -> bool {
        let sockets = match end {
            Some(pod) => self.pods.get(&pod.netns),
            None => Some(&self.node),
        };
        sockets.is_some_and(|sockets| sockets.listening.contains(&(protocol, port)))
    }
}

fn is_in(pod: &Attachment, netns: &Netns) -> bool {
    pod.netns == *netns
}

#[cfg(test)]
mod tests;
