//! References that must resolve: behaviour numbers, decisions, links between documents.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::source;
use crate::project;

/// Where each behaviour has its row.
const BEHAVIOUR_LIST: &str = "docs/behaviours.md";
/// The folder of the decisions; its README is their index.
const DECISIONS: &str = "docs/decisions";

/// Offences of all files.
pub(super) fn offences() -> Result<Vec<String>> {
    let files = source::files()?;
    let documents: BTreeMap<PathBuf, String> = files
        .iter()
        .filter(|path| path.extension().is_some_and(|it| it == "md"))
        .map(|path| Ok((path.clone(), source::read(path)?)))
        .collect::<Result<_>>()?;
    let behaviours = documents
        .get(Path::new(BEHAVIOUR_LIST))
        .map(|text| first_cells(text))
        .unwrap_or_default();
    let decisions: BTreeSet<u32> = documents.keys().filter_map(|path| decision(path)).collect();
    let mut found = index(&documents);
    for path in &files {
        if !path
            .extension()
            .is_some_and(|it| it == "rs" || it == "md" || it == "toml")
        {
            continue;
        }
        let text = match documents.get(path) {
            Some(text) => text.clone(),
            None => source::read(path)?,
        };
        let place = project::short(path);
        found.extend(unknown_behaviours(&place, &text, &behaviours));
        found.extend(unknown_decisions(&place, &text, &decisions));
        found.extend(outside_documents(&place, &text));
        if documents.contains_key(path) {
            found.extend(dead_links(path, &text, &documents));
        }
    }
    Ok(found)
}

/// The first cell of each table row.
fn first_cells(text: &str) -> BTreeSet<String> {
    text.lines()
        .filter_map(|line| line.strip_prefix('|')?.split('|').next())
        .map(|cell| cell.trim().trim_matches('`').to_owned())
        .collect()
}

/// The number of the decision that a page records.
fn decision(path: &Path) -> Option<u32> {
    let name = path.strip_prefix(DECISIONS).ok()?.file_name()?.to_str()?;
    name.split('-').next()?.parse().ok()
}

/// Decisions without a status, or without a row in the index.
fn index(documents: &BTreeMap<PathBuf, String>) -> Vec<String> {
    let listed = documents
        .get(&Path::new(DECISIONS).join("README.md"))
        .map_or("", String::as_str);
    let mut found = Vec::new();
    for (path, text) in documents {
        if decision(path).is_none() {
            continue;
        }
        let place = path.display();
        if !text
            .lines()
            .take(5)
            .any(|line| line.starts_with("Status: "))
        {
            found.push(format!("{place}:1: no `Status:` below the title"));
        }
        let name = path.file_name().and_then(|name| name.to_str());
        if !name.is_some_and(|name| listed.contains(&format!("({name})"))) {
            found.push(format!("{place}: not in {DECISIONS}/README.md"));
        }
    }
    found
}

/// What follows each `word` or `words` in a line, in either case.
fn lists<'a>(line: &'a str, word: &str) -> Vec<&'a str> {
    line.to_ascii_lowercase()
        .match_indices(word)
        .filter_map(|(at, _)| {
            let before = line[..at].chars().next_back();
            let rest = &line[at + word.len()..];
            let rest = rest.strip_prefix('s').unwrap_or(rest).strip_prefix(' ')?;
            (!before.is_some_and(char::is_alphanumeric)).then_some(rest)
        })
        .collect()
}

/// Splits `K31, F33 and S1 to S4: text` into its numbers; ends at the first word that is none.
fn numbers(list: &str, is_number: impl Fn(&str) -> bool) -> Vec<&str> {
    let mut found = Vec::new();
    for word in list.split(' ') {
        let plain = word.trim_matches(|c: char| !c.is_alphanumeric());
        if is_number(plain) {
            found.push(plain);
            if word.ends_with([',', ';']) || word.ends_with(|c: char| c.is_alphanumeric()) {
                continue;
            }
            break;
        }
        if found.is_empty() || !matches!(plain, "and" | "to") {
            break;
        }
    }
    found
}

fn is_behaviour(word: &str) -> bool {
    let mut characters = word.chars();
    characters.next().is_some_and(|c| c.is_ascii_uppercase())
        && characters
            .as_str()
            .starts_with(|c: char| c.is_ascii_digit())
        && characters.all(|c| c.is_ascii_digit() || c == '.')
}

fn unknown_behaviours(place: &str, text: &str, known: &BTreeSet<String>) -> Vec<String> {
    let mut found = Vec::new();
    for (line_number, line) in (1..).zip(text.lines()) {
        for list in lists(line, "behaviour") {
            found.extend(
                numbers(list, is_behaviour)
                    .into_iter()
                    .filter(|number| !known.contains(*number))
                    .map(|number| {
                        format!("{place}:{line_number}: {BEHAVIOUR_LIST} has no row {number}")
                    }),
            );
        }
    }
    found
}

