//! Messages of `sock_diag`, the shares of namespaces, and the sockets of the test itself.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};

use super::*;

/// Returns a `struct inet_diag_msg` with an attribute `INET_DIAG_INFO` of this length in bytes.
fn message(family: u8, state: u8, [local, peer]: [&str; 2], info: usize) -> Vec<u8> {
    let ends: [SocketAddr; 2] = [local, peer].map(|end| end.parse().unwrap());
    let mut bytes = vec![family, state, 0, 0];
    bytes.extend(ends.iter().flat_map(|end| end.port().to_be_bytes()));
    for end in ends {
        let mut address = match (end.ip(), family) {
            (IpAddr::V4(v4), AF_INET) => v4.octets().to_vec(),
            (IpAddr::V4(v4), _) => v4.to_ipv6_mapped().octets().to_vec(),
            (IpAddr::V6(v6), _) => v6.octets().to_vec(),
        };
        address.resize(16, 0);
        bytes.extend(address);
    }
    bytes.resize(HEADER, 0);
    // `INET_DIAG_SHUTDOWN`, which the kernel adds unrequested.
    bytes.extend([5, 0, 8, 0, 0, 0, 0, 0]);
    let length = u16::try_from(4 + info).unwrap();
    bytes.extend(length.to_ne_bytes());
    bytes.extend(INET_DIAG_INFO.to_ne_bytes());
    // `struct tcp_info`, each byte with the value of its place.
    bytes.extend((0..info).map(|place| u8::try_from(place % 256).unwrap()));
    bytes
}

#[test]
fn a_tcp_socket_has_its_peer_state_and_counters_and_a_mapped_address_is_ipv4() {
    let ends = ["10.0.0.2:50000", "10.0.0.3:80"];
    for family in [AF_INET, AF_INET6] {
        let bytes = message(family, TCP_CLOSE_WAIT, ends, 240);
        let Some(Listed::Connected(socket)) = parse(&bytes, IPPROTO_TCP) else {
            panic!("no connected socket");
        };
        assert_eq!(
            [socket.local, socket.peer],
            ends.map(|end| end.parse().unwrap())
        );
        assert_eq!(socket.state, SocketState::CloseWait);
        // Offsets of `tcpi_last_data_sent`, `tcpi_bytes_acked`, `tcpi_bytes_received`,
        // `tcpi_segs_out` and `tcpi_segs_in` in `include/uapi/linux/tcp.h`.
        let word = |place: u8| u32::from_ne_bytes([0, 1, 2, 3].map(|it| place + it));
        let long = |place: u8| u64::from_ne_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|it| place + it));
        let traffic = |segments, bytes| {
            Some(Traffic {
                packets: u64::from(word(segments)),
                bytes: long(bytes),
            })
        };
        assert_eq!(socket.idle, Some(word(44) / 1_000));
        assert_eq!(socket.sent, traffic(136, 120));
        assert_eq!(socket.received, traffic(140, 128));
        // An older kernel has a shorter structure.
        let Some(Listed::Connected(older)) =
            parse(&message(family, TCP_ESTABLISHED, ends, 104), IPPROTO_TCP)
        else {
            panic!("no connected socket");
        };
        assert_eq!((older.sent, older.received, older.idle), (None, None, None));
    }
}

#[test]
fn a_udp_socket_is_connected_or_accepts_any_peer() {
    let ends = ["[fd00::2]:5353", "[fd00::3]:53"];
    let Some(Listed::Connected(socket)) =
        parse(&message(AF_INET6, TCP_ESTABLISHED, ends, 0), IPPROTO_UDP)
    else {
        panic!("no connected socket");
    };
    assert_eq!((socket.state, socket.sent), (SocketState::Connected, None));
    for (state, protocol) in [(TCP_CLOSE, IPPROTO_UDP), (TCP_LISTEN, IPPROTO_TCP)] {
        let any = ["[::]:53", "[::]:0"];
        let listed = parse(&message(AF_INET6, state, any, 0), protocol);
        assert_eq!(listed, Some(Listed::Listening(53)));
    }
}

#[test]
fn truncated_messages_and_unknown_states_are_no_sockets() {
    let ends = ["10.0.0.2:50000", "10.0.0.3:80"];
    let bytes = message(AF_INET, TCP_ESTABLISHED, ends, 240);
    for length in 0..HEADER {
        assert_eq!(parse(&bytes[..length], IPPROTO_TCP), None, "{length} bytes");
    }
    assert_eq!(parse(&message(AF_INET, 12, ends, 240), IPPROTO_TCP), None);
    assert_eq!(
        parse(&message(1, TCP_ESTABLISHED, ends, 240), IPPROTO_TCP),
        None
    );
}

