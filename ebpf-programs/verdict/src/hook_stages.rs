//! The stages as an interface: the BPF object calls each as a separately verified function, and the
//! simulator directly.

use abi::Direction;

use crate::flow_cache::{CacheHit, CacheLookup};
use crate::outcome::{Decision, Verdict};
use crate::work::{Content, Fit, Hook, HostportMatch, Lack, Origin};

/// The stages of one packet at one hook. See [`crate::stages`] for each of them.
pub trait HookStages {
    /// [`crate::stages::parse_pod`].
    fn parse_pod(&mut self) -> Decision<Content>;
    /// [`crate::stages::identify_pod`].
    fn identify_pod(&mut self) -> u32;
    /// [`crate::stages::check_received_policy`].
    fn check_received_policy(&mut self) -> Decision<()>;
    /// [`crate::stages::check_duplicate`].
    fn check_duplicate(&mut self) -> Decision<()>;
    /// [`crate::stages::check_received`].
    fn check_received(&mut self) -> Decision<()>;
    /// [`crate::stages::check_entering`].
    fn check_entering(&mut self) -> Decision<()>;
    /// [`crate::stages::parse_received`].
    fn parse_received(&mut self) -> Content;
    /// [`crate::stages::parse_uplink`].
    fn parse_uplink(&mut self) -> Decision<Content>;
    /// [`crate::stages::parse_entering`].
    fn parse_entering(&mut self) -> Decision<Content>;
    /// [`crate::stages::check_sender`].
    fn check_sender(&mut self, content: Content) -> Decision<bool>;
    /// [`crate::stages::find_datagram`].
    fn find_datagram(&mut self, hook: Hook) -> Decision<Content>;
    /// [`crate::stages::update_datagram`].
    fn update_datagram(&mut self, has_order: bool) -> Decision<()>;
    /// [`crate::stages::write_datagram`].
    fn write_datagram(&mut self, hook: Hook) -> Content;
    /// [`crate::stages::hold_fragment`].
    fn hold_fragment(&mut self) -> bool;
    /// [`crate::stages::release_fragment`].
    fn release_fragment(&mut self, place: u32);
    /// [`crate::stages::identify_fragment`].
    fn identify_fragment(&mut self, is_translated: bool) -> Decision<()>;
    /// [`crate::Packet::is_tagged`].
    fn is_tagged(&self) -> bool;
    /// [`crate::stages::charge`].
    fn charge(&mut self, direction: Direction) -> Decision<()>;
    /// [`crate::stages::charge_receiver`].
    fn charge_receiver(&mut self) -> Decision<()>;
    /// [`crate::stages::check_policy`].
    fn check_policy(&mut self) -> Decision<()>;
    /// [`crate::stages::find_flow`].
    fn find_flow(&mut self, hook: Hook) -> bool;
    /// [`crate::stages::find_quoted_flow`].
    fn find_quoted_flow(&mut self, hook: Hook) -> bool;
    /// [`crate::stages::check_quoted_hostport`].
    fn check_quoted_hostport(&mut self) -> Decision<()>;
    /// [`crate::stages::origin`].
    fn origin(&mut self) -> Decision<Origin>;
    /// [`crate::stages::choose_source`].
    fn choose_source(&mut self) -> Decision<()>;
    /// [`crate::stages::keep_node_address`].
    fn keep_node_address(&mut self);
    /// [`crate::stages::track`].
    fn track(&mut self) -> Decision<()>;
    /// [`crate::stages::try_port`].
    fn try_port(&mut self, attempt: u32) -> Decision<bool>;
    /// [`crate::stages::check_outside_source`].
    fn check_outside_source(&mut self) -> Decision<()>;
    /// [`crate::stages::find_hostport`].
    fn find_hostport(&mut self) -> Decision<HostportMatch>;
    /// [`crate::stages::try_port_from_outside`].
    fn try_port_from_outside(&mut self, attempt: u32) -> Decision<bool>;
    /// [`crate::stages::find_hostport_from_pod`].
    fn find_hostport_from_pod(&mut self) -> Decision<HostportMatch>;
    /// [`crate::stages::try_port_from_pod`].
    fn try_port_from_pod(&mut self, attempt: u32) -> Decision<bool>;
    /// [`crate::stages::check_fit`].
    fn check_fit(&mut self) -> Decision<Fit>;
    /// [`crate::stages::find_forwarded_reply`].
    fn find_forwarded_reply(&mut self) -> bool;
    /// [`crate::stages::redirect_to_pod`].
    fn redirect_to_pod(&mut self) -> Verdict;
    /// [`crate::stages::bypass_from_pod`].
    fn bypass_from_pod(&mut self) -> Verdict;
    /// [`crate::stages::find_bypass_translation`].
    fn find_bypass_translation(&mut self, uplink: u32) -> bool;
    /// [`crate::stages::check_exit`].
    fn check_exit(&mut self) -> Decision<()>;
    /// [`crate::stages::advance_clock_hand`].
    fn advance_clock_hand(&mut self);
    /// [`crate::stages::evict`].
    fn evict(&mut self, lack: Lack) -> bool;
    /// [`crate::stages::forward_to_pod`].
    fn forward_to_pod(&mut self) -> Verdict;
    /// [`crate::stages::translate`].
    fn translate(&mut self) -> Decision<()>;
    /// [`crate::stages::translate_quote`].
    fn translate_quote(&mut self) -> Decision<()>;
    /// [`crate::stages::translate_error`].
    fn translate_error(&mut self, hook: Hook) -> Decision<()>;
    /// [`crate::stages::translate_received`].
    fn translate_received(&mut self) -> Decision<()>;
    /// [`crate::stages::translate_quote`], at the receiving pod's veth.
    fn translate_received_quote(&mut self) -> Decision<()>;
    /// [`crate::stages::translate_error`] with [`Hook::FromPod`], at the receiving pod's veth.
    fn translate_received_error(&mut self) -> Decision<()>;
    /// [`crate::stages::lookup_cache`].
    fn lookup_cache(&mut self, hook: Hook) -> CacheLookup;
    /// [`crate::stages::apply_cache_hit`].
    fn apply_cache_hit(&mut self, hit: CacheHit) -> Verdict;
    /// [`crate::stages::cache_verdict`].
    fn cache_verdict(&mut self, hook: Hook, verdict: Verdict);
    /// [`crate::stages::count_and_cache`].
    fn count_and_cache(&mut self, verdict: Verdict);
    /// [`crate::stages::report_delivered`].
    fn report_delivered(&mut self);
    /// [`crate::stages::propagate`].
    fn propagate(&mut self, index: u32);
    /// [`crate::stages::count`].
    fn count(&mut self, direction: Direction, verdict: Verdict);
}
