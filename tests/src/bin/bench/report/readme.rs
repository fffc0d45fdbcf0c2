//! What the README shows of a report: a table of what Viaduct is held to, between two marks, and a picture beside it.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use super::{Chapter, Report, markdown, plot};
use crate::promise::Kept;
use crate::row::system;
use crate::statistics::Summary;

const START: &str = "<!-- bench -->\n";
const END: &str = "<!-- /bench -->\n";
/// The family whose picture is shown: what grows with the number of hostports, and what does not.
const SHOWN: &str = "connect";

const PLAIN: &str = "Plain kernel: the same ratio where a bridge and a router forward, and nothing is translated, tracked, \
checked or counted; of ADD, where a process starts and ends and the kernel makes the link, and nothing else happens.";

const STYLE: &str = "<style>
svg { color: #1b1f24 } text { fill: #1b1f24; font: 12px system-ui, sans-serif } .dim { fill: #68707a }
line.grid { stroke: #d5dae0 }
@media (prefers-color-scheme: dark) {
  svg { color: #e6e9ed } text { fill: #e6e9ed } .dim { fill: #98a1ab } line.grid { stroke: #39414a }
}
</style>";

/// Writes the table into the README at `readme`, and the picture to `picture`.
pub(crate) fn publish(report: &Report, readme: &Path, picture: &Path) -> Result<()> {
    let text = fs::read_to_string(readme).with_context(|| format!("{}", readme.display()))?;
    let new = between(&text, &table(report))
        .with_context(|| format!("{} has no {START}", readme.display()))?;
    fs::write(readme, new)?;
    let mut chapters = report.chapters.iter();
    let shown = chapters.find(|chapter| chapter.family.name == SHOWN);
    if let Some(drawn) = shown.and_then(|chapter| plot::pictures(chapter).into_iter().next()) {
        fs::write(picture, alone(&drawn))?;
    }
    Ok(())
}

/// The text with something else between the marks.
fn between(text: &str, new: &str) -> Option<String> {
    let (before, rest) = text.split_once(START)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{START}{new}{END}{after}"))
}

/// A picture that needs no page around it.
fn alone(picture: &str) -> String {
    let namespace = "<svg xmlns=\"http://www.w3.org/2000/svg\" ";
    let picture = picture.replacen("<svg ", namespace, 1);
    picture.replacen('>', &format!(">{STYLE}"), 1)
}

fn table(report: &Report) -> String {
    let mut text = String::from(
        "\n| | compared with | it | viaduct | ratio | held to | plain kernel |\n|---|---|---|---|---|---|---|\n",
    );
    for chapter in &report.chapters {
        for kept in chapter.kept() {
            text.push_str(&line(chapter, &kept).unwrap_or_default());
        }
    }
    let _ = writeln!(
        text,
        "\nMeasured in {}; medians, and of the ratios quartiles. {PLAIN}",
        report.circumstances()
    );
    text
}

fn line(chapter: &Chapter, kept: &Kept) -> Option<String> {
    let (subject, other) = (kept.promise.subject, kept.promise.other);
    let median = |system| {
        let row = chapter.row(subject, system)?;
        let number = super::number(Summary::of(&row.samples)?.median);
        Some(format!("{number} {}", row.unit))
    };
    let Summary {
        low,
        median: middle,
        high,
    } = kept.ratio;
    let [low, middle, high] = [low, middle, high].map(markdown::two);
    Some(format!(
        "| {subject} | {other} | {} | {} | **{middle}** ({low}–{high}) | {} | {} |\n",
        median(other)?,
        median(system::VIADUCT)?,
        markdown::bound(kept),
        markdown::plain(kept)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_between_the_marks_is_written() {
        let text = format!("before\n{START}old\n{END}after\n");
        let new = format!("before\n{START}new\n{END}after\n");
        assert_eq!(between(&text, "new\n"), Some(new));
        assert_eq!(between("no marks", "new\n"), None);
    }
}
