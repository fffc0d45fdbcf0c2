//! State of the in-memory kernel, and the effect of each step on it.
//!
//! Every step checks first and changes then: a step that fails has no effect. Faults are injected
//! outside of this module.

use std::collections::{BTreeMap, BTreeSet};

use crate::{DatapathLog, Process};
use model::{IfName, InterfaceAddress, Mac, ManagedLink, Netns, NetnsPath};
use nix::errno::Errno;
use steps::{
    AttachedPrefilter, BridgeSpec, CheckFacts, Entries, ForwardTables, ForwardingStep, Link,
    LinkKind, NetfilterState, NetfilterStep, NodeLink, ObservedTunnel, PodSide, PodSpec,
    PortReservation, PortReservations, RouteEntry, SocketHook, SocketHookState, Step, SysctlKey,
    VethSpec,
};

use super::sysctls::first_sysctls;

/// Number of the main routing table.
pub(super) const MAIN: u32 = 254;

/// Device number of nsfs; arbitrary.
const DEVICE: u64 = 4;

pub(super) struct World {
    pub(super) links: BTreeMap<IfName, NodeLink>,
    /// Added routes. The subnet routes of addresses are derived from the addresses.
    pub(super) routes: Vec<RouteEntry>,
    pub(super) tunnels: BTreeMap<IfName, ObservedTunnel>,
    pub(super) sysctls: BTreeMap<SysctlKey, String>,
    /// Table entries, with links by index as in the maps.
    pub(super) entries: Entries,
    /// Ports that the agent reserves while it runs.
    pub(super) held: PortReservations,
    /// Processes that have still to bind ports that the agent has left to them.
    pub(super) awaited: BTreeMap<PortReservation, u32>,
    /// Processes that have ended.
    pub(super) ended: BTreeSet<u32>,
    /// Ports that other processes have bound.
    pub(super) foreign: BTreeMap<PortReservation, Process>,
    /// The datapath log of the programs.
    pub(super) datapath_log: DatapathLog,
    /// XDP prefilters of uplinks.
    pub(super) prefilters: BTreeMap<IfName, AttachedPrefilter>,
    /// Filter tables of other software.
    pub(super) forwarding: ForwardTables,
    /// Our netfilter table.
    pub(super) netfilter: NetfilterState,
    /// State of the cgroup programs; empty without a cgroup.
    pub(super) sockets: BTreeMap<SocketHook, SocketHookState>,
    /// Facts that a test has set; routes and sysctls are not read from here.
    pub(super) facts: CheckFacts,
    pub(super) paths: BTreeMap<NetnsPath, u64>,
    pub(super) namespaces: BTreeMap<u64, BTreeMap<IfName, PodSide>>,
    pub(super) next_index: u32,
    next_inode: u64,
}

impl World {
    pub(super) fn new() -> Self {
        let mut world = Self {
            links: BTreeMap::new(),
            routes: Vec::new(),
            tunnels: BTreeMap::new(),
            sysctls: first_sysctls(),
            entries: Entries::new(),
            held: PortReservations::new(),
            awaited: BTreeMap::new(),
            ended: BTreeSet::new(),
            foreign: BTreeMap::new(),
            datapath_log: DatapathLog::default(),
            prefilters: BTreeMap::new(),
            forwarding: ForwardTables::default(),
            netfilter: NetfilterState::Absent,
            sockets: BTreeMap::new(),
            facts: CheckFacts::default(),
            paths: BTreeMap::new(),
            namespaces: BTreeMap::new(),
            next_index: 1,
            next_inode: 4_026_532_000,
        };
        let name: IfName = "lo".parse().expect("a valid name");
        world.add_link(name.clone(), LinkKind::Loopback);
        let addresses = ["127.0.0.1/8", "::1/128"].map(|text| text.parse().expect("valid"));
        if let Some(lo) = world.links.get_mut(&name) {
            lo.mtu = 65_536;
            lo.addresses = addresses.into();
        }
        world
    }

