//! The harness of the end-to-end tests and of the demo: a node and an outside world made of namespaces, in which
//! the real agent and the real plugin run.
//!
//! A [`Sandbox`] leaves nothing behind, however it ends: its network namespaces are held by file descriptors, its
//! files, sockets and BPF pins lie on filesystems of its own mount namespace, and its processes die with the thread
//! that watches over them. So tests run side by side, and a crash needs no cleaning up.
//!
//! The harness knows the interfaces that people rely on (flags, files, the CNI protocol, the HTTP API) and nothing
//! of the code behind them.

#![forbid(unsafe_code)]

mod agent;
mod capture;
mod cgroup;
pub mod chain;
mod chatter;
pub mod containers;
mod conversation;
mod cpus;
mod datagrams;
mod dial;
mod drip;
mod echo;
mod far;
mod iperf;
mod machine;
pub mod matrix;
mod mounts;
mod ping;
mod plugin;
mod pod;
mod points;
mod process;
mod raw;
pub mod residue;
mod sandbox;
mod skip;
mod sniffer;
mod stream;
mod tunnel;
mod wait;

pub use agent::{Agent, POD_CIDRS, SOCKET, program};
pub use capture::{Capture, Wire};
pub use cgroup::{Cgroup, within};
pub use chatter::Chatter;
pub use conversation::{Conversation, Load};
pub use cpus::{on_cpu, on_each_cpu};
pub use datagrams::{delivered, filter_bridges, make_roomy, publish_service};
pub use dial::{By, Met, dial};
pub use drip::Drip;
pub use echo::{Echo, tcp_ask, tcp_source, udp_ask, udp_is_silent, udp_socket, udp_source};
pub use far::Far;
pub use iperf::{Iperf, Throughput, measure, measure_in};
pub use machine::Machine;
pub use mounts::Mounts;
pub use ping::{Rtt, ping, ping_from, ping_source};
pub use plugin::{Answer, Call, CniError, Config, Mapping, Verb};
pub use pod::{Pod, addresses};
pub use points::Points;
pub use process::Process;
pub use raw::{Heard, Raw};
pub use residue::Residue;
pub use sandbox::{GATEWAYS, NODE, Sandbox, UPLINK, WORLD};
pub use skip::skipped;
pub use sniffer::Sniffer;
pub use stream::{ENDLESS, Sends, Stream};
pub use tunnel::Tunnel;
pub use wait::{deadline, is_slow, patient, until, until_within};
