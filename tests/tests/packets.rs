//! The real BPF object, packet by packet, through `BPF_PROG_TEST_RUN`, and the simulator beside it.
//!
//! Needs root. Every test has namespaces, a bpffs and maps of its own.

#[path = "packets/bench.rs"]
mod bench;
#[path = "packets/dialled.rs"]
mod dialled;
#[path = "packets/duplicates.rs"]
mod duplicates;
#[path = "packets/entering.rs"]
mod entering;
#[path = "packets/errors.rs"]
mod errors;
#[path = "packets/expect.rs"]
mod expect;
#[path = "packets/guard.rs"]
mod guard;
#[path = "packets/masquerade.rs"]
mod masquerade;
#[path = "packets/object.rs"]
mod object;
#[path = "packets/pods.rs"]
mod pods;
#[path = "packets/ports.rs"]
mod ports;
#[path = "packets/room.rs"]
mod room;
#[path = "packets/shaping.rs"]
mod shaping;
#[path = "packets/shortcuts.rs"]
mod shortcuts;
#[path = "packets/sources.rs"]
mod sources;
#[path = "packets/sweeping.rs"]
mod sweeping;
#[path = "packets/verifier.rs"]
mod verifier;