    pub(super) fn execute(&mut self, step: &Step) -> Result<(), Errno> {
        match step {
            Step::SetSysctl { key, value, .. } => self.set_sysctl(key, value),
            Step::CreateBridge(spec) => self.create_bridge(spec),
            Step::DeleteBridge { name, alias } => self.delete_bridge(name, alias),
            Step::Vlan(step) => self.execute_vlan(step),
            Step::SetMac { link, mac } => self.set_mac(link, *mac),
            Step::SetMtu { link, mtu } => self.set_mtu(link, *mtu),
            Step::SetPodMtu { .. } | Step::SetLoopback { .. } | Step::TunePod { .. } => {
                self.execute_in_pod(step)
            }
            Step::SetPromiscuous { link, on } => {
                self.link_mut(link).map(|link| link.promiscuous = *on)
            }
            Step::SetUp { link } => self.link_mut(link).map(|link| link.up = true),
            Step::AddAddress { link, address } => self.add_address(link, *address),
            Step::RemoveAddress { link, address } => {
                if let Some(link) = self.links.get_mut(link) {
                    link.addresses.retain(|present| present != address);
                }
                Ok(())
            }
            Step::CreateVeth(spec) => self.create_veth(spec),
            Step::DeleteVeth { link, alias } => self.delete_veth(link, alias),
            Step::JoinBridge {
                link,
                bridge,
                hairpin,
                options,
            } => self.join_bridge(link.name(), bridge, *hairpin, options),
            Step::SetUpPod(spec) => self.set_up_pod(spec),
            Step::AwaitAddresses { netns, ifname } => self.await_addresses(netns, ifname),
            Step::Attach { link, hooks } => self.attach(link, hooks),
            Step::Detach { link, hooks } => {
                self.detach(link, hooks);
                Ok(())
            }
            Step::XdpPrefilter(step) => self.change_prefilter(step),
            Step::Netfilter(step) => {
                self.netfilter = match &**step {
                    NetfilterStep::Put { table, .. } => NetfilterState::Present(table.clone()),
                    NetfilterStep::Remove { .. } => NetfilterState::Absent,
                };
                Ok(())
            }
            Step::AttachSocketHooks { hooks } => self.set_sockets(hooks, SocketHookState::Attached),
            Step::DetachSocketHooks { hooks } => self.set_sockets(hooks, SocketHookState::Absent),
            Step::ReservePort { .. } | Step::LeavePort(_) | Step::ReleasePort { .. } => {
                self.change_port(step)
            }
            Step::PutEntry { key, entry, .. } => self.put(key, entry),
            Step::RemoveEntry { key, .. } => {
                self.remove(key);
                Ok(())
            }
            Step::Forwarding(step) => self.write_rules(step),
            Step::ChangeRoutes(changes) => self.change_routes(changes),
            Step::Tunnel(step) => self.execute_tunnel(step),
            Step::Announce(_) | Step::Sweep => Ok(()),
        }
    }

    fn write_rules(&mut self, step: &ForwardingStep) -> Result<(), Errno> {
        let written = self.forwarding.apply(step);
        written.then_some(()).ok_or(Errno::EAGAIN)
    }

    fn set_sysctl(&mut self, key: &SysctlKey, value: &str) -> Result<(), Errno> {
        if !self.sysctls.contains_key(key) {
            return Err(Errno::ENOENT);
        }
        self.put_sysctl(key.clone(), value);
        Ok(())
    }

    fn set_mac(&mut self, link: &IfName, mac: Mac) -> Result<(), Errno> {
        let mac = unicast(mac)?;
        let link = self.link_mut(link)?;
        (link.mac, link.mac_is_set) = (Some(mac), true);
        Ok(())
    }

    fn create_bridge(&mut self, spec: &BridgeSpec) -> Result<(), Errno> {
        if let Some(link) = self.links.get(&spec.name) {
            let same = link.kind == LinkKind::Bridge
                && link.alias.as_ref() == Some(&spec.alias)
                && link.mac == Some(spec.mac)
                && link.mtu == spec.mtu
                && (link.switching.filters_vlans || !spec.filters_vlans);
            let half_made =
                link.kind == LinkKind::Bridge && link.alias.is_none() && link.mac == Some(spec.mac);
            if !half_made {
                return if same { Ok(()) } else { Err(Errno::EEXIST) };
            }
        } else {
            unicast(spec.mac)?;
            self.add_link(spec.name.clone(), LinkKind::Bridge);
            self.link_mut(&spec.name)?.up = false;
            self.filter_vlans(&spec.name, spec.filters_vlans)?;
        }
        let link = self.link_mut(&spec.name)?;
        link.mac = Some(spec.mac);
        link.mtu = spec.mtu;
        link.alias = Some(spec.alias.clone());
        Ok(())
    }

