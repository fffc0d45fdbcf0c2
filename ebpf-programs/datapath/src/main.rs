//! The BPF object: connects the decisions of `verdict` to maps, helpers and hooks, and decides
//! nothing itself.
//!
//! Built for `bpfel-unknown-none` by `cargo xtask build`. For any other target it is an empty
//! program, so that the workspace builds without the BPF toolchain.
//!
//! - `maps`: every map, by name.
//! - `kernel`: the packet behind BPF helpers; `node`: the node's tables; with `memory`, `route`,
//!   `lookup` and `atomic`.
//! - `stages`: one separately verified function per stage of `verdict`.
//! - One file per traffic control program, `xdp_prefilter` in front of them, and `sweep`.
//! - `drop_counters`: dropped packets by pod and reason; `drop_log` reports them to the agent.
//! - `log`: the datapath log.
//! - `fragment_store`: datagrams and held fragments.
//! - `shape`: limits and buckets behind `verdict`'s traits; `flow_cache`: the per-CPU flow cache.
//! - `socket`: the context of cgroup address programs; `hostport_from_node`, `bind` and `pace` are
//!   the cgroup programs.

#![cfg_attr(
    target_arch = "bpf",
    no_std,
    no_main,
    feature(core_intrinsics, asm_experimental_arch)
)]
#![cfg_attr(
    target_arch = "bpf",
    expect(
        internal_features,
        reason = "the target has atomic add, but core's atomic types do not offer it there"
    )
)]

#[cfg(target_arch = "bpf")]
mod action;
#[cfg(target_arch = "bpf")]
mod atomic;
#[cfg(target_arch = "bpf")]
mod bind;
#[cfg(target_arch = "bpf")]
mod drop_counters;
#[cfg(target_arch = "bpf")]
mod drop_log;
#[cfg(target_arch = "bpf")]
mod flow_cache;
#[cfg(target_arch = "bpf")]
mod fragment_store;
#[cfg(target_arch = "bpf")]
mod from_busy_pod;
#[cfg(target_arch = "bpf")]
mod from_pod;
#[cfg(target_arch = "bpf")]
mod hostport_from_node;
#[cfg(target_arch = "bpf")]
mod kernel;
#[cfg(target_arch = "bpf")]
mod log;
#[cfg(target_arch = "bpf")]
mod lookup;
#[cfg(target_arch = "bpf")]
mod maps;
#[cfg(target_arch = "bpf")]
mod memory;
#[cfg(target_arch = "bpf")]
mod node;
#[cfg(target_arch = "bpf")]
mod pace;
#[cfg(target_arch = "bpf")]
mod pending;
#[cfg(target_arch = "bpf")]
mod route;
#[cfg(target_arch = "bpf")]
mod shape;
#[cfg(target_arch = "bpf")]
mod socket;
#[cfg(target_arch = "bpf")]
mod stages;
#[cfg(target_arch = "bpf")]
mod sweep;
#[cfg(target_arch = "bpf")]
mod to_pod;
#[cfg(target_arch = "bpf")]
mod uplink_in;
#[cfg(target_arch = "bpf")]
mod uplink_out;
#[cfg(target_arch = "bpf")]
mod xdp_prefilter;

/// Nothing to run: the crate's product is the BPF object.
#[cfg(not(target_arch = "bpf"))]
fn main() {}

/// The kernel restricts some helpers to GPL-compatible programs.
#[cfg(target_arch = "bpf")]
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 4] = *b"GPL\0";

/// Never reached: a panic would be an endless loop, and the verifier rejects the program.
#[cfg(target_arch = "bpf")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
