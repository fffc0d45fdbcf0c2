//! From when on an IPv6 address can be used.
//!
//! The kernel takes an address at once, without asking the neighbours where it is told so, and makes the route that
//! leads to it later, on a thread of its own: on a busy machine, much later. Until then what comes for the address is
//! thrown away. IPv4 has no such gap.

use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::thread;
use std::time::{Duration, Instant};

use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage as Message};

use crate::netlink::{Netlink, Request};

/// A kernel thread that is kept waiting longer than this has other troubles.
const PATIENCE: Duration = Duration::from_secs(2);

/// The first pause and the longest; most addresses need none.
const PAUSES: [Duration; 2] = [Duration::from_micros(50), Duration::from_millis(5)];

/// Waits until the namespace takes what comes for these addresses.
pub(crate) fn wait(
    netlink: &mut Netlink,
    addresses: impl IntoIterator<Item = IpAddr>,
) -> io::Result<()> {
    let end = Instant::now() + PATIENCE;
    let [mut pause, longest] = PAUSES;
    for address in addresses {
        let IpAddr::V6(address) = address else {
            continue;
        };
        while !is_local(netlink, address) {
            if Instant::now() > end {
                let what = format!("{address} cannot be used yet");
                return Err(io::Error::new(io::ErrorKind::TimedOut, what));
            }
            thread::sleep(pause);
            pause = (pause * 2).min(longest);
        }
    }
    Ok(())
}

/// Whether the way to the address ends here. Until then there is another way, or none, which is an error.
fn is_local(netlink: &mut Netlink, address: Ipv6Addr) -> bool {
    let mut query = RouteMessage::default();
    query.header.address_family = AddressFamily::Inet6;
    query.header.destination_prefix_length = 128;
    let destination = RouteAttribute::Destination(RouteAddress::Inet6(address));
    query.attributes.push(destination);
    let found = netlink.ask(Request::get(Message::GetRoute(query)));
    matches!(found, Ok(Some(Message::NewRoute(route))) if route.header.kind == RouteType::Local)
}
