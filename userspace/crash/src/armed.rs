//! Implementation of crash points, compiled with the feature `armed`.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::OnceLock;

const VARIABLE: &str = "VIADUCT_CRASH_POINTS";

/// Current position of a thread.
#[derive(Clone, Debug, Default)]
struct Position {
    verb: Option<&'static str>,
    step: Option<String>,
    /// Number of effects of this execution of the verb, by name.
    counts: BTreeMap<String, u32>,
}

thread_local! {
    static POSITION: RefCell<Position> = RefCell::default();
}

/// State to restore at the end of a scope.
#[derive(Debug)]
pub(crate) enum Scope {
    Verb,
    Step(Option<String>),
    /// Scope of a nested verb, which keeps the outer one.
    Nothing,
}

impl Scope {
    pub(crate) fn verb(name: &'static str) -> Self {
        let begun = POSITION.with_borrow_mut(|position| {
            let begins = position.verb.is_none();
            if begins {
                position.verb = Some(name);
                position.counts.clear();
            }
            begins
        });
        if !begun {
            return Self::Nothing;
        }
        reach(Some("begin"));
        Self::Verb
    }

    pub(crate) fn step(step: &dyn Debug) -> Self {
        let name = kebab(&format!("{step:?}"));
        Self::Step(POSITION.with_borrow_mut(|position| position.step.replace(name)))
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        POSITION.with_borrow_mut(|position| match self {
            Self::Verb => position.verb = None,
            Self::Step(before) => position.step = before.take(),
            Self::Nothing => {}
        });
    }
}

/// Returns the variant name of a `Debug` text in kebab case: `create-veth` for `CreateVeth(VethSpec
/// { … })`.
fn kebab(text: &str) -> String {
    let mut name = String::new();
    for letter in text.chars().take_while(char::is_ascii_alphanumeric) {
        if letter.is_ascii_uppercase() && !name.is_empty() {
            name.push('-');
        }
        name.push(letter.to_ascii_lowercase());
    }
    name
}

pub(crate) fn reach(effect: Option<&'static str>) {
    let Some(directory) = directory() else {
        return;
    };
    let name = POSITION.with_borrow_mut(|position| {
        let step = effect.or(position.step.as_deref()).unwrap_or("effect");
        let name = format!("{}/{step}", position.verb.unwrap_or("agent"));
        let count = position.counts.entry(name.clone()).or_default();
        *count += 1;
        format!("{name}#{count}")
    });
    let log = OpenOptions::new()
        .create(true)
        .append(true)
        .open(directory.join("reached"));
    // A test notices a missing name by itself.
    let _unwritten = log.and_then(|mut log| writeln!(log, "{name}"));
    let armed = directory.join("armed");
    if fs::read_to_string(&armed).is_ok_and(|wanted| wanted.trim() == name) {
        // Removed first, so that the restarted process does not crash at the same point.
        let _gone = fs::remove_file(armed);
        std::process::abort();
    }
}

fn directory() -> Option<&'static PathBuf> {
    static DIRECTORY: OnceLock<Option<PathBuf>> = OnceLock::new();
    let read = || std::env::var_os(VARIABLE).map(PathBuf::from);
    DIRECTORY.get_or_init(read).as_ref()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_named_by_its_kind() {
        assert_eq!(kebab("CreateVeth(VethSpec { host: 1 })"), "create-veth");
        assert_eq!(kebab("SetUp { link: 1 }"), "set-up");
        assert_eq!(kebab("Sweep"), "sweep");
    }

    #[test]
    fn a_nested_verb_keeps_the_outer_name() {
        let _add = Scope::verb("add");
        {
            let _del = Scope::verb("del");
            assert_eq!(POSITION.with_borrow(|position| position.verb), Some("add"));
        }
        assert_eq!(POSITION.with_borrow(|position| position.verb), Some("add"));
    }
}
