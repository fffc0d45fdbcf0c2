//! The IPAM driver as pure state: pools, and the addresses that dockerd has requested of them.
//!
//! dockerd requests a pool and its gateway once, when a network is created, and an address for each
//! start of a container. It releases what it knows of. What it forgets when it is killed between a
//! request and its own record, is free again later:
//!
//! * A pool that is in no network, and of which only the gateway is taken, is given out again if it
//!   is requested by its prefix. A network of another driver may have it: not while the node has a
//!   route or an address there.
//! * An address that no attachment has is free again ten minutes after its request. Pools of
//!   networks of other drivers have no attachments here: there, all addresses stay.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use model::{Cidr, InterfaceAddress};
use serde::{Deserialize, Serialize};

use crate::Refused;
use crate::protocol::{Id, OfAddress, RequestPool};
use crate::text::Text;

/// The address space of networks of one node.
pub const LOCAL_SPACE: &str = "viaduct-local";
/// The address space of networks of a cluster, which Viaduct does not have.
pub const GLOBAL_SPACE: &str = "viaduct-global";

/// Seconds after which an address without an attachment is free again.
const FORGOTTEN_AFTER: u64 = 600;
/// Prefix lengths of pools that the driver chooses.
const CHOSEN_V4: u8 = 24;
const CHOSEN_V6: u8 = 64;
/// Second bytes of the IPv4 pools below 10.0.0.0/8 that the driver chooses.
const SECOND_BYTES: std::ops::RangeInclusive<u8> = 128..=255;

/// All pools, by their IDs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pools(BTreeMap<String, Pool>);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Pool {
    prefix: Text<Cidr>,
    /// Part of the pool from which addresses are chosen.
    sub: Option<Text<Cidr>>,
    /// Network of Viaduct's driver that has the pool.
    network: Option<Id>,
    /// Whether dockerd has released the pool while the network has it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    released: bool,
    /// Address that was chosen last.
    last: Option<IpAddr>,
    taken: BTreeMap<IpAddr, Taken>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Taken {
    owner: Owner,
    /// Time of the request in seconds since 1970.
    since: u64,
}

/// What has an address. Before dockerd creates the network, it requests gateway and auxiliary
/// addresses, and afterwards those of containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Owner {
    Gateway,
    /// An auxiliary address, or a container of a network of another driver.
    Other,
    Container,
}

/// What a request depends on besides the pools.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Prefixes that the node uses. A chosen pool must not overlap them, and a pool that does is
    /// not given out again.
    pub used: Vec<Cidr>,
    /// Addresses of attachments.
    pub attached: BTreeSet<IpAddr>,
    /// Global ID of an IPv6 pool that is chosen (RFC 4193): random bytes.
    pub global_id: [u8; 5],
    /// Time in seconds since 1970.
    pub now: u64,
}

impl Pools {
    /// Returns the ID and the prefix of a pool; a new one where none is requested by its prefix.
    pub fn request(
        &mut self,
        wanted: &RequestPool,
        request: &Request,
    ) -> Result<(String, Cidr), Refused> {
        if !["", LOCAL_SPACE].contains(&wanted.address_space.as_str()) {
            let space = &wanted.address_space;
            return Err(Refused::new(format!("there is no address space {space}")));
        }
        if let Some((name, value)) = wanted.options.first_key_value() {
            return Err(Refused::option(
                name,
                value,
                "the IPAM driver viaduct has no options",
            ));
        }
        let prefix = match wanted.pool.as_str() {
            "" if !wanted.sub_pool.is_empty() => {
                return Err(Refused::new("a range needs a subnet that contains it"));
            }
            "" => self.choose(wanted.v6, request)?,
            text => prefix(text)?,
        };
        if prefix.is_ipv4() == wanted.v6 {
            return Err(Refused::new(format!("{prefix}: another address family")));
        }
        let sub = match wanted.sub_pool.as_str() {
            "" => None,
            text => Some(Text(within(prefix, text)?)),
        };
        let id = prefix.to_string();
        let is_on_node = request.used.iter().any(|used| used.overlaps(&prefix));
        let mut others = self.0.iter();
        let other = others.find(|(other, pool)| {
            pool.prefix.0.overlaps(&prefix) && (**other != id || is_on_node || pool.is_in_use())
        });
        if let Some((other, _)) = other {
            return Err(Refused::new(format!(
                "subnet {prefix} overlaps with pool {other}"
            )));
        }
        let pool = Pool {
            prefix: Text(prefix),
            sub,
            network: None,
            released: false,
            last: None,
            taken: BTreeMap::new(),
        };
        self.0.insert(id.clone(), pool);
        Ok((id, prefix))
    }

