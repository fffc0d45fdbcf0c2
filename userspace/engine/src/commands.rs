//! The requests that the engine executes: a closed list, one entry each.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kernel::{Kernel, Measured};
use model::{
    Attachment, AttachmentKey, Bandwidth, Cidr, HairpinMode, IfName, IngressPolicy, Intent,
    InterfaceSettings, NetnsPath, Network, NetworkName, Peers, PortMapping, RangeSet, Record,
};
use planner::{NodeCondition, PolicyIndex};
use steps::PodSide;
use tokio::sync::oneshot;

use crate::worker::Worker;
use crate::{
    ChainedUpdate, ConfigChange, Engine, EngineError, FirewallUpdate, GcResult, GcScope,
    KeptConnections, LimitChange, Ports, StalePeers, Tune, UpdateOutcome,
};

/// Sends the answer of a request to its caller.
pub(crate) type Reply<T> = oneshot::Sender<Result<T, EngineError>>;

/// Name of a request for people, and its attachment.
pub(crate) type Title<'a> = (&'static str, Option<&'a AttachmentKey>);

/// Returns a title. It may use arguments of the request or none.
const fn titled<'a, A: Copy>(
    verb: &'static str,
    key: Option<&'a AttachmentKey>,
    _arguments: A,
) -> Title<'a> {
    (verb, key)
}

/// Declares the requests. Each entry has arguments and answer, its title, the method of [`Worker`]
/// that executes and answers it, and what it does with the engine.
macro_rules! commands {
    ($(
        $command:ident($($argument:ident: $type:ty),*) -> $answer:ty
            [$verb:literal, $key:expr, $method:ident] |$engine:ident| $run:expr;
    )*) => {
        /// A request: its arguments, and where the answer goes.
        pub(crate) enum Command {
            $($command($($type,)* Reply<$answer>),)*
        }

        impl Command {
            /// Returns the name of the request and its attachment.
            pub(crate) fn title(&self) -> Title<'_> {
                match self {
                    $(
                        Self::$command($($argument,)* _) => titled($verb, $key, ($($argument,)*)),
                    )*
                }
            }
        }

        impl<K: Kernel> Worker<K> {
            /// Executes a request and answers it.
            pub(crate) fn execute(&mut self, command: Command) {
                match command {
                    $(
                        Command::$command($($argument,)* reply) => {
                            self.$method(reply, move |$engine: &mut Engine<K>| $run);
                        }
                    )*
                }
            }
        }
    };
}

