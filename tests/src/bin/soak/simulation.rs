//! Executes random events on a node, with the reactions of a runtime and an operator, and checks
//! the node against the model.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e::residue::assert_no_residue;
use e2e::{Agent, Call, Config, Residue, Sandbox, Verb, program, until};
use serde_json::json;

use crate::event::Event;
use crate::foreign::ForeignObjects;
use crate::memory::Memory;
use crate::model::{NodeCheck, Resident, Residents};
use crate::traffic::{PORTS, Traffic};

/// Number of events between two complete checks.
const CHECK_EVERY: u64 = 25;
/// Number of pods of [`Event::AddMany`].
const MANY: usize = 12;
/// Limits to choose from, in bits per second.
const LIMITS: [u64; 3] = [1_000_000, 20_000_000, 1_000_000_000];

/// The node and the model of its state.
pub(crate) struct Simulation {
    random: fastrand::Rng,
    sandbox: Sandbox,
    agent: Agent,
    traffic: Traffic,
    foreign: ForeignObjects,
    most: usize,
    residents: Residents,
    counts: BTreeMap<Event, u64>,
    steps: u64,
    created: u64,
    is_next: bool,
    memory: Memory,
    empty: Residue,
}

impl Simulation {
    /// Creates a node with the traffic pods and foreign objects, and no other pod.
    pub(crate) fn start(seed: u64, most: usize, flows: u16) -> Result<Self> {
        let sandbox = Sandbox::new()?;
        let foreign = ForeignObjects::create(&sandbox.node)?;
        let agent = Agent::start(&sandbox.node, &[])?;
        let traffic = Traffic::start(&sandbox, flows)?;
        let empty = Residue::of(&sandbox.node, &[])?;
        Ok(Self {
            random: fastrand::Rng::with_seed(seed),
            sandbox,
            agent,
            traffic,
            foreign,
            most,
            residents: Residents::new(),
            counts: BTreeMap::new(),
            steps: 0,
            created: 0,
            is_next: false,
            memory: Memory::default(),
            empty,
        })
    }

    /// Executes one event; every [`CHECK_EVERY`] events, checks everything.
    pub(crate) fn step(&mut self) -> Result<()> {
        let event = Event::any(&mut self.random);
        let event = self.possible(event);
        self.execute(event).with_context(|| format!("{event:?}"))?;
        *self.counts.entry(event).or_default() += 1;
        self.steps += 1;
        if self.steps.is_multiple_of(CHECK_EVERY) {
            self.check_everything()?;
        }
        Ok(())
    }

    /// Replaces an event that is not possible: an ADD at the maximum of pods by a DEL, and an event
    /// of a pod without any pod by an ADD.
    fn possible(&self, event: Event) -> Event {
        let adds = matches!(event, Event::Add | Event::AddMany | Event::KillDuringAdd);
        let needs_a_pod = !adds && !matches!(event, Event::Kill | Event::Upgrade);
        if adds && self.residents.len() + MANY > self.most {
            Event::Del
        } else if needs_a_pod && self.residents.is_empty() {
            Event::Add
        } else {
            event
        }
    }