    fn delete_bridge(&mut self, name: &IfName, alias: &str) -> Result<(), Errno> {
        let Some(link) = self.links.get(name) else {
            return Ok(());
        };
        if link.kind != LinkKind::Bridge || link.alias.as_deref() != Some(alias) {
            return Err(Errno::EPERM);
        }
        let index = link.index;
        if self
            .links
            .values()
            .any(|port| port.controller == Some(index))
        {
            return Err(Errno::EBUSY);
        }
        self.delete_link(name);
        Ok(())
    }

    /// Like the kernel, accepts an IPv4 address with several prefix lengths, and an IPv6 address
    /// with one.
    fn add_address(&mut self, link: &IfName, address: InterfaceAddress) -> Result<(), Errno> {
        let addresses = &mut self.link_mut(link)?.addresses;
        if addresses.contains(&address) {
            return Ok(());
        }
        let twice = |present: &InterfaceAddress| present.address == address.address;
        if address.address.is_ipv6() && addresses.iter().any(twice) {
            return Err(Errno::EEXIST);
        }
        addresses.push(address);
        Ok(())
    }

    fn create_veth(&mut self, spec: &VethSpec) -> Result<(), Errno> {
        let inode = self.same_netns(&spec.netns)?;
        let pod = self
            .namespaces
            .get(&inode)
            .and_then(|links| links.get(&spec.pod));
        if let Some(host) = self.links.get(spec.host.name()) {
            let same = host.kind == LinkKind::Veth
                && host.alias.as_ref() == Some(&spec.alias)
                && host.mac == Some(spec.host_mac)
                && pod.is_some_and(|pod| {
                    pod.mac == Some(spec.pod_mac) && pod.peer == Some(host.index)
                });
            return if same { Ok(()) } else { Err(Errno::EEXIST) };
        }
        if pod.is_some() {
            return Err(Errno::EEXIST);
        }
        let (host_mac, pod_mac) = (unicast(spec.host_mac)?, unicast(spec.pod_mac)?);
        let index = self.add_link(spec.host.name().clone(), LinkKind::Veth);
        let host = self.link_mut(spec.host.name())?;
        host.up = false;
        host.mac = Some(host_mac);
        host.mtu = spec.mtu;
        host.alias = Some(spec.alias.clone());
        let side = PodSide {
            mac: Some(pod_mac),
            mtu: spec.mtu,
            up: false,
            addresses: BTreeSet::new(),
            routes: BTreeSet::new(),
            peer: Some(index),
        };
        let inside = self.namespaces.entry(inode).or_default();
        inside.insert(spec.pod.clone(), side);
        Ok(())
    }

    fn delete_veth(&mut self, managed: &ManagedLink, alias: &str) -> Result<(), Errno> {
        let Some(link) = self.links.get(managed.name()) else {
            return Ok(());
        };
        if link.kind != LinkKind::Veth || !link.is_signed(alias, managed.mac()) {
            return Err(Errno::EPERM);
        }
        self.delete_link(managed.name());
        Ok(())
    }

    fn set_up_pod(&mut self, spec: &PodSpec) -> Result<(), Errno> {
        let inode = self.same_netns(&spec.netns)?;
        let inside = self.namespaces.entry(inode).or_default();
        let side = inside.get_mut(&spec.ifname).ok_or(Errno::ENODEV)?;
        side.up = true;
        side.addresses.extend(&spec.addresses);
        side.routes.extend(&spec.routes);
        Ok(())
    }

    /// Succeeds if the interface exists: there are no duplicate addresses.
    fn await_addresses(&self, netns: &Netns, ifname: &IfName) -> Result<(), Errno> {
        let inode = self.same_netns(netns)?;
        let inside = self.namespaces.get(&inode);
        let side = inside.and_then(|inside| inside.get(ifname));
        side.map(|_| ()).ok_or(Errno::ENODEV)
    }

    pub(super) fn link(&self, name: &IfName) -> Result<&NodeLink, Errno> {
        self.links.get(name).ok_or(Errno::ENODEV)
    }

    pub(super) fn link_mut(&mut self, name: &IfName) -> Result<&mut NodeLink, Errno> {
        self.links.get_mut(name).ok_or(Errno::ENODEV)
    }

    /// Returns the inode of `netns`, if the namespace at its path is still the same.
    pub(super) fn same_netns(&self, netns: &Netns) -> Result<u64, Errno> {
        let inode = self.paths.get(&netns.path).ok_or(Errno::ENOENT)?;
        if *inode == netns.inode && netns.device == DEVICE {
            Ok(*inode)
        } else {
            Err(Errno::ENOENT)
        }
    }
}

