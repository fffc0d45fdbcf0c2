//! Escapes characters of foreign names that a terminal or a log would interpret.
//!
//! Names of pods and processes are chosen by others, and may contain any character. They are stored
//! and compared as they are, and escaped where they are displayed.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Replaces control characters, line breaks, and characters that change the direction of text by
/// their escapes in Rust: `\n`, `\u{1b}`. The result is one line.
pub fn printable(text: &str) -> Cow<'_, str> {
    escape(text, is_unprintable)
}

/// Escapes as [`printable`] does, but keeps line feeds.
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    escape(text, |c| c != '\n' && is_unprintable(c))
}

/// Replaces the same characters but line feeds by their escapes in JSON, such as `\u001b`. `text`
/// is a JSON document, where such characters are in strings only.
pub fn printable_json(text: &str) -> Cow<'_, str> {
    let unprintable = |c: char| c != '\n' && is_unprintable(c);
    if !text.contains(unprintable) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if unprintable(c) {
            // All of them are in the Basic Multilingual Plane.
            let _always_fits = write!(escaped, "\\u{:04x}", u32::from(c));
        } else {
            escaped.push(c);
        }
    }
    Cow::Owned(escaped)
}

fn escape(text: &str, unprintable: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&unprintable) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if unprintable(c) {
            escaped.extend(c.escape_default());
        } else {
            escaped.push(c);
        }
    }
    Cow::Owned(escaped)
}

fn is_unprintable(c: char) -> bool {
    // Line and paragraph separators, and the controls of Unicode's bidirectional algorithm.
    const FORMATS: [(char, char); 5] = [
        ('\u{61c}', '\u{61c}'),
        ('\u{200e}', '\u{200f}'),
        ('\u{2028}', '\u{202e}'),
        ('\u{2066}', '\u{2069}'),
        ('\u{feff}', '\u{feff}'),
    ];
    c.is_control()
        || FORMATS
            .iter()
            .any(|(first, last)| (*first..=*last).contains(&c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_all_others_are_kept() {
        for (text, shown) in [
            ("web-0", "web-0"),
            ("größe 日本 🦀 \\ \"", "größe 日本 🦀 \\ \""),
            ("a\x1b[2Jb", "a\\u{1b}[2Jb"),
            ("a\nb\tc\r", "a\\nb\\tc\\r"),
            ("\u{9b}31m\u{7f}", "\\u{9b}31m\\u{7f}"),
            ("x\u{202e}y\u{2028}", "x\\u{202e}y\\u{2028}"),
        ] {
            assert_eq!(printable(text), shown);
        }
        assert_eq!(printable_lines("a\nb\x07"), "a\nb\\u{7}");
    }

    #[test]
    fn escapes_of_json_are_json() {
        let json = "{\n  \"a\": \"\u{9b}x\u{202e}\"\n}";
        assert_eq!(printable_json(json), "{\n  \"a\": \"\\u009bx\\u202e\"\n}");
        assert!(matches!(printable_json("{}"), Cow::Borrowed("{}")));
    }
}
