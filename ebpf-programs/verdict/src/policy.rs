//! Whether one pod may speak to another by that one's own address: what the firewall plugin calls the ingress policy.
//!
//! Both pods have to be kept apart, as with the chains of that plugin: so no state is needed, and answers are treated as
//! questions are. What goes to a published port, and its answers, is not asked about: it is a flow, or about to be one.

use abi::{DropReason, EndpointFlags};

use crate::flow;
use crate::node::Node;
use crate::outcome::Decision;
use crate::work::Work;

/// Refuses what goes from pod to pod against the policy of both.
#[inline(always)]
pub(crate) fn check<E: Node>(node: &E, work: &Work) -> Decision<()> {
    let Some(pod) = node.pod(work.pod) else {
        return Ok(());
    };
    let (flags, network) = (pod.flags, pod.network);
    if flags & EndpointFlags::SAME_BRIDGE == 0 {
        return Ok(());
    }
    let Some(endpoint) = node.endpoint(&work.headers.tuple.destination) else {
        return Ok(());
    };
    if endpoint.pod == work.pod || !flow::is_current(node, endpoint.pod, endpoint.generation) {
        return Ok(());
    }
    let Some(other) = node.pod(endpoint.pod) else {
        return Ok(());
    };
    let apart = if other.network == network {
        EndpointFlags::INGRESS_ISOLATED
    } else {
        EndpointFlags::SAME_BRIDGE
    };
    if flags & other.flags & apart == 0 {
        Ok(())
    } else {
        Err(DropReason::IngressPolicy)
    }
}
