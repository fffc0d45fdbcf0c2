//! Settings of pods' interfaces: only those that [`steps::PodSide`] has.

use model::{IfName, InterfaceSettings, Netns, NetnsPath};
use nix::errno::Errno;
use steps::Step;

use super::world::{World, unicast};

impl World {
    pub(super) fn settings(&self, path: &NetnsPath, ifname: &IfName) -> Option<InterfaceSettings> {
        let side = self.pod(path, ifname);
        self.paths.contains_key(path).then(|| InterfaceSettings {
            mac: side.as_ref().and_then(|side| side.mac),
            mtu: side.as_ref().map(|side| side.mtu),
            ..InterfaceSettings::default()
        })
    }

    /// Executes the steps that change only settings inside of a pod; any other is `ENOSYS`.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the caller matches all other steps"
    )]
    pub(super) fn execute_in_pod(&mut self, step: &Step) -> Result<(), Errno> {
        match step {
            Step::SetLoopback { netns, .. } => self.same_netns(netns).map(drop),
            Step::SetPodMtu { netns, ifname, mtu } => {
                let settings = InterfaceSettings {
                    mtu: Some(*mtu),
                    ..InterfaceSettings::default()
                };
                self.tune_pod(netns, ifname, &settings)
            }
            Step::TunePod {
                netns,
                ifname,
                settings,
                ..
            } => self.tune_pod(netns, ifname, settings),
            _ => Err(Errno::ENOSYS),
        }
    }

    fn tune_pod(
        &mut self,
        netns: &Netns,
        ifname: &IfName,
        settings: &InterfaceSettings,
    ) -> Result<(), Errno> {
        let inode = self.same_netns(netns)?;
        if !settings.has_link_settings() {
            return Ok(());
        }
        let inside = self.namespaces.entry(inode).or_default();
        let side = inside.get_mut(ifname).ok_or(Errno::ENODEV)?;
        side.mac = settings.mac.map(unicast).transpose()?.or(side.mac);
        side.mtu = settings.mtu.unwrap_or(side.mtu);
        Ok(())
    }
}
