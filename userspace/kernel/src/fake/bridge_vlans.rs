//! Bridge ports and VLANs in memory.

use model::{IfName, PortOptions, VlanId};
use nix::errno::Errno;
use steps::{LinkKind, Switching, VlanLinkSpec, VlanMember, VlanStep, wanted_vlans};

use super::world::World;

/// Default VLAN of a bridge's ports (`vlan_default_pvid`).
const DEFAULT: u16 = 1;

impl World {
    pub(super) fn execute_vlan(&mut self, step: &VlanStep) -> Result<(), Errno> {
        match step {
            VlanStep::Filter { bridge, on } => self.filter_vlans(bridge, *on),
            VlanStep::Join {
                bridge,
                vlan,
                member,
            } => self.set_member(bridge, *vlan, *member),
            VlanStep::CreateLink(spec) => self.create_vlan_link(spec),
            VlanStep::DeleteLink { name, alias } => self.delete_vlan_link(name, alias),
        }
    }

    pub(super) fn filter_vlans(&mut self, bridge: &IfName, on: bool) -> Result<(), Errno> {
        let link = self.link_mut(bridge)?;
        if link.kind != LinkKind::Bridge {
            return Err(Errno::EOPNOTSUPP);
        }
        link.switching.filters_vlans = on;
        Ok(())
    }

    fn set_member(&mut self, bridge: &IfName, vlan: VlanId, member: bool) -> Result<(), Errno> {
        if !member && !self.links.contains_key(bridge) {
            return Ok(());
        }
        let vlans = &mut self.link_mut(bridge)?.switching.vlans;
        if member {
            vlans.insert(vlan, VlanMember::default());
        } else {
            vlans.remove(&vlan);
        }
        Ok(())
    }

    fn create_vlan_link(&mut self, spec: &VlanLinkSpec) -> Result<(), Errno> {
        let bridge = self.link(&spec.bridge)?;
        let vlan_of = Some((bridge.index, spec.vlan));
        let (mac, mtu) = (bridge.mac, bridge.mtu);
        if let Some(present) = self.links.get(&spec.name) {
            let same =
                present.switching.vlan_of == vlan_of && present.alias.as_ref() == Some(&spec.alias);
            return if same { Ok(()) } else { Err(Errno::EEXIST) };
        }
        self.add_link(spec.name.clone(), LinkKind::Ethernet);
        let link = self.link_mut(&spec.name)?;
        link.up = false;
        link.mac = mac;
        link.mtu = mtu;
        link.alias = Some(spec.alias.clone());
        link.switching.vlan_of = vlan_of;
        Ok(())
    }

    fn delete_vlan_link(&mut self, name: &IfName, alias: &str) -> Result<(), Errno> {
        let Some(link) = self.links.get(name) else {
            return Ok(());
        };
        if link.switching.vlan_of.is_none() || link.alias.as_deref() != Some(alias) {
            return Err(Errno::EPERM);
        }
        self.delete_link(name);
        Ok(())
    }

    /// Sets an MTU. VLAN links of a bridge never have a larger MTU than the bridge.
    pub(super) fn set_mtu(&mut self, name: &IfName, mtu: u32) -> Result<(), Errno> {
        let link = self.link_mut(name)?;
        link.mtu = mtu;
        let index = link.index;
        let ends = self.links.values_mut().filter(|end| {
            let of = end.switching.vlan_of;
            of.is_some_and(|(parent, _)| parent == index)
        });
        for end in ends {
            end.mtu = end.mtu.min(mtu);
        }
        Ok(())
    }

    /// Deletes the VLAN links of a bridge that is deleted.
    pub(super) fn delete_ends_of(&mut self, bridge: u32) {
        let ends: Vec<IfName> = self
            .links
            .iter()
            .filter(|(_, link)| {
                let of = link.switching.vlan_of;
                of.is_some_and(|(parent, _)| parent == bridge)
            })
            .map(|(name, _)| name.clone())
            .collect();
        for name in ends {
            self.delete_link(&name);
        }
    }

    pub(super) fn join_bridge(
        &mut self,
        name: &IfName,
        bridge: &IfName,
        hairpin: bool,
        options: &PortOptions,
    ) -> Result<(), Errno> {
        self.link(name)?;
        let controller = self.link(bridge)?;
        if controller.kind != LinkKind::Bridge {
            return Err(Errno::EOPNOTSUPP);
        }
        let index = controller.index;
        let filters = controller.switching.filters_vlans;
        let link = self.link_mut(name)?;
        if link.controller != Some(index) {
            link.switching = Switching::default();
            let member = VlanMember {
                pvid: true,
                untagged: true,
            };
            let default = VlanId::new(DEFAULT)
                .filter(|_| filters)
                .map(|id| (id, member));
            link.switching.vlans.extend(default);
        }
        link.controller = Some(index);
        link.hairpin = hairpin;
        link.switching.isolated = options.isolated;
        if options.vlans.is_managed() {
            let vlans = &mut link.switching.vlans;
            if !options.vlans.keeps_default {
                vlans.clear();
            }
            if options.vlans.native().is_some() {
                for member in vlans.values_mut() {
                    member.pvid = false;
                }
            }
            vlans.extend(wanted_vlans(&options.vlans));
        }
        link.up = true;
        Ok(())
    }
}
