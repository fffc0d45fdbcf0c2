//! Readiness: whether an ADD to a network would give a working pod, as CNI STATUS returns it.

use cni::Error;
use engine::{AddEffect, Degraded};
use model::NetworkName;

/// Returns an error if an ADD to `network` would fail: code 51 if running pods may have lost
/// connectivity as well, else code 50 (behaviour S13). The message lists all such degradations.
pub(crate) fn readiness(status: &engine::Status, network: &NetworkName) -> Result<(), Error> {
    let effect = |one: &&Degraded| one.effect_on_add(network);
    let is_failing = |one: &&Degraded| effect(one) != AddEffect::Works;
    let failing: Vec<&Degraded> = status.degraded.iter().filter(is_failing).collect();
    let reasons = || {
        let texts: Vec<String> = failing.iter().map(ToString::to_string).collect();
        texts.join("; ")
    };
    match failing.iter().map(effect).max() {
        None | Some(AddEffect::Works) => Ok(()),
        Some(AddEffect::Fails) => Err(Error::not_available(reasons())),
        Some(AddEffect::FailsAndPodsSuffer) => Err(Error::not_available_and_degraded(reasons())),
    }
}