#[test]
fn namespaces_with_many_connections_are_truncated_and_others_are_not() {
    let share = |counts: &[usize], total| fair_share(counts.iter().copied(), total);
    assert_eq!(share(&[], 10), usize::MAX);
    assert_eq!(share(&[4, 6], 10), usize::MAX);
    assert_eq!(share(&[4, 7], 10), 6);
    assert_eq!(share(&[100, 1, 100, 2], 11), 4);
    assert_eq!(share(&[5, 5, 5], 2), 0);

    let socket = ConnectedSocket {
        protocol: IPPROTO_TCP,
        local: "10.0.0.2:1".parse().unwrap(),
        peer: "10.0.0.3:2".parse().unwrap(),
        state: SocketState::Established,
        idle: None,
        sent: None,
        received: None,
    };
    let mut found: BTreeMap<usize, NamespaceSockets> = [3, 90, 8]
        .into_iter()
        .map(|count| {
            let sockets = NamespaceSockets {
                connected: vec![socket; count],
                ..NamespaceSockets::default()
            };
            (count, sockets)
        })
        .collect();
    keep(&mut found, 31);
    let kept = found
        .values()
        .map(|it| (it.connected.len(), it.is_truncated));
    assert_eq!(
        kept.collect::<Vec<_>>(),
        [(3, false), (8, false), (20, true)]
    );
}

/// Two addresses of the loopback, which are different ends.
const ENDS: [Ipv4Addr; 2] = [Ipv4Addr::LOCALHOST, Ipv4Addr::new(127, 0, 0, 2)];

/// Returns a reader of connections to these addresses.
fn reader(peers: &[Ipv4Addr], time: Duration) -> Reader<'static> {
    Reader {
        peers: peers.iter().copied().map(IpAddr::from).collect(),
        until: Instant::now() + time,
        found: BTreeMap::new(),
    }
}

#[test]
fn sockets_of_a_namespace_are_connected_to_the_given_peers_or_listen() {
    let server = TcpListener::bind((ENDS[1], 0)).unwrap();
    let mut client = TcpStream::connect(server.local_addr().unwrap()).unwrap();
    let (mut accepted, _) = server.accept().unwrap();
    client.write_all(b"hello").unwrap();
    accepted.read_exact(&mut [0; 5]).unwrap();
    let datagrams = UdpSocket::bind((ENDS[1], 0)).unwrap();
    let sender = UdpSocket::bind((ENDS[0], 0)).unwrap();
    sender.connect(datagrams.local_addr().unwrap()).unwrap();
    let minute = Duration::from_mins(1);

    let sockets = reader(&ENDS, minute)
        .list(None, usize::MAX)
        .unwrap()
        .unwrap();
    assert!(!sockets.is_truncated);
    let find = |protocol, local: io::Result<SocketAddr>, peer: io::Result<SocketAddr>| {
        let (local, peer) = (local.unwrap(), peer.unwrap());
        let mut all = sockets.connected.iter();
        let found = all.find(|it| (it.protocol, it.local, it.peer) == (protocol, local, peer));
        *found.unwrap_or_else(|| panic!("no socket from {local} to {peer}"))
    };
    let opened = find(IPPROTO_TCP, client.local_addr(), client.peer_addr());
    assert_eq!(opened.state, SocketState::Established);
    assert!(opened.sent.unwrap().packets > 0);
    let answering = find(IPPROTO_TCP, accepted.local_addr(), accepted.peer_addr());
    assert_eq!(answering.received.unwrap().bytes, 5);
    let connected = find(IPPROTO_UDP, sender.local_addr(), sender.peer_addr());
    assert_eq!(connected.state, SocketState::Connected);
    let ports = [server.local_addr(), datagrams.local_addr()].map(|it| it.unwrap().port());
    assert!(sockets.listening.contains(&(IPPROTO_TCP, ports[0])));
    assert!(sockets.listening.contains(&(IPPROTO_UDP, ports[1])));

    let others = reader(&[Ipv4Addr::new(192, 0, 2, 1)], minute);
    assert_eq!(
        others.list(None, usize::MAX).unwrap().unwrap().connected,
        []
    );
}

#[test]
fn a_namespace_is_read_up_to_a_number_of_sockets_and_not_after_the_time() {
    // More than the kernel returns at once, which is the least that is read.
    let open: Vec<TcpListener> = (0..150)
        .map(|_| TcpListener::bind((ENDS[0], 0)).unwrap())
        .collect();
    let sockets = reader(&ENDS, Duration::from_mins(1))
        .list(None, 10)
        .unwrap()
        .unwrap();
    assert!(sockets.is_truncated);
    let tcp = sockets
        .listening
        .iter()
        .filter(|(protocol, _)| *protocol == IPPROTO_TCP);
    assert!((10..open.len()).contains(&tcp.count()));
    let none = reader(&ENDS, Duration::ZERO)
        .list(None, usize::MAX)
        .unwrap()
        .unwrap();
    assert_eq!((none.listening.len(), none.is_truncated), (0, true));
}

#[test]
fn a_namespace_that_is_gone_or_has_another_identity_is_skipped() {
    let gone = |path: &str| Netns {
        path: path.parse().unwrap(),
        device: 1,
        inode: 1,
    };
    let query = SocketQuery {
        namespaces: [
            gone("/run/netns/gone"),
            gone("/proc/self/ns/net"),
            gone("/dev/null"),
        ]
        .into(),
        addresses: BTreeSet::new(),
    };
    let table = read_sockets(&query).unwrap();
    assert_eq!(table.pods, BTreeMap::new());
}
