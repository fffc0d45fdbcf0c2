//! Adopts interfaces that other CNI plugins have created: a pod of the reference bridge plugin gets
//! our hostports.
//!
//! Only the host's end of a veth whose peer is in the pod can be adopted, because programs on it
//! process this pod's packets alone. It gets programs and table entries as an attachment of ours
//! does. Link, addresses, routes and masquerading stay with the plugin that created them.

use std::collections::BTreeSet;

use ipam::AddressRefusal;
use model::{Adoption, Assigned, Attachment, IfName, Mac};
use steps::{Link, LinkKind, ObservedNetns, PodSide, Step};

use crate::attach::AttachContext;
use crate::hooks::POD_HOOKS;
use crate::policies::plan_policies_of;
use crate::tables::attachment_entries;
use crate::{Plan, Refusal};

/// Decides on an adoption and plans it, without hostports: [`crate::plan_publish`] adds them.
/// `observed` has the host's end of the interface, and the bridge that it is a port of.
pub fn plan_adopt(
    adoption: &Adoption,
    observed: &ObservedNetns,
    context: &AttachContext<'_>,
) -> Result<(Attachment, Plan), Refusal> {
    let attachment = decide(adoption, observed, context)?;
    let put = attachment_entries(&attachment)
        .into_iter()
        .map(|(key, entry)| Step::PutEntry {
            previous: None,
            key,
            entry,
        });
    // Entries before programs: an attached program finds the pod in the tables.
    let mut plan = plan_policies_of(&attachment, context.policies, context.records);
    plan.append(Plan::of(put));
    plan.push(Step::Attach {
        link: attachment.host_link().name().clone(),
        hooks: BTreeSet::from(POD_HOOKS),
    });
    Ok((attachment, plan))
}

fn decide(
    adoption: &Adoption,
    observed: &ObservedNetns,
    context: &AttachContext<'_>,
) -> Result<Attachment, Refusal> {
    let Some(inside) = &observed.inside else {
        return Err(Refusal::NoNetns {
            path: adoption.netns.clone(),
        });
    };
    let not_adoptable = || Refusal::NotAdoptable {
        ifname: adoption.key.ifname.clone(),
        path: adoption.netns.clone(),
    };
    let side = inside.pod.as_ref().ok_or_else(not_adoptable)?;
    let (name, link) = other_end(side, observed).ok_or_else(not_adoptable)?;
    let mut addresses = free_addresses(adoption, context)?;
    addresses.sort_by_key(|assigned| !assigned.address.address.is_ipv4());
    Ok(Attachment {
        key: adoption.key.clone(),
        netns: inside.netns.clone(),
        pod: adoption.pod.clone(),
        bridge: bridge_of(link, observed).unwrap_or(name).clone(),
        mac: side.mac.unwrap_or(Mac([0; 6])),
        mtu: side.mtu,
        addresses,
        routes: Vec::new(),
        port_mappings: Vec::new(),
        standby: BTreeSet::new(),
        bandwidth: model::Bandwidth::default(),
        masquerade: false,
        hairpin: link.hairpin,
        port: model::PortOptions::default(),
        adopted: Some(name.clone()),
        slot: context.slot,
        generation: context.generation,
    })
}

fn other_end<'a>(side: &PodSide, observed: &'a ObservedNetns) -> Option<(&'a IfName, &'a Link)> {
    let peer = side.peer?;
    let mut links = observed.links.iter();
    links.find(|(_, link)| link.index == peer && link.kind == LinkKind::Veth)
}

fn bridge_of<'a>(link: &Link, observed: &'a ObservedNetns) -> Option<&'a IfName> {
    let controller = link.controller?;
    let mut links = observed.links.iter();
    let found = links.find(|(_, other)| other.index == controller);
    found.map(|(name, _)| name)
}

/// Returns the addresses of the adoption, unless another attachment or the node has one: an address
/// belongs to one pod of the node, whichever IPAM gave it.
fn free_addresses(
    adoption: &Adoption,
    context: &AttachContext<'_>,
) -> Result<Vec<Assigned>, Refusal> {
    for assigned in &adoption.addresses {
        let address = assigned.address.address;
        if context.leases.node.contains(&address) {
            return Err(AddressRefusal::AddressOfNode { address }.into());
        }
        if let Some(owner) = context.leases.taken.get(&address) {
            return Err(Refusal::AddressOfOther {
                address,
                owner: owner.clone(),
            });
        }
    }
    Ok(adoption.addresses.clone())
}

#[cfg(test)]
mod tests;
