//! The value of `--log-level`: a level for everything, and levels for single targets.

use anyhow::{Context as _, Result, bail};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;

use super::DATAPATH;

/// The levels, as the messages list them.
const LEVELS: &str = "error, warn, info, debug, trace or off";

/// The level of targets that the value does not name.
const DEFAULT: LevelFilter = LevelFilter::INFO;

/// Parses a comma-separated list of levels and `target=level`. At most one level is without a
/// target; it is the level of all targets that are not in the list, by default `info`. The datapath
/// log has a level of its own (`--datapath-log`), so that all of it passes unless the list names
/// its target.
pub(crate) fn parse(text: &str) -> Result<Targets> {
    let mut targets = Targets::new().with_target(DATAPATH, LevelFilter::TRACE);
    let mut default = None;
    for item in text.split(',').map(str::trim) {
        if let Some((target, word)) = item.split_once('=') {
            targets = targets.with_target(parse_target(target)?, parse_level(word)?);
            continue;
        }
        let level = parse_level(item)?;
        if let Some(before) = default.replace(level) {
            bail!("two levels without a target: {before} and {level}");
        }
    }
    Ok(targets.with_default(default.unwrap_or(DEFAULT)))
}

/// Parses a level, in lower or upper case.
fn parse_level(word: &str) -> Result<LevelFilter> {
    let word = word.trim();
    // `LevelFilter` also accepts numbers and the empty word.
    let is_word = !word.is_empty() && word.chars().all(|letter| letter.is_ascii_alphabetic());
    let level = is_word.then(|| word.parse().ok()).flatten();
    level.with_context(|| {
        format!(
            "unknown level {word:?}: must be {LEVELS}, or a comma-separated list of target=level, such as \
             info,engine=debug"
        )
    })
}

fn parse_target(target: &str) -> Result<&str> {
    let target = target.trim();
    let is_path = !target.is_empty()
        && target
            .chars()
            .all(|letter| letter.is_ascii_alphanumeric() || "_:-".contains(letter));
    if is_path {
        Ok(target)
    } else {
        bail!("invalid target {target:?}: must be a module path, such as engine or kernel::netlink")
    }
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    fn logs(text: &str, target: &str, level: Level) -> bool {
        parse(text).unwrap().would_enable(target, &level)
    }

    fn refusal(text: &str) -> String {
        parse(text).unwrap_err().to_string()
    }

    #[test]
    fn a_level_applies_to_all_targets() {
        for (text, level) in [("error", Level::ERROR), ("WARN", Level::WARN)] {
            assert!(logs(text, "engine::node", level), "{text}");
            assert!(!logs(text, "engine::node", Level::INFO), "{text}");
        }
        assert!(logs("trace", "viaductd", Level::TRACE));
        assert!(!logs("off", "viaductd", Level::ERROR));
    }

    #[test]
    fn the_datapath_log_passes_unless_its_target_is_named() {
        assert!(logs("error", "datapath", Level::TRACE));
        assert!(!logs("trace,datapath=warn", "datapath", Level::INFO));
        assert!(logs("trace,datapath=warn", "datapath", Level::WARN));
    }

    #[test]
    fn a_target_has_its_own_level_and_the_others_stay_at_the_default() {
        let text = "engine=debug";
        assert!(logs(text, "engine::node", Level::DEBUG));
        assert!(logs(text, "kernel", Level::INFO));
        assert!(!logs(text, "kernel", Level::DEBUG));
        let text = "warn, engine = trace ,kernel::netlink=debug";
        assert!(logs(text, "engine", Level::TRACE));
        assert!(logs(text, "kernel::netlink", Level::DEBUG));
        assert!(!logs(text, "kernel::rules", Level::INFO));
    }

    #[test]
    fn a_word_that_is_no_log_level_is_refused_with_the_list_of_levels() {
        for text in [
            "warning",
            "verbose",
            "",
            "3",
            "info,",
            "engine=loud",
            "engine=",
            "info;debug",
        ] {
            let refusal = refusal(text);
            assert!(refusal.contains("unknown level"), "{text}: {refusal}");
            assert!(refusal.contains(LEVELS), "{refusal}");
        }
    }

    #[test]
    fn an_invalid_log_target_and_a_second_level_are_refused() {
        for text in ["=debug", "a b=debug", "engine[span]=debug"] {
            assert!(refusal(text).contains("invalid target"), "{text}");
        }
        assert!(refusal("info,debug").contains("two levels"));
    }
}
