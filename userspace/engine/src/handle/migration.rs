//! Requests of a migration from other plugins, and back.

use std::collections::BTreeSet;
use std::net::IpAddr;

use model::{Attachment, AttachmentKey};

use super::Handle;
use crate::commands::Command;
use crate::{EngineError, KeptConnections};

impl Handle {
    /// Lets netfilter go on translating the open connections that it translates to these pods, when
    /// their ports get hostports.
    pub async fn keep_connections(
        &self,
        pods: BTreeSet<IpAddr>,
        dry_run: bool,
    ) -> Result<KeptConnections, EngineError> {
        self.execute(|reply| Command::KeepConnections(pods, dry_run, reply))
            .await
    }

    /// Unpublishes the ports of an adopted interface; established flows are translated until they
    /// end.
    pub async fn drain_ports(&self, key: AttachmentKey) -> Result<Attachment, EngineError> {
        self.execute(|reply| Command::DrainPorts(key, reply)).await
    }
}
