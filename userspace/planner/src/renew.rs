//! Programs of an agent before us that are still attached: they work on, and ours take their places.

use crate::{Observed, Plan, Step};

/// Plans to replace them in place, link by link. To be executed when the tables are as they should be, for ours read those
/// alone. `observed` is of [`crate::Scope::Node`].
pub fn plan_renewal(observed: &Observed) -> Plan {
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
    use crate::Hook;
    use crate::testing::{attachment, intent, seen};

    #[test]
    fn programs_of_an_agent_before_us_are_replaced_and_no_others() {
        let attachment = attachment(&intent("one"));
        let mut observed = seen(&attachment);
        assert!(plan_renewal(&observed).is_empty());
        let name = attachment.host_link().name().clone();
        let link = observed.links.get_mut(&name).expect("it is there");
        link.outdated.insert(Hook::ToPod);
        let hooks = BTreeSet::from([Hook::ToPod]);
        let plan = plan_renewal(&observed);
        assert_eq!(plan.steps(), [Step::Attach { link: name, hooks }]);
    }
}
