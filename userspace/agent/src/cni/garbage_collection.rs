//! CNI GC: removes attachments and lease files that the runtime does not list.

use std::collections::{BTreeMap, BTreeSet};

use api::{EventOutcome, PodView};
use cni::{Error, GcRequest};
use engine::GcScope;
use model::{AttachmentKey, ContainerId, IfName};

use crate::app::App;
use crate::cni::lease_files::{HostLocalLeases, is_valid_owner};
use crate::http::failure::Failure;
use crate::http::names;
use crate::telemetry::events::NewEvent;

impl App {
    /// Removes attachments that are not in the runtime's list and whose namespace is gone; with
    /// `forceGC` also those of live namespaces. Continues after failures and returns all of them
    /// (behaviour S12).
    pub(crate) async fn gc(&self, request: GcRequest) -> Result<String, Failure> {
        let network = request.network(&self.default_name());
        let Some(valid) = request.valid else {
            return Ok(String::new());
        };
        let valid: BTreeSet<_> = valid
            .into_iter()
            .map(|known| (known.container_id, known.ifname))
            .collect();
        let collect = GcScope {
            network,
            valid: valid.clone(),
            forced: request.forced,
        };
        let collected = self.collect_attachments(collect).await;
        if let Some(leases) = HostLocalLeases::of(&request.header, &self.file_access) {
            self.collect_lease_files(&leases, &valid).await?;
        }
        collected
    }

    /// Releases lease files of containers that are neither in the runtime's list nor on record, as
    /// host-local does. The files are listed before the records, so that a container attached in
    /// between is not among the files without a record.
    async fn collect_lease_files(
        &self,
        leases: &HostLocalLeases,
        valid: &BTreeSet<(ContainerId, IfName)>,
    ) -> Result<(), Failure> {
        let owners = leases.owners().await?;
        if owners.is_empty() {
            return Ok(());
        }
        let records = self.handle.attachments().await?;
        let recorded = records
            .iter()
            .map(|record| &record.attachment.key)
            .map(|key| (&key.container_id, &key.ifname));
        let known = valid
            .iter()
            .map(|(id, ifname)| (id, ifname))
            .chain(recorded);
        let unknown = owners
            .iter()
            .filter(|owner| !is_valid_owner(owner, known.clone()))
            .cloned();
        Ok(leases.collect(unknown.collect()).await?)
    }

    pub(crate) async fn collect_attachments(&self, collect: GcScope) -> Result<String, Failure> {
        // The records of removed attachments are gone afterwards.
        let records = self.handle.attachments().await?;
        let pods: BTreeMap<&AttachmentKey, PodView> = records
            .iter()
            .map(|record| &record.attachment)
            .filter_map(|it| Some((&it.key, names::pod(it.pod.as_ref()?))))
            .collect();
        let collected = self.handle.collect(collect).await?;
        let removed = collected
            .removed
            .iter()
            .map(|key| (key, EventOutcome::Removed));
        let alive = collected
            .alive
            .iter()
            .map(|key| (key, EventOutcome::LeftAlone));
        for (key, outcome) in removed.chain(alive) {
            let message = "not in the runtime's list of valid attachments";
            let event = NewEvent::new("gc", key.to_string(), outcome, message);
            self.events.emit(event.of_pod(pods.get(key).cloned()));
        }
        if collected.failures.is_empty() {
            Ok(String::new())
        } else {
            Err(Error::internal(collected.failures.join("; ")).into())
        }
    }
}
