//! Second phase of an ADD with a delegated IPAM plugin: adds the addresses to the link that exists.
//!
//! The first phase is an ADD without addresses, because some IPAM plugins lease them over the link
//! itself (DHCP).

use model::{Attachment, Intent};
use steps::Step;

use crate::HostSide;
use crate::announcement::{LastMacs, announce};
use crate::attach::{AttachContext, await_addresses, decide, pod_spec, put_entries};
use crate::port_reservation::{attachment_reservations, reserve};
use crate::{Plan, Refusal};

/// Returns the attachment with the addresses, routes and ports of `intent`. Its link, slot and
/// generation stay.
pub fn with_addresses(
    linked: &Attachment,
    intent: &Intent,
    context: &AttachContext<'_>,
) -> Result<Attachment, Refusal> {
    let decided = decide(intent, linked.netns.clone(), context)?;
    Ok(Attachment {
        mac: linked.mac,
        slot: linked.slot,
        generation: linked.generation,
        ..decided
    })
}

/// Plans the second phase in the order of an ADD. `observed` is of the attachment with its
/// addresses.
pub fn plan_complete(
    attachment: &Attachment,
    detects_duplicates: bool,
    observed: &impl HostSide,
    last_macs: &LastMacs,
) -> Plan {
    let (ports, others) = put_entries(attachment, observed.entries());
    let mut plan = Plan::of(reserve(attachment, attachment_reservations(attachment)));
    plan.append(Plan::of(others));
    plan.push(Step::SetUpPod(pod_spec(attachment, detects_duplicates)));
    if detects_duplicates {
        plan.push(await_addresses(attachment));
    }
    plan.append(Plan::of(ports));
    let bridge = observed.bridge(attachment);
    plan.append(Plan::of(announce(attachment, bridge, last_macs)));
    plan
}