commands! {
    Add(intent: Box<Intent>, now: u64) -> Attachment
        ["ADD", Some(&intent.key), add] |engine| engine.add(&intent, now);
    Complete(intent: Box<Intent>) -> Attachment
        ["ADD", Some(&intent.key), change] |engine| engine.complete(&intent);
    MakeBridge(intent: Box<Intent>) -> ()
        ["ADD", Some(&intent.key), change] |engine| engine.make_bridge(&intent);
    Del(key: AttachmentKey) -> ()
        ["DEL", Some(key), change] |engine| engine.del(&key);
    Check(key: AttachmentKey, wanted: Option<BTreeSet<Cidr>>) -> Attachment
        ["CHECK", Some(key), query] |engine| engine.check_wanted(&key, wanted.as_ref());
    Gc(scope: GcScope) -> GcResult
        ["GC", None, change] |engine| Ok(engine.collect(&scope));

    // Docker's network driver.
    KeepNetwork(network: Box<Network>) -> ()
        ["create network", None, change] |engine| engine.keep_network(&network);
    ReleaseNetwork(name: NetworkName) -> ()
        ["delete network", None, change] |engine| engine.release_network(&name);
    PublishPorts(key: AttachmentKey, ports: Vec<PortMapping>) -> Attachment
        ["publish ports", Some(key), change] |engine| engine.publish_ports(&key, &ports);

    // Chained plugins.
    AdoptOrUpdate(update: Box<ChainedUpdate>, now: u64) -> Attachment
        ["ADD", Some(&update.adoption.key), change] |engine| engine.adopt_or_update(&update, now);
    AddFirewall(update: Box<FirewallUpdate>) -> ()
        ["ADD", Some(&update.key), change] |engine| engine.add_firewall(&update);
    UnpublishPorts(keys: Vec<AttachmentKey>) -> ()
        ["DEL", keys.first(), change] |engine| engine.unpublish_ports(&keys);
    DrainPorts(key: AttachmentKey) -> Attachment
        ["drain ports", Some(key), change] |engine| engine.drain_ports(&key);
    KeepConnections(pods: BTreeSet<IpAddr>, dry_run: bool) -> KeptConnections
        ["keep connections", None, query] |engine| engine.keep_connections(&pods, dry_run);
    ClearIngressPolicy(keys: Vec<AttachmentKey>) -> ()
        ["DEL", keys.first(), change] |engine| engine.clear_ingress_policy(&keys);
    CheckChained(
        keys: Vec<AttachmentKey>,
        ports: BTreeSet<PortMapping>,
        ingress: Option<IngressPolicy>
    ) -> ()
        ["CHECK", keys.first(), query] |engine| engine.check_chained(&keys, &ports, ingress);
    SetLoopback(netns: NetnsPath, up: bool) -> ()
        ["loopback", None, query] |engine| engine.set_loopback(&netns, up);
    Tune(tune: Box<Tune>) -> InterfaceSettings
        ["tuning", tune.keys.first(), query] |engine| engine.tune(&tune);
    CheckSettings(tune: Box<Tune>) -> ()
        ["tuning", tune.keys.first(), query] |engine| engine.check_settings(&tune);
    RestoreSettings(tune: Box<Tune>) -> ()
        ["tuning", tune.keys.first(), query] |engine| engine.restore_settings(&tune);
    DeleteSettingsRecords(keys: Vec<AttachmentKey>) -> ()
        ["tuning", keys.first(), query] |engine| engine.delete_settings_records(&keys);

    // Queries and changes of the API.
    Attachments() -> Vec<Record>
        ["attachments", None, query] |engine| Ok(engine.attachments());
    InspectInterface(netns: NetnsPath, ifname: IfName) -> Option<PodSide>
        ["inspect", None, query] |engine| engine.inspect_interface(netns, ifname);
    SetPodCidrs(ranges: Vec<RangeSet>) -> UpdateOutcome
        ["set pod CIDRs", None, change] |engine| engine.set_pod_cidrs(ranges);
    SetHairpinMode(mode: HairpinMode, now: u64) -> UpdateOutcome
        ["set hairpin mode", None, change] |engine| engine.set_hairpin_mode(mode, now);
    SetLimits(key: AttachmentKey, limits: LimitChange) -> Bandwidth
        ["limit", Some(key), query] |engine| engine.set_limits(&key, limits);
    Ports() -> Ports
        ["ports", None, query] |engine| engine.ports();
    Measure() -> Measured
        ["counters", None, query] |engine| engine.measure();
    NonMasquerade() -> BTreeSet<Cidr>
        ["non-masquerade CIDRs", None, query] |engine| Ok(engine.choices.settings.non_masquerade.clone());
    SetNonMasquerade(prefixes: BTreeSet<Cidr>) -> ()
        ["set non-masquerade CIDRs", None, change] |engine| engine.set_non_masquerade(prefixes);
    SetPeers(peers: Peers, now: u64) -> UpdateOutcome
        ["set peers", None, change] |engine| engine.set_peers(peers, now);
    SetPolicies(policies: Box<PolicyIndex>, now: u64) -> UpdateOutcome
        ["set policies", None, change] |engine| engine.set_policies(*policies, now);

    // The agent's own.
    Configure(configuration: Box<ConfigChange>, now: u64) -> ()
        ["reload", None, change] |engine| engine.configure(*configuration, now);
    SetInstallation(conditions: Vec<NodeCondition>) -> ()
        ["installation", None, change] |engine| {
            engine.upkeep.conditions.set_installation(conditions);
            Ok(())
        };
    SetPeersUnreadable(why: Option<String>) -> ()
        ["peers file", None, change] |engine| {
            engine.set_peers_unreadable(why);
            Ok(())
        };
    SetPeersStale(stale: Option<StalePeers>) -> ()
        ["set peers source", None, change] |engine| {
            engine.upkeep.peers_stale = stale;
            Ok(())
        };
    SetPoliciesUnreadable(why: Option<String>) -> ()
        ["policies file", None, change] |engine| {
            engine.upkeep.policies_unreadable = why;
            Ok(())
        };
    Pulse() -> ()
        ["pulse", None, query] |_engine| Ok(());
    Reconcile(now: u64, waits: Arc<AtomicBool>) -> ()
        ["reconcile", None, run_unasked] |engine| {
            waits.store(false, Ordering::Release);
            engine.reconcile(now);
        };
    Sweep(waits: Arc<AtomicBool>) -> ()
        ["sweep", None, run_unasked] |engine| {
            waits.store(false, Ordering::Release);
            engine.sweep();
            engine.find_high_traffic_pods();
        };
}

impl Command {
    /// Returns the name of a command whose phases are measured: `add` or `del`.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the other commands are not those of the life of a pod"
    )]
    pub(crate) fn measured_as(&self) -> Option<&'static str> {
        match self {
            Self::Add(..) => Some("add"),
            Self::Del(..) => Some("del"),
            _ => None,
        }
    }
}
