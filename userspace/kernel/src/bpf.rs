//! eBPF: maps and their entries, programs, where they are attached, and the pins of all of them.

pub(crate) mod batch;
pub(crate) mod cgroup;
pub(crate) mod cgroup_coverage;
pub(crate) mod counters;
pub(crate) mod datapath_reader;
pub(crate) mod drop_reader;
pub(crate) mod encoding;
pub(crate) mod features;
pub(crate) mod flows;
pub(crate) mod instructions;
pub(crate) mod map;
pub(crate) mod offloads;
pub(crate) mod older_flows;
pub(crate) mod pin_migration;
pub(crate) mod pinned_link;
pub(crate) mod pinned_maps;
pub(crate) mod pins;
pub(crate) mod probe_redirect_peer;
pub(crate) mod program_cache;
pub(crate) mod program_load;
pub(crate) mod program_names;
pub(crate) mod programs;
pub(crate) mod table;
pub(crate) mod tables;
pub(crate) mod tcx_fast_path;
pub(crate) mod xdp_prefilter;
