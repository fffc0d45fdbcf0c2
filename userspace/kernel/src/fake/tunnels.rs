//! Tunnels of the in-memory kernel.

use model::IfName;
use nix::errno::Errno;
use steps::{
    LinkKind, ObservedTunnel, TUNNEL_ALIAS, TunnelChange, TunnelEntry, TunnelSpec, TunnelStep,
};

use super::world::World;

impl World {
    pub(super) fn execute_tunnel(&mut self, step: &TunnelStep) -> Result<(), Errno> {
        match step {
            TunnelStep::Create(spec) => self.create_tunnel(spec),
            TunnelStep::Delete(name) => self.delete_tunnel(name),
            TunnelStep::Change(changes) => {
                let results: Vec<_> = changes.iter().map(|one| self.change_tunnel(one)).collect();
                results.into_iter().collect()
            }
        }
    }

    fn create_tunnel(&mut self, spec: &TunnelSpec) -> Result<(), Errno> {
        if self.links.contains_key(&spec.name) {
            return Err(Errno::EEXIST);
        }
        self.add_link(spec.name.clone(), LinkKind::Ethernet);
        let link = self.link_mut(&spec.name)?;
        (link.up, link.mac, link.mtu) = (false, Some(spec.mac), spec.mtu);
        link.alias = Some(TUNNEL_ALIAS.to_owned());
        let tunnel = ObservedTunnel {
            ipv6: spec.ipv6,
            vni: spec.vni,
            port: spec.port,
            ..ObservedTunnel::default()
        };
        self.tunnels.insert(spec.name.clone(), tunnel);
        Ok(())
    }

    fn delete_tunnel(&mut self, name: &IfName) -> Result<(), Errno> {
        let Some(link) = self.links.get(name) else {
            return Ok(());
        };
        if link.alias.as_deref() != Some(TUNNEL_ALIAS) {
            return Err(Errno::EPERM);
        }
        self.delete_link(name);
        Ok(())
    }

    fn change_tunnel(&mut self, change: &TunnelChange) -> Result<(), Errno> {
        let TunnelChange { link, entry, add } = change;
        let Some(tunnel) = self.tunnels.get_mut(link) else {
            return if *add { Err(Errno::ENODEV) } else { Ok(()) };
        };
        if !*add {
            tunnel.entries.remove(entry);
            return Ok(());
        }
        tunnel.entries.retain(|other| !has_same_key(entry, other));
        tunnel.entries.insert(entry.clone());
        Ok(())
    }
}

fn has_same_key(one: &TunnelEntry, other: &TunnelEntry) -> bool {
    match (one, other) {
        (TunnelEntry::Neighbour { gateway, .. }, TunnelEntry::Neighbour { gateway: other, .. }) => {
            gateway == other
        }
        (TunnelEntry::Forwarding { mac, .. }, TunnelEntry::Forwarding { mac: other, .. }) => {
            mac == other
        }
        _ => false,
    }
}