    fn execute(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Add => self.add(),
            Event::AddMany => self.add_many(),
            Event::Del => self.del(),
            Event::Check => self.check(),
            Event::Gc => self.gc(),
            Event::Limit => self.limit(),
            Event::Kill => self.kill(),
            Event::KillDuringAdd => self.kill_during_add(),
            Event::KillDuringDel => self.kill_during_del(),
            Event::DelWithoutAgent => self.del_without_agent(),
            Event::Upgrade => self.upgrade(),
            Event::Damage => self.damage(),
            Event::LinkGone => self.link_gone(),
            Event::NamespaceGone => self.namespace_gone(),
        }
    }

    /// Creates a pod, not attached, and its configuration with random ports and limits.
    fn new_pod(&mut self) -> Result<(Resident, Config)> {
        self.created += 1;
        let pod = self.sandbox.pod(&format!("pod-{}", self.created))?;
        let offset = u16::try_from(self.created % 30_000)?;
        let port = self.random.bool().then_some(20_000 + offset);
        let limit = self.random.bool().then(|| self.any_limit());
        let ports =
            port.map(|host| json!({ "hostPort": host, "containerPort": 80, "protocol": "tcp" }));
        let mut runtime = json!({ "portMappings": ports.as_slice() });
        if let Some(rate) = limit {
            runtime["bandwidth"] = json!({ "egressRate": rate, "egressBurst": rate });
        }
        let config = Config::new("1.1.0").with("runtimeConfig", runtime);
        Ok((Resident { pod, port, limit }, config))
    }

    fn any_limit(&mut self) -> u64 {
        LIMITS[self.random.usize(..LIMITS.len())]
    }

    fn any(&mut self) -> Result<&mut Resident> {
        let which = self.random.usize(..self.residents.len());
        self.residents.values_mut().nth(which).context("a pod")
    }

    fn take_pod(&mut self) -> Result<Resident> {
        let id = self.any()?.pod.id().to_owned();
        self.residents.remove(&id).context("the pod is listed")
    }

    fn insert(&mut self, resident: Resident) {
        let id = resident.pod.id().to_owned();
        self.residents.insert(id, resident);
    }

    fn add(&mut self) -> Result<()> {
        let (mut resident, config) = self.new_pod()?;
        resident.pod.add_with(config)?;
        self.insert(resident);
        Ok(())
    }

    fn add_many(&mut self) -> Result<()> {
        let created = (0..MANY)
            .map(|_| self.new_pod())
            .collect::<Result<Vec<_>>>()?;
        let attached = thread::scope(|scope| {
            // Collected before the first join, so that all ADDs run at the same time.
            let adds = created
                .into_iter()
                .map(|(mut resident, config)| {
                    scope.spawn(move || resident.pod.add_with(config).map(|_| resident))
                })
                .collect::<Vec<_>>();
            adds.into_iter()
                .map(thread::ScopedJoinHandle::join)
                .map(|end| end.ok().context("an ADD panicked")?)
                .collect::<Result<Vec<_>>>()
        })?;
        for resident in attached {
            self.insert(resident);
        }
        Ok(())
    }

    fn del(&mut self) -> Result<()> {
        let resident = self.take_pod()?;
        resident.pod.del()?;
        resident.pod.machine.unbind()
    }

    fn check(&mut self) -> Result<()> {
        self.any()?.pod.check()?.success()
    }

    /// Removes the namespace of one pod, and executes GC with all others.
    fn gc(&mut self) -> Result<()> {
        let resident = self.take_pod()?;
        resident.pod.machine.unbind()?;
        let bystanders = [self.traffic.bystander.id(), self.traffic.bulk_sender.id()];
        let valid = self
            .residents
            .keys()
            .map(String::as_str)
            .chain(bystanders)
            .map(|id| json!({ "containerID": id, "ifname": "eth0" }))
            .collect::<Vec<_>>();
        let config = Config::new("1.1.0").with("cni.dev/valid-attachments", json!(valid));
        let gc = Call::new(Verb::Gc, "", "", &config).run(&self.sandbox.node)?;
        gc.success()
    }

    fn limit(&mut self) -> Result<()> {
        let rate = self.any_limit();
        let resident = self.any()?;
        resident.limit = Some(rate);
        let line = format!("limit {} --egress {rate}", resident.pod.id());
        self.agent.ctl(&line).map(drop)
    }

    fn kill(&mut self) -> Result<()> {
        self.agent.kill()?;
        self.agent.restart()
    }

    fn moment(&mut self) -> Duration {
        Duration::from_micros(self.random.u64(..20_000))
    }

    /// Kills the agent during an ADD. After a failed ADD, executes DEL and ADD, as a runtime does.
    fn kill_during_add(&mut self) -> Result<()> {
        let (mut resident, config) = self.new_pod()?;
        let moment = self.moment();
        let added = thread::scope(|scope| {
            let add = scope.spawn(|| resident.pod.add_with(config.clone()).is_ok());
            thread::park_timeout(moment);
            self.agent.kill()?;
            add.join().ok().context("the ADD panicked")
        })?;
        self.agent.restart()?;
        if !added {
            resident.pod.del()?;
            resident.pod.add_with(config)?;
        }
        self.insert(resident);
        Ok(())
    }

    /// Kills the agent during a DEL. The DEL succeeds: the plugin spools it for the next agent.
    fn kill_during_del(&mut self) -> Result<()> {
        let resident = self.take_pod()?;
        let moment = self.moment();
        thread::scope(|scope| {
            let del = scope.spawn(|| resident.pod.del());
            thread::park_timeout(moment);
            self.agent.kill()?;
            del.join().ok().context("the DEL panicked")?
        })?;
        self.agent.restart()?;
        self.await_forgotten(&resident)
    }

    fn del_without_agent(&mut self) -> Result<()> {
        let resident = self.take_pod()?;
        self.agent.kill()?;
        resident.pod.del()?;
        self.agent.restart()?;
        self.await_forgotten(&resident)
    }

    fn upgrade(&mut self) -> Result<()> {
        self.is_next = !self.is_next;
        let programs = ["bin/viaductd", "../dist-next/bin/viaductd"];
        self.agent.terminate()?;
        self.agent
            .replace(&program(programs[usize::from(self.is_next)]));
        self.agent.restart()
    }

    /// Changes a pod's link or filters, and waits until the agent has repaired it.
    fn damage(&mut self) -> Result<()> {
        let kind = self.random.usize(..4);
        let resident = self.any()?;
        let link = resident.pod.host_link().to_owned();
        let id = resident.pod.id().to_owned();
        let damage = match kind {
            0 => format!("tc filter del dev {link} egress"),
            1 => format!("ip link set {link} nomaster"),
            2 => format!("ip link set {link} mtu 1300"),
            _ => format!("ip link set {link} down"),
        };
        self.sandbox.node.call(&damage)?;
        let pod = &self.residents[&id].pod;
        until(&format!("`{damage}` is repaired"), || {
            Ok(pod.check()?.success().is_ok().then_some(()))
        })
    }

    fn link_gone(&mut self) -> Result<()> {
        let resident = self.take_pod()?;
        let delete = format!("ip link delete {}", resident.pod.host_link());
        self.sandbox.node.call(&delete)?;
        self.await_forgotten(&resident)
    }

    fn namespace_gone(&mut self) -> Result<()> {
        let resident = self.take_pod()?;
        resident.pod.machine.unbind()?;
        let id = resident.pod.id().to_owned();
        drop(resident);
        self.await_forgotten_id(&id)
    }

    fn await_forgotten(&self, resident: &Resident) -> Result<()> {
        self.await_forgotten_id(resident.pod.id())
    }

    fn await_forgotten_id(&self, id: &str) -> Result<()> {
        until(&format!("{id} has no attachment"), || {
            let list = self.agent.get("/v1/attachments")?;
            let mut attachments = list.as_array().context("a list")?.iter();
            Ok((!attachments.any(|one| one["containerID"] == id)).then_some(()))
        })
    }

    /// Checks the node against the model, one hostport, the traffic and the foreign objects.
    fn check_everything(&mut self) -> Result<()> {
        let check = NodeCheck {
            sandbox: &self.sandbox,
            agent: &self.agent,
            residents: &self.residents,
            bystanders: [&self.traffic.bystander, &self.traffic.bulk_sender],
            ports: PORTS.len(),
        };
        check.matches_model()?;
        if !self.residents.is_empty() {
            let which = self.random.usize(..self.residents.len());
            check.check_hostport(self.residents.values().nth(which).context("a pod")?)?;
        }
        self.traffic.await_progress()?;
        self.foreign.check_unchanged(&self.sandbox.node)?;
        self.sample()
    }

    /// Samples the agent's memory, unless it is the other version, which is built without
    /// optimisation.
    fn sample(&mut self) -> Result<()> {
        if self.is_next {
            return Ok(());
        }
        self.memory.sample(&self.agent)
    }

    /// Returns the number of events of each kind so far.
    pub(crate) fn counts(&self) -> String {
        self.counts
            .iter()
            .map(|(event, count)| format!("{count} {event:?}"))
            .collect::<Vec<_>>()
            .join(", ")
    }

    /// Returns a progress line.
    pub(crate) fn line(&mut self) -> Result<String> {
        self.sample()?;
        Ok(format!(
            "{} pods, agent {}; {}",
            self.residents.len(),
            self.memory,
            self.counts()
        ))
    }

    /// Detaches all pods, and checks that they leave no residue.
    pub(crate) fn end(mut self) -> Result<String> {
        self.check_everything()?;
        let line = self.line()?;
        for resident in self.residents.values() {
            resident.pod.del()?;
        }
        let left = Residue::of(&self.sandbox.node, &[])?;
        assert_no_residue(&self.empty, &left)?;
        let passed = self.traffic.end()?;
        ensure!(self.steps > 0, "no event was executed");
        Ok(format!("{line}; {passed}"))
    }
}
