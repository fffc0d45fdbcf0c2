//! Programs and filters of others that come behind ours where an uplink's packets come in: what ours hands to pods, they do
//! not see.
//!
//! Only looks. A program that comes before ours sees all packets, and so does each on the way out, where ours is the first.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

use aya::programs::{ProgramInfo, SchedClassifier, TcAttachType};
use model::IfName;
use planner::{Hook, Link};

use crate::netlink::Netlink;
use crate::programs::way_in;
use crate::raw::ProgramLink;
use crate::{filters, links};

/// Programs that are attached by TCX behind those whose links are pinned in this directory, in words.
pub(crate) fn programs(directory: &Path) -> io::Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        // A link that has just gone has no name, and no programs.
        let Some(name) = way_in(&entry.file_name()).and_then(links::name_of) else {
            continue;
        };
        let Some(pinned) = ProgramLink::open(&entry.path())? else {
            continue;
        };
        let ours = pinned.linked()?.program;
        let all = SchedClassifier::query_tcx(name.as_str(), TcAttachType::Ingress)
            .map(|(_, programs)| programs)
            .unwrap_or_default();
        found.extend(behind(&all, ours).map(|theirs| {
            let program = theirs.name_as_str().unwrap_or_default();
            format!("{name}: program {program} of others, behind ours")
        }));
    }
    Ok(found)
}

fn behind(all: &[ProgramInfo], ours: u32) -> impl Iterator<Item = &ProgramInfo> {
    all.iter()
        .skip_while(move |program| program.id() != ours)
        .skip(1)
}

/// Filters behind our program of all links that have it, in words.
pub(crate) fn filters<'a>(
    netlink: &mut Netlink,
    all: impl IntoIterator<Item = (&'a IfName, &'a Link)>,
) -> io::Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for (name, link) in all {
        if !link.hooks.contains(&Hook::UplinkIn) {
            continue;
        }
        let kinds = filters::behind_ours(netlink, link.index)?;
        let in_words = |kind| format!("{name}: filter ({kind}) of others, behind ours");
        found.extend(kinds.into_iter().map(in_words));
    }
    Ok(found)
}
