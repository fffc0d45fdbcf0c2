//! Parsers that several keys have in common: paths, modes and lists. Every error names the key.

use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Result, anyhow, bail};
use model::{Cidr, RangeSet};

use crate::config::pod_cidrs;
use crate::telemetry::log;

/// Returns the given path or the default. A relative path is refused.
pub(super) fn path(key: &str, given: Option<PathBuf>, default: &str) -> Result<PathBuf> {
    let path = given.unwrap_or_else(|| default.into());
    if path.is_absolute() {
        Ok(path)
    } else {
        bail!("{key}: {} is not an absolute path", path.display())
    }
}

/// Returns the given path, if there is one. A relative path is refused.
pub(super) fn optional_path(key: &str, given: Option<PathBuf>) -> Result<Option<PathBuf>> {
    given.map(|given| path(key, Some(given), "")).transpose()
}

/// Parses a value, with its key in the error.
pub(super) fn parse<T: FromStr<Err: Display>>(key: &str, text: &str) -> Result<T> {
    text.parse().map_err(|error| anyhow!("{key}: {error}"))
}

/// Parses a mode; `default` if it is not set.
pub(super) fn mode<T: FromStr<Err: Display>>(
    key: &str,
    text: Option<String>,
    default: T,
) -> Result<T> {
    text.map_or(Ok(default), |text| parse(key, &text))
}

/// Returns the items of comma-separated lists.
pub(super) fn items(lists: &[String]) -> impl Iterator<Item = &str> {
    pod_cidrs::items(lists.iter().map(String::as_str))
}

/// Parses prefixes; their host bits are ignored.
pub(super) fn prefixes(key: &str, lists: &[String]) -> Result<Vec<Cidr>> {
    let prefixes = pod_cidrs::prefixes(lists.iter().map(String::as_str));
    prefixes.map_err(|error| anyhow!("{key}: {error:#}"))
}

/// Parses pod CIDRs, with their key in the error.
pub(super) fn ranges(lists: &[String]) -> Result<Vec<RangeSet>> {
    let ranges = pod_cidrs::parse(lists.iter().map(String::as_str));
    ranges.map_err(|error| anyhow!("pod-cidr: {error:#}"))
}

/// Validates a log level, with its key in the error.
pub(super) fn log_level(text: Option<String>) -> Result<String> {
    let text = text.unwrap_or_else(|| "info".to_owned());
    log::parse_filter(&text).map_err(|error| anyhow!("log-level: {error}"))?;
    Ok(text)
}