fn unknown_decisions(place: &str, text: &str, known: &BTreeSet<u32>) -> Vec<String> {
    let is_number =
        |word: &str| !word.is_empty() && word.chars().all(|c| c.is_ascii_digit()) && word.len() < 5;
    let mut found = Vec::new();
    for (line_number, line) in (1..).zip(text.lines()) {
        for list in lists(line, "decision") {
            found.extend(
                numbers(list, is_number)
                    .into_iter()
                    .filter(|number| !number.parse().is_ok_and(|number| known.contains(&number)))
                    .map(|number| format!("{place}:{line_number}: there is no decision {number}")),
            );
        }
    }
    found
}

/// Names of documents that are not in the repository, and section signs that point into them.
fn outside_documents(place: &str, text: &str) -> Vec<String> {
    let sign = '\u{a7}';
    (1..)
        .zip(text.lines())
        .filter(|(_, line)| {
            line.contains(sign)
                || line.contains(&["DATAPATH", " "].concat())
                || line.contains(&["BEHAV", "IOURS"].concat())
        })
        .map(|(number, _)| format!("{place}:{number}: refers to a document outside the repository"))
        .collect()
}

/// Links of a document to files and headings that do not exist.
fn dead_links(path: &Path, text: &str, documents: &BTreeMap<PathBuf, String>) -> Vec<String> {
    let folder = path.parent().unwrap_or_else(|| Path::new(""));
    let mut found = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        for link in targets(line) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() {
                path.to_owned()
            } else {
                normal(&folder.join(file))
            };
            let place = format!("{}:{number}", path.display());
            if !target.exists() {
                found.push(format!("{place}: {link} leads nowhere"));
            } else if let Some(page) = documents.get(&target)
                && !anchor.is_empty()
                && !headings(page).contains(anchor)
            {
                found.push(format!("{place}: {file} has no heading #{anchor}"));
            }
        }
    }
    found
}

/// The targets of the links in a line: `[text](target)`.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    line.split("](")
        .skip(1)
        .filter_map(|rest| rest.split([')', ' ']).next())
}

/// A path without `..`.
fn normal(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::ParentDir => {
                plain.pop();
            }
            std::path::Component::CurDir => {}
            other @ (std::path::Component::Normal(_)
            | std::path::Component::RootDir
            | std::path::Component::Prefix(_)) => plain.push(other),
        }
    }
    plain
}

/// Anchors of a page's headings, as GitHub makes them.
fn headings(text: &str) -> BTreeSet<String> {
    text.lines()
        .filter(|line| line.starts_with('#'))
        .map(|line| {
            line.trim_start_matches('#')
                .trim()
                .to_lowercase()
                .chars()
                .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
                .map(|c| if c == ' ' { '-' } else { c })
                .collect()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> BTreeSet<String> {
        first_cells("| | behaviour |\n|---|---|\n| K1 | one |\n| B0.1 | two |\n| F33 | three |\n")
    }

    #[test]
    fn behaviours_are_found_in_lists_and_must_have_a_row() {
        let text = "/// behaviours K1, F33 and B0.1: text K9\n/// (behaviour K2)\n/// Behaviour K3.\n/// behaviour as before\n";
        let word =
            |number: u32, name: &str| format!("a.rs:{number}: {BEHAVIOUR_LIST} has no row {name}");
        assert_eq!(
            unknown_behaviours("a.rs", text, &known()),
            [word(2, "K2"), word(3, "K3")]
        );
    }

    #[test]
    fn decisions_must_have_a_page() {
        let pages = BTreeSet::from([7, 51]);
        let word = ["deci", "sion"].concat();
        let text =
            format!("// {word} 7, and {word}s 51 and 52.\n// {word} 0007\n// a {word} was made\n");
        assert_eq!(
            unknown_decisions("a.rs", &text, &pages),
            [format!("a.rs:1: there is no {word} 52")]
        );
    }

    #[test]
    fn links_lead_to_files_and_headings() {
        let page = PathBuf::from("a.md");
        let text = "# One & two\n[x](#one--two) [y](#three) [z](gone.md) [w](https://x.y/z)\n";
        let documents = BTreeMap::from([(page.clone(), text.to_owned())]);
        // Neither page is on a disk, so a link to another is dead; anchors in the page need it to
        // exist.
        let found = dead_links(&page, text, &documents);
        assert!(
            found.contains(&"a.md:2: gone.md leads nowhere".to_owned()),
            "{found:?}"
        );
        assert_eq!(headings(text).into_iter().collect::<Vec<_>>(), ["one--two"]);
    }

    #[test]
    fn a_decision_needs_a_status_and_a_row() {
        let page = Path::new(DECISIONS).join("0007-seven.md");
        let other = Path::new(DECISIONS).join("0008-eight.md");
        let readme = Path::new(DECISIONS).join("README.md");
        let documents = BTreeMap::from([
            (page, "# Seven\n\nStatus: accepted\n".to_owned()),
            (other, "# Eight\n".to_owned()),
            (readme, "| 7 | [Seven](0007-seven.md) |\n".to_owned()),
        ]);
        assert_eq!(index(&documents).len(), 2);
    }
}
