//! CNI commands: parses a request, executes it in the engine, and returns the CNI result.
//! Independent of socket and HTTP paths.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Instant;

use api::{AttachmentView, CniRequest, EventOutcome};
use cni::{
    AddRequest, CheckRequest, Command, DelRequest, Dns, Environment, Error, ForeignLease, Header,
    Outcome, Plugin, PluginResult, Request, StatusRequest, Version,
};
use engine::{AttachedPods, Uninstalled};
use model::{
    Attachment, Cidr, HairpinMode, IfName, InvalidName, Mac, NetnsPath, Network, NetworkName,
    PortMapping,
};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::task::spawn_blocking;
use tracing::Instrument as _;

use crate::app::App;
use crate::cni::lease_files::{HostLocalLeases, read_all_into};
use crate::cni::readiness::readiness;
use crate::config::pod_cidrs;
use crate::http::failure::{Failure, UNKNOWN_CONTAINER};
use crate::http::limits::log_placeholder_burst;
use crate::http::{names, view};
use crate::process::installation;
use crate::telemetry::events::NewEvent;
use crate::telemetry::traces;
use crate::{clock, config};

/// Query parameters that locate a container without a record.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct NamespaceQuery {
    /// Path of the container's network namespace.
    #[serde(default)]
    netns: String,
    /// Interface in the container; empty for `eth0`.
    #[serde(default)]
    ifname: String,
}

impl NamespaceQuery {
    /// Returns whether the query names a namespace by its path.
    pub(crate) fn names_namespace(&self) -> bool {
        !self.netns.is_empty()
    }
}

/// Returns the process of a runtime that binds the published ports itself after the ADD, among the
/// processes that led to the execution of the plugin.
pub(crate) fn port_binder(client: Option<u32>, ports: &[PortMapping]) -> Option<u32> {
    client
        .filter(|_| !ports.is_empty())
        .and_then(|pid| planner::binding_runtime(kernel::ancestors(pid)))
}

impl App {
    /// Reads the addresses of a container without a record from its namespace (behaviours K23,
    /// K24).
    pub(crate) async fn inspect_interface(
        &self,
        id: &str,
        place: &NamespaceQuery,
    ) -> Result<AttachmentView, Failure> {
        if place.netns.is_empty() {
            // kubenet's message (behaviour K24).
            return Err(Error::new(UNKNOWN_CONTAINER, format!(
                "cannot find the network namespace, skipping pod network status for container {id:?}"
            ))
            .into());
        }
        let ifname = if place.ifname.is_empty() {
            "eth0"
        } else {
            &place.ifname
        };
        let invalid = |error: &dyn std::fmt::Display| Error::environment(error.to_string());
        let netns = self.netns(&place.netns).await?;
        let name: IfName = ifname.parse().map_err(|error| invalid(&error))?;
        let side = self
            .handle
            .inspect_interface(netns, name)
            .await?
            .filter(|side| !side.addresses.is_empty())
            .ok_or_else(|| {
                Error::new(
                    UNKNOWN_CONTAINER,
                    format!("{ifname} in {} has no address", place.netns),
                )
            })?;
        Ok(view::unrecorded(id, &place.netns, ifname, &side))
    }

    /// Returns whether a namespace has an interface of that name, created by Viaduct or not.
    pub(crate) async fn has_interface(&self, netns: &str, ifname: &str) -> Result<bool, Failure> {
        let invalid = |error: &dyn std::fmt::Display| Error::environment(error.to_string());
        let netns = self.netns(netns).await?;
        let name: IfName = ifname.parse().map_err(|error| invalid(&error))?;
        Ok(self.handle.inspect_interface(netns, name).await?.is_some())
    }

