//! Harness of the end-to-end tests, the demo and the benchmark: network namespaces as a node and
//! an external host, in which the real agent and the real plugin run.
//!
//! A [`Sandbox`] leaves nothing behind, however it ends: file descriptors hold its network
//! namespaces, its files, sockets and BPF pins are on filesystems of its own mount namespace, and
//! the kernel kills its processes with the thread that started them. So tests run in parallel, and
//! a crash needs no clean-up.
//!
//! The harness uses the public interfaces (flags, files, the CNI protocol, the HTTP API) and none
//! of the code behind them.

#![forbid(unsafe_code)]

mod agent;
pub mod api_server;
pub mod browser;
mod capture;
mod cgroup;
pub mod chain;
mod client_process;
pub mod cluster;
pub mod company;
pub mod compatibility;
mod connection;
pub mod containers;
mod cpus;
mod crash_points;
mod datagram_flood;
mod datagrams;
mod distant_host;
pub mod docker_driver;
mod drop_reasons;
mod echo;
mod expected_drop;
mod forwarded;
mod forwarding_scene;
mod frame_flood;
pub mod hostport_matrix;
pub mod http_server;
mod iperf;
pub mod kube;
pub mod kubernetes;
mod machine;
pub mod manifests;
mod mounts;
mod numbered_datagrams;
mod older_kernels;
mod packet_filter;
mod ping;
mod plugin;
mod pod;
mod process;
mod raw;
pub mod residue;
mod sandbox;
mod skip;
mod sniffer;
mod stream;
mod syn_flood;
mod systemd;
pub mod tcp_segment;
mod tunnel;
mod wait;

pub use agent::{Agent, POD_CIDRS, SOCKET, bpf_object, program};
pub use capture::{Capture, FrameCapture, FrameSender, contains};
pub use cgroup::{Cgroup, in_cgroup};
pub use client_process::{ClientKind, SeenAddresses, connect_from_process};
pub use connection::{Connection, ConnectionLoad};
pub use cpus::{on_cpu, on_each_cpu};
pub use crash_points::CrashPoints;
pub use datagram_flood::DatagramFlood;
pub use datagrams::{
    add_service_rule, count_delivered, enlarge_receive_buffer, set_bridge_netfilter,
};
pub use distant_host::DistantHost;
pub use drop_reasons::{PROVOKED, are_all_provoked};
pub use echo::{
    Echo, any_address, tcp_echo, tcp_source, udp_bound, udp_gets_no_answer, udp_seen_as,
    udp_socket, udp_source,
};
pub use expected_drop::{DropListener, ExpectedDrop, bare_ends};
pub use forwarding_scene::{ForwardingScene, connects};
pub use frame_flood::FrameFlood;
pub use iperf::{Iperf, Throughput, measure, measure_in};
pub use machine::Machine;
pub use mounts::Mounts;
pub use numbered_datagrams::NumberedDatagrams;
pub use older_kernels::{chooses_bind_errors, keeps_departure_times, walks_over_maps};
pub use packet_filter::{PacketFilter, write_rules};
pub use ping::{Rtt, ping, ping_from, ping_source};
pub use plugin::{Answer, Call, CniError, Config, Mapping, Verb};
pub use pod::{Pod, addresses};
pub use process::Process;
pub use raw::{RawPacket, RawSocket};
pub use residue::Residue;
pub use sandbox::{GATEWAYS, NODE, Sandbox, UPLINK, WORLD};
pub use skip::skipped;
pub use sniffer::Sniffer;
pub use stream::{ENDLESS, Sends, Stream};
pub use syn_flood::{FloodRate, SynFlood};
pub use systemd::{CHECKOUT, Systemd};
pub use tcp_segment::TcpSegment;
pub use tunnel::Tunnel;
pub use wait::{bound, deadline, is_slow, patient, until, until_within};
