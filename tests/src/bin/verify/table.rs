//! The committed table: the verifier's cost of each program on each kernel.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context as _, Result, bail};

/// Growth in percent beyond which the check fails.
const GROWTH_PERCENT: u64 = 10;

const HEAD: &str =
    "# Verifier cost of the BPF object's programs; written by `cargo xtask verify --bless`.\n";
const KERNEL: &str = "# kernel ";

/// Mark of a value that was not measured.
const NONE: &str = "-";

/// The cost of one program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cost {
    /// Instructions that the verifier processed, over all paths; `None` before Linux 5.16, which
    /// does not count them.
    pub(crate) verified: Option<u64>,
    /// Size of the JIT-compiled code in bytes.
    pub(crate) machine_code: u64,
    /// Nanoseconds for a packet of an established flow; `None` for programs without this
    /// measurement, and in a guest.
    pub(crate) nanoseconds: Option<u64>,
}

/// The costs of all programs on one kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Table {
    pub(crate) kernel: String,
    pub(crate) costs: BTreeMap<String, Cost>,
}

/// Tables by kernel series, within which the verifier is the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tables(BTreeMap<(u32, u32), Table>);

impl Tables {
    /// Parses the content of the file.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let mut tables = Self::default();
        let sections = text.match_indices(KERNEL).map(|(at, _)| &text[at..]);
        for section in sections {
            let end = section[KERNEL.len()..].find(KERNEL);
            let own = end.map_or(section, |end| &section[..KERNEL.len() + end]);
            tables.put(Table::parse(own)?);
        }
        Ok(tables)
    }

    /// Formats the content of the file, newest kernel first.
    pub(crate) fn text(&self) -> String {
        let sections = self.0.values().rev().map(Table::text);
        format!("{HEAD}{}", sections.collect::<Vec<_>>().join("\n"))
    }

    /// Inserts a kernel's table, and replaces the one of the same series.
    pub(crate) fn put(&mut self, table: Table) {
        self.0.insert(series(&table.kernel), table);
    }

    /// Lists programs that have grown, are new or are gone, compared with the table of the same
    /// series. Returns `None` if there is no such table.
    pub(crate) fn compare(&self, today: &Table) -> Option<Vec<String>> {
        let before = self.0.get(&series(&today.kernel))?;
        let changes = grown(before, today).into_iter();
        Some(
            changes
                .map(|it| format!("kernel {}: {it}", today.kernel))
                .collect(),
        )
    }
}

impl Table {
    /// Formats the table, for printing and as a section of the file.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("{KERNEL}{}\n", self.kernel);
        let _ = writeln!(
            text,
            "{:<24} {:>12} {:>12} {:>12}",
            "# program", "instructions", "machine code", "ns a packet"
        );
        for (name, cost) in &self.costs {
            let _ = writeln!(
                text,
                "{name:<24} {:>12} {:>12} {:>12}",
                shown(cost.verified),
                cost.machine_code,
                shown(cost.nanoseconds)
            );
        }
        text
    }

    /// Parses one section of the file.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let kernel = text.lines().find_map(|line| line.strip_prefix(KERNEL));
        let kernel = kernel
            .context("the table does not name its kernel")?
            .to_owned();
        let costs = text
            .lines()
            .filter(|line| !line.starts_with('#') && !line.is_empty())
            .map(row)
            .collect::<Result<_>>()?;
        Ok(Self { kernel, costs })
    }
}

fn shown(number: Option<u64>) -> String {
    number.map_or_else(|| NONE.to_owned(), |number| number.to_string())
}

fn parsed(word: &str) -> Result<Option<u64>> {
    (word != NONE)
        .then(|| word.parse().with_context(|| word.to_owned()))
        .transpose()
}

fn row(line: &str) -> Result<(String, Cost)> {
    let [name, verified, machine_code, nanoseconds] =
        line.split_whitespace().collect::<Vec<_>>()[..]
    else {
        bail!("not a row of the table: {line}");
    };
    Ok((
        name.to_owned(),
        Cost {
            verified: parsed(verified)?,
            machine_code: machine_code.parse()?,
            nanoseconds: parsed(nanoseconds)?,
        },
    ))
}

fn grown(before: &Table, after: &Table) -> Vec<String> {
    let mut changes = Vec::new();
    for (name, cost) in &after.costs {
        let Some(old) = before.costs.get(name) else {
            changes.push(format!("{name}: new program"));
            continue;
        };
        // Where the kernel counts them.
        if let (Some(new), Some(old)) = (cost.verified, old.verified)
            && new * 100 > old * (100 + GROWTH_PERCENT)
        {
            changes.push(format!("{name}: {new} instructions, before {old}"));
        }
    }
    let gone = before
        .costs
        .keys()
        .filter(|name| !after.costs.contains_key(*name));
    changes.extend(gone.map(|name| format!("{name}: program is gone")));
    changes
}

/// Returns the major and minor version of a kernel's release.
fn series(kernel: &str) -> (u32, u32) {
    let mut numbers = kernel
        .split(|c: char| !c.is_ascii_digit())
        .map_while(|part| part.parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(kernel: &str, verified: u64) -> Table {
        let cost = Cost {
            verified: Some(verified),
            machine_code: 900,
            nanoseconds: Some(150),
        };
        Table {
            kernel: kernel.to_owned(),
            costs: BTreeMap::from([("from_pod".to_owned(), cost)]),
        }
    }

    #[test]
    fn tables_round_trip_through_text_newest_kernel_first() {
        let mut tables = Tables::default();
        for kernel in ["6.1.192", "6.18.44", "6.12.117+deb12"] {
            tables.put(table(kernel, 1200));
        }
        let text = tables.text();
        assert!(
            Tables::parse(&text).is_ok_and(|read| read == tables),
            "{text}"
        );
        let places: Vec<_> = ["# kernel 6.18", "# kernel 6.12", "# kernel 6.1."]
            .map(|it| text.find(it))
            .into();
        assert!(places.is_sorted(), "{text}");
    }

    #[test]
    fn growth_of_instructions_beyond_a_tenth_is_reported() {
        let mut tables = Tables::default();
        tables.put(table("6.12.3", 1000));
        assert_eq!(tables.compare(&table("6.12.40", 1100)), Some(Vec::new()));
        let changes = tables.compare(&table("6.12.40", 1101));
        let change = "kernel 6.12.40: from_pod: 1101 instructions, before 1000";
        assert_eq!(changes, Some(vec![change.to_owned()]));
        assert_eq!(tables.compare(&table("6.1.3", 9999)), None);
    }

    #[test]
    fn new_and_removed_programs_are_reported() {
        let none = Table {
            kernel: "6.12.3".to_owned(),
            costs: BTreeMap::new(),
        };
        assert_eq!(grown(&none, &table("6.12.3", 1)), ["from_pod: new program"]);
        assert_eq!(
            grown(&table("6.12.3", 1), &none),
            ["from_pod: program is gone"]
        );
    }
}