    /// Parses the path of a network namespace, and looks it up off the engine's thread: a file
    /// system that does not answer must not stop the engine.
    async fn netns(&self, path: &str) -> Result<NetnsPath, Error> {
        let invalid = |error: InvalidName| Error::environment(error.to_string());
        let netns: NetnsPath = path.parse().map_err(invalid)?;
        let place = netns.clone();
        // Whether there is a namespace is for the engine to decide.
        let look_up = move || drop(std::fs::metadata(place.as_path()));
        self.file_access
            .run("CNI_NETNS", netns.as_path(), look_up)
            .await?;
        Ok(netns)
    }

    /// Executes a CNI command, counts it and emits its event. `client` is the plugin's process ID,
    /// if it is known. Returns the text for the plugin's standard output.
    pub(crate) async fn cni(
        &self,
        command: Command,
        request: CniRequest,
        client: Option<u32>,
    ) -> Result<String, Failure> {
        let span = tracing::info_span!(
            "cni",
            ?command,
            container = request.container_id,
            ifname = request.ifname,
            traceparent = Some(&*request.traceparent).filter(|text| !text.is_empty())
        );
        let started = Instant::now();
        let subject = format!("{}/{}", request.container_id, request.ifname);
        let pod = cni::pod_of(&request.args).as_ref().map(names::pod);
        let trace = self.traces.begin(command, &request);
        let execution = Box::pin(self.execute(command, request, client).instrument(span));
        let result = traces::record(trace, execution).await;
        let (outcome, message) = match &result {
            Ok(_) => (EventOutcome::Done, String::new()),
            Err(failure) => (EventOutcome::Failed, failure.to_string()),
        };
        let (action, duration) = (verb_name(command), started.elapsed());
        self.metrics.count(action, outcome.word(), duration);
        // Runtimes send STATUS every few seconds: a successful one is no event.
        if command != Command::Status || outcome == EventOutcome::Failed {
            self.events.emit(NewEvent {
                action,
                subject,
                pod,
                outcome,
                message,
                duration,
            });
        }
        result
    }

    async fn execute(
        &self,
        command: Command,
        request: CniRequest,
        client: Option<u32>,
    ) -> Result<String, Failure> {
        if request.plugin == api::NETAVARK {
            self.netavark_call(command, request, client).await
        } else {
            self.execute_cni(command, request, client).await
        }
    }

    /// Executes a request whose configuration is CNI's.
    pub(crate) async fn execute_cni(
        &self,
        command: Command,
        request: CniRequest,
        client: Option<u32>,
    ) -> Result<String, Failure> {
        let environment = Environment {
            command,
            container_id: request.container_id,
            netns: request.netns,
            ifname: request.ifname,
            args: request.args,
            path: request.path,
        };
        if environment.netns.starts_with('/') {
            self.netns(&environment.netns).await?;
        }
        let plugin = Plugin::of_program(&request.plugin);
        match Request::read(plugin, &environment, request.config.get())? {
            Request::Add(mut add) => {
                let answer = request.ipam.as_deref().map(RawValue::get);
                add.lease = answer.map(ForeignLease::parse).transpose()?;
                self.add(*add, client).await
            }
            Request::Del(request) => self.del(request).await,
            Request::Check(request) => self.check(request).await,
            Request::Gc(request) => self.gc(request).await,
            Request::Status(request) => self.status(&request).await,
            Request::Chained(request) => self.chained(*request, client).await,
        }
    }

    /// Returns the default network with its current settings; without ranges until there is a pod
    /// CIDR.
    pub(crate) fn default_network(&self) -> Option<Network> {
        let status = self.handle.status();
        let mut networks = status.networks.iter();
        let default = networks.find(|status| status.is_default)?;
        Some(default.network.clone())
    }

    /// Records that a request needs the default network: without a pod CIDR, the agent is degraded
    /// from the first such request on.
    async fn expect_default_network(&self, header: &Header) {
        let default = self.default_network();
        let has_ranges = default.is_some_and(|network| !network.ranges.is_empty());
        if !header.declares_network && !has_ranges {
            self.handle.want_default_network(clock::now()).await;
        }
    }

    pub(crate) fn default_name(&self) -> NetworkName {
        let network = self.default_network();
        network.map_or_else(config::default_name, |network| network.name)
    }

