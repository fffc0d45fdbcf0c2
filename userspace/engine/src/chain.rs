//! Serving interfaces as later plugins of a chain do: ports and limits for what a bridge plugin has made, ours or another's.
//!
//! An interface of ours gets other ports; one that another plugin made is adopted first. Either way the record says so
//! before the kernel sees a step, and a failure leaves what was there before.

use std::collections::BTreeSet;

use kernel::Kernel;
use model::{
    Adoption, Attachment, AttachmentKey, Bandwidth, IngressPolicy, PortMapping, Record, State,
};
use planner::{AttachContext, Leases, Observed, Refusal, Scope};

use crate::transaction::Done;
use crate::{Engine, EngineError};

/// What to serve, and how.
#[derive(Clone, Debug)]
pub struct Serve {
    /// The interface, as the chain's result tells of it.
    pub adoption: Adoption,
    /// Ports to publish besides those that it has.
    pub port_mappings: Vec<PortMapping>,
    /// Limits in place of those that it has, if they are to be others.
    pub bandwidth: Option<Bandwidth>,
    /// Which other pods are kept from it from now on; `None` for those that are so already.
    pub ingress: Option<IngressPolicy>,
    /// Keys under which it may be on record, if we have made it.
    pub keys: Vec<AttachmentKey>,
}

/// What an interface is served with.
#[derive(Clone, Copy, Default)]
struct Served<'a> {
    ports: &'a [PortMapping],
    bandwidth: Option<Bandwidth>,
    ingress: Option<IngressPolicy>,
}

impl<K: Kernel> Engine<K> {
    /// Serves an interface that a plugin before us made. `now` is in seconds since 1970.
    pub fn serve(&mut self, serve: &Serve, now: u64) -> Result<Attachment, EngineError> {
        let adoption = &serve.adoption;
        let observed = self.kernel.observe(&Scope::Netns {
            path: adoption.netns.clone(),
            ifname: adoption.key.ifname.clone(),
            links: adoption.links.clone(),
        })?;
        let served = Served {
            ports: &serve.port_mappings,
            bandwidth: serve.bandwidth,
            ingress: serve.ingress,
        };
        if let Some(record) = self.served(serve, &observed) {
            let mut wanted = record.attachment.port_mappings.clone();
            wanted.extend(&serve.port_mappings);
            return self.publish(
                &record,
                &Served {
                    ports: &wanted,
                    ..served
                },
            );
        }
        let adopted = self.adopt(adoption, &observed, now)?;
        match self.publish(&adopted, &served) {
            Err(error) => {
                self.del(&adoption.key)?;
                Err(error)
            }
            served => served,
        }
    }

