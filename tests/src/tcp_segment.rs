//! TCP segments with arbitrary flags and sequence numbers, as a host that is not on the path forges
//! them.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Result, bail};

/// FIN.
pub const FIN: u8 = 0x01;
/// SYN.
pub const SYN: u8 = 0x02;
/// RST.
pub const RST: u8 = 0x04;
/// ACK.
pub const ACK: u8 = 0x10;

/// Protocol number of TCP.
const TCP: u8 = 6;
/// Bytes of a TCP header without options.
const HEADER: u8 = 20;

/// A TCP segment without data and options.
#[derive(Clone, Copy, Debug)]
pub struct TcpSegment {
    /// Source address and port.
    pub from: SocketAddr,
    /// Destination address and port.
    pub to: SocketAddr,
    /// Sequence number.
    pub sequence: u32,
    /// Acknowledgment number.
    pub acknowledgment: u32,
    /// Flags: [`SYN`] and others.
    pub flags: u8,
}

impl TcpSegment {
    /// Returns the packet with its IP header, for [`crate::RawSocket::sender`].
    pub fn packet(&self) -> Result<Vec<u8>> {
        let (mut packet, pseudo) = match (self.from.ip(), self.to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let addresses = [from.octets(), to.octets()].concat();
                let mut header = vec![0x45, 0, 0, 20 + HEADER, 0, 0, 0x40, 0, 64, TCP, 0, 0];
                header.extend(&addresses);
                let sum = checksum(&header);
                header[10..12].copy_from_slice(&sum.to_be_bytes());
                (header, addresses)
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let addresses = [from.octets(), to.octets()].concat();
                let mut header = vec![0x60, 0, 0, 0, 0, HEADER, TCP, 64];
                header.extend(&addresses);
                (header, addresses)
            }
            _ => bail!("two families: {self:?}"),
        };
        let mut segment = [
            &self.from.port().to_be_bytes()[..],
            &self.to.port().to_be_bytes(),
            &self.sequence.to_be_bytes(),
            &self.acknowledgment.to_be_bytes(),
            &[0x50, self.flags, 0xff, 0xff, 0, 0, 0, 0],
        ]
        .concat();
        let sum = checksum(&[&pseudo[..], &[0, TCP, 0, HEADER], &segment].concat());
        segment[16..18].copy_from_slice(&sum.to_be_bytes());
        packet.extend(segment);
        Ok(packet)
    }
}

/// Returns the Internet checksum (RFC 1071) of an even number of bytes.
fn checksum(bytes: &[u8]) -> u16 {
    let sum = bytes.chunks_exact(2).fold(0_u32, |sum, pair| {
        sum + u32::from(u16::from_be_bytes([pair[0], pair[1]]))
    });
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    u16::try_from(folded).map_or(0, |sum| !sum)
}