    /// Returns the pod CIDRs of the default network.
    pub(crate) fn pod_cidrs(&self) -> Vec<String> {
        let network = self.default_network();
        network.map_or_else(Vec::new, |network| pod_cidrs::texts(&network.ranges))
    }

    /// Sets the pod CIDRs of the default network, from comma-separated lists.
    pub(crate) async fn set_pod_cidrs(&self, lists: &[String]) -> Result<(), Failure> {
        let ranges = pod_cidrs::parse(lists.iter().map(String::as_str))
            .map_err(|error| Error::invalid_config(format!("{error:#}")))?;
        if ranges.is_empty() {
            return Err(Error::invalid_config("the list contains no pod CIDR").into());
        }
        self.handle.set_pod_cidrs(ranges).await?;
        Ok(())
    }

    /// Returns the hairpin mode of the default network.
    pub(crate) fn hairpin_mode(&self) -> HairpinMode {
        let network = self.default_network();
        network.map_or_else(HairpinMode::default, |network| network.hairpin)
    }

    /// Sets the hairpin mode of the default network.
    pub(crate) async fn set_hairpin_mode(&self, mode: &str) -> Result<(), Failure> {
        let mode = mode
            .parse::<HairpinMode>()
            .map_err(|error| Error::invalid_config(error.to_string()))?;
        self.handle.set_hairpin_mode(mode, clock::now()).await?;
        Ok(())
    }

    /// Uninstalls Viaduct from the node, and stops the agent. With `purge`, it also removes the
    /// files of the installation.
    pub(crate) async fn uninstall(
        &self,
        attached: AttachedPods,
        purge: bool,
    ) -> Result<(Uninstalled, installation::Report), Failure> {
        let installed_files = self.installed_files.clone();
        // The engine calls this after it has closed pins and records.
        let remove_files = move || installed_files.remove();
        let done = self.handle.uninstall(attached, remove_files).await?;
        self.lifecycle.uninstalled.store(true, Ordering::Release);
        let installation = self.installation.clone();
        let files = spawn_blocking(move || installation.report(purge))
            .await
            .unwrap_or_default();
        let left = [done.left.clone(), files.remaining.clone()]
            .concat()
            .join("; ");
        self.events
            .emit(NewEvent::new("uninstall", "node", EventOutcome::Done, left));
        self.lifecycle.stop.send_replace(true);
        Ok((done, files))
    }

    async fn add(&self, mut request: AddRequest, client: Option<u32>) -> Result<String, Failure> {
        if let Some(key) = &self.config.get().hostport_annotation {
            request.add_annotated_ports(key)?;
        }
        log_placeholder_burst(&request.requested.limits);
        self.expect_default_network(&request.config.header).await;
        let mut intent = cni::intent(&request, self.default_network().as_ref())?;
        self.check_declared(&request.config.header, &intent.network)?;
        intent.requested.port_binder = port_binder(client, &intent.port_mappings);
        let vlan_link = intent
            .network
            .gateway_vlan()
            .and_then(|_| intent.network.gateway_link());
        let leases = HostLocalLeases::of(&request.config.header, &self.file_access);
        if let Some(leases) = &leases {
            leases.read_into(&mut intent).await?;
        }
        if self.handle.status().shares_addresses(&intent.network.name) {
            read_all_into(&self.file_access, &mut intent).await?;
        }
        let dns = self.dns(&request).await?;
        let version = request.config.header.version;
        // Behind all other checks: an invalid configuration makes no bridge.
        self.refuse_inexpressible(&intent, version).await?;
        let awaits_addresses = intent.requested.awaits_addresses;
        let network = leases.is_some().then(|| intent.network.clone());
        let attachment = if request.lease.is_some() {
            self.handle.complete(intent).await?
        } else {
            self.handle.add(intent, clock::now()).await?
        };
        if awaits_addresses {
            return Ok(String::new());
        }
        if let Some((leases, network)) = leases.zip(network)
            && let Err(error) = leases.write(&network, &attachment).await
        {
            // The lease files are no part of the engine's transaction: undo the ADD here.
            let key = attachment.key;
            if let Err(left) = self.handle.del(key.clone()).await {
                tracing::warn!(%key, error = %left, "cannot remove the attachment of a failed ADD; the DEL removes it");
            }
            return Err(error.into());
        }
        let outcome = Outcome {
            attachment: &attachment,
            bridge_mac: self.bridge_mac(&attachment),
            vlan_link: vlan_link.as_ref(),
            dns: &dns,
            implied: &implied(&request),
        };
        match &request.prev_result {
            None => Ok(outcome.to_json(version)),
            Some(earlier) => {
                let own = PluginResult::parse(&outcome.to_json(Version::NEWEST))?;
                Ok(own.with_earlier(earlier).to_json(version)?)
            }
        }
    }

