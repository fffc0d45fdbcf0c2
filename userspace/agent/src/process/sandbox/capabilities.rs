//! Capabilities that the agent keeps (decision 108).

use anyhow::Result;
use caps::{CapSet, Capability};
use nix::sys::prctl;

/// Capabilities of the agent after its start:
///
/// * `CHOWN`: port reservations have a user id of their own, and so does the read-only socket a
///   group.
/// * `NET_ADMIN`: netlink, nftables, sysctls below `net`, and TC and XDP programs.
/// * `NET_BIND_SERVICE`: reservations of hostports below 1024.
/// * `NET_RAW`: ARP and neighbour announcements in pods; `getsockopt` for the tables of legacy
///   iptables, which needs a raw socket.
/// * `SYS_ADMIN`: `setns` into pods, which has no narrower capability. It includes what `bpf`
///   needs, so `BPF` and `PERFMON` would add nothing.
/// * `SYS_PTRACE`: `/proc/<pid>/ns/net` of processes that have another user or more capabilities:
///   as path of a pod's namespace, and to find processes outside of the cgroup.
const KEPT: [Capability; 6] = [
    Capability::CAP_CHOWN,
    Capability::CAP_NET_ADMIN,
    Capability::CAP_NET_BIND_SERVICE,
    Capability::CAP_NET_RAW,
    Capability::CAP_SYS_ADMIN,
    Capability::CAP_SYS_PTRACE,
];

/// Drops all capabilities but [`KEPT`] from every set of the calling thread, and sets
/// `no_new_privs`. Capabilities of [`KEPT`] that the thread does not have are not added.
pub(super) fn reduce() -> Result<()> {
    // First, while the thread has CAP_SETPCAP. A container without it has a bounding set that its
    // runtime has chosen; with `no_new_privs` the set then has no effect.
    for capability in caps::read(None, CapSet::Bounding)? {
        if KEPT.contains(&capability)
            || !caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP)?
        {
            continue;
        }
        caps::drop(None, CapSet::Bounding, capability)?;
    }
    caps::clear(None, CapSet::Ambient)?;
    caps::clear(None, CapSet::Inheritable)?;
    let permitted = caps::read(None, CapSet::Permitted)?;
    let kept = permitted
        .into_iter()
        .filter(|capability| KEPT.contains(capability))
        .collect();
    // Effective capabilities must be permitted ones.
    caps::set(None, CapSet::Effective, &kept)?;
    caps::set(None, CapSet::Permitted, &kept)?;
    Ok(prctl::set_no_new_privs()?)
}

/// Returns the names of the capabilities in a bit set, lower case without prefix, in the order of
/// their numbers.
pub(super) fn names(bits: u64) -> Vec<String> {
    let mut all: Vec<Capability> = caps::all().into_iter().collect();
    all.sort_by_key(Capability::index);
    all.iter()
        .filter(|capability| bits & capability.bitmask() != 0)
        .map(|capability| {
            let name = capability.to_string().to_lowercase();
            name.strip_prefix("cap_").unwrap_or(&name).to_owned()
        })
        .collect()
}
