//! A wire without Ethernet: what tunnels of all kinds look like to a node.

use std::net::IpAddr;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use anyhow::{Context as _, Result};
use tun_rs::{DeviceBuilder, SyncDevice};

use crate::Machine;

/// Two tun devices, and threads that carry packets from each to the other. Dropping it removes them.
#[derive(Debug)]
pub struct Tunnel {
    ends: [(Machine, String); 2],
    carriers: Vec<JoinHandle<()>>,
}

impl Tunnel {
    /// Lays a tunnel between two machines, each with the name of its device.
    pub fn lay(ends: [(&Machine, &str); 2]) -> Result<Self> {
        let [near, far] = [open(ends[0])?, open(ends[1])?];
        let carry = |from: &Arc<SyncDevice>, to: &Arc<SyncDevice>| {
            let (from, to) = (Arc::clone(from), Arc::clone(to));
            thread::spawn(move || carry(&from, &to))
        };
        Ok(Self {
            ends: ends.map(|(machine, name)| (machine.clone(), name.to_owned())),
            carriers: vec![carry(&near, &far), carry(&far, &near)],
        })
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

fn open((machine, name): (&Machine, &str)) -> Result<Arc<SyncDevice>> {
    let device = machine.run(|| {
        let builder = DeviceBuilder::new().name(name).inherit_enable_state();
        builder.build_sync()
    });
    let device = device.with_context(|| format!("{}: no tun device {name}", machine.name()))?;
    Ok(Arc::new(device))
}

fn carry(from: &SyncDevice, to: &SyncDevice) {
    let mut packet = vec![0; 1 << 16];
    while let Ok(length) = from.recv(&mut packet) {
        // Where the other end is down, packets are lost, as on any wire.
        let _ = to.send(&packet[..length]);
    }
}
