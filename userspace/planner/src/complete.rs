//! The second half of an ADD whose addresses another plugin gives: the link is there, and now the addresses are known.
//!
//! The first half is an ADD without addresses, because some plugins give them over the link itself (DHCP). Knows nothing
//! of who gave them.

use model::{Attachment, Intent};

use crate::attach::{AttachContext, await_addresses, decide, pod_spec, put_entries};
use crate::claim::{attachment_claims, hold};
use crate::{Observed, Plan, Refusal, Step};

/// The attachment with the addresses, routes and ports that `intent` brings. Its link stays what it is.
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

/// Plans that. `observed` is of the attachment with its addresses.
pub fn plan_complete(
    attachment: &Attachment,
    detects_duplicates: bool,
    observed: &Observed,
) -> Plan {
    let (ports, others) = put_entries(attachment, observed);
    let mut plan = Plan::of(hold(attachment, attachment_claims(attachment)));
    plan.append(Plan::of(others));
    plan.push(Step::SetUpPod(pod_spec(attachment, detects_duplicates)));
    if detects_duplicates {
        plan.push(await_addresses(attachment));
    }
    plan.append(Plan::of(ports));
    plan
}
