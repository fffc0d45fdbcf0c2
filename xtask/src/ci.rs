//! `ci`: all checks that must pass before a change is merged.

use anyhow::Result;

use crate::{style, test};

/// Formatting and tidiness are the first rung of the test ladder.
pub(crate) fn run() -> Result<()> {
    style::linted()?;
    style::documented()?;
    test::everything()
}