    /// Removes a pool. An unknown one is success. One that a network has is removed with the
    /// network: dockerd releases the pools of a network before it deletes the network, or after.
    pub fn release(&mut self, id: &str) {
        match self.0.get_mut(id) {
            Some(pool) if pool.network.is_some() => pool.released = true,
            Some(_) | None => drop(self.0.remove(id)),
        }
    }

    /// Notes that a network of the driver has these pools.
    pub fn bind<'a>(&mut self, network: &Id, prefixes: impl Iterator<Item = &'a str>) {
        for prefix in prefixes {
            if let Some(pool) = self.0.get_mut(prefix) {
                pool.network = Some(network.clone());
            }
        }
    }

    /// Notes that a network is deleted, and removes those of its pools that are released.
    pub fn unbind(&mut self, network: &Id) {
        self.0.retain(|_, pool| {
            let is_of_network = pool.network.as_ref() == Some(network);
            if is_of_network {
                pool.network = None;
            }
            !(is_of_network && pool.released)
        });
    }

    /// Returns an address of a pool, with the prefix length of the pool.
    pub fn request_address(
        &mut self,
        wanted: &OfAddress,
        request: &Request,
    ) -> Result<InterfaceAddress, Refused> {
        let pool = self.0.get_mut(&wanted.pool);
        let pool = pool.ok_or_else(|| Refused::new(format!("there is no pool {}", wanted.pool)))?;
        let address = match wanted.address.as_str() {
            "" => pool.choose_address(wanted.is_gateway(), request)?,
            text => pool.given_address(text, request)?,
        };
        let taken = Taken {
            owner: match (wanted.is_gateway(), &pool.network) {
                (true, _) => Owner::Gateway,
                (false, None) => Owner::Other,
                (false, Some(_)) => Owner::Container,
            },
            since: request.now,
        };
        pool.taken.insert(address, taken);
        Ok(InterfaceAddress {
            address,
            prefix_len: pool.prefix.0.prefix_len(),
        })
    }

    /// Releases an address. An unknown one is success.
    pub fn release_address(&mut self, wanted: &OfAddress) {
        let address = wanted.address.parse::<IpAddr>();
        if let (Some(pool), Ok(address)) = (self.0.get_mut(&wanted.pool), address) {
            pool.taken.remove(&address);
        }
    }

    fn choose(&self, v6: bool, request: &Request) -> Result<Cidr, Refused> {
        let pools = self.0.values().map(|pool| pool.prefix.0);
        let used: Vec<Cidr> = pools.chain(request.used.iter().copied()).collect();
        let is_free = |candidate: &Cidr| !used.iter().any(|other| other.overlaps(candidate));
        let free = if v6 {
            candidates_v6(request.global_id).find(is_free)
        } else {
            candidates_v4().find(is_free)
        };
        free.ok_or_else(|| Refused::new("no free subnet: choose one with --subnet"))
    }
}

impl Pool {
    /// Returns whether a network has the pool, or more than the gateway an address of it.
    fn is_in_use(&self) -> bool {
        let mut taken = self.taken.values();
        self.network.is_some() || taken.any(|taken| taken.owner != Owner::Gateway)
    }

    fn given_address(&self, text: &str, request: &Request) -> Result<IpAddr, Refused> {
        let address: IpAddr = text
            .parse()
            .map_err(|_| Refused::new(format!("{text} is no address")))?;
        let [first, last] = self.ends(self.prefix.0);
        let number = number(address);
        let is_inside = self.prefix.0.contains(address) && (first..=last).contains(&number);
        if !is_inside {
            let prefix = self.prefix.0;
            return Err(Refused::new(format!(
                "{address} is no address of a host in {prefix}"
            )));
        }
        match self.taken.get(&address) {
            Some(_) if !self.is_forgotten(address, request) => {
                Err(Refused::new(format!("address {address} is already in use")))
            }
            _ => Ok(address),
        }
    }

