//! Reports changes of routes, links, neighbours and netfilter rules to the programs, whose cached
//! verdicts depend on them (decisions 117 and 118).
//!
//! While this thread runs, a cached verdict follows a change within milliseconds, and needs no
//! lookup in between. When it stops, the time [`Events::valid_until`] passes: programs look up
//! again after a few jiffies, and offloaded connections return to the stack.

use std::convert::Infallible;
use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use abi::{Events, maps};
use nix::errno::Errno;
use nix::libc::{self, MSG_DONTWAIT};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::time::{ClockId, clock_gettime};
use rtnetlink::MulticastGroup;
use rtnetlink::sys::Socket;
use zerocopy::IntoBytes as _;

use crate::ObserveError;
use crate::bpf::map::{self, Hash, List, Wire, present, written};
use crate::bpf::{pinned_maps, pins};
use crate::error::{Attempt as _, io_error, is};
use crate::firewall::forwarding;
use crate::foreign::netfilter;
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

/// Interval between two comparisons of the tables of iptables-legacy, whose changes are not
/// notified.
const COMPARISON: Duration = Duration::from_secs(1);

/// Listens to the kernel's notifications in the namespace that it was opened in, and writes the
/// event table.
pub struct EventReporter {
    socket: Socket,
    /// Changes of nftables; `None` where the kernel has none.
    rules: Option<Socket>,
    /// The tables of iptables-legacy, and when they were read.
    legacy: (Option<Vec<u64>>, Instant),
    watch: RouteWatch,
    buffer: Vec<u8>,
    uplinks: Hash<u32, abi::Uplink>,
    table: List<Events>,
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
        let table: List<Events> = map::open(pins, &maps::EVENTS)?;
        let last = table.get(&0, 0).map_err(|error| io_error(&error))?;
        Ok(Self {
            socket: socket::open_listener(&GROUPS.map(|group| group as u32))?,
            rules: netfilter::open_listener()?,
            legacy: (None, Instant::now()),
            watch: RouteWatch::default(),
            buffer: Vec::new(),
            uplinks: map::open(pins, &maps::UPLINKS)?,
            table,
            // What has changed while no agent was listening is not known.
            events: Events {
                routes: last.0.routes.wrapping_add(1),
                rulesets: last.0.rulesets.wrapping_add(1),
                ..Events::default()
            },
        })
    }

    /// Reports changes until a system call fails.
    pub fn run(&mut self) -> io::Result<Infallible> {
        self.read_state()?;
        self.legacy = (forwarding::fingerprint().ok(), Instant::now());
        loop {
            self.renew()?;
            let [routes, rules] = self.wait()?;
            // A new rule is expected to apply immediately.
            if (rules && self.drain_rules()?) || self.legacy_has_changed() {
                self.events.rulesets = self.events.rulesets.wrapping_add(1);
                self.renew()?;
            }
            if !routes {
                continue;
            }
            sleep(GROUPING);
            if self.drain()? {
                self.events.routes = self.events.routes.wrapping_add(1);
                self.events.rulesets = self.events.rulesets.wrapping_add(1);
                self.renew()?;
                sleep(PAUSE);
            }
        }
    }

    /// Writes the table, with the time until which it is valid.
    fn renew(&mut self) -> io::Result<()> {
        let now = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC)?);
        let now = u64::try_from(now.as_nanos()).map_err(io::Error::other)?;
        self.events.valid_until = now + Events::VALIDITY;
        written(self.table.set(0, Wire(self.events), 0))
    }

    /// Waits for notifications until a renewal is due; returns whether there are some of rtnetlink
    /// and of nftables.
    fn wait(&self) -> io::Result<[bool; 2]> {
        let routes = PollFd::new(self.socket.as_fd(), PollFlags::POLLIN);
        let rules = self
            .rules
            .as_ref()
            .map(|rules| PollFd::new(rules.as_fd(), PollFlags::POLLIN));
        let mut sockets: Vec<PollFd<'_>> = [routes].into_iter().chain(rules).collect();
        match poll(&mut sockets, PollTimeout::from(RENEWAL)) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let is_ready = |at: usize| sockets.get(at).is_some_and(|it| it.any() == Some(true));
        Ok([is_ready(0), is_ready(1)])
    }

    /// Reads all notifications of nftables that wait; returns whether rules of other software have
    /// changed.
    fn drain_rules(&mut self) -> io::Result<bool> {
        let Some(rules) = &self.rules else {
            return Ok(false);
        };
        let mut changed = false;
        loop {
            self.buffer.clear();
            self.buffer.reserve(socket::BUFFER);
            match rules.recv(&mut self.buffer, MSG_DONTWAIT) {
                Ok(_) => changed |= !netfilter::is_own_change(&self.buffer),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(changed),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is(&error, Errno::ENOBUFS) => changed = true,
                Err(error) => return Err(error),
            }
        }
    }

    /// Compares the tables of iptables-legacy, once in a while. Tables that cannot be read count as
    /// changed.
    fn legacy_has_changed(&mut self) -> bool {
        let (last, read_at) = &self.legacy;
        if read_at.elapsed() < COMPARISON {
            return false;
        }
        let tables = forwarding::fingerprint().ok();
        let has_changed = tables.is_none() || tables != *last;
        self.legacy = (tables, Instant::now());
        has_changed
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
        let is_uplink = |index| !matches!(present(self.uplinks.get(&Wire(index), 0)), Ok(None));
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
