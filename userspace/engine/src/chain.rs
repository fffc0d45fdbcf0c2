//! Requests of chained plugins (portmap, bandwidth, firewall): ports, limits and ingress policy of
//! an interface that an earlier plugin of the chain made.
//!
//! An interface of Viaduct's is updated; an interface of a foreign plugin is adopted first. In both
//! cases the record is written before the first step, and a failed request is undone.

use std::collections::BTreeSet;

use ipam::Leases;
use kernel::Kernel;
use model::{
    Adoption, Attachment, AttachmentKey, Bandwidth, IngressPolicy, PortMapping, Record, State,
};
use planner::{AttachContext, Refusal};
use steps::{NetnsQuery, ObservedNetns, PodSide};

use crate::before::Before;
use crate::{Engine, EngineError};

/// Request of a chained plugin for one interface.
#[derive(Clone, Debug)]
pub struct ChainedUpdate {
    /// Interface, as the `prevResult` describes it.
    pub adoption: Adoption,
    /// Ports to publish in addition to the published ones.
    pub port_mappings: Vec<PortMapping>,
    /// New limits; `None` to keep the current ones.
    pub bandwidth: Option<Bandwidth>,
    /// New ingress policy; `None` to keep the current one.
    pub ingress: Option<IngressPolicy>,
    /// Keys under which the interface may be recorded, if the agent made it.
    pub keys: Vec<AttachmentKey>,
    /// Process of a runtime that binds the published ports itself after the ADD.
    pub port_binder: Option<u32>,
}

/// Ports, limits and ingress policy that an interface is to have.
#[derive(Clone, Copy, Default)]
pub(crate) struct InterfaceServices<'a> {
    ports: &'a [PortMapping],
    bandwidth: Option<Bandwidth>,
    ingress: Option<IngressPolicy>,
}

impl<K: Kernel> Engine<K> {
    /// Updates an interface that is recorded, or adopts it first if a foreign plugin made it. `now`
    /// is in seconds since 1970.
    pub fn adopt_or_update(
        &mut self,
        update: &ChainedUpdate,
        now: u64,
    ) -> Result<Attachment, EngineError> {
        let attachment = self.adopt_and_publish(update, now)?;
        self.leave_ports(&attachment, update.port_binder);
        Ok(attachment)
    }

    fn adopt_and_publish(
        &mut self,
        update: &ChainedUpdate,
        now: u64,
    ) -> Result<Attachment, EngineError> {
        let adoption = &update.adoption;
        let observed = self.kernel.observe(&NetnsQuery {
            path: adoption.netns.clone(),
            ifname: adoption.key.ifname.clone(),
            links: BTreeSet::new(),
            host_end: true,
        })?;
        let services = InterfaceServices {
            ports: &update.port_mappings,
            bandwidth: update.bandwidth,
            ingress: update.ingress,
        };
        if let Some(record) = self.recorded(update, &observed) {
            let record = self.follow_mac(record, observed.pod())?;
            let mut wanted = record.attachment.port_mappings.clone();
            wanted.extend(&update.port_mappings);
            return self.publish(
                &record,
                &InterfaceServices {
                    ports: &wanted,
                    ..services
                },
            );
        }
        let adopted = self.adopt(adoption, &observed, now)?;
        match self.publish(&adopted, &services) {
            Err(error) => {
                self.del(&adoption.key)?;
                Err(error)
            }
            Ok(published) => {
                self.prepare_adopted(&published, now);
                Ok(published)
            }
        }
    }

    /// Returns the record of the interface, if one is of the same network namespace (device and
    /// inode).
    fn recorded(&self, update: &ChainedUpdate, observed: &ObservedNetns) -> Option<Record> {
        let netns = &observed.inside.as_ref()?.netns;
        let mut live = update
            .keys
            .iter()
            .filter_map(|key| self.store.get(key))
            .filter(|record| {
                record.state == State::Attached
                    && (
                        record.attachment.netns.device,
                        record.attachment.netns.inode,
                    ) == (netns.device, netns.inode)
            });
        live.next().cloned()
    }

    /// Records the present MAC address of the pod's interface, which other plugins of the chain may
    /// have changed.
    fn follow_mac(&mut self, record: Record, pod: Option<&PodSide>) -> Result<Record, EngineError> {
        let before = &record.attachment;
        let mac = pod.and_then(|pod| pod.mac).unwrap_or(before.mac);
        let attachment = Attachment {
            mac,
            ..before.clone()
        };
        Ok(Record {
            attachment: self.change(&record, attachment)?,
            ..record
        })
    }

    fn adopt(
        &mut self,
        adoption: &Adoption,
        observed: &ObservedNetns,
        now: u64,
    ) -> Result<Record, EngineError> {
        let key = &adoption.key;
        match self.store.get(key).map(|record| &record.attachment) {
            Some(ours) if ours.adopted.is_none() => {
                return Err(Refusal::AlreadyAttached { key: key.clone() }.into());
            }
            // The record is of a namespace that is gone, or of a request that was never finished.
            Some(_) => self.del(key)?,
            None => {}
        }
        let (attachment, plan) = self.plan_adoption(adoption, observed)?;
        let mut record = Record {
            attachment,
            state: State::Pending,
            boot_id: self.choices.settings.boot_id.clone(),
            created_at: now,
        };
        let before = Before::Absent {
            key: key.clone(),
            network: self.store.networks().get(&key.network).cloned(),
        };
        self.transact(before, |engine, transaction| {
            // Recorded before the first step, so that an agent that dies in between can remove the
            // rest.
            engine.store.put(&record)?;
            transaction.apply(&mut engine.kernel, &mut engine.phases, &plan)?;
            // The pod's side is the other plugin's: as for the reference plugins, it may be down
            // still.
            engine.verify_host(&record.attachment)
        })?;
        record.state = State::Attached;
        self.store.put(&record)?;
        tracing::info!(
            %key,
            link = %record.attachment.host_link(),
            "adopted interface of another plugin"
        );
        Ok(record)
    }

