//! Servers that return the client's address as they see it, and clients that read it; all time out.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use model::Netns;
use nix::sched::CloneFlags;

use super::skip::patient;
use super::wait_until;

const PATIENCE: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(20);

/// Runs `work` on a separate thread inside of a pod's namespace.
pub(crate) fn in_pod<T: Send>(pod: &Netns, work: impl FnOnce() -> T + Send) -> T {
    let namespace = File::open(pod.path.as_path()).expect("a namespace");
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            enter(&namespace);
            work()
        });
        match thread.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

#[expect(
    clippy::disallowed_methods,
    reason = "a test's thread enters a namespace for good"
)]
fn enter(namespace: &File) {
    nix::sched::setns(namespace, CloneFlags::CLONE_NEWNET).expect("root, to enter a namespace");
}

/// Binds a socket, and retries while its address is in use: a child process that another thread is
/// starting may still hold the socket that was bound before.
fn bound<S>(bind: impl Fn() -> io::Result<S>) -> S {
    let socket = Cell::new(None);
    wait_until(|| match bind() {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => false,
        bound => {
            socket.set(Some(bound.expect("a free port")));
            true
        }
    });
    socket.into_inner().expect("a bound socket")
}

/// TCP and UDP server of one port on all addresses of a pod. A UDP answer is the client's address
/// followed by the datagram.
pub(crate) struct Server {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    pub(crate) fn start(pod: &Netns, port: u16) -> Self {
        let open = || {
            let everywhere = ("::", port);
            let tcp = bound(|| TcpListener::bind(everywhere));
            let udp = bound(|| UdpSocket::bind(everywhere));
            (tcp, udp)
        };
        let (tcp, udp) = in_pod(pod, open);
        tcp.set_nonblocking(true).expect("an option");
        udp.set_read_timeout(Some(PAUSE)).expect("an option");
        let stop = Arc::new(AtomicBool::new(false));
        let (first, second) = (Arc::clone(&stop), Arc::clone(&stop));
        let threads = vec![
            std::thread::spawn(move || serve_tcp(&tcp, &first)),
            std::thread::spawn(move || serve_udp(&udp, &second)),
        ];
        Self { stop, threads }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A panic of the thread has printed its message.
            let _ = thread.join();
        }
    }
}

fn serve_tcp(listener: &TcpListener, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((mut stream, peer)) => {
                // The client may have closed the connection.
                let _ = stream.write_all(plain(peer).to_string().as_bytes());
            }
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

fn serve_udp(socket: &UdpSocket, stop: &AtomicBool) {
    let mut buffer = vec![0; 65_536];
    while !stop.load(Ordering::Relaxed) {
        if let Ok((length, peer)) = socket.recv_from(&mut buffer) {
            let mut answer = format!("{} ", plain(peer)).into_bytes();
            answer.extend(&buffer[..length]);
            // The client may have closed its socket.
            let _ = socket.send_to(&answer, peer);
        }
    }
}

/// Converts an IPv4-mapped address to IPv4.
pub(crate) fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Both addresses of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Client address as the server sees it.
    pub(crate) client: IpAddr,
    /// Server address as the client sees it.
    pub(crate) server: SocketAddr,
}

/// Connects by TCP and reads the client's address.
pub(crate) fn request_tcp(server: SocketAddr) -> io::Result<Seen> {
    let mut stream = TcpStream::connect_timeout(&server, patient(PATIENCE))?;
    stream.set_read_timeout(Some(patient(PATIENCE)))?;
    let server = stream.peer_addr()?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(Seen {
        client: client(&text),
        server,
    })
}

fn client(text: &str) -> IpAddr {
    let address: SocketAddr = text.parse().expect("the server sends an address");
    address.ip()
}

/// Sends a long stream from one pod to another and returns the number of bytes that arrive.
pub(crate) fn stream(
    server: &Netns,
    port: u16,
    client: &Netns,
    to: SocketAddr,
    length: usize,
) -> usize {
    let listener = in_pod(server, || bound(|| TcpListener::bind(("::", port))));
    let mut sending = in_pod(client, || {
        TcpStream::connect_timeout(&to, patient(PATIENCE))
    })
    .expect("a server");
    let (mut receiving, _) = listener.accept().expect("a client");
    receiving
        .set_read_timeout(Some(patient(PATIENCE)))
        .expect("an option");
    sending
        .set_write_timeout(Some(patient(PATIENCE)))
        .expect("an option");
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let chunk = vec![0x5a; 1 << 20];
            for _ in 0..length >> 20 {
                sending.write_all(&chunk).expect("a reader");
            }
        });
        let mut buffer = vec![0; 1 << 20];
        let mut got = 0;
        loop {
            match receiving.read(&mut buffer).expect("a writer") {
                0 => return got,
                more => {
                    assert!(buffer[..more].iter().all(|byte| *byte == 0x5a));
                    got += more;
                }
            }
        }
    })
}

/// A client's UDP socket.
pub(crate) struct Datagrams {
    pub(crate) socket: UdpSocket,
}

impl Datagrams {
    /// Opens a socket of the address family of `server`.
    pub(crate) fn new(server: SocketAddr) -> io::Result<Self> {
        let socket = UdpSocket::bind((if server.is_ipv4() { "0.0.0.0" } else { "::" }, 0))?;
        socket.set_read_timeout(Some(patient(PATIENCE)))?;
        Ok(Self { socket })
    }

    /// Sends a datagram of this length without a connection, and returns the answer.
    pub(crate) fn request(&self, server: SocketAddr, length: usize) -> io::Result<Seen> {
        self.socket.send_to(&vec![b'x'; length], server)?;
        self.receive(length)
    }

    /// Receives an answer.
    pub(crate) fn receive(&self, length: usize) -> io::Result<Seen> {
        let mut buffer = vec![0; 65_536];
        let (got, server) = self.socket.recv_from(&mut buffer)?;
        let text = String::from_utf8_lossy(&buffer[..got]).into_owned();
        let (address, payload) = text.split_once(' ').expect("an address, then the payload");
        assert_eq!(payload.len(), length, "nothing is lost or added");
        Ok(Seen {
            client: client(address),
            server,
        })
    }
}

/// Sends a datagram without a connection, and returns the answer.
pub(crate) fn request_udp(server: SocketAddr) -> io::Result<Seen> {
    Datagrams::new(server)?.request(server, 5)
}

/// Sends a datagram by a connected socket, and returns the answer.
pub(crate) fn request_connected_udp(server: SocketAddr) -> io::Result<Seen> {
    let client = Datagrams::new(server)?;
    client.socket.connect(server)?;
    assert_eq!(client.socket.peer_addr()?, server);
    client.socket.send(b"hello")?;
    client.receive(5)
}
