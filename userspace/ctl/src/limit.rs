//! `limit`: other limits for a pod that runs. Finds the pod by what people call it; what a rate means, the agent says.

use anyhow::{Result, bail};
use api::{AttachmentView, BandwidthSetting, Client, path};

/// Which pod, and its limits.
#[derive(Clone, Debug, clap::Args)]
#[group(id = "limits", required = true, multiple = true, args = ["ingress", "egress"])]
pub(crate) struct Limit {
    /// The pod: its name, namespace/name, or the start of its container ID
    pod: String,
    /// Bits per second to the pod, for example 50M, or `none`
    #[arg(long, value_name = "RATE")]
    ingress: Option<String>,
    /// Bits per second from the pod, for example 50M, or `none`
    #[arg(long, value_name = "RATE")]
    egress: Option<String>,
    /// The pod's interface
    #[arg(long, value_name = "NAME", default_value = "eth0")]
    ifname: String,
}

impl Limit {
    /// Sets the limits, and tells which hold.
    pub(crate) fn run(&self, client: &Client) -> Result<String> {
        let attachments: Vec<AttachmentView> = crate::get(client, path::ATTACHMENTS)?.decode()?;
        let found = self.find(&attachments)?;
        let wanted = BandwidthSetting {
            ingress: self.ingress.clone(),
            egress: self.egress.clone(),
        };
        let path = path::BANDWIDTH
            .replace("{id}", &found.container_id)
            .replace("{ifname}", &found.ifname);
        let now: BandwidthSetting = client.put(&path, &wanted)?.decode()?;
        let text = |limit: Option<String>| limit.unwrap_or_else(|| "none".to_owned());
        Ok(format!(
            "{} {}: ingress {}, egress {} (bit/s)\n",
            self.pod,
            found.ifname,
            text(now.ingress),
            text(now.egress)
        ))
    }

    fn find<'a>(&self, attachments: &'a [AttachmentView]) -> Result<&'a AttachmentView> {
        let mut found = attachments
            .iter()
            .filter(|it| self.names(it))
            .filter(|it| it.ifname == self.ifname);
        match (found.next(), found.next()) {
            (Some(one), None) => Ok(one),
            (None, _) => bail!("no pod {} with an interface {} here", self.pod, self.ifname),
            (Some(one), Some(other)) => bail!(
                "{} is more than one pod: containers {} and {}",
                self.pod,
                one.container_id,
                other.container_id
            ),
        }
    }

    fn names(&self, attachment: &AttachmentView) -> bool {
        let by_pod = attachment.pod.as_ref().is_some_and(|pod| {
            pod.name == self.pod || format!("{}/{}", pod.namespace, pod.name) == self.pod
        });
        by_pod || attachment.container_id.starts_with(&self.pod)
    }
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

    fn limit(pod: &str) -> Limit {
        Limit {
            pod: pod.to_owned(),
            ingress: None,
            egress: Some("1M".to_owned()),
            ifname: "eth0".to_owned(),
        }
    }

    #[test]
    fn a_pod_is_found_by_its_name_or_by_its_container_and_never_by_chance() {
        let attachments = [attachment("abc1", "cart"), attachment("abd2", "till")];
        for pod in ["cart", "shop/cart", "abc"] {
            let found = limit(pod).find(&attachments).unwrap();
            assert_eq!(found.container_id, "abc1", "{pod}");
        }
        let error = limit("ab").find(&attachments).unwrap_err();
        assert!(error.to_string().contains("more than one pod"), "{error}");
        assert!(limit("other").find(&attachments).is_err());
    }
}
