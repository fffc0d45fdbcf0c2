//! The tables, in Markdown.

use std::fmt::Write as _;

use super::{Chapter, Report, number, yardstick};
use crate::promise::Kept;
use crate::row::{Better, Row, system};
use crate::statistics::{Summary, ratios};

/// The whole report.
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

/// The tables of one family: one for each unit, and one of promises.
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
    promises(&mut text, &chapter.kept());
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
    let against = yardstick(&chapter.systems()).map(str::to_owned);
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
        // Nothing is not a part of nothing.
        .filter(|it| it.median.is_finite())
        .map_or("–".to_owned(), |it| {
            format!("**{}** ({}–{})", two(it.median), two(it.low), two(it.high))
        })
}

/// Median and quartiles.
pub(super) fn spread(summary: &Summary) -> String {
    let Summary { low, median, high } = summary;
    if low.to_bits() == high.to_bits() {
        return number(*median);
    }
    format!("{} ({}–{})", number(*median), number(*low), number(*high))
}

/// Ratios are all about the same size, but small ones are worth another digit.
pub(super) fn two(ratio: f64) -> String {
    if ratio.abs() < 0.1 {
        format!("{ratio:.3}")
    } else {
        format!("{ratio:.2}")
    }
}

fn promises(text: &mut String, kept: &[Kept]) {
    if kept.is_empty() {
        return;
    }
    text.push_str(
        "\n| goal for | compared with | bound | measured | result | plain kernel |\n|---|---|---|---|---|---|\n",
    );
    for it in kept {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} |",
            it.promise.subject,
            it.promise.other,
            bound(it),
            two(it.ratio.median),
            if it.is_kept() { "kept" } else { "**missed**" },
            plain(it),
        );
    }
}

/// What the plain kernel reaches of it.
pub(super) fn plain(kept: &Kept) -> String {
    kept.plain.map_or("–".to_owned(), |it| two(it.median))
}

/// What Viaduct's rows have to be by themselves.
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
        "kept"
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

/// A bound with its direction.
pub(super) fn bound(kept: &Kept) -> String {
    let sign = match kept.better {
        Better::Lower => "≤",
        Better::Higher => "≥",
    };
    format!("{sign} {}", two(kept.promise.bound))
}
