//! The random life of a node: events, and what a runtime and an operator would do about them.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e::residue::assert_no_residue;
use e2e::{Agent, Call, Config, Residue, Sandbox, Verb, program, until};
use serde_json::json;

use crate::event::Event;
use crate::memory::Memory;
use crate::model::{Look, Resident, Residents};
use crate::strangers::Strangers;
use crate::traffic::{PORTS, Traffic};

/// Steps between two looks at everything.
const LOOK: u64 = 25;
/// Pods that come at once.
const CROWD: usize = 12;
/// A limit, in bits per second.
const LIMITS: [u64; 3] = [1_000_000, 20_000_000, 1_000_000_000];

/// The node, and what must be true of it.
pub(crate) struct Life {
    random: fastrand::Rng,
    sandbox: Sandbox,
    agent: Agent,
    traffic: Traffic,
    strangers: Strangers,
    most: usize,
    residents: Residents,
    counts: BTreeMap<Event, u64>,
    steps: u64,
    comers: u64,
    is_next: bool,
    memory: Memory,
    empty: Residue,
}

impl Life {
    /// A node with bystanders, strangers and no other pod.
    pub(crate) fn start(seed: u64, most: usize, flows: u16) -> Result<Self> {
        let sandbox = Sandbox::new()?;
        let strangers = Strangers::settle(&sandbox.node)?;
        let agent = Agent::start(&sandbox.node, &[])?;
        let traffic = Traffic::start(&sandbox, flows)?;
        let empty = Residue::of(&sandbox.node, &[])?;
        Ok(Self {
            random: fastrand::Rng::with_seed(seed),
            sandbox,
            agent,
            traffic,
            strangers,
            most,
            residents: Residents::new(),
            counts: BTreeMap::new(),
            steps: 0,
            comers: 0,
            is_next: false,
            memory: Memory::default(),
            empty,
        })
    }

    /// One thing happens; now and then everything is looked at.
    pub(crate) fn step(&mut self) -> Result<()> {
        let event = Event::any(&mut self.random);
        let event = self.possible(event);
        self.happen(event).with_context(|| format!("{event:?}"))?;
        *self.counts.entry(event).or_default() += 1;
        self.steps += 1;
        if self.steps.is_multiple_of(LOOK) {
            self.look()?;
        }
        Ok(())
    }

    /// Pods come where there is room, and something happens to one only where there is one.
    fn possible(&self, event: Event) -> Event {
        let comes = matches!(event, Event::Add | Event::Crowd | Event::DeathInAdd);
        let happens_to_a_pod = !comes && !matches!(event, Event::Kill | Event::Upgrade);
        if comes && self.residents.len() + CROWD > self.most {
            Event::Del
        } else if happens_to_a_pod && self.residents.is_empty() {
            Event::Add
        } else {
            event
        }
    }

