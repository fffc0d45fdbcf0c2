//! The configuration file: its keys, and the sample that `--sample-config` prints.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use clap::{Arg, CommandFactory as _};

use super::{Config, EXAMPLES, Keys, Options, is_live};

/// Flags of the command line that are no keys of the file.
const FLAGS_ONLY: [&str; 7] = [
    "config",
    "uninstall",
    "drain",
    "purge",
    "sample-config",
    "check-config",
    "version",
];

/// The pod CIDR of the sample, which no well-known software uses by default: podman has
/// 10.88.0.0/16 and 10.89.0.0/16, Docker 172.16.0.0/12 and 192.168.0.0/16, flannel, kind and
/// minikube 10.244.0.0/16, k3s 10.42.0.0/15, kubeadm's services 10.96.0.0/12, CRI-O 10.85.0.0/16,
/// nerdctl 10.4.0.0/16, Weave 10.32.0.0/12, `OpenShift` 10.128.0.0/14 (decision 84).
const SAMPLE_POD_CIDR: &str = "[\"10.213.0.0/20\"]";

/// Least similarity of a known key to be suggested for an unknown one, from 0 to 1.
const SIMILAR: f64 = 0.7;

/// Width of the sample's comments in columns.
const WIDTH: usize = 100;

/// Reads the file at `path`.
pub(super) fn read(path: &Path) -> Result<Keys> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    parse(&text).with_context(|| format!("in {}", path.display()))
}

/// Parses the text of a file. An unknown key is an error that suggests the most similar key.
pub(super) fn parse(text: &str) -> Result<Keys> {
    let mut unknown = BTreeSet::new();
    let document = toml::Deserializer::parse(text)?;
    let keys = serde_ignored::deserialize(document, |key| {
        unknown.insert(key.to_string());
    })?;
    if unknown.is_empty() {
        return Ok(keys);
    }
    let names: Vec<String> = unknown.iter().map(|key| with_suggestion(key)).collect();
    bail!("unknown key {}", names.join(", "))
}

fn with_suggestion(unknown: &str) -> String {
    let similar = keys()
        .map(|key| (strsim::jaro(unknown, &key), key))
        .filter(|(similarity, _)| *similarity > SIMILAR)
        .max_by(|(one, _), (other, _)| one.total_cmp(other));
    similar.map_or_else(
        || unknown.to_owned(),
        |(_, key)| format!("{unknown} (did you mean {key}?)"),
    )
}

/// Returns the names of all keys, in the order of `--help`.
pub(super) fn keys() -> impl Iterator<Item = String> {
    arguments()
        .into_iter()
        .filter_map(|argument| argument.get_long().map(str::to_owned))
}

fn arguments() -> Vec<Arg> {
    let command = Options::command();
    let is_key = |argument: &&Arg| {
        let name = argument.get_long();
        name.is_some_and(|name| !FLAGS_ONLY.contains(&name))
    };
    command.get_arguments().filter(is_key).cloned().collect()
}

/// Returns a configuration file that sets a pod CIDR, and contains every other key as a comment,
/// with its default or an example.
pub(crate) fn sample() -> String {
    let mut text = String::from(
        "# Configuration of viaductd, as `viaductd --sample-config` prints it. Every key is also a flag of the same\n\
         # name, and the flag wins. Keys that are commented out show their default, or an example where it says so.\n\
         # A reload applies the keys with the word \"Live\"; all others are applied at the next start.\n",
    );
    let (first, others): (Vec<Arg>, Vec<Arg>) = arguments()
        .into_iter()
        .partition(|argument| argument.get_long() == Some("pod-cidr"));
    for argument in first.iter().chain(&others) {
        text.push('\n');
        write_key(&mut text, argument);
    }
    text
}

