//! Sends one SCTP packet to a hostport, checks it in the pod, and answers. Uses raw packets,
//! because not every kernel has SCTP sockets.

use std::net::{IpAddr, SocketAddr};

use abi::{Address, protocol};
use anyhow::{Context as _, Result};
use verdict::simulator::frame::{Body, Frame};

use super::SERVED;
use crate::{Machine, RawSocket};

const CLIENT_PORT: u16 = 41_000;

/// One request and its answer, with the expected addresses.
pub(super) struct Exchange<'a> {
    pub(super) client: &'a Machine,
    /// The client's own address.
    pub(super) own: IpAddr,
    /// Address and port that the client sends to.
    pub(super) target: SocketAddr,
    pub(super) server: &'a Machine,
    /// The server's own address.
    pub(super) at: IpAddr,
    /// The client address that the server must see.
    pub(super) seen: IpAddr,
}

impl Exchange<'_> {
    /// Sends a packet and its answer. Each must arrive with the translated addresses and ports, a
    /// correct CRC, and no other change.
    pub(super) fn round_trip(&self) -> Result<String> {
        let Self { own, seen, at, .. } = *self;
        let (to, port) = (self.target.ip(), self.target.port());
        let request = |port| Body::Sctp(CLIENT_PORT, port, vec![1, 0, 0, 8, 5, 6, 7, 8]);
        let response = |port| Body::Sctp(port, CLIENT_PORT, vec![2, 0, 0, 8, 9, 9, 9, 9]);

        let in_server = RawSocket::listener(self.server, to, protocol::SCTP)?;
        let in_client = RawSocket::listener(self.client, to, protocol::SCTP)?;
        RawSocket::sender(self.client, to)?.send(&packet(own, to, request(port)), to)?;
        receive(&in_server, seen, &packet(seen, at, request(SERVED))).context("in the pod")?;
        RawSocket::sender(self.server, to)?.send(&packet(at, seen, response(SERVED)), seen)?;
        receive(&in_client, to, &packet(to, own, response(port))).context("the answer")?;
        Ok(format!("server saw {seen}, client sees {}", self.target))
    }
}

/// Waits for a packet from `from` with the transport header and payload of `expected`.
fn receive(listener: &RawSocket, from: IpAddr, expected: &[u8]) -> Result<()> {
    let header = if expected[0] >> 4 == 4 { 20 } else { 40 };
    let what = format!("SCTP from {from}");
    listener
        .receive(&what, |packet| {
            packet.from == from && packet.payload == expected[header..]
        })
        .map(drop)
}

fn packet(from: IpAddr, to: IpAddr, body: Body) -> Vec<u8> {
    Frame::new(abi(from), abi(to), body).packet()
}

fn abi(address: IpAddr) -> Address {
    match address {
        IpAddr::V4(v4) => Address::v4(v4.octets()),
        IpAddr::V6(v6) => Address::v6(v6.octets()),
    }
}
