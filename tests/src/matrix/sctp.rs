//! One SCTP packet to a hostport, and what arrives in the pod.

use std::net::{IpAddr, SocketAddr};

use abi::{Address, protocol};
use anyhow::Result;
use verdict::simulator::frame::{Body, Frame};

use super::SERVED;
use crate::{Machine, Raw};

const CLIENT_PORT: u16 = 41_000;

/// Sends a packet and waits until it arrives as `seen`'s, for the served port, with all else as it was and the right
/// CRC.
pub(super) fn arrives(
    client: &Machine,
    own: IpAddr,
    dialled: SocketAddr,
    server: &Machine,
    seen: IpAddr,
) -> Result<String> {
    let chunk = vec![1, 0, 0, 8, 5, 6, 7, 8];
    let body = |port| Body::Sctp(CLIENT_PORT, port, chunk.clone());
    let listener = Raw::listener(server, dialled.ip(), protocol::SCTP)?;
    let sent = Frame::new(abi(own), abi(dialled.ip()), body(dialled.port()));
    Raw::sender(client, dialled.ip())?.send(&sent.packet(), dialled.ip())?;
    let expected = transport(&Frame::new(abi(seen), abi(seen), body(SERVED)));
    listener.hear(&format!("SCTP from {seen}"), |heard| {
        heard.from == seen && heard.payload == expected
    })?;
    Ok(format!("server saw {seen}"))
}

fn transport(frame: &Frame) -> Vec<u8> {
    let packet = frame.packet();
    let header = if packet[0] >> 4 == 4 { 20 } else { 40 };
    packet[header..].to_vec()
}

fn abi(address: IpAddr) -> Address {
    match address {
        IpAddr::V4(v4) => Address::v4(v4.octets()),
        IpAddr::V6(v6) => Address::v6(v6.octets()),
    }
}
