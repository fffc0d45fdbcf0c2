//! The order of decisions for a fragment, the same at each hook.

use abi::RING;

use crate::hook_stages::HookStages;
use crate::outcome::Decision;
use crate::work::{Content, Hook};

/// Updates the state of a fragment's datagram, and fills in the ports of a later fragment. Drops
/// fragments that overlap.
#[inline(always)]
pub(super) fn track_fragment(stages: &mut impl HookStages, hook: Hook) -> Decision<Content> {
    let found = stages.find_datagram(hook)?;
    if found != Content::Fragment {
        return Ok(found);
    }
    let outcome = stages.update_datagram(hook != Hook::UplinkOut);
    // Also where the fragment is dropped: then all others of the datagram will be.
    let content = stages.write_datagram(hook);
    outcome.map(|()| content)
}

/// Brings a fragment in order behind the first one of its datagram. Returns `None` if the packet
/// has been taken: it waits, or has been sent through the hook again.
#[inline(always)]
pub(super) fn order_fragment(
    stages: &mut impl HookStages,
    hook: Hook,
) -> Decision<Option<Content>> {
    match track_fragment(stages, hook)? {
        Content::EarlyFragment => {
            let is_held = stages.hold_fragment();
            Ok((!is_held).then_some(Content::LostFragment))
        }
        Content::AwaitedFragment => {
            for place in 0..RING {
                stages.release_fragment(place);
            }
            Ok(None)
        }
        content @ (Content::Foreign
        | Content::Arp
        | Content::Ip
        | Content::FlowFound
        | Content::Fragment
        | Content::LostFragment
        | Content::IcmpError) => Ok(Some(content)),
    }
}
