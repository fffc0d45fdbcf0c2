//! Crash points: every place between two effects, where a test may end the agent as `kill -9` would.
//!
//! Whoever has done something that lasts says so by [`point`]. A point's name is `verb/step#n`: what the agent was
//! asked for, the step that it was at, and how many effects that step had before in this execution of the verb.
//! Without the feature `armed` all of this is nothing. With it, and with `VIADUCT_CRASH_POINTS` naming a directory, a
//! point that is reached is written to the file `reached` there, and one whose name is in the file `armed` removes
//! that file and aborts the process. So the names are found by a dry run, and a process that was started again does
//! not die again.
//!
//! Knows nothing of what the verbs and steps are.

#![forbid(unsafe_code)]

#[cfg(feature = "armed")]
mod armed;

/// A verb or a step, for as long as this lives.
#[derive(Debug)]
#[must_use]
pub struct Scope {
    #[cfg(feature = "armed")]
    _inner: armed::Scope,
}

/// Says what the agent was asked for; inside of another verb it is still that one.
pub fn verb(name: &'static str) -> Scope {
    #[cfg(not(feature = "armed"))]
    let _ = name;
    Scope {
        #[cfg(feature = "armed")]
        _inner: armed::Scope::verb(name),
    }
}

/// Says which step is about to be executed, by a value whose `Debug` begins with the step's name.
pub fn step(step: &dyn std::fmt::Debug) -> Scope {
    #[cfg(not(feature = "armed"))]
    let _ = step;
    Scope {
        #[cfg(feature = "armed")]
        _inner: armed::Scope::step(step),
    }
}

/// An effect of the current step is done.
pub fn point() {
    #[cfg(feature = "armed")]
    armed::reach(None);
}

/// An effect is done that is no step of a plan.
pub fn point_at(effect: &'static str) {
    #[cfg(not(feature = "armed"))]
    let _ = effect;
    #[cfg(feature = "armed")]
    armed::reach(Some(effect));
}
