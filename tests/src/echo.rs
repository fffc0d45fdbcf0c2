//! TCP and UDP servers that answer with the client's address as they see it, and their clients.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use nix::sys::socket::{
    AddressFamily, Shutdown, SockFlag, SockType, SockaddrStorage, bind, connect, setsockopt,
    shutdown, socket, sockopt,
};
use nix::sys::time::TimeVal;

use crate::wait::bound_here;
use crate::{Machine, bound, enlarge_receive_buffer, patient};

/// Timeout of connects and reads: longer than a lost SYN or a slow neighbour resolution delays.
const PATIENCE: Duration = Duration::from_secs(4);

/// Timeout of a request whose answer the datapath is expected to drop.
const SILENCE: Duration = Duration::from_millis(250);

/// A TCP and a UDP server on one port. Each answers with the address of its peer. TCP then echoes;
/// UDP echoes the bytes after `echo `.
#[derive(Debug)]
pub struct Echo {
    listener: Arc<TcpListener>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Echo {
    /// Listens on `port` of all addresses of `machine`, both families.
    pub fn start(machine: &Machine, port: u16) -> Result<Self> {
        Self::at(machine, SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)))
    }

    /// Listens on one address of `machine`.
    pub fn at(machine: &Machine, address: SocketAddr) -> Result<Self> {
        let both = |at| Ok((TcpListener::bind(at)?, UdpSocket::bind(at)?));
        let (listener, datagrams) = bound(machine, address, both)?;
        datagrams.set_read_timeout(Some(Duration::from_millis(100)))?;
        enlarge_receive_buffer(&datagrams)?;
        let listener = Arc::new(listener);
        let stop = Arc::new(AtomicBool::new(false));
        let (accepting, stopped) = (Arc::clone(&listener), Arc::clone(&stop));
        let threads = vec![
            thread::spawn(move || accept(&accepting)),
            thread::spawn(move || answer(&datagrams, &stopped)),
        ];
        Ok(Self {
            listener,
            stop,
            threads,
        })
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Unblocks the accept of the TCP thread.
        let _ = shutdown(self.listener.as_raw_fd(), Shutdown::Both);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn accept(listener: &TcpListener) {
    while let Ok((stream, peer)) = listener.accept() {
        thread::spawn(move || serve(stream, peer));
    }
}

fn serve(mut stream: TcpStream, peer: SocketAddr) {
    let mut buffer = [0; 4096];
    let greeted = writeln!(stream, "{}", canonical(peer));
    while greeted.is_ok() {
        match stream.read(&mut buffer) {
            Ok(length) if length > 0 && stream.write_all(&buffer[..length]).is_ok() => {}
            Ok(_) | Err(_) => return,
        }
    }
}

fn answer(socket: &UdpSocket, stop: &AtomicBool) {
    let mut buffer = [0; 2048];
    while !stop.load(Ordering::Relaxed) {
        if let Ok((length, peer)) = socket.recv_from(&mut buffer) {
            let mut answer = canonical(peer).to_string().into_bytes();
            if let Some(payload) = buffer[..length].strip_prefix(b"echo ") {
                answer.push(b' ');
                answer.extend(payload);
            }
            let _ = socket.send_to(&answer, peer);
        }
    }
}

/// Connects from `machine`; returns the client address that the server saw, and the connection.
///
/// `from` is the client's port, 0 for any.
pub fn tcp_source(
    machine: &Machine,
    from: u16,
    server: SocketAddr,
) -> Result<(SocketAddr, TcpStream)> {
    let stream = machine
        .run(|| tcp_connect(from, server))
        .with_context(|| format!("{}: no TCP connection to {server}", machine.name()))?;
    stream.set_read_timeout(Some(patient(PATIENCE)))?;
    let mut line = String::new();
    BufReader::new(&stream)
        .read_line(&mut line)
        .with_context(|| format!("{}: no greeting from {server}", machine.name()))?;
    let seen = line
        .trim()
        .parse()
        .with_context(|| format!("{server} greeted with {line:?}"))?;
    Ok((seen, stream))
}

fn tcp_connect(from: u16, server: SocketAddr) -> Result<TcpStream> {
    let family = if server.is_ipv4() {
        AddressFamily::Inet
    } else {
        AddressFamily::Inet6
    };
    let stream = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&stream, sockopt::ReuseAddr, &true)?;
    // On Linux the send timeout also applies to connect.
    let patience = TimeVal::new(patient(PATIENCE).as_secs().cast_signed(), 0);
    setsockopt(&stream, sockopt::SendTimeout, &patience)?;
    if from != 0 {
        let own = any_address(server.ip(), from);
        bind(stream.as_raw_fd(), &SockaddrStorage::from(own))?;
    }
    connect(stream.as_raw_fd(), &SockaddrStorage::from(server))?;
    Ok(TcpStream::from(stream))
}

