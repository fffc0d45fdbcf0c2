//! Replaces the programs of a previous agent, which keep running until then, with this agent's
//! programs.

use steps::{Observed, Step};

use crate::Plan;

/// Plans to replace outdated programs in place, link by link. Execute it only after the tables are
/// complete: the new programs read this agent's tables alone.
pub fn plan_program_upgrade(observed: &Observed) -> Plan {
    let outdated = observed
        .links
        .iter()
        .filter(|(_, link)| !link.outdated.is_empty());
    Plan::of(outdated.map(|(name, link)| Step::Attach {
        link: name.clone(),
        hooks: link.outdated.clone(),
    }))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::testing::{attachment, intent, seen};
    use steps::Hook;

    #[test]
    fn only_programs_of_a_previous_agent_are_replaced() {
        let attachment = attachment(&intent("one"));
        let mut observed = seen(&attachment);
        assert!(plan_program_upgrade(&observed).is_empty());
        let name = attachment.host_link().name().clone();
        let link = observed.links.get_mut(&name).expect("it is there");
        link.outdated.insert(Hook::ToPod);
        let hooks = BTreeSet::from([Hook::ToPod]);
        let plan = plan_program_upgrade(&observed);
        assert_eq!(plan.steps(), [Step::Attach { link: name, hooks }]);
    }
}
