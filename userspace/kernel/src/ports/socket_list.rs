//! Lists the TCP and UDP sockets of the node, and finds the one that a packet would reach.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::{fs, io};

use steps::FoundSocket;

use crate::error::is_gone;
use crate::ports::users::address;

/// Files of `/proc/net` with sockets, and their protocol numbers.
const FILES: [(&str, u8); 4] = [("tcp", 6), ("tcp6", 6), ("udp", 17), ("udp6", 17)];

/// The sockets of a network namespace at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SocketList {
    sockets: Vec<ListedSocket>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ListedSocket {
    protocol: u8,
    local: SocketAddr,
    /// Address and port of the peer; zeros where the socket has none.
    peer: SocketAddr,
}

impl SocketList {
    /// Reads the sockets of the namespace of the calling thread.
    pub(crate) fn read() -> io::Result<Self> {
        let mut list = Self::default();
        for (name, protocol) in FILES {
            let path = Path::new("/proc/thread-self/net").join(name);
            match fs::read_to_string(path) {
                Ok(text) => list.add(protocol, &text),
                // The kernel has no IPv6.
                Err(error) if is_gone(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(list)
    }

    fn add(&mut self, protocol: u8, text: &str) {
        // `sl local remote …`
        self.sockets.extend(text.lines().filter_map(|line| {
            let mut words = line.split_whitespace().skip(1);
            Some(ListedSocket {
                protocol,
                local: canonical(address(words.next()?)?),
                peer: canonical(address(words.next()?)?),
            })
        }));
    }

    /// Returns the socket that a packet from `source` to `destination` would reach. A connected
    /// socket has precedence. An IPv6 socket of any address counts for IPv4 as well: the list does
    /// not contain `IPV6_V6ONLY`.
    pub(crate) fn find(
        &self,
        protocol: u8,
        source: SocketAddr,
        destination: SocketAddr,
    ) -> FoundSocket {
        let of_port = |socket: &&ListedSocket| {
            socket.protocol == protocol
                && socket.local.port() == destination.port()
                && covers(socket.local.ip(), destination.ip())
        };
        let mut found = FoundSocket::None;
        for socket in self.sockets.iter().filter(of_port) {
            if socket.peer.port() == 0 {
                found = FoundSocket::Open;
            } else if socket.peer == source {
                return FoundSocket::Connected;
            }
        }
        found
    }
}

/// Returns the socket address with an IPv4-mapped address as IPv4 address.
fn canonical(socket: SocketAddr) -> SocketAddr {
    SocketAddr::new(socket.ip().to_canonical(), socket.port())
}

/// Returns whether a socket with this local address receives packets to `to`.
fn covers(local: IpAddr, to: IpAddr) -> bool {
    local == to || local.is_unspecified() && (local.is_ipv6() || to.is_ipv4())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A listening socket on 0.0.0.0:8080, one that is connected from 127.0.0.1:80 to
    /// 127.0.0.1:50000, and one of IPv6 that listens on [::]:443.
    const TCP: &str = "  sl  local_address rem_address   st
   0: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 4711 1 0
   1: 0100007F:0050 0100007F:C350 01 00000000:00000000 00:00000000 00000000 0 0 4712 1 0";
    const TCP6: &str =
        " 0: 00000000000000000000000000000000:01BB 00000000000000000000000000000000:0000 0A";

    #[cfg(target_endian = "little")]
    #[test]
    fn a_packet_reaches_the_connected_socket_or_one_that_accepts_any_peer() {
        let mut list = SocketList::default();
        list.add(6, TCP);
        list.add(6, TCP6);
        let find = |protocol, source: &str, destination: &str| {
            let [source, destination] = [source, destination].map(|it| it.parse().unwrap());
            list.find(protocol, source, destination)
        };
        let any = "192.0.2.7:9";
        assert_eq!(find(6, any, "192.0.2.1:8080"), FoundSocket::Open);
        assert_eq!(find(17, any, "192.0.2.1:8080"), FoundSocket::None);
        assert_eq!(
            find(6, "[2001:db8::7]:9", "[2001:db8::1]:8080"),
            FoundSocket::None
        );
        assert_eq!(
            find(6, "127.0.0.1:50000", "127.0.0.1:80"),
            FoundSocket::Connected
        );
        assert_eq!(
            find(6, "127.0.0.1:50001", "127.0.0.1:80"),
            FoundSocket::None
        );
        assert_eq!(find(6, any, "192.0.2.1:443"), FoundSocket::Open);
        assert_eq!(
            find(6, "[2001:db8::7]:9", "[2001:db8::1]:443"),
            FoundSocket::Open
        );
    }
}
