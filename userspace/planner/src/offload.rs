//! Whether connections may bypass the netfilter rules that other software has.
//!
//! A rule may be bypassed if it decides the same about each packet of a connection in the same
//! state, and does nothing but decide. Then a packet that netfilter has accepted stands for those
//! behind it, for as long as no rule changes. Statements that are not known need every packet.

use std::collections::{BTreeMap, BTreeSet};

use steps::{Action, PathHook, PathRule, PathTable, Statement};

/// State of the connections whose packets meet the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionState {
    /// Packets of both directions were seen.
    Established,
    /// UDP packets of one direction only: for rules, each of them is new.
    Unreplied,
}

/// Statements that decide alike about all packets of a connection that the programs send past the
/// stack: whole packets of TCP with ACK and without SYN, FIN or RST, and of UDP.
///
/// Some depend on routes and addresses of the node: after a change of those, connections are judged
/// again as after a change of rules.
const UNCHANGING: [&str; 69] = [
    "counter",
    "compare",
    "lookup",
    "reject",
    "notrack",
    "fib",
    "rt",
    "xfrm",
    "immediate",
    "last",
    "flow_offload",
    "objref counter",
    "objref ct timeout",
    "objref ct helper",
    "payload link",
    "payload address",
    "payload ports",
    "payload tcp flags",
    "exthdr maxseg set",
    "meta protocol",
    "meta mark",
    "meta iif",
    "meta oif",
    "meta iifname",
    "meta oifname",
    "meta iiftype",
    "meta oiftype",
    "meta nfproto",
    "meta l4proto",
    "meta ibrname",
    "meta obrname",
    "meta pkttype",
    "meta iifgroup",
    "meta oifgroup",
    "meta iifkind",
    "meta oifkind",
    "ct direction",
    "ct status",
    "ct mark",
    "ct l3protocol",
    "ct address",
    "ct protocol",
    "ct ports",
    "ct labels",
    "ct zone",
    "match addrtype",
    "match ah",
    "match connmark",
    "match connlabel",
    "match conntrack",
    "match dccp",
    "match devgroup",
    "match esp",
    "match icmp",
    "match icmp6",
    "match iprange",
    "match mac",
    "match mark",
    "match multiport",
    "match physdev",
    "match pkttype",
    "match policy",
    "match rpfilter",
    "match sctp",
    "match tcp",
    "match udp",
    "match udplite",
    "target TCPMSS",
    "target CT",
];

/// Statements that change a mark. Before the route is chosen, it may depend on that mark; behind,
/// only rules depend on it.
const MARKS: [&str; 5] = [
    "meta mark set",
    "ct mark set",
    "target MARK",
    "target CONNMARK",
    "target NOTRACK",
];

/// Statements that neither decide nor need every packet: a rule that has no other condition applies
/// to all packets.
const NO_CONDITIONS: [&str; 6] = [
    "counter",
    "immediate",
    "last",
    "objref counter",
    "notrack",
    "reject",
];

/// A rule that must see every packet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HoldingRule {
    /// The table in words.
    pub table: String,
    /// Name of the chain.
    pub chain: String,
    /// Number of the rule in its chain, from 1 on.
    pub number: usize,
    /// The statement.
    pub statement: String,
}

impl std::fmt::Display for HoldingRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            table,
            chain,
            number,
            statement,
        } = self;
        write!(
            f,
            "{table}, chain {chain}, rule {number}: {statement} needs every packet"
        )
    }
}

/// What rules mean for packets of connections in one state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RulesetClass {
    /// No rule is evaluated.
    Empty,
    /// Each rule decides alike about all packets of a connection.
    Offloadable,
    /// These rules must see every packet.
    EveryPacket(BTreeSet<HoldingRule>),
}

/// Classifies the rules that forwarded packets of connections in this state meet.
pub(crate) fn classify(tables: &[PathTable], state: ConnectionState) -> RulesetClass {
    let mut holding = BTreeSet::new();
    for table in tables {
        for (chain, hook) in &table.bases {
            let mut walk = Walk {
                table,
                hook: *hook,
                state,
                seen: BTreeMap::new(),
                holding: &mut holding,
            };
            walk.chain(chain);
        }
    }
    let is_empty = tables
        .iter()
        .all(|table| table.bases.keys().all(|base| has_no_rules(table, base)));
    match (holding.is_empty(), is_empty) {
        (false, _) => RulesetClass::EveryPacket(holding),
        (true, true) => RulesetClass::Empty,
        (true, false) => RulesetClass::Offloadable,
    }
}

