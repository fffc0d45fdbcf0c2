//! The HTML page: a chart for each measurement, and the tables. It loads no external resource.

use std::fmt::Write as _;

use super::{Chapter, Report, markdown, plot};
use crate::goals::GoalResult;

const STYLE: &str = "
:root { color-scheme: light dark; --ink: #1b1f24; --dim: #68707a; --line: #d5dae0; --back: #fff }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ed; --dim: #98a1ab; --line: #39414a; --back: #14171a } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--back); margin: 2rem auto; max-width: 62rem; padding: 0 1rem }
h1, h2, h3 { line-height: 1.2 } h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--line) }
p.dim, caption { color: var(--dim) } figure { margin: 1rem 0 }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums }
td, th { border: 1px solid var(--line); padding: .2rem .6rem; text-align: left }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif } svg .dim { fill: var(--dim) }
svg line.grid { stroke: var(--line) } .met { color: #1a7f37 } .missed { color: #cf222e; font-weight: bold }
";

/// Renders the page.
pub(crate) fn page(report: &Report) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Viaduct benchmark</title>\
         <style>{STYLE}</style></head><body>\n<h1>Viaduct compared with the reference plugins</h1>\n\
         <p>Measured in {}. Bars and points are medians, lines over them quartiles. \
         docs/benchmarks.md documents the method.</p>\n",
        escaped(&report.circumstances())
    );
    for chapter in &report.chapters {
        self::chapter(&mut page, chapter);
    }
    page.push_str("</body></html>\n");
    page
}

fn chapter(page: &mut String, chapter: &Chapter) {
    let (name, about) = (chapter.family.name, escaped(chapter.family.about));
    let _ = writeln!(
        page,
        "<h2 id=\"{name}\">{name}</h2>\n<p class=\"dim\">{about}.</p>"
    );
    goals(page, &chapter.goal_results());
    for picture in plot::pictures(chapter) {
        let _ = writeln!(page, "<figure>{picture}</figure>");
    }
    let _ = writeln!(page, "<details><summary>Numbers</summary>");
    tables(page, &markdown::chapter(chapter));
    page.push_str("</details>\n");
}

fn goals(page: &mut String, results: &[GoalResult]) {
    if results.is_empty() {
        return;
    }
    page.push_str("<ul>\n");
    for it in results {
        let class = if it.is_met() { "met" } else { "missed" };
        let _ = writeln!(
            page,
            "<li>{}: {} of {}, goal {}: <span class=\"{class}\">{class}</span></li>",
            escaped(it.goal.subject),
            markdown::two(it.ratio.median),
            escaped(it.goal.other),
            escaped(&markdown::bound(it)),
        );
    }
    page.push_str("</ul>\n");
}

/// Converts the tables of a Markdown text, whose cells contain only words, numbers and `**`.
fn tables(page: &mut String, text: &str) {
    for block in text.split("\n\n").filter(|block| block.contains('|')) {
        page.push_str("<table>\n");
        for (place, line) in block
            .trim()
            .lines()
            .enumerate()
            .filter(|(place, _)| *place != 1)
        {
            let tag = if place == 0 { "th" } else { "td" };
            let cells = line
                .trim_matches('|')
                .split('|')
                .map(|cell| format!("<{tag}>{}</{tag}>", escaped(&cell.trim().replace("**", ""))));
            let _ = writeln!(page, "<tr>{}</tr>", cells.collect::<String>());
        }
        page.push_str("</table>\n");
    }
}

/// Escapes text for HTML.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
