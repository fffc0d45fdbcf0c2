//! The ingress policy of the CNI firewall plugin (`ingressPolicy`): whether one pod may reach
//! another by that pod's own address.
//!
//! A packet is dropped only where both pods have the policy, as with the chains of that plugin. So
//! no state is needed, and replies are treated like requests. Traffic of published ports, and its
//! replies, has a flow (or opens one) and is not checked.

use abi::{DropReason, EndpointFlags};

use crate::flow;
use crate::node::Node;
use crate::outcome::Decision;
use crate::work::Work;

/// Drops packets between pods where the policies of both forbid them.
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
    let forbidding = if other.network == network {
        EndpointFlags::INGRESS_ISOLATED
    } else {
        EndpointFlags::SAME_BRIDGE
    };
    if flags & other.flags & forbidding == 0 {
        Ok(())
    } else {
        Err(DropReason::IngressPolicy)
    }
}