    fn plan_adoption(
        &mut self,
        adoption: &Adoption,
        observed: &ObservedNetns,
    ) -> Result<(Attachment, planner::Plan), EngineError> {
        let addresses = adoption.addresses.iter();
        let leases = Leases {
            taken: self.store.leases(),
            node: self.own_among(addresses.map(|own| own.address.address).collect())?,
            ..Leases::default()
        };
        let policies = self.choices.network_policies();
        let context = AttachContext {
            leases: &leases,
            records: self.store.records(),
            slot: self.next_slot()?,
            generation: self.next_generation(),
            mtu: 0,
            last_macs: &self.attachments.last_macs,
            policies: &policies,
        };
        let planned = planner::plan_adopt(adoption, observed, &context)?;
        self.attachments.last_slot = planned.0.slot;
        Ok(planned)
    }

    /// Replaces the ports of an attachment, and its limits and ingress policy where `services` has
    /// new ones.
    pub(crate) fn publish(
        &mut self,
        before: &Record,
        services: &InterfaceServices<'_>,
    ) -> Result<Attachment, EngineError> {
        let old = &before.attachment;
        let mut new = planner::with_ports(old, services.ports, self.store.records())?;
        if let Some(requested) = services.bandwidth {
            new.bandwidth = self.admit_limits(old, &requested);
        }
        new.port.ingress = services.ingress.unwrap_or(old.port.ingress);
        self.change(before, new)
    }

    /// Publishes `ports` of an attachment in place of its present ones.
    pub fn publish_ports(
        &mut self,
        key: &AttachmentKey,
        ports: &[PortMapping],
    ) -> Result<Attachment, EngineError> {
        let record = self.store.get(key).cloned();
        let Some(record) = record.filter(|record| record.state == State::Attached) else {
            return Err(EngineError::NotAttached(key.clone()));
        };
        let services = InterfaceServices {
            ports,
            ..InterfaceServices::default()
        };
        self.publish(&record, &services)
    }

    /// Unpublishes all ports and removes the limits. An adopted interface without an ingress policy
    /// is released: it loses all programs and table entries.
    pub fn unpublish_ports(&mut self, keys: &[AttachmentKey]) -> Result<(), EngineError> {
        for key in keys {
            let Some(record) = self.store.get(key).cloned() else {
                continue;
            };
            let attachment = &record.attachment;
            if attachment.adopted.is_some() && attachment.port.ingress == IngressPolicy::Open {
                self.del(key)?;
            } else if record.state == State::Attached {
                self.hand_over_ports(Some(key));
                let none = InterfaceServices {
                    bandwidth: Some(Bandwidth::default()),
                    ..InterfaceServices::default()
                };
                self.publish(&record, &none)?;
            }
        }
        Ok(())
    }

    /// Clears the ingress policy. An adopted interface without ports and limits is released.
    pub fn clear_ingress_policy(&mut self, keys: &[AttachmentKey]) -> Result<(), EngineError> {
        self.remove_firewall(keys)?;
        for key in keys {
            let Some(record) = self.store.get(key).cloned() else {
                continue;
            };
            let attachment = &record.attachment;
            if attachment.adopted.is_some()
                && attachment.port_mappings.is_empty()
                && attachment.bandwidth.is_unlimited()
            {
                self.del(key)?;
            } else if record.state == State::Attached {
                let mut new = attachment.clone();
                new.port.ingress = IngressPolicy::Open;
                self.change(&record, new)?;
            }
        }
        Ok(())
    }

    /// Returns an error if an interface does not publish these ports, does not have this ingress
    /// policy (`None` accepts any), or does not match its record.
    pub fn check_chained(
        &mut self,
        keys: &[AttachmentKey],
        wanted: &BTreeSet<PortMapping>,
        ingress: Option<IngressPolicy>,
    ) -> Result<(), EngineError> {
        let Some(unknown) = keys.first() else {
            return Ok(());
        };
        let mut attached = keys
            .iter()
            .filter_map(|key| self.store.get(key))
            .filter(|record| record.state == State::Attached);
        let Some(record) = attached.next().cloned() else {
            return Err(EngineError::NotAttached(unknown.clone()));
        };
        let observed = self.observe(&record.attachment)?;
        let pod = observed.pod();
        if let Some(cut) = pod.and_then(|pod| planner::mac_difference(&record.attachment, pod)) {
            return Err(EngineError::Different {
                key: record.attachment.key,
                differences: vec![cut],
            });
        }
        let attachment = self.follow_mac(record, pod)?.attachment;
        if let Some(missing) = wanted
            .iter()
            .find(|mapping| !attachment.port_mappings.contains(mapping))
        {
            let key = attachment.key.clone();
            return Err(EngineError::NotPublished(key, *missing));
        }
        if let Some(wanted) = ingress.filter(|wanted| *wanted != attachment.port.ingress) {
            let key = attachment.key.clone();
            return Err(EngineError::WrongIngressPolicy(key, wanted));
        }
        self.verify_host(&attachment)
    }
}
