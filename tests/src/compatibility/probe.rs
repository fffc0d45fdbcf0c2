//! Whether a client reaches a server, by TCP and by UDP.

use std::io::Read as _;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::{Machine, patient, udp_socket};

/// Time within which the path must work: rules may be written and addresses be checked when the
/// probe starts.
const PATIENCE: Duration = Duration::from_secs(3);
/// Time of one attempt: longer than the first retransmission of a SYN.
const ATTEMPT: Duration = Duration::from_millis(1_500);

/// Connects from `client` to an echo server at `server` by both protocols.
pub(super) fn reaches(client: &Machine, server: SocketAddr) -> Result<()> {
    attempt(client, || tcp(server)).context("TCP")?;
    attempt(client, || udp(server)).context("UDP")
}

/// Repeats `probe` until it succeeds, and returns the last error when the time is up.
fn attempt(client: &Machine, probe: impl Fn() -> Result<()> + Send + Sync) -> Result<()> {
    let start = Instant::now();
    loop {
        let before = Instant::now();
        let Err(error) = client.run(&probe) else {
            return Ok(());
        };
        if start.elapsed() > patient(PATIENCE) {
            return Err(error);
        }
        // A refusal comes at once.
        std::thread::sleep(ATTEMPT.saturating_sub(before.elapsed()) / 10);
    }
}

fn tcp(server: SocketAddr) -> Result<()> {
    let stream = TcpStream::connect_timeout(&server, patient(ATTEMPT))?;
    stream.set_read_timeout(Some(patient(ATTEMPT)))?;
    let mut greeting = [0; 64];
    let length = (&stream).read(&mut greeting)?;
    ensure!(length > 0, "closed without a greeting");
    Ok(())
}

fn udp(server: SocketAddr) -> Result<()> {
    let socket = udp_socket(0, server)?;
    socket.set_read_timeout(Some(patient(ATTEMPT)))?;
    socket.send(b"who am I?")?;
    let mut answer = [0; 64];
    if socket.recv(&mut answer)? == 0 {
        bail!("an empty answer");
    }
    Ok(())
}
