//! One SCTP packet to a hostport, what arrives in the pod, and the answer. Packet by packet, because not every kernel
//! has sockets for it.

use std::net::{IpAddr, SocketAddr};

use abi::{Address, protocol};
use anyhow::{Context as _, Result};
use verdict::simulator::frame::{Body, Frame};

use super::SERVED;
use crate::{Machine, Raw};

const CLIENT_PORT: u16 = 41_000;

/// From where to where, and as whom.
pub(super) struct Way<'a> {
    pub(super) client: &'a Machine,
    /// The client's own address.
    pub(super) own: IpAddr,
    /// Whom it dials.
    pub(super) dialled: SocketAddr,
    pub(super) server: &'a Machine,
    /// The server's own address.
    pub(super) at: IpAddr,
    /// As whom the server must see the client.
    pub(super) seen: IpAddr,
}

impl Way<'_> {
    /// Sends a packet and its answer. Each must arrive with the addresses and ports that belong there, with all else as
    /// it was, and with the right CRC.
    pub(super) fn there_and_back(&self) -> Result<String> {
        let Self { own, seen, at, .. } = *self;
        let (to, port) = (self.dialled.ip(), self.dialled.port());
        let asked = |port| Body::Sctp(CLIENT_PORT, port, vec![1, 0, 0, 8, 5, 6, 7, 8]);
        let answered = |port| Body::Sctp(port, CLIENT_PORT, vec![2, 0, 0, 8, 9, 9, 9, 9]);

        let in_server = Raw::listener(self.server, to, protocol::SCTP)?;
        let in_client = Raw::listener(self.client, to, protocol::SCTP)?;
        Raw::sender(self.client, to)?.send(&packet(own, to, asked(port)), to)?;
        hear(&in_server, seen, &packet(seen, at, asked(SERVED))).context("in the pod")?;
        Raw::sender(self.server, to)?.send(&packet(at, seen, answered(SERVED)), seen)?;
        hear(&in_client, to, &packet(to, own, answered(port))).context("the answer")?;
        Ok(format!("server saw {seen}, client sees {}", self.dialled))
    }
}

fn hear(listener: &Raw, from: IpAddr, expected: &[u8]) -> Result<()> {
    let header = if expected[0] >> 4 == 4 { 20 } else { 40 };
    let what = format!("SCTP from {from}");
    let heard = listener.hear(&what, |heard| {
        heard.from == from && heard.payload == expected[header..]
    });
    heard.map(drop)
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
