//! Tables for terminals: columns without borders.

use std::fmt::Display;

use comfy_table::{Cell, CellAlignment, ContentArrangement, Row, Table, presets};

/// How a table is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TableStyle {
    /// Whether it has a line with the names of the columns.
    pub(crate) headers: bool,
    /// Whether it has the columns that are wider than a terminal.
    pub(crate) wide: bool,
}

impl TableStyle {
    /// The style of tables that no option changes.
    pub(super) const PLAIN: Self = Self {
        headers: true,
        wide: false,
    };

    /// Returns what is printed in place of a table without rows: a sentence, and nothing without
    /// headers, since scripts then count lines.
    pub(super) fn no_rows(self, sentence: &str) -> String {
        if self.headers {
            format!("{sentence}\n")
        } else {
            String::new()
        }
    }
}

/// Formats a table without borders, columns separated by two spaces.
pub(crate) fn table(header: &[&str], rows: impl Iterator<Item = Row>) -> String {
    styled_table(header, rows, TableStyle::PLAIN)
}

/// Formats a table in a style.
pub(crate) fn styled_table(
    header: &[&str],
    rows: impl Iterator<Item = Row>,
    style: TableStyle,
) -> String {
    let mut table = borderless(None);
    if style.headers {
        table.set_header(header.iter().copied());
    }
    table.add_rows(rows);
    text_of(table)
}

/// Returns an empty table without borders, whose cells are wrapped at `width` columns, if there is
/// one.
pub(crate) fn borderless(width: Option<u16>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    if let Some(width) = width {
        table.set_content_arrangement(ContentArrangement::Dynamic);
        table.set_width(width);
    }
    table
}

/// Returns the lines of a table, with two spaces between columns and none at the end.
pub(crate) fn text_of(mut table: Table) -> String {
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table
        .lines()
        .map(|line| line.trim_end().to_owned() + "\n")
        .collect()
}

/// Returns a row of cells.
pub(crate) fn row(cells: impl IntoIterator<Item = Cell>) -> Row {
    cells.into_iter().collect::<Vec<_>>().into()
}

/// Returns a cell with a text.
pub(crate) fn text(value: impl Display) -> Cell {
    Cell::new(value.to_string())
}

/// Returns a cell with a number, aligned to the right.
pub(crate) fn number(value: impl Display) -> Cell {
    text(value).set_alignment(CellAlignment::Right)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::list;
    use crate::render::tests::{bare, web};

    #[test]
    fn a_wide_list_has_more_columns_and_none_has_a_header_without_headers() {
        let wide = TableStyle {
            headers: false,
            wide: true,
        };
        let attachments = [web(), bare()];
        let narrow = list(&attachments, TableStyle::PLAIN);
        let text = list(&attachments, wide);
        assert_eq!(text.lines().count(), 2, "{text}");
        for (line, with_header) in text.lines().zip(narrow.lines().skip(1)) {
            assert!(line.len() > with_header.len(), "{line}");
        }
        assert!(text.contains(&attachments[0].mac), "{text}");
        assert_eq!(list(&[], wide), "");
    }
}
