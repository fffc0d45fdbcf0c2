//! The model: invariants of the node after any sequence of events.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use e2e::{Agent, Echo, NODE, Pod, Sandbox, until};
use serde_json::Value;

/// A pod whose ADD has succeeded and that has not been removed since.
pub(crate) struct Resident {
    pub(crate) pod: Pod,
    /// The hostport of its port 80.
    pub(crate) port: Option<u16>,
    /// Its egress limit, in bits per second.
    pub(crate) limit: Option<u64>,
}

/// All such pods, by container ID.
pub(crate) type Residents = BTreeMap<String, Resident>;

/// Compares the kernel's state and the agent's API with the model.
pub(crate) struct NodeCheck<'a> {
    pub(crate) sandbox: &'a Sandbox,
    pub(crate) agent: &'a Agent,
    pub(crate) residents: &'a Residents,
    /// Pods that no event affects.
    pub(crate) bystanders: [&'a Pod; 2],
    /// The number of hostports of the bystanders.
    pub(crate) ports: usize,
}

impl NodeCheck<'_> {
    /// Checks that no attachment, address, port, link or map entry is missing, duplicated or left
    /// over.
    pub(crate) fn matches_model(&self) -> Result<()> {
        self.attachments()?;
        self.addresses()?;
        self.ports()?;
        self.links()?;
        self.tables()
    }

    /// Checks that the pod's hostport is reachable from the world.
    pub(crate) fn check_hostport(&self, resident: &Resident) -> Result<()> {
        let Some(port) = resident.port else {
            return Ok(());
        };
        let _echo = Echo::start(&resident.pod.machine, 80)?;
        for node in NODE {
            let server = SocketAddr::new(node, port);
            let (_, stream) = e2e::tcp_source(&self.sandbox.world, 0, server)
                .with_context(|| format!("{} at {server}", resident.pod.id()))?;
            e2e::tcp_echo(&stream)?;
        }
        Ok(())
    }

    fn count(&self) -> usize {
        self.residents.len() + self.bystanders.len()
    }

    fn list(&self, path: &str) -> Result<Vec<Value>> {
        let Value::Array(list) = self.agent.get(path)? else {
            anyhow::bail!("{path} is no list");
        };
        Ok(list)
    }

    fn attachments(&self) -> Result<()> {
        let list = self.list("/v1/attachments")?;
        let known: BTreeSet<_> = list.iter().map(|one| text(&one["containerID"])).collect();
        let residents = self.residents.keys().map(String::as_str);
        let expected: BTreeSet<_> = residents.chain(self.bystanders.map(Pod::id)).collect();
        ensure!(
            known == expected,
            "the agent lists {known:?}, expected {expected:?}"
        );
        for one in &list {
            ensure!(one["state"] == "attached", "{one} is not attached");
            if let Some(resident) = self.residents.get(text(&one["containerID"])) {
                let rate = one["bandwidth"]["egress"]["rate"].as_u64();
                ensure!(
                    rate == resident.limit,
                    "{one}, expected the limit {:?}",
                    resident.limit
                );
            }
        }
        Ok(())
    }

    fn addresses(&self) -> Result<()> {
        let leases = self.list("/v1/leases")?;
        let given: BTreeSet<_> = leases.iter().map(|one| text(&one["address"])).collect();
        ensure!(given.len() == leases.len(), "an address has two leases");
        ensure!(leases.len() == 2 * self.count(), "{} leases", leases.len());
        Ok(())
    }

    fn ports(&self) -> Result<()> {
        let mut held: Vec<_> = self
            .list("/v1/hostports")?
            .iter()
            .filter_map(|one| one["host_port"].as_u64())
            .collect();
        held.sort_unstable();
        let published: BTreeSet<_> = self
            .residents
            .values()
            .filter_map(|one| one.port)
            .map(u64::from)
            .collect();
        let ours: Vec<_> = held
            .iter()
            .filter(|port| published.contains(port))
            .collect();
        ensure!(
            ours.len() == published.len(),
            "hostports {ours:?}, expected {published:?}"
        );
        let expected = published.len() + self.ports;
        ensure!(
            held.len() == expected,
            "hostports {held:?}, expected {expected}"
        );
        Ok(())
    }

    fn links(&self) -> Result<()> {
        let shown = self.sandbox.node.call_json("ip -j link show type veth")?;
        let links = shown.as_array().context("a list")?;
        let ours = links.iter().filter(|link| link["master"] == "cbr0").count();
        ensure!(
            ours == self.count(),
            "{ours} links for {} pods",
            self.count()
        );
        Ok(())
    }

    /// Checks the number of map entries: one for each address, and one for each port and family. It
    /// waits, because an agent repairs the unfinished work of a killed one soon after its start.
    fn tables(&self) -> Result<()> {
        let ports = self.residents.values().filter(|one| one.port.is_some());
        let ports = ports.count() + self.ports;
        for (table, expected) in [("ENDPOINTS", 2 * self.count()), ("HOSTPORTS", 2 * ports)] {
            until(&format!("{table} has {expected} entries"), || {
                Ok((self.entries(table)? == expected).then_some(()))
            })
            .with_context(|| format!("{:?} entries", self.entries(table)))?;
        }
        Ok(())
    }

    fn entries(&self, table: &str) -> Result<usize> {
        let node = &self.sandbox.node;
        let pins = node.call(&format!("find /sys/fs/bpf -name {table}"))?;
        let pin = pins.lines().next().with_context(|| format!("no {table}"))?;
        let dump = node.call_json(&format!("bpftool -j map dump pinned {pin}"))?;
        Ok(dump.as_array().map_or(0, Vec::len))
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
