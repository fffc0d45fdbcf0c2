//! Finds foreign TCX programs and clsact filters that run after ours on the ingress of an uplink.
//!
//! They do not see the packets that our program redirects to pods. Reads only. Foreign programs
//! that run before ours see all packets, and so do those on egress, where ours runs first.

use std::collections::BTreeSet;
use std::path::Path;
use std::{fs, io};

use aya::programs::{ProgramInfo, SchedClassifier, TcAttachType};
use model::IfName;
use steps::{Hook, NodeLink};

use crate::bpf::programs::ingress_index;
use crate::netlink::socket::Netlink;
use crate::netlink::{clsact, links};
use crate::syscall::ProgramLink;

/// Returns descriptions of the foreign TCX programs that run after ours, whose links are pinned in
/// `directory`.
pub(crate) fn programs(directory: &Path) -> io::Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        // A link that is already gone has no name and no programs.
        let Some(name) = ingress_index(&entry.file_name()).and_then(links::name_of) else {
            continue;
        };
        let Some(pinned) = ProgramLink::open(&entry.path())? else {
            continue;
        };
        let ours = pinned.linked()?.program;
        let all = SchedClassifier::query_tcx(name.as_str(), TcAttachType::Ingress)
            .map(|(_, programs)| programs)
            .unwrap_or_default();
        found.extend(after_ours(&all, ours).map(|foreign| {
            let program = foreign.name_as_str().unwrap_or_default();
            format!("{name}: foreign TCX program {program} after ours")
        }));
    }
    Ok(found)
}

fn after_ours(all: &[ProgramInfo], ours: u32) -> impl Iterator<Item = &ProgramInfo> {
    all.iter()
        .skip_while(move |program| program.id() != ours)
        .skip(1)
}

/// Returns descriptions of the foreign filters that run after our program, on all links that have
/// it.
pub(crate) fn filters<'a>(
    netlink: &mut Netlink,
    all: impl IntoIterator<Item = (&'a IfName, &'a NodeLink)>,
) -> io::Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for (name, link) in all {
        if !link.hooks.contains(&Hook::UplinkIn) {
            continue;
        }
        let kinds = clsact::foreign_after_ours(netlink, link.index)?;
        let describe = |kind| format!("{name}: foreign filter ({kind}) after ours");
        found.extend(kinds.into_iter().map(describe));
    }
    Ok(found)
}