    /// Returns the next free address behind the one that was chosen last; for a gateway the first.
    fn choose_address(&mut self, is_gateway: bool, request: &Request) -> Result<IpAddr, Refused> {
        let prefix = self.prefix.0;
        let chosen = match (&self.sub, is_gateway) {
            (Some(sub), false) => sub.0,
            _ => prefix,
        };
        let [first, last] = self.ends(chosen);
        let after = self.last.map(|last| number(last) + 1);
        let start = after.filter(|next| !is_gateway && (first..=last).contains(next));
        let free = self.free(start.unwrap_or(first), [first, last], request);
        let free = free.ok_or_else(|| Refused::new(format!("no free address in {chosen}")))?;
        if !is_gateway {
            self.last = Some(free);
        }
        Ok(free)
    }

    /// Returns the first free address from `start` on; behind the last follows the first.
    fn free(&self, start: u128, [first, last]: [u128; 2], request: &Request) -> Option<IpAddr> {
        let ipv4 = self.prefix.0.is_ipv4();
        let behind = (start..=last).chain(first..start);
        let mut addresses = behind.map(|number| address(number, ipv4));
        // Never more steps than addresses are taken.
        addresses.find(|address| {
            !self.taken.contains_key(address) || self.is_forgotten(*address, request)
        })
    }

    fn is_forgotten(&self, address: IpAddr, request: &Request) -> bool {
        let taken = self.taken.get(&address);
        let old = |taken: &Taken| request.now.saturating_sub(taken.since) > FORGOTTEN_AFTER;
        let is_old = taken.is_some_and(|taken| taken.owner == Owner::Container && old(taken));
        self.network.is_some() && is_old && !request.attached.contains(&address)
    }

    /// Returns the first and last address for hosts in a part of the pool.
    fn ends(&self, part: Cidr) -> [u128; 2] {
        let prefix = self.prefix.0;
        let (first, last) = (number(part.network()), number(part.last()));
        let is_first = part.network() == prefix.network();
        let is_broadcast = prefix.is_ipv4() && part.last() == prefix.last();
        [
            first + u128::from(is_first),
            last - u128::from(is_broadcast),
        ]
    }
}

/// Parses the prefix of a pool, which must have room for a gateway and a container.
fn prefix(text: &str) -> Result<Cidr, Refused> {
    let prefix =
        Cidr::masked(text).map_err(|error| Refused::new(format!("subnet {text}: {error}")))?;
    let bits = if prefix.is_ipv4() { 32 } else { 128 };
    if (1..=bits - 2).contains(&prefix.prefix_len()) {
        Ok(prefix)
    } else {
        let why = "no room for a gateway and containers, or no subnet at all";
        Err(Refused::new(format!("subnet {prefix}: {why}")))
    }
}

fn within(prefix: Cidr, text: &str) -> Result<Cidr, Refused> {
    let sub = Cidr::masked(text).map_err(|error| Refused::new(format!("range {text}: {error}")))?;
    if prefix.contains(sub.network()) && prefix.contains(sub.last()) {
        Ok(sub)
    } else {
        Err(Refused::new(format!(
            "range {sub} is not within subnet {prefix}"
        )))
    }
}

fn candidates_v4() -> impl Iterator<Item = Cidr> {
    SECOND_BYTES.flat_map(|second| {
        let of = move |third| IpAddr::V4(Ipv4Addr::new(10, second, third, 0));
        (0..=u8::MAX).filter_map(move |third| Cidr::containing(of(third), CHOSEN_V4))
    })
}

fn candidates_v6(global_id: [u8; 5]) -> impl Iterator<Item = Cidr> {
    (0..=u16::MAX).filter_map(move |subnet| {
        let mut bytes = [0; 16];
        bytes[0] = 0xfd;
        bytes[1..6].copy_from_slice(&global_id);
        bytes[6..8].copy_from_slice(&subnet.to_be_bytes());
        Cidr::containing(IpAddr::V6(Ipv6Addr::from(bytes)), CHOSEN_V6)
    })
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_bits().into(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

fn address(number: u128, ipv4: bool) -> IpAddr {
    match u32::try_from(number) {
        Ok(bits) if ipv4 => IpAddr::V4(Ipv4Addr::from_bits(bits)),
        _ => IpAddr::V6(Ipv6Addr::from_bits(number)),
    }
}

#[cfg(test)]
mod tests;