/// Events that the agent does not cause.
impl World {
    pub(super) fn add_link(&mut self, name: IfName, kind: LinkKind) -> u32 {
        assert!(!self.links.contains_key(&name), "{name} is there already");
        let index = self.next_index;
        self.next_index += 1;
        self.inherit_sysctls(&name);
        let [_, _, _, low @ ..] = u64::from(index).to_be_bytes();
        let link = Link {
            mac: (!matches!(kind, LinkKind::Loopback | LinkKind::Raw)).then(|| Mac::local(low)),
            mtu: 1500,
            ..Link::plain(index, kind)
        };
        self.links.insert(name, link.into());
        index
    }

    pub(super) fn delete_link(&mut self, name: &IfName) {
        let Some(link) = self.links.remove(name) else {
            return;
        };
        self.routes.retain(|route| route.link != link.index);
        self.tunnels.remove(name);
        let peer = |(_, other): &(&IfName, &NodeLink)| other.peer == Some(link.index);
        let peer = self.links.iter().find(peer).map(|(name, _)| name.clone());
        if let Some(peer) = peer {
            self.links.remove(&peer);
        }
        let infix = format!("/conf/{name}/");
        self.sysctls.retain(|key, _| !key.0.contains(&infix));
        for port in self.links.values_mut() {
            if port.controller == Some(link.index) {
                port.controller = None;
                port.hairpin = false;
                port.switching = steps::Switching::default();
            }
        }
        for inside in self.namespaces.values_mut() {
            inside.retain(|_, side| side.peer != Some(link.index));
        }
    }

    pub(super) fn add_netns(&mut self, path: NetnsPath) -> Netns {
        let inode = self.next_inode;
        self.next_inode += 1;
        assert!(!self.paths.contains_key(&path), "{path} is there already");
        self.paths.insert(path.clone(), inode);
        self.namespaces.insert(inode, BTreeMap::new());
        netns(path, inode)
    }

    pub(super) fn remove_netns(&mut self, path: &NetnsPath) {
        let Some(inode) = self.paths.remove(path) else {
            return;
        };
        let inside = self.namespaces.remove(&inode).unwrap_or_default();
        let peers: BTreeSet<u32> = inside.values().filter_map(|side| side.peer).collect();
        let gone: Vec<IfName> = self
            .links
            .iter()
            .filter(|(_, link)| peers.contains(&link.index))
            .map(|(name, _)| name.clone())
            .collect();
        for name in gone {
            self.delete_link(&name);
        }
    }

    pub(super) fn add_pod_link(&mut self, path: &NetnsPath, ifname: IfName) {
        let inode = self.paths.get(path).expect("the namespace is there");
        let side = PodSide {
            mac: None,
            mtu: 1500,
            up: true,
            addresses: BTreeSet::new(),
            routes: BTreeSet::new(),
            peer: None,
        };
        let inside = self.namespaces.entry(*inode).or_default();
        inside.insert(ifname, side);
    }

    pub(super) fn pod(&self, path: &NetnsPath, ifname: &IfName) -> Option<PodSide> {
        let inside = self.namespaces.get(self.paths.get(path)?)?;
        inside.get(ifname).cloned()
    }

    pub(super) fn pod_mut(&mut self, path: &NetnsPath, ifname: &IfName) -> &mut PodSide {
        let inode = self.paths.get(path).expect("the namespace is there");
        let inside = self.namespaces.get_mut(inode);
        let side = inside.and_then(|inside| inside.get_mut(ifname));
        side.expect("the interface is there")
    }

    pub(super) fn all_netns(&self) -> BTreeMap<NetnsPath, Netns> {
        self.paths
            .iter()
            .map(|(path, inode)| (path.clone(), netns(path.clone(), *inode)))
            .collect()
    }
}

pub(super) fn netns(path: NetnsPath, inode: u64) -> Netns {
    Netns {
        path,
        device: DEVICE,
        inode,
    }
}

pub(super) fn unicast(mac: Mac) -> Result<Mac, Errno> {
    let multicast = mac.0[0] & 1 == 1;
    if multicast || mac == Mac([0; 6]) {
        return Err(Errno::EADDRNOTAVAIL);
    }
    Ok(mac)
}
