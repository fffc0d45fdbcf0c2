//! The names under which one program stands in for several plugins, and what each says of itself.

use crate::Version;

/// A plugin that runtimes know by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Plugin {
    /// `viaduct`: a bridge, addresses, ports and all, in one entry of a list.
    #[default]
    Viaduct,
    /// `bridge`.
    Bridge,
    /// `host-local`.
    HostLocal,
    /// `portmap`.
    Portmap,
    /// `bandwidth`.
    Bandwidth,
    /// `firewall`.
    Firewall,
    /// `tuning`.
    Tuning,
    /// `loopback`.
    Loopback,
}

/// The release of the reference plugins whose settings ours know under their names. Nomad and nerdctl read it from the
/// words that a plugin says without a command, and refuse to work with an old one (behaviour C8).
const REFERENCE: &str = "1.7.1";

impl Plugin {
    /// All, `viaduct` first.
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

    /// The name of its program, and its `type` in configurations.
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

    /// The plugin of a program's name, with or without folders. A name that is none of these is `viaduct` under a name
    /// that its operator chose.
    pub fn of_program(path: &str) -> Self {
        let name = path.rsplit('/').next().unwrap_or_default();
        let found = Self::ALL.into_iter().find(|plugin| plugin.name() == name);
        found.unwrap_or_default()
    }

    /// What it says to people, and to Nomad, which takes the first thing that looks like a version; `version` is ours.
    pub fn about(self, version: &str) -> String {
        let name = self.name();
        let release = match self {
            Self::Viaduct => format!("v{version}"),
            Self::Bridge
            | Self::HostLocal
            | Self::Portmap
            | Self::Bandwidth
            | Self::Firewall
            | Self::Tuning
            | Self::Loopback => format!("v{REFERENCE} (viaduct v{version})"),
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
    fn a_program_is_the_plugin_that_it_is_called_by() {
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
    fn the_first_version_that_a_reader_finds_is_the_one_it_wants() {
        let words = Plugin::Bridge.about("0.1.0");
        assert!(words.starts_with("CNI bridge plugin v1.7.1 (viaduct v0.1.0)\nCNI protocol"));
        let words = Plugin::Viaduct.about("0.1.0");
        assert!(words.starts_with("CNI viaduct plugin v0.1.0\nCNI protocol"));
    }
}
