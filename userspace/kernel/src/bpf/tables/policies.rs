//! Network policies: rule sets of pods, identities of addresses, and what rule sets allow.

use std::io;

use abi::maps::{self, MapDef};
use abi::{Address, PolicyRule, Port, PrefixKey, RuleSets};
use aya::Ebpf;
use aya::maps::lpm_trie::Key;
use model::Protocol;
use steps::{AllowedKey, AllowedPorts, Entries, Entry, EntryKey, LinkRef};

use crate::bpf::map::{ANY, Trie, Wire, removed, take, written};
use crate::bpf::table::{Rows, Table, mismatch};
use crate::bpf::{batch, encoding};
use crate::error::OpenError;
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

/// The table of identities.
pub(crate) struct Identities(Trie<Address, u32>);

impl Table for Identities {
    fn take(object: &mut Ebpf) -> Result<Self, OpenError> {
        Ok(Self(take(object, &maps::IDENTITIES)?))
    }

    fn put(&mut self, _: &Names, key: &EntryKey, entry: &Entry) -> io::Result<()> {
        let Entry::Identity(identity) = entry else {
            return Err(mismatch());
        };
        written(self.0.insert(&identity_key(key)?, Wire(*identity), ANY))
    }

    fn remove(&mut self, _: &Names, key: &EntryKey) -> io::Result<()> {
        removed(self.0.remove(&identity_key(key)?))
    }

    fn find(&self, _: &Names, key: &EntryKey) -> io::Result<Option<Entry>> {
        // A lookup returns the longest match, which may be another prefix.
        Ok(self.list(&LinkRef::Gone)?.remove(key))
    }

    fn list(&self, _: &dyn Fn(u32) -> LinkRef) -> io::Result<Entries> {
        let listed = batch::list(&self.0)?.into_iter();
        let entry = |(key, identity): (Key<Wire<Address>>, Wire<u32>)| {
            let prefix = encoding::prefix(PrefixKey {
                prefix_len: key.prefix_len(),
                address: key.data().0,
            })?;
            Some((EntryKey::Identity(prefix), Entry::Identity(identity.0)))
        };
        Ok(listed.filter_map(entry).collect())
    }
}

fn identity_key(key: &EntryKey) -> io::Result<Key<Wire<Address>>> {
    let EntryKey::Identity(prefix) = key else {
        return Err(mismatch());
    };
    let key = encoding::prefix_key(*prefix);
    Ok(Key::new(key.prefix_len, Wire(key.address)))
}

/// The table of what rule sets allow.
pub(crate) struct PolicyRules(Trie<PolicyRule, u32>);

impl Table for PolicyRules {
    fn take(object: &mut Ebpf) -> Result<Self, OpenError> {
        Ok(Self(take(object, &maps::POLICY_RULES)?))
    }

    fn put(&mut self, _: &Names, key: &EntryKey, entry: &Entry) -> io::Result<()> {
        let Entry::PolicyRule = entry else {
            return Err(mismatch());
        };
        written(self.0.insert(&rule_key(key)?, Wire(1), ANY))
    }

    fn remove(&mut self, _: &Names, key: &EntryKey) -> io::Result<()> {
        removed(self.0.remove(&rule_key(key)?))
    }

    fn find(&self, _: &Names, key: &EntryKey) -> io::Result<Option<Entry>> {
        Ok(self.list(&LinkRef::Gone)?.remove(key))
    }

    fn list(&self, _: &dyn Fn(u32) -> LinkRef) -> io::Result<Entries> {
        let listed = batch::list(&self.0)?.into_iter();
        let entry = |(key, _): (Key<Wire<PolicyRule>>, Wire<u32>)| {
            let allowed = allowed(key.prefix_len(), &key.data().0)?;
            Some((EntryKey::PolicyRule(allowed), Entry::PolicyRule))
        };
        Ok(listed.filter_map(entry).collect())
    }
}

fn rule_key(key: &EntryKey) -> io::Result<Key<Wire<PolicyRule>>> {
    let EntryKey::PolicyRule(allowed) = key else {
        return Err(mismatch());
    };
    let any = PolicyRule {
        rules: allowed.rules,
        identity: allowed.identity,
        ..PolicyRule::default()
    };
    Ok(match allowed.ports {
        AllowedPorts::All => Key::new(PolicyRule::ALL, Wire(any)),
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
            Key::new(PolicyRule::PROTOCOL + u32::from(bits), Wire(rule))
        }
    })
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
