//! Plans: steps in the order of their execution.
//!
//! A plan is complete when it leaves this crate: no other crate can add a step, so the engine
//! executes only what the planner has decided.

use std::fmt;
use steps::{EntryKey, Step};

/// Steps in the order of their execution. Constructed by this crate only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    steps: Vec<Step>,
}

impl Plan {
    /// Returns the steps in the order of their execution.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Returns whether the plan has no step.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Returns a plan of one step that needs no planning, because it depends on no observation and
    /// no other step.
    pub fn single(step: Step) -> Self {
        Self::of([step])
    }

    /// Returns the steps that undo the first `done` steps, in reverse order of their execution.
    pub fn undo(&self, done: usize) -> Vec<Step> {
        let done = self.steps.get(..done).unwrap_or(&self.steps);
        done.iter().rev().filter_map(Step::undo).collect()
    }

    /// Returns the keys of the table entries that the plan writes or removes.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &EntryKey> {
        self.steps.iter().filter_map(Step::key)
    }

    pub(crate) fn push(&mut self, step: Step) {
        self.steps.push(step);
    }

    pub(crate) fn of(steps: impl IntoIterator<Item = Step>) -> Self {
        Self {
            steps: steps.into_iter().collect(),
        }
    }

    pub fn append(&mut self, other: Self) {
        self.steps.extend(other.steps);
    }
}

impl fmt::Display for Plan {
    /// Writes one numbered line per step, as a dry run shows it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("nothing to do");
        }
        for (index, step) in self.steps.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{:>2}. {step}", index + 1)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::plan_attach;
    use crate::testing::{World, empty_netns, intent, node, port};

    #[test]
    fn undo_of_an_attach_plan_leaves_only_the_used_generation() {
        let mut request = intent("c1");
        request.port_mappings = vec![port("8080->80/tcp")];
        let (_, plan) =
            plan_attach(&request, &empty_netns(&node()), &World::empty().context()).unwrap();
        let steps = plan.undo(plan.steps().len());
        let lines: Vec<String> = steps.iter().map(ToString::to_string).collect();
        insta::assert_snapshot!(lines.join("\n"), @r#"
        remove hostport 0.0.0.0:8080/tcp
        remove hostport [::]:8080/tcp
        detach from_pod, to_pod from vethb2b0ff9d
        remove endpoint fd00:1::2
        remove endpoint 10.1.0.2
        remove interface vethb2b0ff9d
        write pod 7: free, last generation 40
        delete veth vethb2b0ff9d if its alias is "net c1 eth0"
        release port [::]:8080/tcp
        release port 0.0.0.0:8080/tcp
        "#);
        assert_eq!(plan.undo(1).len(), 1, "only what was done is undone");
    }
}
