//! The stages as a table, and as an interface: the BPF object calls each as a separately verified
//! function, and the simulator directly.
//!
//! The table is the only place that lists them. What is made of it: the trait here, the simulator's
//! implementation, and the functions of the BPF object with their calls.

use abi::Direction;

use crate::eviction::Search;
use crate::flow_cache::{CacheHit, CacheLookup};
use crate::hooks;
use crate::outcome::{Decision, Verdict};
use crate::work::{Content, Fit, Hook, HostportMatch, Lack, Origin};

/// Gives the table of stages to a macro: name, arguments and output of each function of
/// [`crate::stages`], without packet, node and scratch memory.
///
/// The first word is for the BPF object alone: how a stage writes to the packet, `in_place` or by
/// helpers.
#[macro_export]
macro_rules! for_each_stage {
    ($declare:ident) => {
        $declare! {
            in_place parse_pod() -> Decision<Content>;
            in_place identify_pod() -> u32;
            in_place may_be_forbidden() -> bool;
            in_place check_received_policy(content: Decision<Content>) -> Decision<()>;
            in_place check_duplicate() -> Decision<()>;
            in_place needs_flow_to_enter() -> bool;
            in_place check_received(content: Decision<Content>) -> Decision<()>;
            in_place check_entering() -> Decision<()>;
            in_place allow_sent(is_translated: bool, is_passed: bool) -> Decision<()>;
            in_place allow_left() -> Decision<()>;
            in_place allow_redirected() -> Decision<()>;
            in_place allow_received(content: Decision<Content>) -> Decision<()>;
            in_place parse_received() -> Decision<Content>;
            in_place may_be_translated() -> bool;
            in_place translatable(content: Decision<Content>) -> Content;
            in_place parse_uplink() -> Decision<Content>;
            in_place parse_entering() -> Decision<Content>;
            in_place check_sender(content: Content) -> Decision<bool>;
            in_place find_datagram(hook: Hook) -> Decision<Content>;
            in_place update_datagram(has_order: bool) -> Decision<()>;
            in_place write_datagram(hook: Hook) -> Content;
            in_place hold_fragment() -> bool;
            in_place release_fragment(place: u32) -> ();
            in_place identify_fragment(is_translated: bool) -> Decision<()>;
            in_place charge(direction: Direction) -> Decision<()>;
            in_place charge_receiver() -> Decision<()>;
            in_place check_policy() -> Decision<()>;
            in_place find_flow(hook: Hook) -> bool;
            in_place find_quoted_flow(hook: Hook) -> bool;
            in_place check_quoted_hostport() -> Decision<()>;
            in_place origin() -> Decision<Origin>;
            in_place choose_source() -> Decision<()>;
            in_place keep_node_address() -> ();
            in_place track() -> Decision<()>;
            in_place try_port(attempt: u32) -> Decision<bool>;
            in_place check_outside_source() -> Decision<()>;
            in_place find_hostport() -> Decision<HostportMatch>;
            in_place try_port_from_outside(attempt: u32) -> Decision<bool>;
            in_place find_hostport_from_pod() -> Decision<HostportMatch>;
            in_place try_port_from_pod(attempt: u32) -> Decision<bool>;
            in_place check_fit() -> Decision<Fit>;
            in_place find_forwarded_reply() -> bool;
            in_place redirect_to_pod() -> Verdict;
            in_place bypass_from_pod() -> Verdict;
            in_place find_bypass_translation(uplink: u32) -> bool;
            in_place check_exit() -> Decision<()>;
            in_place bypass_to_pod() -> Verdict;
            in_place start_advance() -> Search;
            in_place finish_advance() -> ();
            in_place start_eviction() -> ();
            in_place inspect_flow(search: Search) -> bool;
            in_place finish_eviction() -> bool;
            in_place take_port() -> bool;
            in_place translate() -> Decision<()>;
            in_place translate_quote() -> Decision<()>;
            in_place translate_error(hook: Hook) -> Decision<()>;
            new translate_received() -> Decision<()>;
            new translate_received_quote() -> Decision<()>;
            new translate_received_error() -> Decision<()>;
            in_place cache_verdict(hook: Hook, number: u64) -> ();
            in_place count_and_cache(number: u64) -> ();
            in_place samples_delivered() -> bool;
            in_place report_delivered() -> ();
            in_place propagate(index: u32) -> ();
            in_place count(direction: Direction, verdict: Verdict) -> ();
        }
    };
}

macro_rules! declare {
    ($($access:ident $name:ident($($argument:ident: $type:ty),*) -> $output:ty;)+) => {
        /// The stages of one packet at one hook. See [`crate::stages`] for each of them.
        pub trait HookStages {
            $(
                #[doc = concat!("[`crate::stages::", stringify!($name), "`].")]
                fn $name(&mut self $(, $argument: $type)*) -> $output;
            )+
            /// [`crate::Packet::is_tagged`].
            fn is_tagged(&self) -> bool;
            /// Returns whether network policies apply to pods of the node.
            fn has_policies(&self) -> bool;
            /// [`crate::stages::lookup_cache`].
            fn lookup_cache(&mut self, hook: Hook) -> CacheLookup;
            /// [`crate::stages::apply_cache_hit`].
            fn apply_cache_hit(&mut self, hit: CacheHit) -> Verdict;

            // Orders of stages. The verifier walks each once, and not wherever a hook calls it.

            /// [`hooks::forward_to_pod`].
            #[inline(always)]
            fn forward_to_pod(&mut self) -> Verdict
            where
                Self: Sized,
            {
                hooks::forward_to_pod(self)
            }
            /// [`hooks::advance_clock_hand`].
            #[inline(always)]
            fn advance_clock_hand(&mut self)
            where
                Self: Sized,
            {
                hooks::advance_clock_hand(self);
            }
            /// [`hooks::evict`].
            #[inline(always)]
            fn evict(&mut self, lack: Lack) -> bool
            where
                Self: Sized,
            {
                hooks::evict(self, lack)
            }
        }
    };
}

for_each_stage!(declare);
