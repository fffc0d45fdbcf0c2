//! The compiled BPF object against the simulator, packet by packet, through `BPF_PROG_TEST_RUN`.
//!
//! Needs root. Every test has its own namespaces, bpffs and maps.

#[path = "packets/bench.rs"]
mod bench;
#[path = "packets/duplicates.rs"]
mod duplicates;
#[path = "packets/eviction.rs"]
mod eviction;
#[path = "packets/expect.rs"]
mod expect;
#[path = "packets/flow_cache.rs"]
mod flow_cache;
#[path = "packets/from_outside.rs"]
mod from_outside;
#[path = "packets/hostport_from_pod.rs"]
mod hostport_from_pod;
#[path = "packets/icmp_and_fragments.rs"]
mod icmp_and_fragments;
#[path = "packets/masquerade.rs"]
mod masquerade;
#[path = "packets/mtu.rs"]
mod mtu;
#[path = "packets/object.rs"]
mod object;
#[path = "packets/pods.rs"]
mod pods;
#[path = "packets/ports.rs"]
mod ports;
#[path = "packets/shaping.rs"]
mod shaping;
#[path = "packets/sources.rs"]
mod sources;
#[path = "packets/sweep.rs"]
mod sweep;
#[path = "packets/verifier.rs"]
mod verifier;
#[path = "packets/xdp_prefilter.rs"]
mod xdp_prefilter;
