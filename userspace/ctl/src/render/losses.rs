//! Pods that lose packets, in the status.

use api::LossView;

use super::format::pod_name;
use super::line;

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

#[cfg(test)]
mod tests {
    use api::PodView;

    use super::*;

    #[test]
    fn status_names_pods_that_lose_packets_with_the_reason_and_advice() {
        let loss = |pod: Option<PodView>, dropped, packets| LossView {
            container_id: "fedcba9876543210".into(),
            ifname: "eth0".into(),
            pod,
            dropped,
            packets,
            reason: "rate-limit".into(),
            advice: "Change the limit with `viaductctl limit`.".into(),
            ..LossView::default()
        };
        let web = PodView {
            namespace: "shop".into(),
            name: "web-0".into(),
        };
        let mut text = String::new();
        losses(&mut text, &[loss(Some(web), 653, 870), loss(None, 2, 5)]);
        insta::assert_snapshot!(text, @r"
        Losses       - shop/web-0 eth0: 653 of 870 packets dropped in the last minute, mainly rate-limit
                       Change the limit with `viaductctl limit`.
                     - fedcba987654 eth0: 2 of 5 packets dropped in the last minute, mainly rate-limit
                       Change the limit with `viaductctl limit`.
        ");
    }
}
