//! JSON files of verbs that replace a list; `-` is standard input.

use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::Value;

/// Reads a file, or standard input for `-`.
pub(crate) fn read(file: &Path) -> Result<Value> {
    let shown = file.display();
    let mut text = String::new();
    if file.as_os_str() == "-" {
        let read = std::io::stdin().lock().read_to_string(&mut text);
        read.context("cannot read standard input")?;
    } else {
        text = std::fs::read_to_string(file).with_context(|| format!("cannot read {shown}"))?;
    }
    serde_json::from_str(&text).with_context(|| format!("{shown} is not JSON"))
}
