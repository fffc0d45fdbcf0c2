//! The language rules that a machine can check: retired words, width of comments, chains in one
//! expression. CONTRIBUTING.md has the rules, and the words to use instead.

use std::path::Path;

use anyhow::Result;

use super::source;
use crate::project;

/// The most columns of a line that is a comment.
const COMMENT_WIDTH: usize = 100;

/// Words and phrases that are refused wherever they stand. Written in two halves, so that this file
/// does not offend itself.
const RETIRED: [(&str, &str); 16] = [
    ("no", "body"),
    ("some", "body"),
    ("who", "ever"),
    ("who", "m"),
    ("is to", "ld"),
    ("are to", "ld"),
    ("is ask", "ed"),
    ("are ask", "ed"),
    ("was ask", "ed"),
    ("were ask", "ed"),
    ("lets go", " of"),
    ("what is ", "over"),
    ("what no", "body"),
    ("who is ", "refused"),
    ("strang", "er"),
    ("strang", "ers"),
];

/// Offences of all files.
pub(super) fn offences() -> Result<Vec<String>> {
    let mut found = Vec::new();
    for path in source::files()? {
        let extension = path.extension().and_then(|it| it.to_str());
        let text = match extension {
            Some("rs" | "md" | "toml" | "service" | "conflist") => source::read(&path)?,
            _ => continue,
        };
        found.extend(of_file(&path, &text));
    }
    Ok(found)
}

fn of_file(path: &Path, text: &str) -> Vec<String> {
    let place = project::short(path);
    let mut found = retired_words(&place, text);
    if path.extension().is_some_and(|it| it == "rs") {
        found.extend(wide_comments(&place, text));
        found.extend(rebindings(&place, text));
    }
    found
}

fn retired_words(place: &str, text: &str) -> Vec<String> {
    let words = RETIRED.map(|(a, b)| format!("{a}{b}"));
    let mut found = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let lower = line.to_lowercase();
        let hit = words
            .iter()
            .find(|word| has_word(&lower, &word.to_lowercase()));
        found.extend(hit.map(|word| {
            format!("{place}:{number}: `{word}`: name the component and what it does")
        }));
    }
    found
}

/// Whether `line` has `word` with neither a letter nor a digit beside it. Identifiers count by
/// their parts.
fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        let joins = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
        !joins(before) && !joins(after)
    })
}

fn wide_comments(place: &str, text: &str) -> Vec<String> {
    (1..)
        .zip(text.lines())
        .filter(|(_, line)| line.trim_start().starts_with("//"))
        .filter(|(_, line)| line.chars().count() > COMMENT_WIDTH && !is_unbreakable(line))
        .map(|(number, line)| {
            let columns = line.chars().count();
            format!("{place}:{number}: a comment of {columns} columns; {COMMENT_WIDTH} is the most")
        })
        .collect()
}

/// Whether the comment is one word, such as a link.
fn is_unbreakable(line: &str) -> bool {
    line.split_whitespace().count() <= 2
}

/// Variables that are bound, and bound again by the next statement: `let x = a.b(); let x =
/// x.c();`.
fn rebindings(place: &str, text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some(name) = bound(line) else { continue };
        let indent = line.len() - line.trim_start().len();
        let Some(end) = statement_end(&lines, at, indent) else {
            continue;
        };
        let Some(next) = lines.get(end + 1) else {
            continue;
        };
        if next.len() - next.trim_start().len() != indent || bound(next) != Some(name) {
            continue;
        }
        let last = statement_end(&lines, end + 1, indent).unwrap_or(end + 1);
        let statement = lines[end + 1..=last].join(" ");
        let value = statement
            .split_once('=')
            .map_or("", |(_, value)| value.trim_start());
        let chained = value
            .strip_prefix(name)
            .is_some_and(|rest| rest.trim_start().starts_with('.'))
            && value
                .split(|c: char| !(c.is_alphanumeric() || c == '_'))
                .filter(|word| *word == name)
                .count()
                == 1;
        if chained {
            found.push(format!(
                "{place}:{}: `{name}` is bound twice in a row: write one chain",
                end + 2
            ));
        }
    }
    found
}

/// The name that a `let` statement binds.
fn bound(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("let ")?;
    let rest = rest.strip_prefix("mut ").unwrap_or(rest);
    let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_'))?;
    let follows = &rest[end..];
    (end > 0 && (follows.starts_with(" =") || follows.starts_with(": "))).then(|| &rest[..end])
}

/// The index of the line that ends the statement beginning at `at`. Relies on rustfmt.
fn statement_end(lines: &[&str], at: usize, indent: usize) -> Option<usize> {
    (at..lines.len().min(at + 40)).find(|&index| {
        let line = lines[index];
        let depth = line.len() - line.trim_start().len();
        line.ends_with(';') && (index == at || depth <= indent + 4)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offences_in(text: &str) -> Vec<String> {
        of_file(Path::new("src/a.rs"), text)
    }

    #[test]
    fn retired_words_are_refused_in_comments_strings_and_names() {
        let word = ["No", "body"].concat();
        assert_eq!(offences_in(&format!("// {word} reads it\n")).len(), 1);
        assert_eq!(
            offences_in(&format!("fn a_{}_b() {{}}\n", word.to_lowercase())).len(),
            1
        );
        assert!(offences_in(&format!("// {word}x reads it\n")).is_empty());
    }

    #[test]
    fn wide_comments_are_refused_but_links_are_not() {
        let words = "word ".repeat(30);
        assert_eq!(offences_in(&format!("/// {words}\n")).len(), 1);
        assert!(offences_in(&format!("/// https://{}\n", "x".repeat(120))).is_empty());
        assert!(offences_in(&format!("let a = \"{words}\";\n")).is_empty());
    }

    #[test]
    fn a_variable_bound_twice_in_a_row_is_refused() {
        let joined = "    let a = b.iter();\n    let a = a.map(f);\n";
        assert_eq!(
            offences_in(joined),
            ["src/a.rs:2: `a` is bound twice in a row: write one chain"]
        );
        let broken = "    let a = b\n        .iter()\n        .rev();\n    let mut a: Vec<u8> =\n        a.map(f).collect();\n";
        assert_eq!(offences_in(broken).len(), 1);
    }

    #[test]
    fn shadowing_by_another_expression_is_no_chain() {
        assert!(offences_in("    let a = b.iter();\n    let a = f(a);\n").is_empty());
        assert!(offences_in("    let a = b.iter();\n    let c = a.map(f);\n").is_empty());
        let itself = "    let a = b.c();\n    let a = a.strip_prefix(' ').unwrap_or(a);\n";
        assert!(offences_in(itself).is_empty());
    }
}
