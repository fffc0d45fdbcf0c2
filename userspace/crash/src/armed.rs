//! Points that do something.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::OnceLock;

const VARIABLE: &str = "VIADUCT_CRASH_POINTS";

/// What a thread is at.
#[derive(Clone, Debug, Default)]
struct Place {
    verb: Option<&'static str>,
    step: Option<String>,
    /// Effects so far, by name.
    counts: BTreeMap<String, u32>,
}

thread_local! {
    static PLACE: RefCell<Place> = RefCell::default();
}

/// What is to be forgotten at the end of a scope.
#[derive(Debug)]
pub(crate) enum Scope {
    Verb,
    Step(Option<String>),
    /// Inside of another verb.
    Nothing,
}

impl Scope {
    pub(crate) fn verb(name: &'static str) -> Self {
        let begun = PLACE.with_borrow_mut(|place| {
            let begins = place.verb.is_none();
            if begins {
                place.verb = Some(name);
                place.counts.clear();
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
        Self::Step(PLACE.with_borrow_mut(|place| place.step.replace(name)))
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        PLACE.with_borrow_mut(|place| match self {
            Self::Verb => place.verb = None,
            Self::Step(before) => place.step = before.take(),
            Self::Nothing => {}
        });
    }
}

/// `CreateVeth(VethSpec { … })` is `create-veth`.
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
    let name = PLACE.with_borrow_mut(|place| {
        let step = effect.or(place.step.as_deref()).unwrap_or("effect");
        let name = format!("{}/{step}", place.verb.unwrap_or("agent"));
        let count = place.counts.entry(name.clone()).or_default();
        *count += 1;
        format!("{name}#{count}")
    });
    let log = OpenOptions::new()
        .create(true)
        .append(true)
        .open(directory.join("reached"));
    // A test that finds no name misses it by itself.
    let _unwritten = log.and_then(|mut log| writeln!(log, "{name}"));
    let armed = directory.join("armed");
    if fs::read_to_string(&armed).is_ok_and(|wanted| wanted.trim() == name) {
        // The next process is not to die at the same place.
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
    fn a_verb_inside_of_another_is_still_that_one() {
        let _add = Scope::verb("add");
        {
            let _del = Scope::verb("del");
            assert_eq!(PLACE.with_borrow(|place| place.verb), Some("add"));
        }
        assert_eq!(PLACE.with_borrow(|place| place.verb), Some("add"));
    }
}
