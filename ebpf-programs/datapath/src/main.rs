//! The BPF object.
#![cfg_attr(target_arch = "bpf", no_std, no_main)]

#[cfg(not(target_arch = "bpf"))]
fn main() {}

#[cfg(target_arch = "bpf")]
mod object {
    use aya_ebpf::{
        macros::{classifier, map},
        maps::HashMap,
        programs::TcContext,
    };
    #[map]
    static FLOWS: HashMap<abi::Tuple, abi::Flow> = HashMap::pinned(abi::maps::FLOWS_CAPACITY, 0);
    #[classifier]
    pub fn from_pod(ctx: TcContext) -> i32 {
        let _ = FLOWS.insert(
            &abi::Tuple::default(),
            &abi::Flow {
                packets: ctx.len() as u64,
                ..Default::default()
            },
            0,
        );
        -1
    }
    #[panic_handler]
    fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
        loop {}
    }
    #[unsafe(link_section = "license")]
    #[unsafe(no_mangle)]
    static LICENSE: [u8; 4] = *b"GPL\0";
}