    /// The record of the interface, if it is on record as it is now.
    fn served(&self, serve: &Serve, observed: &Observed) -> Option<Record> {
        let netns = observed.netns.get(&serve.adoption.netns)?;
        let mut live = serve
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

    fn adopt(
        &mut self,
        adoption: &Adoption,
        observed: &Observed,
        now: u64,
    ) -> Result<Record, EngineError> {
        let key = &adoption.key;
        match self.store.get(key).map(|record| &record.attachment) {
            Some(ours) if ours.adopted.is_none() => {
                return Err(Refusal::AlreadyAttached { key: key.clone() }.into());
            }
            // Of a namespace that is gone, or never finished.
            Some(_) => self.del(key)?,
            None => {}
        }
        let (attachment, plan) = self.plan_adoption(adoption, observed)?;
        let mut record = Record {
            attachment,
            state: State::Pending,
            boot_id: self.settings.boot_id.clone(),
            created_at: now,
        };
        let network_before = self.store.networks().get(&key.network).cloned();
        self.store.put(&record)?;
        let mut done = Done::default();
        let made = done.apply(&mut self.kernel, &plan);
        if let Err(error) = made.and_then(|()| self.verify(&record.attachment)) {
            self.back_out(key, network_before.as_ref(), done);
            return Err(error);
        }
        record.state = State::Attached;
        self.store.put(&record)?;
        tracing::info!(%key, link = %record.attachment.host_link(), "adopted");
        Ok(record)
    }

    fn plan_adoption(
        &mut self,
        adoption: &Adoption,
        observed: &Observed,
    ) -> Result<(Attachment, planner::Plan), EngineError> {
        let leases = Leases {
            taken: self.store.leases(),
            ..Leases::default()
        };
        let context = AttachContext {
            leases: &leases,
            records: self.store.records(),
            slot: self.next_slot()?,
            generation: self.store.generation().wrapping_add(1).max(1),
            mtu: 0,
        };
        let planned = planner::plan_adopt(adoption, observed, &context)?;
        self.last_slot = planned.0.slot;
        Ok(planned)
    }

    /// Gives an attachment these ports in place of those that it has, and limits and policy if they are to be others.
    fn publish(&mut self, before: &Record, served: &Served<'_>) -> Result<Attachment, EngineError> {
        let old = &before.attachment;
        let mut new = planner::with_ports(old, served.ports, self.store.records())?;
        if let Some(asked) = served.bandwidth {
            new.bandwidth = self.admit_limits(old, &asked);
        }
        new.port.ingress = served.ingress.unwrap_or(old.port.ingress);
        self.change(before, new)
    }

    /// Makes an attachment into another one that has the same link, slot and addresses.
    pub(crate) fn change(
        &mut self,
        before: &Record,
        new: Attachment,
    ) -> Result<Attachment, EngineError> {
        let old = &before.attachment;
        if new == *old {
            return Ok(new);
        }
        let both = planner::with_both_ports(old, &new);
        let observed = self.observe_outside(&both)?;
        let plan = planner::plan_publish(old, &new, &observed);
        self.store.put(&Record {
            attachment: new.clone(),
            ..before.clone()
        })?;
        self.ask_sockets(&new);
        let mut done = Done::default();
        let made = done.apply(&mut self.kernel, &plan);
        if let Err(error) = made.and_then(|()| self.verify_host(&new)) {
            for failure in done.roll_back(&mut self.kernel) {
                tracing::warn!(key = %old.key, "cannot undo: {failure}");
            }
            self.store.put(before)?;
            return Err(error);
        }
        Ok(new)
    }

    fn verify_host(&mut self, attachment: &Attachment) -> Result<(), EngineError> {
        let observed = self.observe_outside(attachment)?;
        let differences = planner::check_host(attachment, &observed);
        if differences.is_empty() {
            return Ok(());
        }
        Err(EngineError::Different {
            key: attachment.key.clone(),
            differences,
        })
    }

    /// Takes ports and limits back: an interface of ours loses them, an adopted one that nothing else is served by all that
    /// we added.
    pub fn withdraw(&mut self, keys: &[AttachmentKey]) -> Result<(), EngineError> {
        for key in keys {
            let Some(record) = self.store.get(key).cloned() else {
                continue;
            };
            let attachment = &record.attachment;
            if attachment.adopted.is_some() && attachment.port.ingress == IngressPolicy::Open {
                self.del(key)?;
            } else if record.state == State::Attached {
                let bare = Served {
                    bandwidth: Some(Bandwidth::default()),
                    ..Served::default()
                };
                self.publish(&record, &bare)?;
            }
        }
        Ok(())
    }

    /// Takes a policy back, and from an adopted interface without ports all that we added.
    pub fn open(&mut self, keys: &[AttachmentKey]) -> Result<(), EngineError> {
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

    /// Whether an interface is served with these ports and this policy.
    pub fn check_served(
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
        let Some(attachment) = attached.next().map(|record| record.attachment.clone()) else {
            return Err(EngineError::Unknown(unknown.clone()));
        };
        if let Some(missing) = wanted
            .iter()
            .find(|mapping| !attachment.port_mappings.contains(mapping))
        {
            let key = attachment.key.clone();
            return Err(EngineError::NotPublished(key, *missing));
        }
        if let Some(wanted) = ingress.filter(|wanted| *wanted != attachment.port.ingress) {
            let key = attachment.key.clone();
            return Err(EngineError::NotKeptApart(key, wanted));
        }
        self.verify_host(&attachment)
    }
}
