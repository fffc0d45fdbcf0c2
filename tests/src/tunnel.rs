//! Links between machines that threads forward packets over: without Ethernet, as a node sees a
//! tunnel device, or with Ethernet and a chosen delay.

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

/// Size of the largest packet that Linux passes to a tun device, with its virtio-net header.
const LARGEST: usize = (64 << 10) + 64;

/// Two tun devices, and threads that forward packets between them. Dropping it removes the devices.
#[derive(Debug)]
pub struct Tunnel {
    ends: [(Machine, String); 2],
    carriers: Vec<JoinHandle<()>>,
    cpu_time: CpuTime,
}

impl Tunnel {
    /// Creates a tunnel without Ethernet between two machines, each with the name of its device.
    pub fn new(ends: [(&Machine, &str); 2]) -> Result<Self> {
        let open = |(machine, name)| open(machine, DeviceBuilder::new().name(name));
        let [near, far] = [open(ends[0])?, open(ends[1])?];
        let carry = |from: &Arc<SyncDevice>, to: &Arc<SyncDevice>| {
            let (from, to) = (Arc::clone(from), Arc::clone(to));
            thread::spawn(move || carry(&from, &to))
        };
        let carriers = vec![carry(&near, &far), carry(&far, &near)];
        Ok(Self::of(ends, carriers, CpuTime::default()))
    }

    /// Creates an Ethernet link that delays each packet by `delay`. Large packets stay unsegmented,
    /// as between veths.
    pub fn with_delay(ends: [(&Machine, &str); 2], delay: Duration) -> Result<Self> {
        let open = |(machine, name)| {
            let builder = DeviceBuilder::new().name(name).layer(Layer::L2);
            open(machine, builder.offload(true))
        };
        let [near, far] = [open(ends[0])?, open(ends[1])?];
        let mut carriers = Vec::new();
        let cpu_time = CpuTime::default();
        for (from, to) in [(&near, &far), (&far, &near)] {
            let (from, to) = (Arc::clone(from), Arc::clone(to));
            let (enter, leave) = channel();
            let (entering, leaving) = (cpu_time.clone(), cpu_time.clone());
            carriers.push(thread::spawn(move || {
                enqueue(&from, &enter, delay, &entering);
            }));
            carriers.push(thread::spawn(move || dequeue(&leave, &to, &leaving)));
        }
        Ok(Self::of(ends, carriers, cpu_time))
    }

    fn of(ends: [(&Machine, &str); 2], carriers: Vec<JoinHandle<()>>, cpu_time: CpuTime) -> Self {
        Self {
            ends: ends.map(|(machine, name)| (machine.clone(), name.to_owned())),
            carriers,
            cpu_time,
        }
    }

    /// Returns the CPU time that all threads have spent on the delay, which a real link does not
    /// cost. It excludes the receive path of the machines, and is 0 for a tunnel without a delay.
    pub fn cpu_time(&self) -> Duration {
        Duration::from_nanos(self.cpu_time.0.load(Ordering::Relaxed))
    }

    /// Assigns addresses to both ends, in the order of the ends, and sets them up.
    pub fn configure(&self, addresses: [&[IpAddr]; 2]) -> Result<()> {
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
            // A forwarding thread exits when its read fails because the device is gone.
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
        // While the other end is down, packets are lost, as on any link.
        let _ = to.send(&packet[..length]);
    }
}

/// Reads packets, and queues each with its time of arrival.
fn enqueue(
    from: &SyncDevice,
    queue: &Sender<(Instant, Vec<u8>)>,
    delay: Duration,
    cpu_time: &CpuTime,
) {
    let mut packet = vec![0; LARGEST];
    let mut since = own_time();
    while let Ok(length) = from.recv(&mut packet) {
        let arrives = Instant::now() + delay;
        if queue.send((arrives, packet[..length].to_vec())).is_err() {
            return;
        }
        since = cpu_time.add(since);
    }
}

/// Writes each packet at its time of arrival.
fn dequeue(queue: &Receiver<(Instant, Vec<u8>)>, to: &SyncDevice, cpu_time: &CpuTime) {
    let mut since = own_time();
    for (arrives, packet) in queue {
        thread::sleep(arrives.saturating_duration_since(Instant::now()));
        cpu_time.add(since);
        let _ = to.send(&packet);
        since = own_time();
    }
}

/// Total CPU time of several threads, in nanoseconds.
#[derive(Clone, Debug, Default)]
struct CpuTime(Arc<AtomicU64>);

impl CpuTime {
    /// Adds the CPU time of the calling thread since `since`, and returns its CPU time now.
    fn add(&self, since: Duration) -> Duration {
        let now = own_time();
        let ran = now.saturating_sub(since).as_nanos();
        self.0
            .fetch_add(ran.try_into().unwrap_or(u64::MAX), Ordering::Relaxed);
        now
    }
}

/// Returns the CPU time of the calling thread.
fn own_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Into::into)
}
