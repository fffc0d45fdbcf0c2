//! Bridge ports and VLANs in memory.

use model::{IfName, PortOptions, PortVlans, VlanId};
use nix::errno::Errno;
use steps::{LinkKind, Switching, VlanLinkSpec, VlanMember, VlanStep, wanted_vlans};

use super::world::World;

/// Default VLAN of a bridge's ports (`vlan_default_pvid`).
const DEFAULT: u16 = 1;

impl World {
    pub(super) fn execute_vlan(&mut self, step: &VlanStep) -> Result<(), Errno> {
        match step {
            VlanStep::Filter { bridge, on } => self.filter_vlans(bridge, *on),
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

    fn create_vlan_link(&mut self, spec: &VlanLinkSpec) -> Result<(), Errno> {
        let bridge = self.link(&spec.bridge)?;
        let vlan_of = Some((bridge.index, spec.vlan));
        let (mac, mtu) = (bridge.mac, bridge.mtu);
        if let Some(present) = self.links.get(&spec.name) {
            let same =
                present.switching.vlan_of == vlan_of && present.alias.as_ref() == Some(&spec.alias);
            return if same { Ok(()) } else { Err(Errno::EEXIST) };
        }
        let number = self.next_index;
        let port: IfName = format!("veth{number}").parse().map_err(|_| Errno::EINVAL)?;
        let port_index = self.add_link(port.clone(), LinkKind::Veth);
        let index = self.add_link(spec.name.clone(), LinkKind::Veth);
        let options = PortOptions {
            vlans: PortVlans {
                access: Some(spec.vlan),
                keeps_default: spec.keeps_default,
                ..PortVlans::default()
            },
            ..PortOptions::default()
        };
        self.join_bridge(&port, &spec.bridge, false, &options)?;
        let other = self.link_mut(&port)?;
        other.peer = Some(index);
        other.alias = Some(spec.alias.clone());
        let link = self.link_mut(&spec.name)?;
        link.up = false;
        link.mac = mac;
        link.mtu = mtu;
        link.peer = Some(port_index);
        link.alias = Some(spec.alias.clone());
        link.switching.vlan_of = vlan_of;
        Ok(())
    }

    fn delete_vlan_link(&mut self, name: &IfName, alias: &str) -> Result<(), Errno> {
        let Some(link) = self.links.get(name) else {
            return Ok(());
        };
        if link.kind == LinkKind::Bridge || link.alias.as_deref() != Some(alias) {
            return Err(Errno::EPERM);
        }
        self.delete_link(name);
        Ok(())
    }

    pub(super) fn set_mtu(&mut self, name: &IfName, mtu: u32) -> Result<(), Errno> {
        self.link_mut(name)?.mtu = mtu;
        Ok(())
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
