//! The report and its tables in Markdown.

use std::fmt::Write as _;

use super::{Chapter, Report, comparison_system, number};
use crate::goals::GoalResult;
use crate::row::{Better, Row, system};
use crate::statistics::{Summary, ratios};

/// Renders the whole report.
pub(crate) fn document(report: &Report) -> String {
    let mut text = format!(
        "Measured in {}. Medians, quartiles in brackets.\n",
        report.circumstances()
    );
    for chapter in &report.chapters {
        let _ = write!(
            text,
            "\n## {}\n\n{}.\n",
            chapter.family.name, chapter.family.about
        );
        text.push_str(&self::chapter(chapter));
    }
    text
}

/// Renders the tables of one family: one for each unit, and those of goals and bounds.
pub(crate) fn chapter(chapter: &Chapter) -> String {
    let mut text = String::new();
    let mut units: Vec<&str> = Vec::new();
    for row in &chapter.rows {
        if !units.contains(&row.unit) {
            units.push(row.unit);
        }
    }
    for unit in units {
        table(&mut text, chapter, unit);
    }
    goals(&mut text, &chapter.goal_results());
    bounds(&mut text, chapter);
    text
}

fn table(text: &mut String, chapter: &Chapter, unit: &str) {
    let of_unit = |row: &&Row| row.unit == unit;
    let has =
        |subject: &str, system: &str| chapter.row(subject, system).as_ref().is_some_and(of_unit);
    let all_subjects = chapter.subjects();
    let subjects: Vec<_> = all_subjects
        .iter()
        .filter(|subject| {
            chapter
                .rows
                .iter()
                .any(|row| row.unit == unit && row.subject() == **subject)
        })
        .collect();
    let all_systems = chapter.systems();
    let systems: Vec<_> = all_systems
        .iter()
        .filter(|system| subjects.iter().any(|subject| has(subject, system)))
        .collect();
    let names: Vec<_> = systems.iter().map(|it| it.as_str()).collect();
    let against = comparison_system(&chapter.systems()).map(str::to_owned);
    let ratio = against.as_ref().map(|name| format!(" viaduct / {name} |"));
    let _ = writeln!(
        text,
        "\n| {unit} | {} |{}",
        names.join(" | "),
        ratio.clone().unwrap_or_default()
    );
    let columns = names.len() + usize::from(ratio.is_some());
    let _ = writeln!(text, "|---|{}", "---|".repeat(columns));
    for subject in subjects {
        let cells: Vec<_> = names
            .iter()
            .map(|it| cell(chapter.row(subject, it)))
            .collect();
        let _ = write!(text, "| {subject} | {} |", cells.join(" | "));
        if let Some(against) = &against {
            let pair = chapter
                .row(subject, system::VIADUCT)
                .zip(chapter.row(subject, against));
            let _ = write!(text, " {} |", ratio_cell(pair));
        }
        text.push('\n');
    }
}

fn cell(row: Option<&Row>) -> String {
    row.and_then(|row| Summary::of(&row.samples))
        .map_or("–".to_owned(), |it| spread(&it))
}

fn ratio_cell(pair: Option<(&Row, &Row)>) -> String {
    pair.and_then(|(ours, theirs)| Summary::of(&ratios(ours, theirs)))
        // A ratio with a zero is not shown.
        .filter(|it| it.median.is_finite())
        .map_or("–".to_owned(), |it| {
            format!("**{}** ({}–{})", two(it.median), two(it.low), two(it.high))
        })
}

/// Formats median and quartiles.
pub(super) fn spread(summary: &Summary) -> String {
    let Summary { low, median, high } = summary;
    if low.to_bits() == high.to_bits() {
        return number(*median);
    }
    format!("{} ({}–{})", number(*median), number(*low), number(*high))
}

/// Formats a ratio with two digits after the point, or three below 0.1.
pub(super) fn two(ratio: f64) -> String {
    if ratio.abs() < 0.1 {
        format!("{ratio:.3}")
    } else {
        format!("{ratio:.2}")
    }
}

fn goals(text: &mut String, results: &[GoalResult]) {
    if results.is_empty() {
        return;
    }
    text.push_str(
        "\n| goal for | compared with | bound | measured | result | plain kernel | beside kube-proxy | beside Docker |\n|---|---|---|---|---|---|---|---|\n",
    );
    for it in results {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} |",
            it.goal.subject,
            it.goal.other,
            bound(it),
            two(it.ratio.median),
            if it.is_met() { "met" } else { "**missed**" },
            plain(it),
            beside(it).join(" | "),
        );
    }
}

/// Formats the ratio that the plain kernel reaches.
pub(super) fn plain(result: &GoalResult) -> String {
    result.plain.map_or("–".to_owned(), |it| two(it.median))
}

/// Formats the ratios beside other software.
pub(super) fn beside(result: &GoalResult) -> [String; 2] {
    let shown = |it: Option<Summary>| it.map_or("–".to_owned(), |it| two(it.median));
    result.beside.map(shown)
}

/// Renders the table of the bounds of Viaduct's rows.
fn bounds(text: &mut String, chapter: &Chapter) {
    let mut lines = chapter
        .rows
        .iter()
        .filter(|row| row.system == system::VIADUCT)
        .filter_map(bound_line)
        .peekable();
    if lines.peek().is_none() {
        return;
    }
    text.push_str("\n| goal for | unit | bounds | measured | result |\n|---|---|---|---|---|\n");
    text.extend(lines);
}

fn bound_line(row: &Row) -> Option<String> {
    let (least, most) = row.bounds?;
    let median = Summary::of(&row.samples)?.median;
    let verdict = if (least..=most).contains(&median) {
        "met"
    } else {
        "**missed**"
    };
    let (subject, unit, measured) = (row.subject(), row.unit, number(median));
    let bounds = match least {
        0.0 => format!("≤ {}", number(most)),
        _ => format!("{} … {}", number(least), number(most)),
    };
    Some(format!(
        "| {subject} | {unit} | {bounds} | {measured} | {verdict} |\n"
    ))
}

/// Formats a bound with its direction.
pub(super) fn bound(result: &GoalResult) -> String {
    let sign = match result.better {
        Better::Lower => "≤",
        Better::Higher => "≥",
    };
    format!("{sign} {}", two(result.goal.bound))
}