fn has_no_rules(table: &PathTable, chain: &str) -> bool {
    table.chains.get(chain).is_none_or(Vec::is_empty)
}

/// How the evaluation of a chain ends for packets of connections in the state of the walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// All of them leave the base chain: the rules behind are not evaluated.
    Decided,
    /// Some may come back to the chain before.
    Open,
}

/// The walk through one base chain and the chains that it leads to.
struct Walk<'a> {
    table: &'a PathTable,
    hook: PathHook,
    state: ConnectionState,
    /// Chains that were walked, and how they end. A chain that is being walked is open.
    seen: BTreeMap<&'a str, End>,
    holding: &'a mut BTreeSet<HoldingRule>,
}

impl<'a> Walk<'a> {
    fn chain(&mut self, name: &'a str) -> End {
        if let Some(end) = self.seen.get(name) {
            return *end;
        }
        self.seen.insert(name, End::Open);
        let table = self.table;
        let rules = table
            .chains
            .get(name)
            .map(Vec::as_slice)
            .unwrap_or_default();
        for (index, rule) in rules.iter().enumerate() {
            let place = (name, index + 1);
            match self.rule(place, rule) {
                After::Next => {}
                After::Back => break,
                After::Decided => {
                    self.seen.insert(name, End::Decided);
                    return End::Decided;
                }
            }
        }
        End::Open
    }

    fn rule(&mut self, (chain, number): (&'a str, usize), rule: &'a PathRule) -> After {
        let mut is_conditional = false;
        for statement in &rule.statements {
            match statement {
                Statement::State { established, new } => {
                    // The statements behind are not evaluated for connections in this state.
                    if !self.of_state(*established, *new) {
                        return After::Next;
                    }
                }
                Statement::Verdicts { established, new } => {
                    return match self.of_state(established, new) {
                        Some(action) => self.verdict(action, is_conditional),
                        None => After::Next,
                    };
                }
                Statement::Named(name) => {
                    is_conditional |= !NO_CONDITIONS.contains(&name.as_str());
                    if needs_every_packet(name, self.hook, self.state) {
                        self.holding.insert(HoldingRule {
                            table: self.table.name.clone(),
                            chain: chain.to_owned(),
                            number,
                            statement: name.clone(),
                        });
                    }
                }
                Statement::Verdict(action) => return self.verdict(action, is_conditional),
            }
        }
        After::Next
    }

    fn of_state<T>(&self, established: T, new: T) -> T {
        match self.state {
            ConnectionState::Established => established,
            ConnectionState::Unreplied => new,
        }
    }

    fn verdict(&mut self, action: &'a Action, is_conditional: bool) -> After {
        let after = match action {
            Action::Continue => After::Next,
            Action::Accept | Action::Drop => After::Decided,
            Action::Return => After::Back,
            Action::Jump(to) => match self.chain(to) {
                End::Decided => After::Decided,
                End::Open => After::Next,
            },
            Action::Goto(to) => match self.chain(to) {
                End::Decided => After::Decided,
                End::Open => After::Back,
            },
            // A verdict that depends on a map: it may lead to any chain.
            Action::Other => {
                for name in self.table.chains.keys() {
                    self.chain(name);
                }
                After::Next
            }
        };
        if is_conditional { After::Next } else { after }
    }
}

/// What is evaluated behind a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    /// The next rule.
    Next,
    /// The rest of the chain before.
    Back,
    /// Nothing in this base chain.
    Decided,
}

/// Returns whether a statement decides anew about each packet of a connection, or does more than
/// decide.
fn needs_every_packet(statement: &str, hook: PathHook, state: ConnectionState) -> bool {
    // What is compared is a byte of a UDP packet's payload.
    if statement == "payload tcp flags" && state == ConnectionState::Unreplied {
        return true;
    }
    if MARKS.contains(&statement) {
        return hook == PathHook::Prerouting;
    }
    !UNCHANGING.contains(&statement)
}

#[cfg(test)]
mod tests;
