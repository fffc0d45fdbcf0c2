//! Executes the plan of a migration. One pod's failure does not stop the others, and a command that
//! is executed again does what is left.

use anyhow::{Result, bail};
use api::KeptConnections;

use super::plan::{Plan, Pod, Step};
use super::report::{Outcome, Report};

/// The effects of a migration on the node.
pub(super) trait Effects {
    /// Lets netfilter go on translating the open connections of pods with these addresses.
    fn keep(&mut self, addresses: Vec<String>) -> Result<KeptConnections>;
    /// Publishes the pod's ports by Viaduct, which adopts its interface.
    fn publish(&mut self, pod: &Pod) -> Result<()>;
    /// Removes the rules of the pod's ports. Missing rules are success.
    fn remove_rules(&mut self, pod: &Pod) -> Result<()>;
    /// Makes the rules of the pod's ports.
    fn restore_rules(&mut self, pod: &Pod) -> Result<()>;
    /// Unpublishes the pod's ports; connections through them go on.
    fn drain(&mut self, pod: &Pod) -> Result<()>;
    /// Returns the number of flows through the pod's ports.
    fn flows(&mut self, pod: &Pod) -> Result<u64>;
    /// Releases the pod's interface: programs and table entries are removed.
    fn release(&mut self, pod: &Pod) -> Result<()>;
}

/// Executes the plan, and returns the outcome of each pod. An error has changed no pod.
pub(super) fn execute(plan: Plan, effects: &mut impl Effects) -> Result<Report> {
    let addresses = plan.addresses();
    let kept = if addresses.is_empty() {
        KeptConnections::default()
    } else {
        effects.keep(addresses)?
    };
    if let Some(lost) = kept.lost.first() {
        bail!(
            "{} connections would be reset, such as {} to {}: the flow table has no place for them; nothing was \
             changed (see `viaductctl flows --usage`)",
            kept.lost.len(),
            lost.client,
            lost.server
        );
    }
    let published: Vec<(Pod, Outcome)> = plan
        .pods
        .into_iter()
        .map(|pod| {
            let outcome = begin(&pod, effects);
            (pod, outcome)
        })
        .collect();
    // The rules go last: until then, connections from inside the node may still meet them.
    let finished = published
        .into_iter()
        .map(|(pod, outcome)| {
            let outcome = finish(&pod, outcome, effects);
            (pod, outcome)
        })
        .collect();
    Ok(Report::new(kept.kept, finished))
}

/// Makes what is to translate the pod's connections from now on.
fn begin(pod: &Pod, effects: &mut impl Effects) -> Outcome {
    match &pod.step {
        Step::Publish => outcome(effects.publish(pod), "cannot publish the ports"),
        Step::Restore => outcome(effects.restore_rules(pod), "cannot make the rules"),
        Step::Refuse(refusal) => Outcome::Refused(refusal.to_string()),
        Step::RemoveRules | Step::Release | Step::Done => Outcome::Done,
    }
}

/// Removes what has translated them so far.
fn finish(pod: &Pod, begun: Outcome, effects: &mut impl Effects) -> Outcome {
    match (&pod.step, begun) {
        (Step::Publish | Step::RemoveRules, Outcome::Done) => {
            outcome(effects.remove_rules(pod), "cannot remove the rules")
        }
        (Step::Restore, Outcome::Done) => match effects.drain(pod) {
            Ok(()) => release(pod, effects),
            Err(error) => Outcome::failed("cannot unpublish the ports", &error),
        },
        (Step::Release, Outcome::Done) => release(pod, effects),
        (_, begun) => begun,
    }
}

/// Releases the interface, unless connections still need its programs.
fn release(pod: &Pod, effects: &mut impl Effects) -> Outcome {
    match effects.flows(pod) {
        Ok(0) => outcome(effects.release(pod), "cannot release the interface"),
        Ok(flows) => Outcome::Draining(flows),
        Err(error) => Outcome::failed("cannot count the connections", &error),
    }
}

fn outcome(done: Result<()>, what: &str) -> Outcome {
    match done {
        Ok(()) => Outcome::Done,
        Err(error) => Outcome::failed(what, &error),
    }
}

#[cfg(test)]
mod tests;
