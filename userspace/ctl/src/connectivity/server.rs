//! Servers in the throw-away pods: echo by TCP and UDP, and an endless stream.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kernel::Namespace;

use super::plan::PORT;
use super::probe::{Place, connect};

/// First byte of a connection whose other bytes are echoed.
pub(super) const ECHO: u8 = b'e';
/// First byte of a connection on which the server sends until it is closed.
const STREAM: u8 = b's';

/// Time after which the burst of a limit is spent.
const BURST: Duration = Duration::from_millis(500);
/// Time in which the rate is measured.
const MEASURED: Duration = Duration::from_secs(1);

/// Starts the servers of a pod. Their threads end with the process.
pub(super) fn start(namespace: &Namespace, addresses: &[IpAddr]) -> io::Result<()> {
    for address in addresses {
        let at = SocketAddr::new(*address, PORT);
        let (streams, datagrams) =
            namespace.run(|| Ok((TcpListener::bind(at)?, UdpSocket::bind(at)?)))?;
        thread::spawn(move || accept(&streams));
        thread::spawn(move || echo(&datagrams));
    }
    Ok(())
}

fn accept(listener: &TcpListener) {
    for stream in listener.incoming().flatten() {
        thread::spawn(move || serve(stream));
    }
}

/// Serves a connection until the client closes it.
fn serve(mut stream: TcpStream) -> io::Result<()> {
    let mut first = [0];
    stream.read_exact(&mut first)?;
    if first == [STREAM] {
        let zeros = [0; 1 << 14];
        loop {
            stream.write_all(&zeros)?;
        }
    }
    let mut reader = stream.try_clone()?;
    io::copy(&mut reader, &mut stream).map(drop)
}

fn echo(socket: &UdpSocket) {
    let mut buffer = vec![0; 1 << 16];
    loop {
        // Errors are those that an earlier answer provoked.
        if let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let _sent = socket.send_to(&buffer[..length], from);
        }
    }
}

/// Returns the rate in bit/s at which a stream of the server at `to` arrives, TCP payload only;
/// `None` if the test was interrupted.
pub(super) fn rate(to: SocketAddr, place: Place<'_>, stop: &AtomicBool) -> io::Result<Option<u64>> {
    let mut stream = connect(to, place)?;
    stream.write_all(&[STREAM])?;
    let mut buffer = vec![0; 1 << 16];
    let started = Instant::now();
    let mut bytes = 0_u64;
    while started.elapsed() < BURST + MEASURED {
        if stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let length = stream.read(&mut buffer)?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if started.elapsed() >= BURST {
            bytes += u64::try_from(length).unwrap_or(0);
        }
    }
    let measured = started.elapsed().saturating_sub(BURST).as_millis().max(1);
    Ok(Some(
        bytes * 8 * 1000 / u64::try_from(measured).unwrap_or(1),
    ))
}
