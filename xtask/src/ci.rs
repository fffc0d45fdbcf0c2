//! `ci`: everything that must hold before a change is merged.

use anyhow::Result;

use crate::{style, test};

/// The test ladder opens with formatting and tidiness, so they are not asked twice.
pub(crate) fn run() -> Result<()> {
    style::linted()?;
    style::documented()?;
    test::everything()
}
