//! The committed table: what the verifier of each kernel makes of each program.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context as _, Result, bail};

/// Growth beyond this asks for a decision: make it cheaper, or bless it.
const GROWTH_PERCENT: u64 = 10;

const HEAD: &str =
    "# What the verifier makes of the BPF object; `cargo xtask verify --bless` writes it.\n";
const KERNEL: &str = "# kernel ";

/// In the table, what was not measured.
const NONE: &str = "-";

/// What the kernel says of one program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cost {
    /// Instructions that the verifier walked, over all paths.
    pub(crate) verified: u64,
    /// Bytes of machine code.
    pub(crate) machine_code: u64,
    /// Nanoseconds for a packet of a known flow; not of every program, and not in a guest.
    pub(crate) pace: Option<u64>,
}

/// The costs of all programs, on one kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Table {
    pub(crate) kernel: String,
    pub(crate) costs: BTreeMap<String, Cost>,
}

/// Kernels by series: within one the verifier stays the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tables(BTreeMap<(u32, u32), Table>);

impl Tables {
    /// Reads a file's text.
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

    /// The text of the file.
    pub(crate) fn text(&self) -> String {
        let sections = self.0.values().rev().map(Table::text);
        format!("{HEAD}{}", sections.collect::<Vec<_>>().join("\n"))
    }

    /// Takes a kernel's table in, in the place of an older one of its series.
    pub(crate) fn put(&mut self, table: Table) {
        self.0.insert(series(&table.kernel), table);
    }

    /// What has grown, come or gone since the table of the same series; `None` if there is no such table.
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
    /// As it is printed, and as a section of the file.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("{KERNEL}{}\n", self.kernel);
        let _ = writeln!(
            text,
            "{:<24} {:>12} {:>12} {:>12}",
            "# program", "instructions", "machine code", "ns a packet"
        );
        for (name, cost) in &self.costs {
            let pace = cost
                .pace
                .map_or_else(|| NONE.to_owned(), |pace| pace.to_string());
            let _ = writeln!(
                text,
                "{name:<24} {:>12} {:>12} {pace:>12}",
                cost.verified, cost.machine_code
            );
        }
        text
    }

    /// Reads one section.
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

fn row(line: &str) -> Result<(String, Cost)> {
    let [name, verified, machine_code, pace] = line.split_whitespace().collect::<Vec<_>>()[..]
    else {
        bail!("not a row of the table: {line}");
    };
    Ok((
        name.to_owned(),
        Cost {
            verified: verified.parse()?,
            machine_code: machine_code.parse()?,
            pace: match pace {
                NONE => None,
                number => Some(number.parse()?),
            },
        },
    ))
}

fn grown(before: &Table, after: &Table) -> Vec<String> {
    let mut changes = Vec::new();
    for (name, cost) in &after.costs {
        match before.costs.get(name) {
            Some(old) if cost.verified * 100 > old.verified * (100 + GROWTH_PERCENT) => changes
                .push(format!(
                    "{name}: {} instructions, and they were {}",
                    cost.verified, old.verified
                )),
            Some(_) => {}
            None => changes.push(format!("{name}: is new")),
        }
    }
    let gone = before
        .costs
        .keys()
        .filter(|name| !after.costs.contains_key(*name));
    changes.extend(gone.map(|name| format!("{name}: is gone")));
    changes
}

/// The part of a kernel's release within which the verifier stays the same.
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
            verified,
            machine_code: 900,
            pace: Some(150),
        };
        Table {
            kernel: kernel.to_owned(),
            costs: BTreeMap::from([("from_pod".to_owned(), cost)]),
        }
    }

    #[test]
    fn tables_read_as_they_were_written_newest_kernel_first() {
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
    fn growth_within_a_tenth_passes_and_beyond_it_is_named() {
        let mut tables = Tables::default();
        tables.put(table("6.12.3", 1000));
        assert_eq!(tables.compare(&table("6.12.40", 1100)), Some(Vec::new()));
        let changes = tables.compare(&table("6.12.40", 1101));
        let told = "kernel 6.12.40: from_pod: 1101 instructions, and they were 1000";
        assert_eq!(changes, Some(vec![told.to_owned()]));
        assert_eq!(tables.compare(&table("6.1.3", 9999)), None);
    }

    #[test]
    fn programs_that_come_and_go_are_named() {
        let none = Table {
            kernel: "6.12.3".to_owned(),
            costs: BTreeMap::new(),
        };
        assert_eq!(grown(&none, &table("6.12.3", 1)), ["from_pod: is new"]);
        assert_eq!(grown(&table("6.12.3", 1), &none), ["from_pod: is gone"]);
    }
}
