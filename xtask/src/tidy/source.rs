//! Checks each source file: a module head, a bounded length of file and functions, no markers of
//! unfinished work, and no paths of a developer's machine.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::{command, project};

const LONGEST_FILE: usize = 500;
const LONGEST_FUNCTION: usize = 60;
/// Written in two halves, so that this file does not offend itself.
const LEFT_FOR_LATER: [(&str, &str); 5] = [
    ("TO", "DO"),
    ("FIX", "ME"),
    ("XX", "X"),
    ("to", "do!"),
    ("unimple", "mented!"),
];
const OF_ONE_MACHINE: [(&str, &str); 4] = [
    ("/ro", "ot/"),
    ("/ho", "me/"),
    ("/Us", "ers/"),
    ("/wo", "rk/"),
];
const TEXT: [&str; 8] = [
    "rs", "toml", "md", "sh", "yml", "service", "conflist", "json",
];

/// Returns the offences of all files.
pub(super) fn offences() -> Result<Vec<String>> {
    let mut found = Vec::new();
    for path in files()?.into_iter().filter(|path| is_text(path)) {
        found.extend(of_file(&path, &read(&path)?));
    }
    Ok(found)
}

/// Returns all files that git tracks or would track.
pub(super) fn files() -> Result<Vec<PathBuf>> {
    let mut git = std::process::Command::new("git");
    git.args([
        "ls-files",
        "--cached",
        "--others",
        "--exclude-standard",
        "--deduplicate",
    ]);
    let listed = command::output(&mut git)?;
    let paths = listed.lines().map(PathBuf::from);
    Ok(paths.filter(|path| path.exists()).collect())
}

/// Reads a file.
pub(super) fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

fn is_text(path: &Path) -> bool {
    path.starts_with(".ci")
        || path
            .extension()
            .is_some_and(|it| TEXT.iter().any(|text| it == *text))
}

fn of_file(path: &Path, text: &str) -> Vec<String> {
    let place = project::short(path);
    let mut found = words(&place, text);
    if path.extension().is_some_and(|it| it == "rs") {
        found.extend(head(&place, text));
        found.extend(length(&place, text));
        found.extend(long_functions(&place, text));
    }
    found
}

fn head(place: &str, text: &str) -> Option<String> {
    let missing = !text.starts_with("//! ");
    missing.then(|| format!("{place}:1: opens without `//!`: what is this file for?"))
}

fn length(place: &str, text: &str) -> Option<String> {
    let lines = text.lines().count();
    let excess = lines > LONGEST_FILE;
    excess.then(|| format!("{place}: {lines} lines; {LONGEST_FILE} is the most"))
}

fn words(place: &str, text: &str) -> Vec<String> {
    let later = LEFT_FOR_LATER.map(|(a, b)| (format!("{a}{b}"), "nothing is left for later"));
    let machine = OF_ONE_MACHINE.map(|(a, b)| (format!("{a}{b}"), "a path of one machine"));
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let hit = later
            .iter()
            .chain(&machine)
            .find(|(word, _)| stands_alone(line, word));
        found.extend(hit.map(|(word, why)| format!("{place}:{}: `{word}`: {why}", number + 1)));
    }
    found
}

/// Whether `line` has `word` other than as the end of a longer one.
fn stands_alone(line: &str, word: &str) -> bool {
    let alone = |(at, _): (usize, &str)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        let joins = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
        !joins(before) && (word.ends_with(['!', '/']) || !joins(after))
    };
    line.match_indices(word).any(alone)
}

/// Relies on rustfmt: a function ends at the first closing brace of its own indentation.
fn long_functions(place: &str, text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    lines
        .iter()
        .enumerate()
        .filter_map(|(at, line)| Some((at, function_name(line)?)))
        .filter_map(|(at, name)| {
            let length = length_of_body(&lines[at..]);
            let excess = length > LONGEST_FUNCTION;
            let place = format!("{place}:{}", at + 1);
            excess.then(|| {
                format!("{place}: `{name}` has {length} lines; {LONGEST_FUNCTION} is the most")
            })
        })
        .collect()
}

fn function_name(line: &str) -> Option<&str> {
    let mut rest = line.trim_start();
    if rest.starts_with("//") {
        return None;
    }
    let prefixes = [
        "pub ",
        "pub(crate) ",
        "pub(super) ",
        "const ",
        "async ",
        "unsafe ",
        "extern \"C\" ",
    ];
    while let Some(shorter) = prefixes.iter().find_map(|prefix| rest.strip_prefix(prefix)) {
        rest = shorter;
    }
    let name = rest.strip_prefix("fn ")?;
    name.split(['(', '<']).next()
}

/// Lines of code between the braces: neither blank ones nor comments.
fn length_of_body(lines: &[&str]) -> usize {
    let indent = lines[0].len() - lines[0].trim_start().len();
    let end = |line: &&str| line.trim() == "}" && line.len() == indent + 1;
    let without_body =
        |line: &&str| line.ends_with(';') && line.len() - line.trim_start().len() <= indent;
    let Some(opens) = lines
        .iter()
        .position(|line| line.ends_with('{') || without_body(line) || line.ends_with('}'))
    else {
        return 0;
    };
    if !lines[opens].ends_with('{') {
        return 0;
    }
    let body = lines[opens + 1..].iter().take_while(|line| !end(line));
    let code = |line: &str| !line.is_empty() && !line.starts_with("//");
    body.filter(|line| code(line.trim())).count()
}

#[cfg(test)]
mod tests;
