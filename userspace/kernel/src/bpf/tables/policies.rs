//! Network policies: rule sets of pods, identities of addresses, and what rule sets allow.

use std::io;

use abi::maps::{self, MapDef};
use abi::{Address, PolicyRule, Port, RuleSets};
use model::Protocol;
use steps::{AllowedKey, AllowedPorts, Entry, EntryKey, LinkRef};

use crate::bpf::table::Rows;
use crate::bpf::trie_table::{self, TrieRows};
use crate::netlink::ifindex::Names;

/// Rows of [`maps::RULE_SETS`].
pub(crate) struct RuleSetRows;

impl Rows for RuleSetRows {
    type Key = u32;
    type Value = RuleSets;
    const MAP: MapDef<u32, RuleSets> = maps::RULE_SETS;

    fn key(_: &Names, key: &EntryKey) -> Option<io::Result<u32>> {
        let EntryKey::RuleSets(slot) = key else {
            return None;
        };
        Some(Ok(*slot))
    }

    fn value(_: &Names, entry: &Entry) -> Option<io::Result<RuleSets>> {
        let Entry::RuleSets {
            generation,
            ingress,
            egress,
        } = entry
        else {
            return None;
        };
        Some(Ok(RuleSets {
            generation: *generation,
            ingress: *ingress,
            egress: *egress,
        }))
    }

    fn read_key(slot: u32, _: &dyn Fn(u32) -> LinkRef) -> Option<EntryKey> {
        Some(EntryKey::RuleSets(slot))
    }

    fn read(sets: &RuleSets, _: &dyn Fn(u32) -> LinkRef) -> Entry {
        Entry::RuleSets {
            generation: sets.generation,
            ingress: sets.ingress,
            egress: sets.egress,
        }
    }
}

/// Rows of [`maps::IDENTITIES`].
pub(crate) struct IdentityRows;

impl TrieRows for IdentityRows {
    type Bits = Address;
    type Value = u32;
    const MAP: MapDef<Address, u32> = maps::IDENTITIES;

    fn key(key: &EntryKey) -> Option<(u32, Address)> {
        let EntryKey::Identity(prefix) = key else {
            return None;
        };
        Some(trie_table::prefix_key(*prefix))
    }

    fn value(entry: &Entry) -> Option<u32> {
        let Entry::Identity(identity) = entry else {
            return None;
        };
        Some(*identity)
    }

    fn read_key(length: u32, address: Address) -> Option<EntryKey> {
        trie_table::prefix(length, address).map(EntryKey::Identity)
    }

    fn read(identity: u32) -> Entry {
        Entry::Identity(identity)
    }
}

/// Rows of [`maps::POLICY_RULES`].
pub(crate) struct PolicyRuleRows;

impl TrieRows for PolicyRuleRows {
    type Bits = PolicyRule;
    type Value = u32;
    const MAP: MapDef<PolicyRule, u32> = maps::POLICY_RULES;

    fn key(key: &EntryKey) -> Option<(u32, PolicyRule)> {
        let EntryKey::PolicyRule(allowed) = key else {
            return None;
        };
        let any = PolicyRule {
            rules: allowed.rules,
            identity: allowed.identity,
            ..PolicyRule::default()
        };
        Some(match allowed.ports {
            AllowedPorts::All => (PolicyRule::ALL, any),
            AllowedPorts::Block {
                protocol,
                port,
                bits,
            } => {
                let rule = PolicyRule {
                    protocol: protocol.number(),
                    port: Port::new(port),
                    ..any
                };
                (PolicyRule::PROTOCOL + u32::from(bits), rule)
            }
        })
    }

    fn value(entry: &Entry) -> Option<u32> {
        matches!(entry, Entry::PolicyRule).then_some(1)
    }

    fn read_key(length: u32, rule: PolicyRule) -> Option<EntryKey> {
        allowed(length, &rule).map(EntryKey::PolicyRule)
    }

    fn read(_: u32) -> Entry {
        Entry::PolicyRule
    }
}

/// Returns what a key allows; `None` for one that the agent never writes.
fn allowed(length: u32, rule: &PolicyRule) -> Option<AllowedKey> {
    let ports = if length == PolicyRule::ALL {
        AllowedPorts::All
    } else {
        let bits = length.checked_sub(PolicyRule::PROTOCOL)?;
        AllowedPorts::Block {
            protocol: Protocol::from_number(rule.protocol)?,
            port: rule.port.number(),
            bits: u8::try_from(bits).ok()?,
        }
    };
    Some(AllowedKey {
        rules: rule.rules,
        identity: rule.identity,
        ports,
    })
}
