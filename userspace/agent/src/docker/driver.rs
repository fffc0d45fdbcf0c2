//! The calls of Docker's network driver.
//!
//! dockerd repeats a call whose answer it has not got, and forgets what it did before it was
//! killed. So each call succeeds if its effect is there already, and removals of what is unknown
//! succeed.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use api::EventOutcome;
use docker::protocol::{
    CreateEndpoint, CreateNetwork, CreatedEndpoint, Id, Joined, OfEndpoint, OfNetwork, PORT_MAP,
};
use docker::{Endpoint, NetworkSpec, Refused, State, join_answer, ports};
use engine::EngineError;
use model::{Attachment, AttachmentKey, Record};
use planner::Refusal;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::ports as port_choice;
use super::state_file::StateFile;
use crate::app::App;
use crate::clock;
use crate::http::failure::Failure;
use crate::telemetry::events::NewEvent;

/// Why a call has failed, for the user of `docker`.
#[derive(Debug)]
pub(crate) struct CallError(String);

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<Refused> for CallError {
    fn from(refused: Refused) -> Self {
        Self(refused.to_string())
    }
}

impl From<Failure> for CallError {
    fn from(failure: Failure) -> Self {
        Self(failure.to_string())
    }
}

impl From<EngineError> for CallError {
    fn from(error: EngineError) -> Self {
        Failure::from(error).into()
    }
}

impl From<io::Error> for CallError {
    fn from(error: io::Error) -> Self {
        Self(error.to_string())
    }
}

/// Result of a call.
pub(crate) type Called<T> = Result<T, CallError>;

/// Docker's network driver and IPAM driver.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(super) app: Arc<App>,
    file: StateFile,
    /// Locked for the whole of a change.
    state: Mutex<State>,
}

impl Driver {
    /// Reads the state, and makes its networks. One that cannot be made stays in the state: its
    /// endpoints fail until the conflict is gone.
    pub(crate) async fn open(app: Arc<App>, file: StateFile) -> Result<Self> {
        let state = file.read()?;
        for spec in state.networks() {
            if let Err(error) = keep(&app, spec).await {
                tracing::error!(network = %spec.id, %error, "cannot make a network of Docker");
            }
        }
        Ok(Self {
            app,
            file,
            state: Mutex::new(state),
        })
    }

    /// Applies a change to the state and stores it. After a failure the state is as before.
    pub(super) async fn change<T>(
        &self,
        change: impl FnOnce(&mut State) -> Result<T, Refused>,
    ) -> Called<T> {
        let mut state = self.state.lock().await;
        let mut new = state.clone();
        let answer = change(&mut new)?;
        if new != *state {
            self.file.write(&new).await?;
            *state = new;
        }
        Ok(answer)
    }

    /// Makes a network with its bridge.
    pub(crate) async fn create_network(&self, request: CreateNetwork) -> Called<Value> {
        let spec = NetworkSpec::read(&request)?;
        let mut state = self.state.lock().await;
        let mut new = state.clone();
        new.add(spec.clone())?;
        keep(&self.app, &spec).await?;
        if new != *state {
            if let Err(error) = self.file.write(&new).await {
                self.app
                    .handle
                    .release_network(NetworkSpec::name(&spec.id))
                    .await?;
                return Err(error.into());
            }
            *state = new;
        }
        Ok(json!({}))
    }

    /// Deletes a network without endpoints, and its bridge.
    pub(crate) async fn delete_network(&self, request: OfNetwork) -> Called<Value> {
        let mut state = self.state.lock().await;
        let name = NetworkSpec::name(&request.network);
        self.app.handle.release_network(name).await?;
        let mut new = state.clone();
        new.remove(&request.network);
        self.file.write(&new).await?;
        *state = new;
        Ok(json!({}))
    }

