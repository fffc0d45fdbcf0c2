//! Overflows of the neighbour tables.

use std::fs;
use std::time::{Duration, Instant};

/// Overflows of the neighbour tables, as far as they were observed.
#[derive(Default)]
pub(crate) struct NeighbourOverflows {
    tables: [Table; 2],
}

impl NeighbourOverflows {
    /// Returns whether the tables of IPv4 and IPv6 have overflowed in the last minute. The tables
    /// are those of all namespaces, and only the first one shows their statistics.
    pub(crate) fn observe(&mut self) -> [bool; 2] {
        let names = ["arp_cache", "ndisc_cache"];
        for (table, name) in self.tables.iter_mut().zip(names) {
            let path = format!("/proc/thread-self/net/stat/{name}");
            let text = fs::read_to_string(path).unwrap_or_default();
            table.update(table_fulls(&text));
        }
        let now = |table: &Table| {
            let increased = table.increased;
            increased.is_some_and(|at| at.elapsed() < OVERFLOW_TIME)
        };
        [now(&self.tables[0]), now(&self.tables[1])]
    }
}

/// Time for which an overflow of a neighbour table is reported.
const OVERFLOW_TIME: Duration = Duration::from_mins(1);

#[derive(Default)]
struct Table {
    /// Overflows since the boot.
    count: Option<u64>,
    /// Time of the last increase.
    increased: Option<Instant>,
}

impl Table {
    fn update(&mut self, count: Option<u64>) {
        if let (Some(before), Some(now)) = (self.count, count)
            && now > before
        {
            self.increased = Some(Instant::now());
        }
        self.count = count;
    }
}

/// Returns the sum of the column `table_fulls` over all CPUs; `None` if there is none. Numbers are
/// hexadecimal.
fn table_fulls(text: &str) -> Option<u64> {
    let mut lines = text.lines();
    let mut titles = lines.next()?.split_whitespace();
    let column = titles.position(|title| title == "table_fulls")?;
    let counts = lines.filter_map(|line| {
        let word = line.split_whitespace().nth(column)?;
        u64::from_str_radix(word, 16).ok()
    });
    Some(counts.sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overflows_of_the_neighbour_table_are_summed_over_cpus() {
        let text = "entries  allocs table_fulls\n\
                    00000005 00000010 0000000a\n\
                    00000005 00000010 00000001\n";
        assert_eq!(table_fulls(text), Some(11));
        assert_eq!(table_fulls("entries allocs\n5 5\n"), None);
        assert_eq!(table_fulls(""), None);
    }

    #[test]
    fn an_overflow_before_the_first_observation_of_the_neighbour_table_does_not_count() {
        let mut table = Table::default();
        table.update(Some(7));
        assert!(table.increased.is_none());
        table.update(Some(7));
        assert!(table.increased.is_none());
        table.update(Some(8));
        assert!(table.increased.is_some());
    }
}
