//! Reports changes of routes, links and neighbours to the programs, whose cached verdicts depend on
//! them (decision 117).
//!
//! While this thread runs, a cached verdict follows a change within milliseconds, and needs no
//! lookup in between. When it stops, the time [`Events::routes_valid_until`] passes, and programs
//! look up again after a few jiffies.

use std::convert::Infallible;
use std::io;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use abi::{Events, maps};
use aya::maps::{Array, HashMap, Map, MapData};
use nix::errno::Errno;
use nix::libc::{self, MSG_DONTWAIT};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::time::{ClockId, clock_gettime};
use rtnetlink::MulticastGroup;
use rtnetlink::sys::Socket;
use zerocopy::IntoBytes as _;

use crate::ObserveError;
use crate::bpf::tables::{Hash, Wire, present, written};
use crate::bpf::{pinned_maps, pins};
use crate::error::{Attempt as _, io_error, is};
use crate::netlink::messages::{HEADER, messages};
use crate::netlink::route_watch::{LINK, NEIGHBOUR, RouteWatch};
use crate::netlink::socket;

const GROUPS: [MulticastGroup; 11] = [
    MulticastGroup::Link,
    MulticastGroup::Neigh,
    MulticastGroup::Ipv4Ifaddr,
    MulticastGroup::Ipv6Ifaddr,
    MulticastGroup::Ipv4Route,
    MulticastGroup::Ipv6Route,
    MulticastGroup::Ipv4Rule,
    MulticastGroup::Ipv6Rule,
    MulticastGroup::Nexthop,
    // Forwarding and reverse path filters.
    MulticastGroup::Ipv4Netconf,
    MulticastGroup::Ipv6Netconf,
];

/// Milliseconds between two renewals of the time until which reports are valid.
const RENEWAL: u8 = 200;
const _: () = assert!(RENEWAL as u64 * 1_000_000 * 2 < Events::VALIDITY);

/// Pause between the first notification and the reading of all: changes come in groups, and an ADD
/// causes a dozen.
const GROUPING: Duration = Duration::from_millis(2);

/// Pause after a report, so that there are at most a hundred in a second.
const PAUSE: Duration = Duration::from_millis(8);

/// Listens to the kernel's notifications in the namespace that it was opened in, and writes the
/// event table.
pub struct EventReporter {
    socket: Socket,
    watch: RouteWatch,
    buffer: Vec<u8>,
    uplinks: Hash<u32, Wire<abi::Uplink>>,
    table: Array<MapData, Wire<Events>>,
    events: Events,
}

impl EventReporter {
    /// Subscribes to notifications in the namespace of the calling thread, and opens the maps that
    /// are pinned below `bpffs`.
    pub fn open(bpffs: &Path) -> Result<Self, ObserveError> {
        let opened = Self::open_all(&pins::version(bpffs).join(pinned_maps::MAP_PINS));
        Ok(opened.attempt(|| "report changes of routes and neighbours".to_owned())?)
    }

    fn open_all(pins: &Path) -> io::Result<Self> {
        let map = |name| MapData::from_pin(pins.join(name)).map_err(|error| io_error(&error));
        let table = Array::<_, Wire<Events>>::try_from(Map::Array(map(maps::EVENTS)?))
            .map_err(|error| io_error(&error))?;
        let uplinks = HashMap::try_from(Map::HashMap(map(maps::UPLINKS)?));
        let last = table.get(&0, 0).map_err(|error| io_error(&error))?;
        Ok(Self {
            socket: socket::open_listener(&GROUPS.map(|group| group as u32))?,
            watch: RouteWatch::default(),
            buffer: Vec::new(),
            uplinks: uplinks.map_err(|error| io_error(&error))?,
            table,
            // What has changed while no agent was listening is not known.
            events: Events {
                routes: last.0.routes.wrapping_add(1),
                ..Events::default()
            },
        })
    }

    /// Reports changes until a system call fails.
    pub fn run(&mut self) -> io::Result<Infallible> {
        self.read_state()?;
        loop {
            self.renew()?;
            if !self.wait()? {
                continue;
            }
            sleep(GROUPING);
            if self.drain()? {
                self.events.routes = self.events.routes.wrapping_add(1);
                self.renew()?;
                sleep(PAUSE);
            }
        }
    }

    /// Writes the table, with the time until which it is valid.
    fn renew(&mut self) -> io::Result<()> {
        let now = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC)?);
        let now = u64::try_from(now.as_nanos()).map_err(io::Error::other)?;
        self.events.routes_valid_until = now + Events::VALIDITY;
        written(self.table.set(0, Wire(self.events), 0))
    }

    /// Waits for a notification; returns false where a renewal is due.
    fn wait(&self) -> io::Result<bool> {
        let mut sockets = [PollFd::new(
            std::os::fd::AsFd::as_fd(&self.socket),
            PollFlags::POLLIN,
        )];
        match poll(&mut sockets, PollTimeout::from(RENEWAL)) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::EINTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads all notifications that wait; returns whether one of them outdates cached verdicts.
    fn drain(&mut self) -> io::Result<bool> {
        let mut outdated = false;
        loop {
            self.buffer.clear();
            self.buffer.reserve(socket::BUFFER);
            match self.socket.recv(&mut self.buffer, MSG_DONTWAIT) {
                Ok(_) => outdated |= self.apply(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(outdated),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Notifications were lost because the buffer was full.
                Err(error) if is(&error, Errno::ENOBUFS) => {
                    outdated = true;
                    self.read_state()?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads the links and neighbours that exist.
    fn read_state(&mut self) -> io::Result<()> {
        self.watch = RouteWatch::default();
        for (kind, header) in [(libc::RTM_GETLINK, LINK), (libc::RTM_GETNEIGH, NEIGHBOUR)] {
            self.socket.send(&dump(kind, header), 0)?;
            while !self.receive_part()? {}
        }
        Ok(())
    }

    /// Receives a part of a dump, or notifications; returns whether the dump has ended.
    fn receive_part(&mut self) -> io::Result<bool> {
        match socket::receive(&self.socket, &mut self.buffer) {
            Err(error) if is(&error, Errno::ENOBUFS) => return Ok(false),
            received => received?,
        }
        self.apply();
        let ends = |kind| [libc::NLMSG_DONE, libc::NLMSG_ERROR].contains(&i32::from(kind));
        Ok(messages(&self.buffer).iter().any(|(kind, _)| ends(*kind)))
    }

    /// Applies the messages in the buffer; returns whether one of them outdates cached verdicts.
    fn apply(&mut self) -> bool {
        // Where the lookup fails, the link counts as an uplink.
        let is_uplink = |index| !matches!(present(self.uplinks.get(&index, 0)), Ok(None));
        let mut outdated = false;
        for (kind, body) in messages(&self.buffer) {
            outdated |= self.watch.apply(kind, body, is_uplink);
        }
        outdated
    }
}

/// Encodes a dump request: `struct nlmsghdr`, and a structure of zeros.
fn dump(kind: u16, header: usize) -> Vec<u8> {
    let flags = u16::try_from(libc::NLM_F_REQUEST | libc::NLM_F_DUMP).unwrap_or_default();
    let mut bytes = u32::try_from(HEADER + header)
        .unwrap_or_default()
        .as_bytes()
        .to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.resize(HEADER + header, 0);
    bytes
}
