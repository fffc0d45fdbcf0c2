//! Observes what `planner::conditions` decides from: routes of sample packets, IPsec policies,
//! the coverage of the cgroup, and limits of the node and of this process.

use std::time::{Duration, Instant};
use std::{fs, io};

use nix::sys::resource::{Resource, getrlimit};
use steps::{CheckFacts, CheckQuery, SysctlKey, Usage};

use crate::error::{Attempt as _, Failed};
use crate::host::Host;
use crate::{ipsec_policies, observe, route_answers, sysctl};

/// Time for which an overflow of a neighbour table is reported.
const OVERFLOW_TIME: Duration = Duration::from_mins(1);

pub(crate) fn facts(host: &mut Host, query: &CheckQuery) -> Result<CheckFacts, Failed> {
    let routes = route_answers::all(&mut host.netlink, &host.tables.names, &query.routes)
        .attempt(|| "query the routes of sample packets".to_owned())?;
    Ok(CheckFacts {
        routes,
        sysctls: observe::sysctls(&query.sysctls)?,
        ipsec: ipsec_policies::all().attempt(|| "list the IPsec policies".to_owned())?,
        cgroup: (host.sockets.coverage()).attempt(|| "read the cgroups of processes".to_owned())?,
        open_files: Some(open_files().attempt(|| "count the open files".to_owned())?),
        conntrack: conntrack().attempt(|| "count tracked connections".to_owned())?,
        neighbours_overflow: host.neighbours.observe(),
    })
}

/// Returns the number of open files and its limit.
fn open_files() -> io::Result<Usage> {
    let directory = "/proc/self/fd";
    // Since Linux 6.2 the size of the directory is the number of files.
    let used = match fs::metadata(directory)?.len() {
        0 => u64::try_from(fs::read_dir(directory)?.count()).unwrap_or(u64::MAX),
        size => size,
    };
    let (limit, _) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(Usage { used, limit })
}

fn conntrack() -> io::Result<Option<Usage>> {
    let number = |name: &str| {
        let key = SysctlKey(format!("net/netfilter/{name}"));
        let text = sysctl::read(&key)?;
        let parsed = text.map(|text| text.parse::<u64>()).transpose();
        parsed.map_err(io::Error::other)
    };
    let (used, limit) = (number("nf_conntrack_count")?, number("nf_conntrack_max")?);
    // A limit of 0 means that there is none.
    let usage = used.zip(limit.filter(|limit| *limit > 0));
    Ok(usage.map(|(used, limit)| Usage { used, limit }))
}

/// Overflows of the neighbour tables, as far as they were observed.
#[derive(Default)]
pub(crate) struct NeighbourOverflows {
    tables: [Table; 2],
}

#[derive(Default)]
struct Table {
    /// Overflows since the boot.
    count: Option<u64>,
    /// Time of the last increase.
    increased: Option<Instant>,
}

impl NeighbourOverflows {
    /// Returns whether the tables of IPv4 and IPv6 have overflowed in the last minute. The tables
    /// are those of all namespaces, and only the first one shows their statistics.
    fn observe(&mut self) -> [bool; 2] {
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
