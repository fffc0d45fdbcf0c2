//! Explanations in the API's types.

use std::collections::BTreeMap;

use abi::{DropReason, Tuple};
use api::{EndsView, WhyLeg, WhyStep};
use explain::{Leg, Outcome, Place, Snapshot};
use model::Record;

use crate::http::names;

/// Names of pods by slot.
pub(crate) type Names = BTreeMap<u32, String>;

/// Bytes of a container ID in place of a pod's name.
const SHORT_ID: usize = 12;

/// Returns the names of the pods by slot: `namespace/name`, or the start of the container ID.
pub(super) fn names(records: &[Record]) -> Names {
    let name = |record: &Record| {
        let attachment = &record.attachment;
        let name = if let Some(pod) = &attachment.pod {
            pod.to_string()
        } else {
            let id = attachment.key.container_id.to_string();
            id.chars().take(SHORT_ID).collect()
        };
        (attachment.slot, name)
    };
    records.iter().map(name).collect()
}

/// Returns the names of the links by interface index.
pub(super) fn link_names(snapshot: &Snapshot) -> BTreeMap<u32, String> {
    let links = snapshot.links.iter();
    links
        .map(|(index, link)| (*index, link.name.clone()))
        .collect()
}

/// Words of an explanation: the names in it.
pub(super) struct Words<'a> {
    pub(super) names: &'a Names,
    pub(super) links: BTreeMap<u32, String>,
}

impl Words<'_> {
    pub(super) fn leg(&self, leg: &Leg) -> WhyLeg {
        let steps = leg.steps.iter().map(|step| WhyStep {
            at: step.at.clone(),
            decision: step.decision.name().to_owned(),
            text: step.text.clone(),
            ends: step.ends,
        });
        let reason = match leg.outcome {
            Outcome::Dropped { reason, .. } => Some(reason),
            Outcome::Pod { .. }
            | Outcome::Node
            | Outcome::Leaves { .. }
            | Outcome::Discarded { .. }
            | Outcome::Unknown { .. } => None,
        };
        WhyLeg {
            protocol: names::protocol(leg.sent.protocol),
            packet: ends(&leg.sent),
            arrived: ends(&leg.arrived),
            steps: steps.collect(),
            outcome: leg.outcome.name().to_owned(),
            text: self.outcome(leg),
            reason: reason.map(|reason| reason.name().to_owned()),
            advice: reason.map_or("", DropReason::advice).to_owned(),
            doubts: leg.doubts.clone(),
        }
    }

    fn outcome(&self, leg: &Leg) -> String {
        match &leg.outcome {
            Outcome::Pod { slot } => match self.names.get(slot) {
                Some(name) => format!("pod {name} receives it"),
                None => "a pod receives it".to_owned(),
            },
            Outcome::Node => "the node receives it".to_owned(),
            Outcome::Leaves { link, hop } => {
                format!("it leaves by {} to {}", self.link(*link), names::ip(hop))
            }
            Outcome::Dropped { place, reason } => {
                let interface = leg.hooks.last().map_or(0, |run| run.interface);
                let at = self.link(interface);
                format!("{}@{at} drops it as {}", program(*place), reason.name())
            }
            Outcome::Discarded { advice } => format!("it does not arrive: {advice}"),
            Outcome::Unknown { by } => format!("it is not known whether it arrives: {by}"),
        }
    }

    fn link(&self, index: u32) -> String {
        let name = self.links.get(&index).cloned();
        name.unwrap_or_else(|| format!("#{index}"))
    }
}

const fn program(place: Place) -> &'static str {
    use abi::maps::programs;
    match place {
        Place::FromPod => programs::FROM_POD,
        Place::ToPod => programs::TO_POD,
        Place::UplinkIn => programs::UPLINK_IN,
        Place::UplinkOut => programs::UPLINK_OUT,
    }
}

fn ends(tuple: &Tuple) -> EndsView {
    names::ends(tuple, names::has_ports(tuple.protocol))
}
