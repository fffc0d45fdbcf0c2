//! Crash points: places between two lasting effects at which a test can end the agent as `kill -9`
//! does.
//!
//! Code calls [`point`] after each lasting effect. The name of a point is `verb/step#n`: the
//! request, the step, and the number of the effect of this step in this execution of the verb,
//! starting with 1.
//!
//! Without the feature `armed`, all functions are empty. With it, `VIADUCT_CRASH_POINTS` names a
//! directory:
//!
//! * Each reached point is appended to the file `reached`. So a dry run lists the names.
//! * The point whose name is in the file `armed` removes that file and aborts the process. So the
//!   restarted process does not crash again.

#![forbid(unsafe_code)]

#[cfg(feature = "armed")]
mod armed;

/// Guard of a verb or step, which ends when this is dropped.
#[derive(Debug)]
#[must_use]
pub struct Scope {
    #[cfg(feature = "armed")]
    _inner: armed::Scope,
}

/// Starts a verb, such as `add`. A nested verb keeps the outer name.
pub fn verb(name: &'static str) -> Scope {
    #[cfg(not(feature = "armed"))]
    let _ = name;
    Scope {
        #[cfg(feature = "armed")]
        _inner: armed::Scope::verb(name),
    }
}

/// Starts a step. Its name is the beginning of the `Debug` text of `step`, in kebab case.
pub fn step(step: &dyn std::fmt::Debug) -> Scope {
    #[cfg(not(feature = "armed"))]
    let _ = step;
    Scope {
        #[cfg(feature = "armed")]
        _inner: armed::Scope::step(step),
    }
}

/// Marks a lasting effect of the current step.
pub fn point() {
    #[cfg(feature = "armed")]
    armed::reach(None);
}

/// Marks a lasting effect that is not part of a plan step.
pub fn point_at(effect: &'static str) {
    #[cfg(not(feature = "armed"))]
    let _ = effect;
    #[cfg(feature = "armed")]
    armed::reach(Some(effect));
}
