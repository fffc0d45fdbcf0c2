//! What must be true of the node, whatever has happened to it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use e2e::{Agent, Echo, NODE, Pod, Sandbox, until};
use serde_json::Value;

/// A pod whose ADD was answered with success and that nobody has removed since.
pub(crate) struct Resident {
    pub(crate) pod: Pod,
    /// The node's port that leads to its port 80.
    pub(crate) port: Option<u16>,
    /// What it may send, in bits per second.
    pub(crate) limit: Option<u64>,
}

/// All of them, by container ID.
pub(crate) type Residents = BTreeMap<String, Resident>;

/// A look at the node from outside and at what its agent says, to be compared with the residents.
pub(crate) struct Look<'a> {
    pub(crate) sandbox: &'a Sandbox,
    pub(crate) agent: &'a Agent,
    pub(crate) residents: &'a Residents,
    /// Pods that nobody touches.
    pub(crate) bystanders: [&'a Pod; 2],
    /// How many ports they publish.
    pub(crate) ports: usize,
}

impl Look<'_> {
    /// Nothing is lost, doubled or left behind.
    pub(crate) fn agrees(&self) -> Result<()> {
        self.attachments()?;
        self.addresses()?;
        self.ports()?;
        self.links()?;
        self.tables()
    }

    /// A published port leads to its pod, and a pod reaches the world.
    pub(crate) fn serves(&self, resident: &Resident) -> Result<()> {
        let Some(port) = resident.port else {
            return Ok(());
        };
        let _echo = Echo::start(&resident.pod.machine, 80)?;
        for node in NODE {
            let server = SocketAddr::new(node, port);
            let (_, stream) = e2e::tcp_source(&self.sandbox.world, 0, server)
                .with_context(|| format!("{} at {server}", resident.pod.id()))?;
            e2e::tcp_ask(&stream)?;
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
            "the agent knows {known:?}, not {expected:?}"
        );
        for one in &list {
            ensure!(one["state"] == "attached", "{one} is not whole");
            if let Some(resident) = self.residents.get(text(&one["containerID"])) {
                let rate = one["bandwidth"]["egress"]["rate"].as_u64();
                ensure!(rate == resident.limit, "{one}, not {:?}", resident.limit);
            }
        }
        Ok(())
    }

    fn addresses(&self) -> Result<()> {
        let leases = self.list("/v1/leases")?;
        let given: BTreeSet<_> = leases.iter().map(|one| text(&one["address"])).collect();
        ensure!(given.len() == leases.len(), "an address is given twice");
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
        let published = self.residents.values().filter_map(|one| one.port);
        let published: BTreeSet<_> = published.map(u64::from).collect();
        let ours: Vec<_> = held
            .iter()
            .filter(|port| published.contains(port))
            .collect();
        ensure!(
            ours.len() == published.len(),
            "{ours:?} are held, not {published:?}"
        );
        let expected = published.len() + self.ports;
        ensure!(held.len() == expected, "{held:?} are held, not {expected}");
        Ok(())
    }

    fn links(&self) -> Result<()> {
        let links = self.sandbox.node.call_json("ip -j link show type veth")?;
        let links = links.as_array().context("a list")?;
        let ours = links.iter().filter(|link| link["master"] == "cbr0").count();
        ensure!(
            ours == self.count(),
            "{ours} links for {} pods",
            self.count()
        );
        Ok(())
    }

    /// Entries of the datapath: one for each address and each port of each family. What an agent that was killed had
    /// begun is put right when the next one has started, or soon after.
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
