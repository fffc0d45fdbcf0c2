//! Records the decisions of a hook: calls the stages of the simulator, and describes each result.

use abi::Direction;
use verdict::flow_cache::{CacheHit, CacheLookup, Steps};
use verdict::simulator::{Place, Simulator};
use verdict::{
    Content, Decision as Result, Fit, Hook, HookStages, HostportMatch, Lack, Origin, Search,
    Verdict,
};

use crate::explanation::{Decision, Step};
use crate::node::program;
use crate::sentences::{self as say, Described, View};
use crate::snapshot::Snapshot;

/// The stages of a simulated packet, with a record of what they decide.
pub(crate) struct Recorder<'a> {
    simulator: &'a mut Simulator,
    facts: &'a Snapshot,
    at: String,
    steps: Vec<Step>,
    has_flow: bool,
    depends_on_eviction: bool,
}

/// What a hook has decided about a packet.
pub(crate) struct Record {
    /// The decisions: the last one of a dropped packet ends its way.
    pub(crate) steps: Vec<Step>,
    /// Whether the packet's flow existed before.
    pub(crate) has_flow: bool,
    /// [`crate::HookTrace::depends_on_eviction`].
    pub(crate) depends_on_eviction: bool,
}

impl<'a> Recorder<'a> {
    pub(crate) fn new(
        simulator: &'a mut Simulator,
        facts: &'a Snapshot,
        place: Place,
        interface: u32,
    ) -> Self {
        let at = format!("{}@{}", program(place), facts.link_name(interface));
        Self {
            simulator,
            facts,
            at,
            steps: Vec::new(),
            has_flow: false,
            depends_on_eviction: false,
        }
    }

    /// Returns the record of a hook with this verdict.
    pub(crate) fn finish(mut self, verdict: Verdict) -> Record {
        if let Verdict::Drop(reason) = verdict
            && !self.steps.last().is_some_and(|step| step.ends)
        {
            let decision = say::decision_of(reason).unwrap_or(Decision::Path);
            self.add(Some((decision, say::dropped(reason))));
            if let Some(last) = self.steps.last_mut() {
                last.ends = true;
            }
        }
        Record {
            steps: self.steps,
            has_flow: self.has_flow,
            depends_on_eviction: self.depends_on_eviction,
        }
    }

    /// Returns whether any flow gives way to the new one, in whichever order they are inspected.
    fn may_evict(&self) -> bool {
        let mut simulator = self.simulator.clone();
        simulator.start_eviction();
        // The whole queue, once: the program inspects a part of it.
        for _ in 0..simulator.world.turns.len() {
            if !simulator.inspect_flow(Search::Victim) {
                break;
            }
        }
        simulator.finish_eviction()
    }

    fn view(&self) -> View<'_> {
        View {
            world: &self.simulator.world,
            work: self.simulator.work(),
            facts: self.facts,
        }
    }

    fn add(&mut self, described: Described) {
        if let Some((decision, text)) = described {
            self.steps.push(Step {
                at: self.at.clone(),
                decision,
                text,
                ends: false,
            });
        }
    }

    /// Records the result of a check of network policies.
    fn allowed(&mut self, result: Result<()>) -> Result<()> {
        let text = match result {
            Ok(()) => return self.decided(Decision::Policy, result, |view, ()| say::allowed(view)),
            Err(_) => say::refused(&self.view()),
        };
        self.add(Some((Decision::Policy, text)));
        if let Some(last) = self.steps.last_mut() {
            last.ends = true;
        }
        result
    }

    /// Records the result of a stage that may drop the packet.
    fn decided<T: Copy>(
        &mut self,
        decision: Decision,
        result: Result<T>,
        describe: impl FnOnce(&View<'_>, T) -> Vec<(Decision, String)>,
    ) -> Result<T> {
        match result {
            Ok(value) => {
                for described in describe(&self.view(), value) {
                    self.add(Some(described));
                }
            }
            Err(reason) => {
                let decision = say::decision_of(reason).unwrap_or(decision);
                self.add(Some((decision, say::dropped(reason))));
                if let Some(last) = self.steps.last_mut() {
                    last.ends = true;
                }
            }
        }
        result
    }
}

/// Stages whose results need no words: their effect is in the words of another one.
macro_rules! silent {
    ($(fn $name:ident(&mut self $(, $argument:ident: $kind:ty)*) $(-> $result:ty)?;)+) => {
        $(
            fn $name(&mut self $(, $argument: $kind)*) $(-> $result)? {
                self.simulator.$name($($argument),*)
            }
        )+
    };
}

