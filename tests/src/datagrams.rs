//! Datagrams, counted where they are sent and where they arrive: lost ones and doubled ones show.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::sys::socket::{setsockopt, sockopt};

use crate::{Machine, patient, until, until_within};

/// How long nothing has to arrive before what has not arrived counts as lost.
const QUIET: Duration = Duration::from_millis(300);

/// Datagrams after which the receiver has to catch up.
const BATCH: usize = 50;

/// Sends `count` datagrams from `sender` to `to`, and tells how many arrive at `address` of `receiver`, on the same
/// port.
pub fn delivered(
    sender: &Machine,
    to: SocketAddr,
    receiver: &Machine,
    address: IpAddr,
    count: usize,
) -> Result<usize> {
    let at = SocketAddr::new(address, to.port());
    let inbox = receive_at(receiver, at)?;
    inbox.set_read_timeout(Some(patient(QUIET)))?;
    let any = if to.is_ipv4() { "0.0.0.0" } else { "::" };
    let outbox = sender.run(|| UdpSocket::bind((any, 0)))?;
    let arrived = AtomicUsize::new(0);
    thread::scope(|scope| {
        scope.spawn(|| count_all(&inbox, &arrived));
        for number in 0..count {
            outbox
                .send_to(number.to_string().as_bytes(), to)
                .with_context(|| format!("cannot send to {to}"))?;
            if number % BATCH == 0 {
                // A socket takes a few hundred datagrams in, and what it does not take is not what is counted. Those
                // that are lost on the way are not waited for again.
                let caught_up = || Ok((arrived.load(Ordering::Relaxed) > number).then_some(()));
                let _late = until_within(QUIET / 2, "the receiver has caught up", caught_up);
            }
        }
        Ok::<_, anyhow::Error>(())
    })?;
    Ok(arrived.into_inner())
}

/// A program that another thread is about to start may still hold the socket of the last count.
fn receive_at(machine: &Machine, at: SocketAddr) -> Result<UdpSocket> {
    until(&format!("{at} is free"), || {
        match machine.run(|| UdpSocket::bind(at)) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => Ok(None),
            bound => Ok(Some(
                bound.with_context(|| format!("cannot receive at {at}"))?,
            )),
        }
    })
}

/// Counts what arrives until nothing does.
fn count_all(inbox: &UdpSocket, arrived: &AtomicUsize) {
    let mut buffer = [0; 64];
    while inbox.recv_from(&mut buffer).is_ok() {
        arrived.fetch_add(1, Ordering::Relaxed);
    }
}

/// Lets a socket hold more than most nodes allow: what it does not take is not what a test counts.
pub fn make_roomy(inbox: &UdpSocket) -> Result<()> {
    Ok(setsockopt(inbox, sockopt::RcvBufForce, &(1 << 20))?)
}

/// Lets `vip` lead to `pod` by UDP, with the rules that kube-proxy would write.
pub fn publish_service(node: &Machine, vip: IpAddr, pod: IpAddr) -> Result<()> {
    let tool = if vip.is_ipv4() {
        "iptables"
    } else {
        "ip6tables"
    };
    node.call(&format!(
        "{tool} -t nat -A PREROUTING -d {vip} -p udp -j DNAT --to-destination {pod}"
    ))
    .map(drop)
}

/// Says whether netfilter looks into the node's bridges.
pub fn filter_bridges(node: &Machine, on: bool) -> Result<()> {
    let value = if on { "1" } else { "0" };
    node.sysctl("bridge/bridge-nf-call-iptables", value)?;
    node.sysctl("bridge/bridge-nf-call-ip6tables", value)
}
