//! Checks that the tests named in the documents' tables exist.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::source;
use crate::project;

/// Names with at least this many words are names of tests, not of settings.
const WORDS: usize = 5;
/// How names of metrics start.
const METRIC: &str = "viaduct_";

pub(super) fn offences() -> Result<Vec<String>> {
    let files = source::files()?;
    let with = |extension: &'static str| -> Vec<&PathBuf> {
        files
            .iter()
            .filter(|path| path.extension().is_some_and(|it| it == extension))
            .collect()
    };
    let mut functions = BTreeSet::new();
    for path in with("rs") {
        functions.extend(declared(&source::read(path)?).map(str::to_owned));
    }
    let mut found = Vec::new();
    for path in with("md") {
        found.extend(of_document(path, &source::read(path)?, &functions));
    }
    Ok(found)
}

/// Returns the names of the functions in a source file.
fn declared(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .filter_map(|line| line.split_once("fn "))
        .filter_map(|(_, rest)| rest.split(['(', '<']).next())
}

fn of_document(path: &Path, text: &str, functions: &BTreeSet<String>) -> Vec<String> {
    let place = project::short(path);
    (1..)
        .zip(text.lines())
        .filter(|(_, line)| line.starts_with('|'))
        .flat_map(|(number, line)| tests(line).map(move |test| (number, test)))
        .filter(|(_, test)| !functions.contains(*test))
        .map(|(number, test)| format!("{place}:{number}: there is no test {test}"))
        .collect()
}

/// Returns the names of tests in a line, which stand between backticks.
fn tests(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2).filter(|name| {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        name.bytes().all(plain) && !name.starts_with(METRIC) && name.split('_').count() >= WORDS
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_a_table_names_must_be_there() {
        let functions = BTreeSet::from(["a_port_has_one_owner".to_owned()]);
        let text = "`a_port_in_no_table_row`\n\n\
            | held | `a_port_has_one_owner`, `ip_local_reserved_ports`, `a::b_c_d_e_f` |\n\
            | gone | `a_port_has_two_owners` |\n";
        let found = of_document(Path::new("docs/x.md"), text, &functions);
        assert_eq!(
            found,
            ["docs/x.md:4: there is no test a_port_has_two_owners"]
        );
    }

    #[test]
    fn functions_are_found_where_they_are_declared() {
        let text = "pub(crate) fn plain() {}\n    fn generic<T>(it: T) {}\n// no function\n";
        assert_eq!(declared(text).collect::<Vec<_>>(), ["plain", "generic"]);
    }
}