impl HookStages for Recorder<'_> {
    silent! {
        fn identify_pod(&mut self) -> u32;
        fn parse_received(&mut self) -> Result<Content>;
        fn may_be_forbidden(&mut self) -> bool;
        fn needs_flow_to_enter(&mut self) -> bool;
        fn may_be_translated(&mut self) -> bool;
        fn translatable(&mut self, content: Result<Content>) -> Content;
        fn find_datagram(&mut self, hook: Hook) -> Result<Content>;
        fn update_datagram(&mut self, has_order: bool) -> Result<()>;
        fn write_datagram(&mut self, hook: Hook) -> Content;
        fn hold_fragment(&mut self) -> bool;
        fn release_fragment(&mut self, place: u32);
        fn identify_fragment(&mut self, is_translated: bool) -> Result<()>;
        fn find_quoted_flow(&mut self, hook: Hook) -> bool;
        fn keep_node_address(&mut self);
        fn bypass_to_pod(&mut self) -> Verdict;
        fn start_advance(&mut self) -> Search;
        fn finish_advance(&mut self);
        fn start_eviction(&mut self);
        fn inspect_flow(&mut self, search: Search) -> bool;
        fn finish_eviction(&mut self) -> bool;
        fn take_port(&mut self) -> bool;
        fn translate_quote(&mut self) -> Result<()>;
        fn translate_error(&mut self, hook: Hook) -> Result<()>;
        fn translate_received_quote(&mut self) -> Result<()>;
        fn translate_received_error(&mut self) -> Result<()>;
        fn find_forwarded_reply(&mut self) -> bool;
        fn lookup_cache(&mut self, hook: Hook) -> CacheLookup;
        fn apply_cache_hit(&mut self, hit: CacheHit) -> Verdict;
        fn cache_verdict(&mut self, hook: Hook, number: u64);
        fn count_and_cache(&mut self, number: u64);
        fn samples_delivered(&mut self) -> bool;
        fn report_delivered(&mut self);
        fn propagate(&mut self, index: u32);
        fn count(&mut self, direction: Direction, verdict: Verdict);
    }

    fn is_tagged(&self) -> bool {
        self.simulator.is_tagged()
    }

    fn has_policies(&self) -> bool {
        self.simulator.has_policies()
    }

    fn parse_pod(&mut self) -> Result<Content> {
        let result = self.simulator.parse_pod();
        self.decided(Decision::Admission, result, |view, _| view.admitted())
    }

    fn parse_uplink(&mut self) -> Result<Content> {
        let result = self.simulator.parse_uplink();
        self.decided(Decision::Admission, result, |_, _| Vec::new())
    }

    fn parse_entering(&mut self) -> Result<Content> {
        let result = self.simulator.parse_entering();
        self.has_flow |= result == Ok(Content::FlowFound);
        self.decided(Decision::Admission, result, |view, content| {
            if content == Content::FlowFound {
                view.flow(true)
            } else {
                view.entering()
            }
        })
    }

    fn check_sender(&mut self, content: Content) -> Result<bool> {
        let result = self.simulator.check_sender(content);
        self.decided(Decision::Sender, result, |view, _| view.sender())
    }

    fn check_outside_source(&mut self) -> Result<()> {
        let result = self.simulator.check_outside_source();
        self.decided(Decision::Sender, result, |view, ()| view.outside_source())
    }

    fn check_received_policy(&mut self, content: Result<Content>) -> Result<()> {
        let result = self.simulator.check_received_policy(content);
        self.decided(Decision::Policy, result, |_, ()| say::policy())
    }

    fn check_received(&mut self, content: Result<Content>) -> Result<()> {
        let result = self.simulator.check_received(content);
        self.decided(Decision::Policy, result, |_, ()| say::policy())
    }

    fn check_entering(&mut self) -> Result<()> {
        let result = self.simulator.check_entering();
        self.decided(Decision::Policy, result, |_, ()| say::policy())
    }

    fn check_policy(&mut self) -> Result<()> {
        let result = self.simulator.check_policy();
        self.decided(Decision::Policy, result, |_, ()| say::policy())
    }

    fn allow_sent(&mut self, is_translated: bool, is_passed: bool) -> Result<()> {
        let result = self.simulator.allow_sent(is_translated, is_passed);
        self.allowed(result)
    }

    fn allow_left(&mut self) -> Result<()> {
        let result = self.simulator.allow_left();
        self.allowed(result)
    }

    fn allow_redirected(&mut self) -> Result<()> {
        let result = self.simulator.allow_redirected();
        self.allowed(result)
    }

    fn allow_received(&mut self, content: Result<Content>) -> Result<()> {
        let result = self.simulator.allow_received(content);
        self.allowed(result)
    }

    fn check_duplicate(&mut self) -> Result<()> {
        let result = self.simulator.check_duplicate();
        self.decided(Decision::Admission, result, |_, ()| Vec::new())
    }

    fn charge(&mut self, direction: Direction) -> Result<()> {
        let result = self.simulator.charge(direction);
        self.decided(Decision::Limit, result, |view, ()| view.charged(direction))
    }

    fn charge_receiver(&mut self) -> Result<()> {
        let result = self.simulator.charge_receiver();
        self.decided(Decision::Limit, result, |view, ()| view.receiver_charged())
    }

    fn find_flow(&mut self, hook: Hook) -> bool {
        let found = self.simulator.find_flow(hook);
        self.has_flow |= found;
        for described in self.view().flow(found) {
            self.add(Some(described));
        }
        found
    }

    fn find_bypass_translation(&mut self, uplink: u32) -> bool {
        let found = self.simulator.find_bypass_translation(uplink);
        // Netfilter's translation, which a connection keeps when it is offloaded, is no flow.
        let is_flow = found && self.simulator.work().recorder.steps & Steps::FOREIGN_NAT == 0;
        self.has_flow |= is_flow;
        if is_flow {
            for described in self.view().flow(true) {
                self.add(Some(described));
            }
        }
        found
    }

    fn find_hostport(&mut self) -> Result<HostportMatch> {
        let result = self.simulator.find_hostport();
        self.decided(Decision::Hostport, result, say::hostport)
    }

    fn find_hostport_from_pod(&mut self) -> Result<HostportMatch> {
        let result = self.simulator.find_hostport_from_pod();
        self.decided(Decision::Hostport, result, |view, found| {
            let mut described = say::policy();
            described.extend(say::hostport(view, found));
            described
        })
    }

    fn check_quoted_hostport(&mut self) -> Result<()> {
        let result = self.simulator.check_quoted_hostport();
        self.decided(Decision::Flow, result, |_, ()| Vec::new())
    }

    fn origin(&mut self) -> Result<Origin> {
        let result = self.simulator.origin();
        self.decided(Decision::Nat, result, say::origin)
    }

    fn choose_source(&mut self) -> Result<()> {
        let result = self.simulator.choose_source();
        self.decided(Decision::Nat, result, |view, ()| view.source_chosen())
    }

    fn track(&mut self) -> Result<()> {
        let result = self.simulator.track();
        self.decided(Decision::Flow, result, |view, ()| say::opened(view, true))
    }

    fn try_port(&mut self, attempt: u32) -> Result<bool> {
        let result = self.simulator.try_port(attempt);
        self.decided(Decision::Flow, result, say::opened)
    }

    fn try_port_from_outside(&mut self, attempt: u32) -> Result<bool> {
        let result = self.simulator.try_port_from_outside(attempt);
        self.decided(Decision::Flow, result, say::opened)
    }

    fn try_port_from_pod(&mut self, attempt: u32) -> Result<bool> {
        let result = self.simulator.try_port_from_pod(attempt);
        self.decided(Decision::Flow, result, say::opened)
    }

    fn evict(&mut self, lack: Lack) -> bool {
        // What was refused before is tried again.
        self.steps.pop_if(|last| last.ends);
        let evicted = self.simulator.evict(lack);
        self.depends_on_eviction |= lack == Lack::Place && (evicted || self.may_evict());
        let text = say::evicted(lack, evicted);
        if self.steps.last().is_none_or(|last| last.text != text) {
            self.add(Some((Decision::Flow, text)));
        }
        evicted
    }

    fn check_fit(&mut self) -> Result<Fit> {
        let result = self.simulator.check_fit();
        self.decided(Decision::Mtu, result, |_, fit| say::fit(fit))
    }

    fn translate(&mut self) -> Result<()> {
        let before = self.simulator.work().headers.tuple;
        let result = self.simulator.translate();
        self.decided(Decision::Nat, result, |view, ()| view.translated(&before))
    }

    fn translate_received(&mut self) -> Result<()> {
        let before = self.simulator.work().headers.tuple;
        let result = self.simulator.translate_received();
        self.decided(Decision::Nat, result, |view, ()| view.translated(&before))
    }

    fn redirect_to_pod(&mut self) -> Verdict {
        let verdict = self.simulator.redirect_to_pod();
        if verdict == Verdict::Pass {
            // Not decided yet: the flow is not translated.
            return verdict;
        }
        self.path(verdict)
    }

    fn bypass_from_pod(&mut self) -> Verdict {
        let verdict = self.simulator.bypass_from_pod();
        self.path(verdict)
    }

    fn forward_to_pod(&mut self) -> Verdict {
        let before = self.simulator.work().headers.tuple;
        let verdict = self.simulator.forward_to_pod();
        for described in self.view().translated(&before) {
            self.add(Some(described));
        }
        self.path(verdict)
    }

    fn check_exit(&mut self) -> Result<()> {
        let result = self.simulator.check_exit();
        self.decided(Decision::Route, result, |_, ()| Vec::new())
    }
}

impl Recorder<'_> {
    /// Records whether the packet bypasses bridge and stack.
    fn path(&mut self, verdict: Verdict) -> Verdict {
        let result = match verdict {
            Verdict::Drop(reason) => Err(reason),
            Verdict::Pass
            | Verdict::RedirectPeer(_)
            | Verdict::RedirectNeigh(_)
            | Verdict::Redirect(_)
            | Verdict::Consume => Ok(verdict),
        };
        let _recorded = self.decided(Decision::Path, result, say::path);
        verdict
    }
}
