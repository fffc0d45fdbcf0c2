//! Observes what `planner::conditions` decides from: routes of sample packets, IPsec policies,
//! the coverage of the cgroup, and limits of the node and of this process.

pub(crate) mod neighbour_overflows;

use std::{fs, io};

use nix::sys::resource::{Resource, getrlimit};
use steps::{CheckFacts, CheckQuery, SysctlKey, Usage};

use crate::error::{Attempt as _, Failed};
use crate::foreign::ipsec_policies;
use crate::host::Host;
use crate::netlink::route_lookup;
use crate::{observe, sysctl};

pub(crate) fn facts(host: &mut Host, query: &CheckQuery) -> Result<CheckFacts, Failed> {
    let routes = route_lookup::all(&mut host.netlink, &host.tables.names, &query.routes)
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
