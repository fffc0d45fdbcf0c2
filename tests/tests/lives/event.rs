//! What may happen in a life.

use model::HairpinMode;
use proptest::prelude::*;
use proptest::sample::select;

/// Containers that there may be.
pub(crate) const PODS: usize = 4;

/// One thing that happens.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// An ADD, to the default network or to another one.
    Add { pod: usize, is_default: bool },
    /// A DEL.
    Del { pod: usize, is_default: bool },
    /// A comparison, as the agent makes one after any change and now and then.
    Reconcile,
    /// The agent dies and another one starts.
    Restart,
    /// The agent dies, and another one loads its programs anew.
    Reload,
    /// Another hairpin mode.
    Hairpin(HairpinMode),
    /// Other pod CIDRs.
    PodCidrs(usize),
    /// The uplink's MTU changes.
    Mtu(u32),
    /// Somebody interferes.
    Harm(Harm),
}

/// What somebody may do to us.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Harm {
    /// Deletes the host's end of a veth.
    DeleteVeth(usize),
    /// Removes a pod's namespace, without a DEL.
    RemoveNetns(usize),
    /// Takes all addresses off the bridge.
    FlushBridge,
    /// Gives the bridge another Ethernet address.
    ChangeMac,
    /// Deletes the bridge.
    DeleteBridge,
    /// Takes a port out of its bridge.
    LeaveBridge(usize),
    /// Sets a port down.
    SetDown(usize),
    /// Removes our programs from a port.
    Detach(usize),
    /// Turns forwarding off.
    StopForwarding,
    /// Empties one of our tables.
    ClearTable(u8),
}

fn harm() -> impl Strategy<Value = Harm> {
    let pod = || 0..PODS;
    prop_oneof![
        pod().prop_map(Harm::DeleteVeth),
        pod().prop_map(Harm::RemoveNetns),
        Just(Harm::FlushBridge),
        Just(Harm::ChangeMac),
        Just(Harm::DeleteBridge),
        pod().prop_map(Harm::LeaveBridge),
        pod().prop_map(Harm::SetDown),
        pod().prop_map(Harm::Detach),
        Just(Harm::StopForwarding),
        (0..6_u8).prop_map(Harm::ClearTable),
    ]
}

/// What a life may begin with.
pub(crate) fn first_event() -> impl Strategy<Value = Option<Event>> {
    let add = (0..PODS, prop::bool::weighted(0.8));
    prop::option::of(add.prop_map(|(pod, is_default)| Event::Add { pod, is_default }))
}

/// Anything that may happen.
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
        // To load the programs takes longer than all the rest of a life.
        2 => (0..12_u8).prop_map(|n| if n == 0 { Event::Reload } else { Event::Restart }),
        2 => select(modes.to_vec()).prop_map(Event::Hairpin),
        2 => (0..3_usize).prop_map(Event::PodCidrs),
        1 => select(vec![1300_u32, 1400, 1500]).prop_map(Event::Mtu),
        10 => harm().prop_map(Event::Harm),
    ]
}