    /// Returns the DNS settings of the configuration, or else of the resolv.conf that its `ipam`
    /// names (behaviour R6).
    async fn dns(&self, request: &AddRequest) -> Result<Dns, Error> {
        let own = request.config.dns.clone();
        if let Some(lease) = &request.lease {
            return Ok(own.or(lease.dns.clone()));
        }
        let ipam = request.config.ipam.as_ref();
        let Some(path) = ipam.and_then(|ipam| ipam.resolv_conf.clone()) else {
            return Ok(own);
        };
        let file = path.clone();
        let read = move || ipam::small_files::read(file);
        let read = self.file_access.run("ipam.resolvConf", &path, read).await?;
        let failed = |error| Error::io(format!("ipam.resolvConf: {}: {error}", path.display()));
        Ok(own.or(Dns::of_resolv_conf(&read.map_err(failed)?)))
    }

    fn bridge_mac(&self, attachment: &Attachment) -> Option<Mac> {
        let status = self.handle.status();
        let mut networks = status.networks.iter();
        networks
            .find(|status| status.network.name == attachment.key.network)?
            .bridge_mac
    }

    async fn del(&self, request: DelRequest) -> Result<String, Failure> {
        let key = request.target.key(&self.default_name());
        self.handle.del(key.clone()).await?;
        if let Some(leases) = HostLocalLeases::of(request.target.header(), &self.file_access) {
            leases.release(&key).await;
        }
        match self.refused_adds.take(&key) {
            Some(reason) => Err(Error::from(reason).into()),
            None => Ok(String::new()),
        }
    }

    async fn check(&self, request: CheckRequest) -> Result<String, Failure> {
        let key = request.target.key(&self.default_name());
        let wanted = request.prev_result.destinations.clone();
        let attachment = self.handle.check_wanted(key, wanted).await?;
        request.prev_result.check(&attachment)?;
        Ok(String::new())
    }

    /// Fails if an ADD to the network would fail at present (behaviour S13).
    async fn status(&self, request: &StatusRequest) -> Result<String, Failure> {
        if let Some(stuck) = self.handle.stuck() {
            return Err(Error::not_available(stuck.to_string()).into());
        }
        self.expect_default_network(&request.config.header).await;
        let network = request.network(self.default_network().as_ref())?;
        self.check_declared(&request.config.header, &network)?;
        readiness(&self.handle.status(), &network.name)?;
        Ok(String::new())
    }
}

/// Returns the destinations of those routes of the `ipam` that have no gateway.
fn implied(request: &AddRequest) -> BTreeSet<Cidr> {
    let given = request.lease.iter().flat_map(|lease| &lease.routes);
    request
        .config
        .ipam
        .iter()
        .flat_map(|ipam| &ipam.routes)
        .chain(given)
        .filter(|route| route.gateway.is_none())
        .map(|route| route.destination)
        .collect()
}

fn verb_name(command: Command) -> &'static str {
    match command {
        Command::Add => "add",
        Command::Del => "del",
        Command::Check => "check",
        Command::Gc => "gc",
        Command::Status => "status",
        Command::Version => "version",
    }
}
