//! Waits until new IPv6 addresses of a pod can receive packets.
//!
//! With duplicate address detection off, the kernel adds an IPv6 address at once, but its entry in
//! the local routing table is made later by a kernel thread: on a busy machine, much later. Until
//! then packets for the address are dropped. IPv4 has no such gap.

use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};
use std::{io, thread};

use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage as Message};

use crate::netlink::socket::{Netlink, Request};

/// Longest wait. A kernel thread that is delayed for longer is a sign of an overloaded node.
const TIMEOUT: Duration = Duration::from_secs(2);

/// First and longest pause between two lookups; most addresses need none.
const PAUSES: [Duration; 2] = [Duration::from_micros(50), Duration::from_millis(5)];

/// Waits until the namespace of `netlink` has local routes to these addresses. IPv4 addresses are
/// skipped. Fails with `TimedOut` after two seconds.
pub(crate) fn wait(
    netlink: &mut Netlink,
    addresses: impl IntoIterator<Item = IpAddr>,
) -> io::Result<()> {
    let end = Instant::now() + TIMEOUT;
    let [mut pause, longest] = PAUSES;
    for address in addresses {
        let IpAddr::V6(address) = address else {
            continue;
        };
        while !is_local(netlink, address) {
            if Instant::now() > end {
                let what = format!("no local route to {address} after 2 s");
                return Err(io::Error::new(io::ErrorKind::TimedOut, what));
            }
            thread::sleep(pause);
            pause = (pause * 2).min(longest);
        }
    }
    Ok(())
}

/// Whether the route to the address is of type `local`. Before that, the lookup finds another
/// route, or none, which is an error.
fn is_local(netlink: &mut Netlink, address: Ipv6Addr) -> bool {
    let mut query = RouteMessage::default();
    query.header.address_family = AddressFamily::Inet6;
    query.header.destination_prefix_length = 128;
    let destination = RouteAttribute::Destination(RouteAddress::Inet6(address));
    query.attributes.push(destination);
    let found = netlink.request(Request::get(Message::GetRoute(query)));
    matches!(found, Ok(Some(Message::NewRoute(route))) if route.header.kind == RouteType::Local)
}
