//! CNI commands: from the bytes of a request to the engine and back. Knows no socket and no HTTP path.

use std::time::Instant;

use api::CniRequest;
use cni::{
    AddRequest, CheckRequest, Command, DelRequest, Environment, Error, GcRequest, Outcome, Request,
    StatusRequest,
};
use engine::Handle;
use model::{Attachment, HairpinMode, Mac, Network};

use crate::clock;
use crate::failure::Failure;
use crate::flows::FlowSource;

/// What requests are answered with.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) handle: Handle,
    /// The agent's own network; without ranges as long as no pod CIDR is known.
    pub(crate) default_network: Network,
    pub(crate) started: Instant,
    pub(crate) flows: FlowSource,
}

impl App {
    /// Executes a CNI command; returns what belongs on the plugin's standard output.
    pub(crate) async fn cni(
        &self,
        command: Command,
        request: CniRequest,
    ) -> Result<String, Failure> {
        let environment = Environment {
            command,
            container_id: request.container_id,
            netns: request.netns,
            ifname: request.ifname,
            args: request.args,
            path: request.path,
        };
        match Request::read(&environment, request.config.get())? {
            Request::Add(request) => self.add(*request).await,
            Request::Del(request) => self.del(request).await,
            Request::Check(request) => self.check(request).await,
            Request::Gc(request) => self.gc(request).await,
            Request::Status(request) => self.status(&request),
        }
    }

    /// The agent's own network, once it can give addresses.
    fn default(&self) -> Option<&Network> {
        let network = &self.default_network;
        (!network.ranges.is_empty()).then_some(network)
    }

    async fn add(&self, request: AddRequest) -> Result<String, Failure> {
        let intent = cni::intent(&request, self.default())?;
        refuse_promiscuous(&intent.network)?;
        let attachment = self.handle.add(intent, clock::now()).await?;
        let outcome = Outcome {
            attachment: &attachment,
            bridge_mac: self.bridge_mac(&attachment),
            dns: &request.config.dns,
        };
        Ok(outcome.to_json(request.config.header.version))
    }

    fn bridge_mac(&self, attachment: &Attachment) -> Option<Mac> {
        let status = self.handle.status();
        let mut networks = status.networks.iter();
        networks
            .find(|status| status.network.name == attachment.key.network)?
            .bridge_mac
    }

    async fn del(&self, request: DelRequest) -> Result<String, Failure> {
        let key = request.target.key(&self.default_network.name);
        self.handle.del(key).await?;
        Ok(String::new())
    }

    async fn check(&self, request: CheckRequest) -> Result<String, Failure> {
        let key = request.target.key(&self.default_network.name);
        let attachment = self.handle.check(key).await?;
        request.prev_result.check(&attachment)?;
        Ok(String::new())
    }

    /// Removes what the runtime does not know, goes on through failures and reports them all (BEHAVIOURS S12).
    async fn gc(&self, request: GcRequest) -> Result<String, Failure> {
        let network = request.network(&self.default_network.name);
        let Some(valid) = request.valid else {
            return Ok(String::new());
        };
        let mut failures = Vec::new();
        for record in self.handle.attachments().await? {
            let key = record.attachment.key;
            let is_known = valid
                .iter()
                .any(|known| known.container_id == key.container_id && known.ifname == key.ifname);
            if key.network == network && !is_known {
                let removed = self.handle.del(key).await;
                failures.extend(removed.err().map(|error| error.to_string()));
            }
        }
        if failures.is_empty() {
            Ok(String::new())
        } else {
            Err(Error::internal(failures.join("; ")).into())
        }
    }

    /// Whether an ADD would work now (BEHAVIOURS S13).
    fn status(&self, request: &StatusRequest) -> Result<String, Failure> {
        let network = request.network(self.default())?;
        refuse_promiscuous(&network)?;
        let status = self.handle.status();
        let of_network = status.degraded.iter().filter(|degraded| match degraded {
            engine::Degraded::NetworkRefused { network: name, .. }
            | engine::Degraded::PoolExhausted { network: name, .. } => *name == network.name,
            engine::Degraded::NoPodCidr
            | engine::Degraded::NoUplink
            | engine::Degraded::NotAttached(_)
            | engine::Degraded::RepairFailed { .. } => false,
        });
        let reasons: Vec<String> = of_network.map(ToString::to_string).collect();
        if reasons.is_empty() {
            Ok(String::new())
        } else {
            Err(Error::not_available(reasons.join("; ")).into())
        }
    }
}

fn refuse_promiscuous(network: &Network) -> Result<(), Error> {
    if network.hairpin == HairpinMode::PromiscuousBridge {
        return Err(Error::unsupported_field("promiscMode", "true")
            .with_details("use hairpinMode: pods reach themselves by it as well"));
    }
    Ok(())
}