    /// Attaches an interface that stays in the node's namespace until dockerd moves it.
    pub(crate) async fn create_endpoint(&self, request: CreateEndpoint) -> Called<CreatedEndpoint> {
        let spec = self.spec(&request.network).await?;
        let endpoint = Endpoint::read(&request, &spec)?;
        let added = self
            .app
            .handle
            .add(endpoint.intent.clone(), clock::now())
            .await;
        match added {
            Ok(_) => Ok(endpoint.answer),
            // The answer to an earlier request was lost.
            Err(error @ EngineError::Refused(Refusal::AlreadyAttached { .. })) => {
                match self.attachment(&endpoint.intent.key).await {
                    Ok(attachment) if endpoint.is(&attachment) => Ok(endpoint.answer),
                    _ => Err(error.into()),
                }
            }
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) async fn delete_endpoint(&self, request: OfEndpoint) -> Called<Value> {
        self.app.handle.del(key(&request)).await?;
        Ok(json!({}))
    }

    /// Returns the published ports.
    pub(crate) async fn endpoint_info(&self, request: OfEndpoint) -> Called<Value> {
        let attachment = self.attachment(&key(&request)).await?;
        Ok(json!({"Value": {PORT_MAP: ports::published(&attachment)}}))
    }

    /// Returns the interface that dockerd is to move into the container, and the gateways.
    pub(crate) async fn join(&self, request: OfEndpoint) -> Called<Joined> {
        let spec = self.spec(&request.network).await?;
        let attachment = self.attachment(&key(&request)).await?;
        Ok(join_answer(&attachment, &spec)?)
    }

    /// Succeeds: the endpoint stays until it is deleted.
    #[expect(clippy::unused_async, reason = "every call is a future")]
    pub(crate) async fn leave(&self, _: OfEndpoint) -> Called<Value> {
        Ok(json!({}))
    }

    /// Publishes the ports of an endpoint.
    pub(crate) async fn publish(&self, request: OfEndpoint) -> Called<Value> {
        let spec = self.spec(&request.network).await?;
        let attachment = self.attachment(&key(&request)).await?;
        let bindings = ports::bindings(&request.options)?;
        port_choice::publish(
            &self.app.handle,
            &attachment,
            &bindings,
            spec.default_binding()?,
        )
        .await?;
        Ok(json!({}))
    }

    /// Unpublishes all ports of an endpoint. An unknown one has none.
    pub(crate) async fn revoke(&self, request: OfEndpoint) -> Called<Value> {
        match self
            .app
            .handle
            .publish_ports(key(&request), Vec::new())
            .await
        {
            Ok(_) | Err(EngineError::NotAttached(_)) => Ok(json!({})),
            Err(error) => Err(error.into()),
        }
    }

    async fn spec(&self, network: &Id) -> Called<NetworkSpec> {
        Ok(self.state.lock().await.network(network)?.clone())
    }

    async fn attachment(&self, key: &AttachmentKey) -> Called<Attachment> {
        let records = self.app.handle.attachments().await?;
        let is_it = |record: &&Record| {
            record.attachment.key == *key && record.state == model::State::Attached
        };
        let found = records.iter().find(is_it);
        found
            .map(|record| record.attachment.clone())
            .ok_or_else(|| EngineError::NotAttached(key.clone()).into())
    }

    /// Counts a call and emits its event.
    pub(super) fn report<T>(
        &self,
        call: &'static str,
        duration: Duration,
        subject: String,
        done: &Called<T>,
    ) {
        let (outcome, message) = match done {
            Ok(_) => (EventOutcome::Done, String::new()),
            Err(error) => (EventOutcome::Failed, error.to_string()),
        };
        self.app.metrics.count(call, outcome.word(), duration);
        self.app.events.emit(NewEvent {
            action: call,
            pod: None,
            subject,
            outcome,
            message,
            duration,
        });
    }
}

/// Makes the bridge of a network that the operator allows.
async fn keep(app: &App, spec: &NetworkSpec) -> Called<()> {
    let network = spec.network()?;
    let allowed = app.config.get().declared.check(&network);
    allowed.map_err(EngineError::from)?;
    Ok(app.handle.keep_network(network).await?)
}

fn key(request: &OfEndpoint) -> AttachmentKey {
    Endpoint::key(&request.network, &request.endpoint)
}
