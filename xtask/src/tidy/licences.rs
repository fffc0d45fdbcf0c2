//! Checks that every dependency offers a permissive licence.

use cargo_metadata::Metadata;

const PERMISSIVE: [&str; 9] = [
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

pub(super) fn offences(metadata: &Metadata) -> Vec<String> {
    metadata
        .packages
        .iter()
        .filter(|package| !package.license.as_deref().is_some_and(is_permissive))
        .map(|package| {
            let licence = package.license.as_deref().unwrap_or("no licence");
            format!(
                "{}: {licence}: not one of those we may pass on",
                package.name
            )
        })
        .collect()
}

/// Whether the expression can be satisfied with permissive licences alone; a slash is an old way to
/// say OR.
fn is_permissive(expression: &str) -> bool {
    let spaced = expression
        .replace('(', " ( ")
        .replace(')', " ) ")
        .replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = words.as_slice();
    any(&mut rest) && rest.is_empty()
}

fn any(words: &mut &[&str]) -> bool {
    let mut good = all(words);
    while let ["OR", rest @ ..] = *words {
        *words = rest;
        good |= all(words);
    }
    good
}

fn all(words: &mut &[&str]) -> bool {
    let mut good = one(words);
    while let ["AND", rest @ ..] = *words {
        *words = rest;
        good &= one(words);
    }
    good
}

fn one(words: &mut &[&str]) -> bool {
    match *words {
        ["(", rest @ ..] => {
            *words = rest;
            let good = any(words);
            *words = words.strip_prefix(&[")"]).unwrap_or(&[]);
            good
        }
        [licence, "WITH", exception, rest @ ..] => {
            *words = rest;
            PERMISSIVE.contains(&format!("{licence} WITH {exception}").as_str())
        }
        [licence, rest @ ..] => {
            *words = rest;
            PERMISSIVE.contains(licence)
        }
        [] => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_permissive_choice_is_enough() {
        assert!(is_permissive("GPL-2.0-only OR Apache-2.0"));
        assert!(is_permissive("MIT/Apache-2.0"));
        assert!(is_permissive("Apache-2.0 WITH LLVM-exception OR MIT"));
    }

    #[test]
    fn all_of_what_is_joined_must_be_permissive() {
        assert!(is_permissive("(MIT OR GPL-3.0-only) AND Unicode-3.0"));
        assert!(!is_permissive("MIT AND GPL-3.0-only"));
        assert!(!is_permissive("LGPL-2.1-or-later"));
    }
}
