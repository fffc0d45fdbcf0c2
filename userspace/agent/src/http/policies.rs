//! Routes of the API for network policies, and their view.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::{
    EgressRuleSetting, IngressRuleSetting, PoliciesView, PolicyPeerSetting, PolicyPortSetting,
    PolicySetting, PolicyView,
};
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use cni::Error;
use model::{
    NetworkPolicies, NetworkPolicy, PodSelector, PolicyPeer, PolicyPort, PolicyRule, Record,
};
use planner::PolicyIndex;

use crate::app::App;
use crate::clock;
use crate::config::policies::{self, KnownKeys};
use crate::http::failure::Failure;

/// Returns the policies with the containers that each selects.
pub(crate) async fn list(State(app): State<Arc<App>>) -> Result<Response, Failure> {
    let turn = app.answers.turn().await?;
    let records = app.handle.attachments().await?;
    let view = view(&app.handle.status().policies, &records);
    Ok(turn.json(&view).await?)
}

/// Replaces all policies.
pub(crate) async fn replace(State(app): State<Arc<App>>, body: Body) -> Result<Response, Failure> {
    let wanted = app.request_memory.read::<KnownKeys>(body).await?;
    let policies = policies::validate(&wanted.value.0)
        .map_err(|error| Error::invalid_config(format!("{error:#}")))?;
    drop(wanted);
    let policies =
        PolicyIndex::new(policies).map_err(|limit| Error::invalid_config(limit.to_string()))?;
    app.handle.set_policies(policies, clock::now()).await?;
    list(State(app)).await
}

fn view(policies: &NetworkPolicies, records: &[Record]) -> PoliciesView {
    let groups = policies.groups.iter();
    PoliciesView {
        policies: policies
            .policies
            .iter()
            .map(|policy| PolicyView {
                policy: setting(policy),
                container_ids: containers(policy, records),
            })
            .collect(),
        groups: groups
            .map(|(name, prefixes)| (name.clone(), texts(prefixes)))
            .collect(),
    }
}

/// Returns the IDs of the containers that a policy selects, each once.
fn containers(policy: &NetworkPolicy, records: &[Record]) -> Vec<String> {
    let selected = records
        .iter()
        .map(|record| &record.attachment)
        .filter(|attachment| planner::is_selected_by(attachment, policy));
    let ids: BTreeSet<String> = selected
        .map(|attachment| attachment.key.container_id.to_string())
        .collect();
    ids.into_iter().collect()
}

fn setting(policy: &NetworkPolicy) -> PolicySetting {
    let ingress = policy.ingress.as_ref().map(|rules| {
        let rule = |rule: &PolicyRule| IngressRuleSetting {
            from: rule.peers.iter().flatten().map(peer).collect(),
            ports: rule.ports.iter().copied().map(port).collect(),
        };
        rules.iter().map(rule).collect()
    });
    let egress = policy.egress.as_ref().map(|rules| {
        let rule = |rule: &PolicyRule| EgressRuleSetting {
            to: rule.peers.iter().flatten().map(peer).collect(),
            ports: rule.ports.iter().copied().map(port).collect(),
        };
        rules.iter().map(rule).collect()
    });
    PolicySetting {
        name: policy.name.clone(),
        pods: policy.pods.iter().map(selector).collect(),
        ingress,
        egress,
    }
}

fn selector(selector: &PodSelector) -> String {
    match selector {
        PodSelector::Name(name) => name.to_string(),
        PodSelector::Prefix(prefix) => prefix.to_string(),
    }
}

fn peer(peer: &PolicyPeer) -> PolicyPeerSetting {
    match peer {
        PolicyPeer::Block { cidr, except } => PolicyPeerSetting {
            cidr: Some(cidr.to_string()),
            except: texts(except),
            group: None,
        },
        PolicyPeer::Group(name) => PolicyPeerSetting {
            group: Some(name.clone()),
            ..PolicyPeerSetting::default()
        },
    }
}

fn port(port: PolicyPort) -> PolicyPortSetting {
    let (first, last) = port.ports.unzip();
    PolicyPortSetting {
        protocol: port.protocol.to_string(),
        port: first,
        last_port: last.filter(|last| first != Some(*last)),
    }
}

fn texts<T: ToString>(items: impl IntoIterator<Item = T>) -> Vec<String> {
    items.into_iter().map(|item| item.to_string()).collect()
}