    fn happen(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Add => self.add(),
            Event::Crowd => self.crowd(),
            Event::Del => self.del(),
            Event::Check => self.check(),
            Event::Gc => self.gc(),
            Event::Limit => self.limit(),
            Event::Kill => self.kill(),
            Event::DeathInAdd => self.death_in_add(),
            Event::DeathInDel => self.death_in_del(),
            Event::DelWithoutAgent => self.del_without_agent(),
            Event::Upgrade => self.upgrade(),
            Event::Harm => self.harm(),
            Event::LinkGone => self.link_gone(),
            Event::NamespaceGone => self.namespace_gone(),
        }
    }

    /// A pod that is not attached yet, and what it asks for.
    fn comer(&mut self) -> Result<(Resident, Config)> {
        self.comers += 1;
        let pod = self.sandbox.pod(&format!("pod-{}", self.comers))?;
        let offset = u16::try_from(self.comers % 30_000)?;
        let port = self.random.bool().then_some(20_000 + offset);
        let limit = self.random.bool().then(|| self.any_limit());
        let ports =
            port.map(|host| json!({ "hostPort": host, "containerPort": 80, "protocol": "tcp" }));
        let mut asked = json!({ "portMappings": ports.as_slice() });
        if let Some(rate) = limit {
            asked["bandwidth"] = json!({ "egressRate": rate, "egressBurst": rate });
        }
        let config = Config::new("1.1.0").with("runtimeConfig", asked);
        Ok((Resident { pod, port, limit }, config))
    }

    fn any_limit(&mut self) -> u64 {
        LIMITS[self.random.usize(..LIMITS.len())]
    }

    fn any(&mut self) -> Result<&mut Resident> {
        let which = self.random.usize(..self.residents.len());
        self.residents.values_mut().nth(which).context("a pod")
    }

    fn leaver(&mut self) -> Result<Resident> {
        let id = self.any()?.pod.id().to_owned();
        self.residents.remove(&id).context("it was there")
    }

    fn settle(&mut self, resident: Resident) {
        let id = resident.pod.id().to_owned();
        self.residents.insert(id, resident);
    }

    fn add(&mut self) -> Result<()> {
        let (mut comer, config) = self.comer()?;
        comer.pod.add_with(config)?;
        self.settle(comer);
        Ok(())
    }

    fn crowd(&mut self) -> Result<()> {
        let comers = (0..CROWD).map(|_| self.comer());
        let comers = comers.collect::<Result<Vec<_>>>()?;
        let settled = thread::scope(|scope| {
            let adds = comers.into_iter().map(|(mut comer, config)| {
                scope.spawn(move || comer.pod.add_with(config).map(|_| comer))
            });
            let adds = adds.collect::<Vec<_>>();
            let ends = adds.into_iter().map(thread::ScopedJoinHandle::join);
            ends.map(|end| end.ok().context("an ADD panicked")?)
                .collect::<Result<Vec<_>>>()
        })?;
        for comer in settled {
            self.settle(comer);
        }
        Ok(())
    }

    fn del(&mut self) -> Result<()> {
        let leaver = self.leaver()?;
        leaver.pod.del()?;
        leaver.pod.machine.unbind()
    }

    fn check(&mut self) -> Result<()> {
        self.any()?.pod.check()?.success()
    }

    /// The namespace of one pod is gone, and the runtime knows all others.
    fn gc(&mut self) -> Result<()> {
        let leaver = self.leaver()?;
        leaver.pod.machine.unbind()?;
        let bystanders = [self.traffic.bystander.id(), self.traffic.hauler.id()];
        let known = self.residents.keys().map(String::as_str).chain(bystanders);
        let known = known.map(|id| json!({ "containerID": id, "ifname": "eth0" }));
        let known = known.collect::<Vec<_>>();
        let config = Config::new("1.1.0").with("cni.dev/valid-attachments", json!(known));
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

    /// The runtime cleans up behind an ADD that has failed, and tries again.
    fn death_in_add(&mut self) -> Result<()> {
        let (mut comer, config) = self.comer()?;
        let moment = self.moment();
        let added = thread::scope(|scope| {
            let add = scope.spawn(|| comer.pod.add_with(config.clone()).is_ok());
            thread::park_timeout(moment);
            self.agent.kill()?;
            add.join().ok().context("the ADD panicked")
        })?;
        self.agent.restart()?;
        if !added {
            comer.pod.del()?;
            comer.pod.add_with(config)?;
        }
        self.settle(comer);
        Ok(())
    }

    /// The DEL succeeds all the same: what the agent did not do is kept for the next one.
    fn death_in_del(&mut self) -> Result<()> {
        let leaver = self.leaver()?;
        let moment = self.moment();
        thread::scope(|scope| {
            let del = scope.spawn(|| leaver.pod.del());
            thread::park_timeout(moment);
            self.agent.kill()?;
            del.join().ok().context("the DEL panicked")?
        })?;
        self.agent.restart()?;
        self.forgets(&leaver)
    }

    fn del_without_agent(&mut self) -> Result<()> {
        let leaver = self.leaver()?;
        self.agent.kill()?;
        leaver.pod.del()?;
        self.agent.restart()?;
        self.forgets(&leaver)
    }

    fn upgrade(&mut self) -> Result<()> {
        self.is_next = !self.is_next;
        let programs = ["bin/viaductd", "../dist-next/bin/viaductd"];
        self.agent.terminate()?;
        self.agent
            .replace(&program(programs[usize::from(self.is_next)]));
        self.agent.restart()
    }

    /// Somebody takes something away; it comes back.
    fn harm(&mut self) -> Result<()> {
        let kind = self.random.usize(..4);
        let resident = self.any()?;
        let link = resident.pod.host_link().to_owned();
        let id = resident.pod.id().to_owned();
        let harm = match kind {
            0 => format!("tc filter del dev {link} egress"),
            1 => format!("ip link set {link} nomaster"),
            2 => format!("ip link set {link} mtu 1300"),
            _ => format!("ip link set {link} down"),
        };
        self.sandbox.node.call(&harm)?;
        let pod = &self.residents[&id].pod;
        until(&format!("`{harm}` is mended"), || {
            Ok(pod.check()?.success().is_ok().then_some(()))
        })
    }

    fn link_gone(&mut self) -> Result<()> {
        let leaver = self.leaver()?;
        let delete = format!("ip link delete {}", leaver.pod.host_link());
        self.sandbox.node.call(&delete)?;
        self.forgets(&leaver)
    }

    fn namespace_gone(&mut self) -> Result<()> {
        let leaver = self.leaver()?;
        leaver.pod.machine.unbind()?;
        let id = leaver.pod.id().to_owned();
        drop(leaver);
        self.forgets_id(&id)
    }

    fn forgets(&self, leaver: &Resident) -> Result<()> {
        self.forgets_id(leaver.pod.id())
    }

    fn forgets_id(&self, id: &str) -> Result<()> {
        until(&format!("{id} is forgotten"), || {
            let known = self.agent.get("/v1/attachments")?;
            let mut known = known.as_array().context("a list")?.iter();
            Ok((!known.any(|one| one["containerID"] == id)).then_some(()))
        })
    }

    /// Everything that must be true.
    fn look(&mut self) -> Result<()> {
        let look = Look {
            sandbox: &self.sandbox,
            agent: &self.agent,
            residents: &self.residents,
            bystanders: [&self.traffic.bystander, &self.traffic.hauler],
            ports: PORTS.len(),
        };
        look.agrees()?;
        if !self.residents.is_empty() {
            let which = self.random.usize(..self.residents.len());
            look.serves(self.residents.values().nth(which).context("a pod")?)?;
        }
        self.traffic.goes_on()?;
        self.strangers.are_untouched(&self.sandbox.node)?;
        self.weigh()
    }

    /// The other version is built without optimisation, and what it weighs says nothing.
    fn weigh(&mut self) -> Result<()> {
        if self.is_next {
            return Ok(());
        }
        self.memory.weigh(&self.agent)
    }

    /// What has happened so far.
    pub(crate) fn counts(&self) -> String {
        let counts = self.counts.iter();
        let counts = counts.map(|(event, count)| format!("{count} {event:?}"));
        counts.collect::<Vec<_>>().join(", ")
    }

    /// A line for people.
    pub(crate) fn line(&mut self) -> Result<String> {
        self.weigh()?;
        Ok(format!(
            "{} pods, agent {}; {}",
            self.residents.len(),
            self.memory,
            self.counts()
        ))
    }

    /// All pods go, and nothing is left of them.
    pub(crate) fn end(mut self) -> Result<String> {
        self.look()?;
        let line = self.line()?;
        for resident in self.residents.values() {
            resident.pod.del()?;
        }
        let left = Residue::of(&self.sandbox.node, &[])?;
        assert_no_residue(&self.empty, &left)?;
        let passed = self.traffic.end()?;
        ensure!(self.steps > 0, "nothing has happened");
        Ok(format!("{line}; {passed}"))
    }
}
