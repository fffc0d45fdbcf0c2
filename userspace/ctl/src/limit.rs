//! `viaductctl limit`: changes the bandwidth limits of a running pod. Finds the pod by name or
//! container ID; the agent parses and validates the rates.

use anyhow::{Result, bail};
use api::{AttachmentView, BandwidthSetting, Client, path};

/// Options of `viaductctl limit`.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Limit {
    /// Pod: name, namespace/name, or prefix of its container ID
    pod: String,
    /// Limit of traffic to the pod in bit/s, for example 50M, or `none` [default: unchanged]
    #[arg(long, value_name = "RATE")]
    ingress: Option<String>,
    /// Limit of traffic from the pod in bit/s, for example 50M, or `none` [default: unchanged]
    #[arg(long, value_name = "RATE")]
    egress: Option<String>,
    /// Interface of the pod
    #[arg(long, value_name = "NAME", default_value = "eth0")]
    ifname: String,
}

impl Limit {
    /// Sets the limits, and returns a line with the limits that are in effect.
    pub(crate) fn run(&self, client: &Client) -> Result<String> {
        let attachments: Vec<AttachmentView> =
            crate::decode(&crate::get(client, path::ATTACHMENTS)?)?;
        let found = find(&attachments, &self.pod, &self.ifname)?;
        let wanted = BandwidthSetting {
            ingress: self.ingress.clone(),
            egress: self.egress.clone(),
        };
        let path = path::BANDWIDTH
            .replace("{id}", &found.container_id)
            .replace("{ifname}", &found.ifname);
        let now: BandwidthSetting = crate::decode(&client.put(&path, &wanted)?)?;
        let text = |limit: Option<String>| limit.unwrap_or_else(|| "none".to_owned());
        Ok(format!(
            "{} {}: ingress {}, egress {} (bit/s)\n",
            self.pod,
            found.ifname,
            text(now.ingress),
            text(now.egress)
        ))
    }
}

/// Returns the attachment of a pod (name, namespace/name, or prefix of its container ID) with this
/// interface.
pub(crate) fn find<'a>(
    attachments: &'a [AttachmentView],
    pod: &str,
    ifname: &str,
) -> Result<&'a AttachmentView> {
    let mut found = attachments
        .iter()
        .filter(|it| it.ifname == ifname && matches(it, pod));
    match (found.next(), found.next()) {
        (Some(one), None) => Ok(one),
        (None, _) => bail!("no pod {pod} with interface {ifname} on this node"),
        (Some(one), Some(other)) => bail!(
            "{pod} matches more than one pod: containers {} and {}",
            one.container_id,
            other.container_id
        ),
    }
}

fn matches(attachment: &AttachmentView, wanted: &str) -> bool {
    let by_pod = attachment.pod.as_ref().is_some_and(|pod| {
        pod.name == wanted || format!("{}/{}", pod.namespace, pod.name) == wanted
    });
    by_pod || attachment.container_id.starts_with(wanted)
}

#[cfg(test)]
mod tests {
    use api::PodView;

    use super::*;

    fn attachment(container: &str, name: &str) -> AttachmentView {
        AttachmentView {
            container_id: container.to_owned(),
            ifname: "eth0".to_owned(),
            pod: Some(PodView {
                namespace: "shop".to_owned(),
                name: name.to_owned(),
            }),
            ..AttachmentView::default()
        }
    }

    #[test]
    fn limit_finds_a_pod_by_name_or_container_id_and_refuses_ambiguous_ones() {
        let attachments = [attachment("abc1", "cart"), attachment("abd2", "till")];
        for pod in ["cart", "shop/cart", "abc"] {
            let found = find(&attachments, pod, "eth0").unwrap();
            assert_eq!(found.container_id, "abc1", "{pod}");
        }
        let error = find(&attachments, "ab", "eth0").unwrap_err();
        assert!(error.to_string().contains("more than one pod"), "{error}");
        assert!(find(&attachments, "other", "eth0").is_err());
    }
}
