//! Wires that threads carry packets over: without Ethernet, as tunnels of all kinds look to a node, or with Ethernet and
//! as long as a test wants them.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nix::time::{ClockId, clock_gettime};
use tun_rs::{DeviceBuilder, Layer, SyncDevice};

use crate::Machine;

/// The largest packet that Linux hands out, with what it tells about it.
const LARGEST: usize = (64 << 10) + 64;

/// Two tun devices, and threads that carry packets from each to the other. Dropping it removes them.
#[derive(Debug)]
pub struct Tunnel {
    ends: [(Machine, String); 2],
    carriers: Vec<JoinHandle<()>>,
    busy: Busy,
}

impl Tunnel {
    /// Lays a tunnel between two machines, each with the name of its device.
    pub fn lay(ends: [(&Machine, &str); 2]) -> Result<Self> {
        let open = |(machine, name)| open(machine, DeviceBuilder::new().name(name));
        let [near, far] = [open(ends[0])?, open(ends[1])?];
        let carry = |from: &Arc<SyncDevice>, to: &Arc<SyncDevice>| {
            let (from, to) = (Arc::clone(from), Arc::clone(to));
            thread::spawn(move || carry(&from, &to))
        };
        let carriers = vec![carry(&near, &far), carry(&far, &near)];
        Ok(Self::of(ends, carriers, Busy::default()))
    }

    /// Lays an Ethernet on which each packet is under way for `delay`. Large packets stay whole, as between veths.
    pub fn stretch(ends: [(&Machine, &str); 2], delay: Duration) -> Result<Self> {
        let open = |(machine, name)| {
            let builder = DeviceBuilder::new().name(name).layer(Layer::L2);
            open(machine, builder.offload(true))
        };
        let [near, far] = [open(ends[0])?, open(ends[1])?];
        let mut carriers = Vec::new();
        let busy = Busy::default();
        for (from, to) in [(&near, &far), (&far, &near)] {
            let (from, to) = (Arc::clone(from), Arc::clone(to));
            let (enter, leave) = channel();
            let (entering, leaving) = (busy.clone(), busy.clone());
            carriers.push(thread::spawn(move || put(&from, &enter, delay, &entering)));
            carriers.push(thread::spawn(move || take(&leave, &to, &leaving)));
        }
        Ok(Self::of(ends, carriers, busy))
    }

    fn of(ends: [(&Machine, &str); 2], carriers: Vec<JoinHandle<()>>, busy: Busy) -> Self {
        Self {
            ends: ends.map(|(machine, name)| (machine.clone(), name.to_owned())),
            carriers,
            busy,
        }
    }

    /// How long threads have been busy with holding packets back, all together: what no real wire would cost. Not what
    /// machines do with a packet that arrives, and nothing of a tunnel without a delay.
    pub fn busy(&self) -> Duration {
        Duration::from_nanos(self.busy.0.load(Ordering::Relaxed))
    }

    /// Gives each end its addresses, first those of the first end, and sets both up.
    pub fn dress(&self, addresses: [&[IpAddr]; 2]) -> Result<()> {
        for ((machine, name), addresses) in self.ends.iter().zip(addresses) {
            for address in addresses {
                let rest = if address.is_ipv4() {
                    "/24"
                } else {
                    "/64 nodad"
                };
                machine.call(&format!("ip address add {address}{rest} dev {name}"))?;
            }
            machine.call(&format!("ip link set {name} up"))?;
        }
        Ok(())
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        for (machine, name) in &self.ends {
            // Reading from a device that is gone is what ends a carrier.
            let _ = machine.call(&format!("ip link delete {name}"));
        }
        for carrier in self.carriers.drain(..) {
            let _ = carrier.join();
        }
    }
}

fn open(machine: &Machine, builder: DeviceBuilder) -> Result<Arc<SyncDevice>> {
    let device = machine.run(|| builder.inherit_enable_state().build_sync());
    let device = device.with_context(|| format!("{}: no tun device", machine.name()))?;
    Ok(Arc::new(device))
}

fn carry(from: &SyncDevice, to: &SyncDevice) {
    let mut packet = vec![0; 1 << 16];
    while let Ok(length) = from.recv(&mut packet) {
        // Where the other end is down, packets are lost, as on any wire.
        let _ = to.send(&packet[..length]);
    }
}

/// Notes when each packet will arrive.
fn put(from: &SyncDevice, wire: &Sender<(Instant, Vec<u8>)>, delay: Duration, busy: &Busy) {
    let mut packet = vec![0; LARGEST];
    let mut since = own_time();
    while let Ok(length) = from.recv(&mut packet) {
        let arrives = Instant::now() + delay;
        if wire.send((arrives, packet[..length].to_vec())).is_err() {
            return;
        }
        since = busy.add(since);
    }
}

/// Lets packets arrive when it is time.
fn take(wire: &Receiver<(Instant, Vec<u8>)>, to: &SyncDevice, busy: &Busy) {
    let mut since = own_time();
    for (arrives, packet) in wire {
        thread::sleep(arrives.saturating_duration_since(Instant::now()));
        busy.add(since);
        let _ = to.send(&packet);
        since = own_time();
    }
}

/// Nanoseconds that threads have run, all together.
#[derive(Clone, Debug, Default)]
struct Busy(Arc<AtomicU64>);

impl Busy {
    /// Adds how long the calling thread has run since then, and tells when it is now.
    fn add(&self, since: Duration) -> Duration {
        let now = own_time();
        let ran = now.saturating_sub(since).as_nanos();
        self.0
            .fetch_add(ran.try_into().unwrap_or(u64::MAX), Ordering::Relaxed);
        now
    }
}

/// How long the calling thread has run so far.
fn own_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Into::into)
}
