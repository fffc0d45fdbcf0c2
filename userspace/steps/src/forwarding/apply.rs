//! Effect of a step on tables as observed, for tests and the in-memory kernel.

use super::accept_rule::AcceptRule;
use super::place::Place;
use super::step::{ForwardTables, ForwardingStep};
use super::table::{Action, BaseChain, FilterHook, FilterRule, TableState};

impl ForwardTables {
    /// Executes the step as the kernel does. Returns false for a step of another generation.
    pub fn apply(&mut self, step: &ForwardingStep) -> bool {
        let state = self.tables.entry(step.table.clone()).or_default();
        if state.generation != step.generation {
            return false;
        }
        state.generation += 1;
        state.apply(step);
        true
    }
}

impl TableState {
    fn apply(&mut self, step: &ForwardingStep) {
        if step.creates_base {
            self.base.push(BaseChain {
                name: "FORWARD".to_owned(),
                hook: FilterHook::Forward,
                drops: false,
            });
            self.rules.entry("FORWARD".to_owned()).or_default();
        }
        for chain in &step.creates {
            self.rules.entry(chain.clone()).or_default();
        }
        for (chain, rules) in &step.fills {
            let rules = (0..)
                .zip(rules)
                .map(|(handle, rule)| own_rule(handle, rule));
            self.rules.insert((*chain).to_owned(), rules.collect());
        }
        for (own, place) in &step.jumps {
            self.insert(own, place);
        }
        for (chain, handle) in &step.stale_jumps {
            if let Some(rules) = self.rules.get_mut(chain) {
                rules.retain(|rule| rule.handle != *handle);
            }
        }
        for chain in &step.deletes {
            self.rules.remove(*chain);
        }
        for chain in &step.deletes_created {
            self.rules.remove(chain);
            self.base.retain(|base| base.name != *chain);
        }
    }

    fn insert(&mut self, own: &str, place: &Place) {
        let rules = self.rules.entry(place.chain().to_owned()).or_default();
        let handle = rules.iter().map(|rule| rule.handle).max().unwrap_or(0) + 1;
        let at = match place {
            Place::First { .. } => Some(0),
            Place::Last { .. } => None,
            Place::Before { handle, .. } => rules.iter().position(|rule| rule.handle == *handle),
        };
        let jump = FilterRule {
            handle,
            conditions: Vec::new(),
            action: Action::Jump(own.to_owned()),
            comment: String::new(),
        };
        rules.insert(at.unwrap_or(rules.len()), jump);
    }
}

fn own_rule(handle: u64, rule: &AcceptRule) -> FilterRule {
    let action = if let AcceptRule::Admin(chain) = rule {
        Action::Jump(chain.clone())
    } else {
        Action::Accept
    };
    FilterRule {
        handle,
        conditions: Vec::new(),
        action,
        comment: rule.to_string(),
    }
}
