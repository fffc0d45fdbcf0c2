//! Events of a node's history.

use model::HairpinMode;
use proptest::prelude::*;
use proptest::sample::select;

/// Number of containers in a history.
pub(crate) const PODS: usize = 4;

/// One event.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// An ADD, to the default network or to another one.
    Add { pod: usize, is_default: bool },
    /// A DEL.
    Del { pod: usize, is_default: bool },
    /// A reconciliation, as the agent runs one after each change and periodically.
    Reconcile,
    /// The agent is killed and restarted; its programs stay loaded.
    Restart,
    /// The agent is killed and restarted, and loads its programs again.
    Reload,
    /// The hairpin mode is changed.
    Hairpin(HairpinMode),
    /// The pod CIDRs are changed, by index of a list.
    PodCidrs(usize),
    /// The uplink's MTU changes.
    Mtu(u32),
    /// Other software changes the state of the node.
    Damage(Damage),
}

/// A change to the node that Viaduct has to repair or to survive.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Damage {
    /// Deletes the host's end of a veth.
    DeleteVeth(usize),
    /// Removes a pod's namespace, without a DEL.
    RemoveNetns(usize),
    /// Flushes the addresses of the bridge.
    FlushBridge,
    /// Gives the bridge another Ethernet address.
    ChangeMac,
    /// Deletes the bridge.
    DeleteBridge,
    /// Removes a port from its bridge.
    LeaveBridge(usize),
    /// Sets a port down.
    SetDown(usize),
    /// Detaches the TC programs of a port.
    Detach(usize),
    /// Turns forwarding off.
    StopForwarding,
    /// Clears one kind of map entries.
    ClearTable(u8),
}

fn damage() -> impl Strategy<Value = Damage> {
    let pod = || 0..PODS;
    prop_oneof![
        pod().prop_map(Damage::DeleteVeth),
        pod().prop_map(Damage::RemoveNetns),
        Just(Damage::FlushBridge),
        Just(Damage::ChangeMac),
        Just(Damage::DeleteBridge),
        pod().prop_map(Damage::LeaveBridge),
        pod().prop_map(Damage::SetDown),
        pod().prop_map(Damage::Detach),
        Just(Damage::StopForwarding),
        (0..6_u8).prop_map(Damage::ClearTable),
    ]
}

/// Returns the strategy of a history's first events: an ADD or none.
pub(crate) fn first_event() -> impl Strategy<Value = Option<Event>> {
    let add = (0..PODS, prop::bool::weighted(0.8));
    prop::option::of(add.prop_map(|(pod, is_default)| Event::Add { pod, is_default }))
}

/// Returns the strategy of all events.
pub(crate) fn any_event() -> impl Strategy<Value = Event> {
    let modes = [
        HairpinMode::HairpinVeth,
        HairpinMode::PromiscuousBridge,
        HairpinMode::None,
    ];
    let which = || (0..PODS, any::<bool>());
    prop_oneof![
        6 => which().prop_map(|(pod, is_default)| Event::Add { pod, is_default }),
        3 => which().prop_map(|(pod, is_default)| Event::Del { pod, is_default }),
        2 => Just(Event::Reconcile),
        // Loading the programs takes longer than the rest of a history.
        2 => (0..12_u8).prop_map(|n| if n == 0 { Event::Reload } else { Event::Restart }),
        2 => select(modes.to_vec()).prop_map(Event::Hairpin),
        2 => (0..3_usize).prop_map(Event::PodCidrs),
        1 => select(vec![1300_u32, 1400, 1500]).prop_map(Event::Mtu),
        10 => damage().prop_map(Event::Damage),
    ]
}
