//! The plugin names of the one program, which replaces several reference plugins.

use crate::Version;

/// A plugin, by the name of its program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Plugin {
    /// `viaduct`: bridge, addresses, hostports and limits in one entry of a list.
    #[default]
    Viaduct,
    /// `bridge`: attaches the pod to a bridge.
    Bridge,
    /// `host-local`: allocates addresses from ranges, for other plugins.
    HostLocal,
    /// `portmap`: publishes hostports.
    Portmap,
    /// `bandwidth`: limits the pod's traffic.
    Bandwidth,
    /// `firewall`: sets the pod's ingress policy.
    Firewall,
    /// `tuning`: sets sysctls and link settings.
    Tuning,
    /// `loopback`: brings `lo` up.
    Loopback,
}

/// The release of the reference plugins whose settings are supported under their names. Nomad and
/// nerdctl parse it from the version text of a plugin, and refuse an old one (behaviour C8).
const REFERENCE: &str = "1.9.1";

impl Plugin {
    /// All plugins, `viaduct` first.
    pub const ALL: [Self; 8] = [
        Self::Viaduct,
        Self::Bridge,
        Self::HostLocal,
        Self::Portmap,
        Self::Bandwidth,
        Self::Firewall,
        Self::Tuning,
        Self::Loopback,
    ];

    /// Returns the name of the plugin's program, which is also its `type` in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Self::Viaduct => "viaduct",
            Self::Bridge => "bridge",
            Self::HostLocal => "host-local",
            Self::Portmap => "portmap",
            Self::Bandwidth => "bandwidth",
            Self::Firewall => "firewall",
            Self::Tuning => "tuning",
            Self::Loopback => "loopback",
        }
    }

    /// Returns the plugin of a program's name or path. Any other name is `viaduct`, renamed by its
    /// operator.
    pub fn of_program(path: &str) -> Self {
        let name = path.rsplit('/').next().unwrap_or_default();
        let found = Self::ALL.into_iter().find(|plugin| plugin.name() == name);
        found.unwrap_or_default()
    }

    /// Returns the version text that the program prints without `CNI_COMMAND`; `version` is
    /// Viaduct's, and `build` identifies the build. Nomad takes the first substring that looks like
    /// a version.
    pub fn about(self, version: &str, build: &str) -> String {
        let name = self.name();
        let release = match self {
            Self::Viaduct => format!("v{version} ({build})"),
            Self::Bridge
            | Self::HostLocal
            | Self::Portmap
            | Self::Bandwidth
            | Self::Firewall
            | Self::Tuning
            | Self::Loopback => format!("v{REFERENCE} (viaduct v{version}, {build})"),
        };
        format!(
            "CNI {name} plugin {release}\nCNI protocol versions supported: {}",
            Version::ALL.map(Version::as_str).join(", ")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// behaviour R18
    #[test]
    fn a_program_is_the_plugin_of_its_file_name() {
        for plugin in Plugin::ALL {
            let path = format!("/opt/cni/bin/{}", plugin.name());
            assert_eq!(Plugin::of_program(&path), plugin);
            assert_eq!(Plugin::of_program(plugin.name()), plugin);
        }
        assert_eq!(Plugin::of_program("/opt/cni/bin/ours"), Plugin::Viaduct);
        assert_eq!(Plugin::of_program(""), Plugin::Viaduct);
    }

    /// behaviours S1, C8
    #[test]
    fn the_version_text_begins_with_the_reference_release() {
        let words = Plugin::Bridge.about("0.1.0", "commit 1a2b");
        let start = "CNI bridge plugin v1.9.1 (viaduct v0.1.0, commit 1a2b)\nCNI protocol";
        assert!(words.starts_with(start), "{words}");
        let words = Plugin::Viaduct.about("0.1.0", "commit 1a2b");
        let start = "CNI viaduct plugin v0.1.0 (commit 1a2b)\nCNI protocol";
        assert!(words.starts_with(start), "{words}");
    }
}