/// Sends a datagram from `machine`; returns the client address that the server saw, and the socket.
///
/// `from` is the client's port, 0 for any. A lost datagram is sent again, as a resolver does.
pub fn udp_source(
    machine: &Machine,
    from: u16,
    server: SocketAddr,
) -> Result<(SocketAddr, UdpSocket)> {
    let socket = machine
        .run(|| udp_socket(from, server))
        .with_context(|| format!("{}: no UDP socket to {server}", machine.name()))?;
    let seen = udp_seen_as(&socket).with_context(|| format!("{}: {server}", machine.name()))?;
    Ok((seen, socket))
}

/// Opens a UDP socket in the calling thread's network namespace, with the port `from` (0 for any),
/// connected to `server`.
pub fn udp_socket(from: u16, server: SocketAddr) -> std::io::Result<UdpSocket> {
    let own = any_address(server.ip(), from);
    let socket = bound_here(|| UdpSocket::bind(own))?;
    socket.connect(server)?;
    Ok(socket)
}

/// Opens a UDP socket of `machine` with this address. A test may open it again right after it has
/// closed one.
pub fn udp_bound(machine: &Machine, at: SocketAddr) -> Result<UdpSocket> {
    bound(machine, at, UdpSocket::bind)
}

/// Returns all addresses of the family of `like`, with a port.
pub fn any_address(like: IpAddr, port: u16) -> SocketAddr {
    let all: IpAddr = match like {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    SocketAddr::new(all, port)
}

/// Sends another datagram on a socket of [`udp_source`]; returns the client address that the server
/// sees now.
pub fn udp_seen_as(socket: &UdpSocket) -> Result<SocketAddr> {
    socket.set_read_timeout(Some(patient(PATIENCE) / 4))?;
    let mut buffer = [0; 128];
    for _ in 0..4 {
        socket.send(b"who am I?")?;
        if let Ok(length) = socket.recv(&mut buffer) {
            return Ok(String::from_utf8_lossy(&buffer[..length]).parse()?);
        }
    }
    bail!("no answer to four datagrams")
}

/// Returns whether a datagram on a socket of [`udp_source`] gets no answer within a short timeout.
/// On a slow machine an answer after the timeout counts as none.
pub fn udp_gets_no_answer(socket: &UdpSocket) -> Result<bool> {
    socket.set_read_timeout(Some(patient(SILENCE)))?;
    socket.send(b"who am I?")?;
    Ok(socket.recv(&mut [0; 128]).is_err())
}

/// Writes a line on a connection of [`tcp_source`] and waits for its echo.
pub fn tcp_echo(stream: &TcpStream) -> Result<()> {
    let (mut writer, mut line) = (stream, [0; 6]);
    writer.write_all(b"hello\n")?;
    let mut reader = stream;
    reader.read_exact(&mut line)?;
    if &line != b"hello\n" {
        bail!("the echo is {line:?}");
    }
    Ok(())
}

/// Converts an IPv4-mapped IPv6 address to IPv4.
fn canonical(peer: SocketAddr) -> SocketAddr {
    SocketAddr::new(peer.ip().to_canonical(), peer.port())
}
