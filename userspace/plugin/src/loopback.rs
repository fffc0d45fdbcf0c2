//! The loopback plugin: brings `lo` of a network namespace up and down.
//!
//! Needs no agent: `lo` belongs to the namespace, and no other part of Viaduct depends on it. So
//! runtimes that run this plugin for each pod do not depend on the agent there.

use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::os::fd::AsRawFd as _;
use std::path::Path;

use cni::{Command, Environment, Error, Header, PluginResult, check_version};
use invoke::run_in_netns;
use model::InterfaceAddress;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, socket,
};

/// Index of `lo` in every network namespace (`LOOPBACK_IFINDEX`).
const LOOPBACK_INDEX: u32 = 1;
/// Flag of a link that is up (`IFF_UP`).
const IFF_UP: u32 = 1;
/// Length of `struct nlmsghdr`.
const HEADER: usize = 16;
/// Receive buffer: more than a message of the kernel has.
const BUFFER: usize = 1 << 15;

// Types of netlink messages, and flags of requests.
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_DUMP: u16 = 0x300;
/// Attribute with an interface's address (`IFA_ADDRESS`).
const IFA_ADDRESS: u16 = 1;

/// Executes a command and returns the text for standard output.
pub(crate) fn execute(
    environment: &Environment,
    header: &Header,
    config: &str,
) -> Result<String, Error> {
    check_version(environment.command, header.version)?;
    let netns = Path::new(&environment.netns);
    match environment.command {
        Command::Add => add(header, config, netns),
        Command::Del => match run_in_netns(netns, || set_up(false)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(failed("set lo down", &error)),
            Ok(()) | Err(_) => Ok(String::new()),
        },
        Command::Check => match run_in_netns(netns, is_up) {
            Ok(true) => Ok(String::new()),
            Ok(false) => Err(Error::check_failed("lo is down")),
            Err(error) => Err(failed("find lo", &error)),
        },
        Command::Gc | Command::Status | Command::Version => Ok(String::new()),
    }
}

fn add(header: &Header, config: &str, netns: &Path) -> Result<String, Error> {
    let prev_result = PluginResult::from_config(config, header.version)?;
    let up = run_in_netns(netns, || {
        set_up(true)?;
        addresses()
    });
    let addresses = up.map_err(|error| failed("set lo up", &error))?;
    let own = || PluginResult::of_loopback(&netns.to_string_lossy(), &addresses);
    prev_result.unwrap_or_else(own).to_json(header.version)
}

/// Sets `lo` of this thread's namespace up or down.
fn set_up(up: bool) -> io::Result<()> {
    let flags = if up { IFF_UP } else { 0 };
    request(RTM_NEWLINK, NLM_F_ACK, &ifinfomsg(flags, IFF_UP), |_, _| {})
}

/// Returns whether `lo` of this thread's namespace is up.
fn is_up() -> io::Result<bool> {
    let mut up = false;
    request(RTM_GETLINK, NLM_F_ACK, &ifinfomsg(0, 0), |kind, body| {
        if kind == RTM_NEWLINK {
            up = word(body, 8).is_some_and(|flags| flags & IFF_UP != 0);
        }
    })?;
    Ok(up)
}

/// Returns the addresses of `lo`, IPv4 first.
fn addresses() -> io::Result<Vec<InterfaceAddress>> {
    let mut found = Vec::new();
    // struct ifaddrmsg: family, prefix length, flags, scope, index.
    request(RTM_GETADDR, NLM_F_DUMP, &[0; 8], |kind, body| {
        if kind == RTM_NEWADDR && word(body, 4) == Some(LOOPBACK_INDEX) {
            found.extend(interface_address(body));
        }
    })?;
    let (mut all, v6): (Vec<_>, Vec<_>) = found
        .into_iter()
        .partition(|own: &InterfaceAddress| own.address.is_ipv4());
    all.extend(v6);
    Ok(all)
}