fn write_key(text: &mut String, argument: &Arg) {
    let key = argument.get_long().unwrap_or_default();
    let help = argument.get_help().map(ToString::to_string);
    // In the file, such a key is a list.
    let help = help
        .unwrap_or_default()
        .replace(": repeatable or comma-separated", "");
    let (meaning, note) = help
        .trim_end_matches(']')
        .rsplit_once(" [default: ")
        .unwrap_or((&help, "none"));
    let (default, condition) = note.split_once("; ").unwrap_or((note, ""));
    let on_reload = if is_live(key) { " Live." } else { "" };
    let (comment, line) = if key == "pod-cidr" {
        (
            format!("{meaning}.{on_reload}"),
            format!("{key} = {SAMPLE_POD_CIDR}"),
        )
    } else if let Some(value) = default_literal(key, default) {
        let condition = match condition {
            "" => String::new(),
            condition => format!(" Default: {default}; {condition}."),
        };
        (
            format!("{meaning}.{on_reload}{condition}"),
            format!("# {key} = {value}"),
        )
    } else {
        let field = key.replace('-', "_");
        let examples = EXAMPLES.iter().filter(|(name, _)| *name == field);
        let example = examples.map(|(_, value)| *value).next().unwrap_or("\"\"");
        (
            format!("{meaning}.{on_reload} Default: {note}. Example:"),
            format!("# {key} = {example}"),
        )
    };
    for line in wrapped(&comment) {
        let _always_fits = writeln!(text, "# {line}");
    }
    let _always_fits = writeln!(text, "{line}");
}

/// Returns the default that the help text states as a TOML value; `None` if it is no value, or not
/// the value that an absent key has.
fn default_literal(key: &str, stated: &str) -> Option<String> {
    let candidates = [
        stated.to_owned(),
        format!("{stated:?}"),
        format!("[{stated:?}]"),
    ];
    let absent = Config::from_keys(Keys::default()).ok()?;
    candidates.into_iter().find(|value| {
        let keys = parse(&format!("{key} = {value}"));
        keys.and_then(Config::from_keys)
            .is_ok_and(|config| config == absent)
    })
}

/// Breaks `text` into lines of at most [`WIDTH`] columns with the comment sign.
fn wrapped(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.last_mut().filter(|line| {
            let used = line.chars().count() + word.chars().count();
            line.is_empty() || used + "#  ".len() <= WIDTH
        });
        match last {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) => {
                line.push(' ');
                line.push_str(word);
            }
            None => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the sample with the commented keys that `wanted` selects in effect.
    fn uncommented(wanted: impl Fn(&str, &str) -> bool) -> String {
        let mut before = "";
        let mut text = String::new();
        for line in include_str!("../../../../xtask/assets/viaductd.toml").lines() {
            let key = line.strip_prefix("# ").filter(|rest| {
                rest.split_once(" = ")
                    .is_some_and(|(key, _)| !key.contains(' '))
            });
            text += key.filter(|key| wanted(before, key)).unwrap_or(line);
            text.push('\n');
            before = line;
        }
        text
    }

    fn config(text: &str) -> Config {
        Config::from_keys(parse(text).unwrap()).unwrap()
    }

    #[test]
    fn the_sample_file_in_the_repository_is_what_sample_config_prints() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../xtask/assets/viaductd.toml"
        );
        let written = fs::read_to_string(path).unwrap();
        assert_eq!(
            written,
            sample(),
            "run `cargo xtask tidy --bless` after a change of the flags"
        );
    }

    #[test]
    fn the_sample_file_contains_every_key_once() {
        let text = uncommented(|_, _| true);
        for key in keys() {
            let lines = text
                .lines()
                .filter(|line| line.starts_with(&format!("{key} = ")));
            assert_eq!(lines.count(), 1, "{key}");
        }
        config(&text);
    }

    #[test]
    fn the_defaults_in_the_sample_file_are_the_values_of_absent_keys() {
        let is_default = |before: &str, _: &str| !before.ends_with("Example:");
        let pod_cidr = format!("pod-cidr = {SAMPLE_POD_CIDR}");
        let text = uncommented(is_default);
        assert_eq!(config(&text), config(&pod_cidr));
        for key in ["socket", "bridge", "mtu", "kubenet", "shaper", "log-level"] {
            assert!(text.contains(&format!("\n{key} = ")), "{key} has a default");
        }
    }

    #[test]
    fn an_unknown_key_is_refused_with_the_key_that_is_most_like_it() {
        for (unknown, hint) in [
            (
                "pod-cdir = []",
                "unknown key pod-cdir (did you mean pod-cidr?)",
            ),
            (
                "pod_cidr = []",
                "unknown key pod_cidr (did you mean pod-cidr?)",
            ),
            ("loglevel = \"info\"", "(did you mean log-level?)"),
            ("zzz = 1", "unknown key zzz"),
        ] {
            let error = parse(unknown).unwrap_err().to_string();
            assert!(error.ends_with(hint), "{error}");
        }
    }
}
