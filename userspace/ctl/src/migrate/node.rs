//! The effects of a migration on the node: by the agent's API, and by the reference plugin.

use std::path::PathBuf;

use anyhow::{Context as _, Result, anyhow};
use api::{Client, CniRequest, CniVerb, FlowQuery, FlowsView, KeptConnections, path};
use cni::Command;
use invoke::{Invoker, Timeouts};
use serde_json::value::RawValue;

use super::change::Effects;
use super::observe;
use super::plan::{Observed, PORTMAP, Pod, environment};

/// Kind of the flows that come through published ports.
const PUBLISHED: &str = "published";
/// States of TCP connections that have ended.
const ENDED: [&str; 2] = ["closing", "reset"];

/// The node.
pub(super) struct Node<'a> {
    client: &'a Client,
    invoker: Invoker,
    /// Program of the reference plugin, or why there is none.
    program: Result<String, String>,
}

impl<'a> Node<'a> {
    pub(super) fn new(client: &'a Client, path: Vec<PathBuf>, observed: &Observed) -> Self {
        Self {
            client,
            invoker: Invoker {
                path,
                // No result is cached: the runtime's are read only.
                cache: PathBuf::new(),
                timeouts: Timeouts::default(),
            },
            program: observed.program.clone(),
        }
    }

    /// Executes a command of the reference plugin.
    fn reference(&self, command: Command, pod: &Pod) -> Result<()> {
        let (list, plugin) = pod.plugin.as_ref().context("no configuration")?;
        let program = self.program.as_ref().map_err(|why| anyhow!(why.clone()))?;
        let executed = self
            .invoker
            .chained(command, program, (list, plugin), &pod.cached);
        executed.map_err(|error| anyhow!("{error}"))
    }

    /// Sends a command to the agent, as Viaduct's `portmap` does.
    fn agent(&self, verb: CniVerb, pod: &Pod) -> Result<()> {
        let (list, plugin) = pod.plugin.as_ref().context("no configuration")?;
        let cached = &pod.cached;
        let config = list.config_for(plugin, Some(&cached.result), &cached.capabilities);
        let variables = environment(cached);
        let request = CniRequest {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            plugin: PORTMAP.to_owned(),
            traceparent: String::new(),
            container_id: variables.container_id,
            netns: variables.netns,
            ifname: variables.ifname,
            args: variables.args,
            path: variables.path,
            config: RawValue::from_string(config)?,
            ipam: None,
        };
        let reply = self
            .client
            .post(verb.path(), &request)
            .map_err(crate::advised)?;
        if reply.is_success() {
            return Ok(());
        }
        Err(anyhow!("{}", reply.error()))
    }
}

impl Effects for Node<'_> {
    fn keep(&mut self, addresses: Vec<String>) -> Result<KeptConnections> {
        observe::keep(self.client, addresses, false)
    }

    fn publish(&mut self, pod: &Pod) -> Result<()> {
        self.agent(CniVerb::Add, pod)
    }

    fn remove_rules(&mut self, pod: &Pod) -> Result<()> {
        self.reference(Command::Del, pod)
    }

    fn restore_rules(&mut self, pod: &Pod) -> Result<()> {
        self.reference(Command::Add, pod)
    }

    fn drain(&mut self, pod: &Pod) -> Result<()> {
        let path = path::DRAIN
            .replace("{id}", pod.cached.container_id.as_str())
            .replace("{ifname}", pod.cached.ifname.as_str());
        let reply = self.client.post(&path, &()).map_err(crate::advised)?;
        Ok(reply.decode::<()>()?)
    }

    fn flows(&mut self, pod: &Pod) -> Result<u64> {
        let query = FlowQuery {
            pod: Some(pod.cached.container_id.to_string()),
            limit: Some(usize::MAX),
            ..FlowQuery::default()
        };
        let view: FlowsView = crate::decode(&crate::get(self.client, &query.to_path())?)?;
        // The query also finds containers whose IDs begin with this one.
        let id = Some(pod.cached.container_id.as_str());
        let published = view
            .flows
            .iter()
            .filter(|flow| flow.kind == PUBLISHED && flow.container_id.as_deref() == id)
            .filter(|flow| !ENDED.contains(&flow.state.as_str()));
        Ok(u64::try_from(published.count())?)
    }

    fn release(&mut self, pod: &Pod) -> Result<()> {
        self.agent(CniVerb::Del, pod)
    }
}
