//! Pods that lose packets, in the status.

use api::LossView;

use super::{line, pod_name};

/// Adds the pods that lost more than 1 % of their packets in the last minute, with the advice for
/// the main reason; nothing if there are none.
pub(super) fn losses(text: &mut String, losses: &[LossView]) {
    let mut label = "Losses";
    for loss in losses {
        line(text, label, format!("- {}", summary(loss)));
        if !loss.advice.is_empty() {
            line(text, "", format!("  {}", loss.advice));
        }
        label = "";
    }
}

fn summary(loss: &LossView) -> String {
    let LossView {
        ifname,
        dropped,
        packets,
        reason,
        ..
    } = loss;
    let pod = pod_name(loss.pod.as_ref(), Some(&loss.container_id));
    format!(
        "{pod} {ifname}: {dropped} of {packets} packets dropped in the last minute, mainly {reason}"
    )
}
