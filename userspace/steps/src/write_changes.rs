//! The line of a step that has many changes, for people.

use std::fmt;

/// Writes `what` is changed, and the first three changes.
pub(crate) fn write_changes(
    what: &str,
    changes: &[impl fmt::Display],
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    const SHOWN: usize = 3;
    write!(f, "change {what}: ")?;
    for (index, change) in changes.iter().take(SHOWN).enumerate() {
        if index > 0 {
            f.write_str(", ")?;
        }
        write!(f, "{change}")?;
    }
    match changes.len().checked_sub(SHOWN) {
        Some(rest @ 1..) => write!(f, " and {rest} more"),
        Some(0) | None => Ok(()),
    }
}
