//! One global function per stage, and the hook that calls them.
//!
//! The kernel verifies a global function once, by itself, with unknown arguments. Inlined, the same
//! stages make the verifier walk the product of their paths, and it gives up. Such a function takes
//! the context and numbers, and nothing else: pointers would reach maps as memory of unknown
//! origin, which Linux 6.1 refuses as a map key. Stages pass each other everything else in the
//! scratch memory.
//!
//! Only the cache lookup, and the rewrite of a hit, are part of the programs themselves. They come
//! first, so they multiply no paths, and most packets need no call at all.

use abi::Direction;
use aya_ebpf::bindings::__sk_buff;
use verdict::flow_cache::{CacheHit, CacheLookup, ScratchProvider};
use verdict::{
    Code, Content, Decision, Fit, Hook, HookStages, HostportMatch, Lack, Origin, Packet as _,
    Search, Verdict, Work, for_each_stage, has_policies, hooks, stages,
};

use crate::kernel::Kernel;
use crate::log;
use crate::maps::{self, Scratch};

/// Access to this CPU's scratch memory.
pub(crate) struct PerCpuScratch;

impl ScratchProvider for PerCpuScratch {
    #[inline(always)]
    fn work(&mut self) -> Option<&mut Work> {
        maps::work(Scratch::Packet)
    }
}

/// The stages of one packet.
pub(crate) struct Stages {
    skb: *mut __sk_buff,
}

impl Stages {
    /// Returns the stages of the packet that a program was called with.
    #[inline(always)]
    pub(crate) const fn new(skb: *mut __sk_buff) -> Self {
        Self { skb }
    }
}

/// The global function of each stage. A type, so that the hook's methods can have the same names.
struct Functions;

macro_rules! implement {
    ($($access:ident $name:ident($($argument:ident: $type:ty),*) -> $output:ty;)+) => {
        impl Functions {
            $(
                #[unsafe(export_name = concat!("stage_", stringify!($name)))]
                #[inline(never)]
                extern "C" fn $name(skb: *mut __sk_buff $(, $argument: u64)*) -> u64 {
                    let kernel = &mut Kernel::$access(skb);
                    // The compiler would not pass a context that the stage does not use, and the
                    // verifier requires one.
                    kernel.touch_context();
                    let Some(work) = maps::work(Scratch::Packet) else {
                        return 0;
                    };
                    stages::$name(kernel, work $(, <$type>::from_code($argument))*).code()
                }
            )+
        }

        impl HookStages for Stages {
            $(
                #[inline(always)]
                fn $name(&mut self $(, $argument: $type)*) -> $output {
                    Code::from_code(Functions::$name(self.skb $(, $argument.code())*))
                }
            )+

            #[inline(always)]
            fn is_tagged(&self) -> bool {
                Kernel::in_place(self.skb).is_tagged()
            }

            #[inline(always)]
            fn has_policies(&self) -> bool {
                has_policies(&Kernel::in_place(self.skb))
            }

            #[inline(always)]
            fn lookup_cache(&mut self, hook: Hook) -> CacheLookup {
                let kernel = &mut Kernel::in_place(self.skb);
                stages::lookup_cache(kernel, &mut PerCpuScratch, kernel.hook_interface(), hook)
            }

            #[inline(always)]
            fn apply_cache_hit(&mut self, hit: CacheHit) -> Verdict {
                let (index, bytes) = (hit.index.code(), hit.bytes.code());
                Code::from_code(stage_apply_cache_hit(self.skb, index, bytes))
            }

            #[inline(always)]
            fn forward_to_pod(&mut self) -> Verdict {
                Code::from_code(stage_forward_to_pod(self.skb))
            }

            #[inline(always)]
            fn advance_clock_hand(&mut self) {
                stage_advance_clock_hand(self.skb);
            }

            #[inline(always)]
            fn evict(&mut self, lack: Lack) -> bool {
                Code::from_code(stage_evict(self.skb, lack.code()))
            }
        }
    };
}

for_each_stage!(implement);

/// Not by the macro: it needs no scratch memory.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn stage_apply_cache_hit(skb: *mut __sk_buff, index: u64, bytes: u64) -> u64 {
    let kernel = &mut Kernel::in_place(skb);
    kernel.touch_context();
    let hit = CacheHit {
        index: u32::from_code(index),
        bytes: u32::from_code(bytes),
    };
    stages::apply_cache_hit(kernel, &mut PerCpuScratch, hit).code()
}

// Not by the macro: these call other stages only, which are verified once each.

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn stage_forward_to_pod(skb: *mut __sk_buff) -> u64 {
    hooks::forward_to_pod(&mut Stages::new(skb)).code()
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn stage_advance_clock_hand(skb: *mut __sk_buff) -> u64 {
    // Called for each flow that was inserted, and for no other packet.
    log::flow_opened(skb);
    hooks::advance_clock_hand(&mut Stages::new(skb));
    0
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn stage_evict(skb: *mut __sk_buff, lack: u64) -> u64 {
    hooks::evict(&mut Stages::new(skb), Lack::from_code(lack)).code()
}
