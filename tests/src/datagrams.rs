//! Counts UDP datagrams at the sender and at the receiver, to detect loss and duplicates.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::sys::socket::{setsockopt, sockopt};

use crate::{Machine, any_address, bound, patient, until_within};

/// Datagrams that have not arrived count as lost after this time without any arrival.
const QUIET: Duration = Duration::from_millis(300);

/// Number of datagrams after which the sender waits for the receiver.
const BATCH: usize = 50;

/// Sends `count` datagrams from `sender` to `to`, and returns how many arrive at `address` of
/// `receiver`, on the same port.
pub fn count_delivered(
    sender: &Machine,
    to: SocketAddr,
    receiver: &Machine,
    address: IpAddr,
    count: usize,
) -> Result<usize> {
    let at = SocketAddr::new(address, to.port());
    let inbox = bound(receiver, at, UdpSocket::bind)?;
    inbox.set_read_timeout(Some(patient(QUIET)))?;
    enlarge_receive_buffer(&inbox)?;
    let outbox = sender.run(|| UdpSocket::bind(any_address(to.ip(), 0)))?;
    let arrived = AtomicUsize::new(0);
    thread::scope(|scope| {
        scope.spawn(|| count_all(&inbox, &arrived));
        for number in 0..count {
            outbox
                .send_to(number.to_string().as_bytes(), to)
                .with_context(|| format!("cannot send to {to}"))?;
            if number % BATCH == 0 {
                // A socket buffers a few hundred datagrams, and an overflow must not count as loss.
                // Earlier losses are not waited for a second time.
                let caught_up = || Ok((arrived.load(Ordering::Relaxed) > number).then_some(()));
                let _late = until_within(QUIET / 2, "the receiver has caught up", caught_up);
            }
        }
        Ok::<_, anyhow::Error>(())
    })?;
    Ok(arrived.into_inner())
}

/// Counts datagrams until none has arrived for the socket's read timeout.
fn count_all(inbox: &UdpSocket, arrived: &AtomicUsize) {
    let mut buffer = [0; 64];
    while inbox.recv_from(&mut buffer).is_ok() {
        arrived.fetch_add(1, Ordering::Relaxed);
    }
}

/// Enlarges the receive buffer to 1 MiB beyond `rmem_max`, so that an overflow does not count as
/// loss.
pub fn enlarge_receive_buffer(inbox: &UdpSocket) -> Result<()> {
    Ok(setsockopt(inbox, sockopt::RcvBufForce, &(1 << 20))?)
}

/// Adds the iptables DNAT rule of a UDP service: `vip` to `pod`, as kube-proxy writes it.
pub fn add_service_rule(node: &Machine, vip: IpAddr, pod: IpAddr) -> Result<()> {
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

/// Sets the `bridge-nf-call-iptables` sysctls of both families.
pub fn set_bridge_netfilter(node: &Machine, on: bool) -> Result<()> {
    let value = if on { "1" } else { "0" };
    node.sysctl("bridge/bridge-nf-call-iptables", value)?;
    node.sysctl("bridge/bridge-nf-call-ip6tables", value)
}