/// `struct ifinfomsg` of `lo`: family and type (unspecified), index, flags, mask of changed flags.
fn ifinfomsg(flags: u32, changed: u32) -> Vec<u8> {
    [0, LOOPBACK_INDEX, flags, changed]
        .into_iter()
        .flat_map(u32::to_ne_bytes)
        .collect()
}

/// Parses a `struct ifaddrmsg` with its attributes.
fn interface_address(body: &[u8]) -> Option<InterfaceAddress> {
    let prefix_len = *body.get(1)?;
    let mut rest = body.get(8..)?;
    while let (Some(length), Some(kind)) = (half(rest, 0), half(rest, 2)) {
        let length = usize::from(length);
        let value = rest.get(4..length)?;
        if kind == IFA_ADDRESS {
            let v4 = <[u8; 4]>::try_from(value).map(IpAddr::from);
            let address = v4.or_else(|_| <[u8; 16]>::try_from(value).map(IpAddr::from));
            return address.ok().map(|address| InterfaceAddress {
                address,
                prefix_len,
            });
        }
        rest = rest.get(length.next_multiple_of(4)..)?;
    }
    None
}

/// Sends one rtnetlink request, and passes type and body of each message of the answer to `each`.
fn request(kind: u16, flags: u16, body: &[u8], mut each: impl FnMut(u16, &[u8])) -> io::Result<()> {
    let socket = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkRoute,
    )?;
    // struct nlmsghdr: length, type, flags, sequence number, port ID.
    let length = u32::try_from(HEADER + body.len()).map_err(io::Error::other)?;
    let mut message = length.to_ne_bytes().to_vec();
    message.extend(kind.to_ne_bytes());
    message.extend((NLM_F_REQUEST | flags).to_ne_bytes());
    message.extend([0; 8]);
    message.extend(body);
    let kernel = NetlinkAddr::new(0, 0);
    sendto(socket.as_raw_fd(), &message, &kernel, MsgFlags::empty())?;
    let mut buffer = vec![0; BUFFER];
    loop {
        let length = recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
        let mut rest = buffer.get(..length).unwrap_or_default();
        while !rest.is_empty() {
            let message = word(rest, 0)
                .and_then(|length| rest.get(HEADER..usize::try_from(length).ok()?))
                .zip(half(rest, 4));
            let (body, kind) = message.ok_or(Errno::EBADMSG)?;
            match (kind, word(body, 0)) {
                // A negative error number, or 0 as an acknowledgement.
                (NLMSG_ERROR, Some(0)) | (NLMSG_DONE, _) => return Ok(()),
                (NLMSG_ERROR, code) => {
                    let code = code.unwrap_or_default().cast_signed();
                    return Err(io::Error::from_raw_os_error(-code));
                }
                (_, _) => each(kind, body),
            }
            let end = HEADER + body.len().next_multiple_of(4);
            rest = rest.get(end..).unwrap_or_default();
        }
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..at + 2)?;
    Some(u16::from_ne_bytes(bytes.try_into().ok()?))
}

/// Returns the CNI error of an I/O error, without the kernel's text: containerd takes some texts
/// for "already removed" (behaviour C3).
fn failed(action: &str, error: &io::Error) -> Error {
    if error.kind() == ErrorKind::NotFound {
        return Error::environment(format!(
            "cannot {action}: CNI_NETNS is no network namespace"
        ));
    }
    Error::io(format!("cannot {action}: {}", error.kind()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_netlink_messages_are_parsed() {
        let v4 = [2, 8, 0, 0, 1, 0, 0, 0, 8, 0, 1, 0, 127, 0, 0, 1];
        let parsed = interface_address(&v4).unwrap();
        assert_eq!(parsed.to_string(), "127.0.0.1/8");
        assert_eq!(interface_address(&v4[..8]), None);
        assert_eq!(interface_address(&v4[..14]), None);
        let behind_another = [&v4[..8], &[6, 0, 9, 0, 1, 1, 0, 0], &v4[8..]].concat();
        assert_eq!(interface_address(&behind_another), Some(parsed));
    }
}
