//! Requests of Docker's network driver, besides ADD and DEL.

use model::{Attachment, AttachmentKey, Network, NetworkName, PortMapping};

use super::Handle;
use crate::EngineError;
use crate::commands::Command;

impl Handle {
    /// Makes the bridge of a network, and keeps it without attachments.
    pub async fn keep_network(&self, network: Network) -> Result<(), EngineError> {
        self.execute(|reply| Command::KeepNetwork(Box::new(network), reply))
            .await
    }

    /// Deletes a network without attachments, and its bridge.
    pub async fn release_network(&self, name: NetworkName) -> Result<(), EngineError> {
        self.execute(|reply| Command::ReleaseNetwork(name, reply))
            .await
    }

    /// Publishes these ports of an attachment, and no others.
    pub async fn publish_ports(
        &self,
        key: AttachmentKey,
        ports: Vec<PortMapping>,
    ) -> Result<Attachment, EngineError> {
        self.execute(|reply| Command::PublishPorts(key, ports, reply))
            .await
    }
}
