//! How a changed key takes effect when the configuration is reloaded: declared once for each field.
//!
//! The list names all fields of [`Config`]: a field that is missing here does not compile.

use super::Config;

/// How a changed key takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// At the next start of the agent.
    Restart,
    /// At once.
    Live,
}

macro_rules! reload_rules {
    ($($rule:ident $field:ident = $keys:literal),* $(,)?) => {
        impl Config {
            fn changed(&self, wanted: &Self, of: Rule) -> Vec<&'static str> {
                // Without `..`: a new field needs a rule.
                let Self { $($field: _),* } = wanted;
                let fields = [$((Rule::$rule, $keys, self.$field != wanted.$field)),*];
                fields
                    .into_iter()
                    .filter(|(rule, _, differs)| *rule == of && *differs)
                    .map(|(_, keys, _)| keys)
                    .collect()
            }

            /// Adopts the values of `wanted`, except those of the keys that need a restart.
            pub(crate) fn adopt_reloadable(&mut self, wanted: Self) {
                $(if Rule::$rule == Rule::Live {
                    self.$field = wanted.$field;
                })*
            }
        }

        /// Keys of all fields.
        #[cfg(test)]
        pub(super) const KEYS: &[&str] = &[$($keys),*];
    };
}

reload_rules! {
    Restart socket = "socket",
    Restart access = "sandbox, read-only-socket, socket-group",
    Restart metrics_listen = "metrics-listen",
    Restart state_dir = "state-dir",
    Restart bpffs = "bpffs",
    Restart cgroup = "cgroup",
    Restart bridge = "bridge",
    Restart pod_cidr_file = "pod-cidr-file",
    Restart mtu = "mtu",
    Restart kubenet = "kubenet",
    Restart network_access = "direct-access, internal",
    Restart flow_entries = "flow-table-size",
    Restart shaper = "shaper",
    Restart limits = "*-default, *-ceiling",
    Restart datapath_object = "datapath-object",
    Restart installation = "cni-conf-dir, cni-bin-dir",
    Live ranges = "pod-cidr",
    Live hairpin = "hairpin-mode",
    Live non_masquerade = "non-masquerade-cidr",
    Live uplinks = "uplink",
    Live egress = "egress-address",
    Live bypass = "bypass-netfilter",
    Live forwarding = "forwarding",
    Live xdp_prefilter = "xdp-guard",
    Live hostport_annotation = "hostport-annotation",
    Live declared = "declared-bridge, declared-subnet",
    Live log_level = "log-level",
}

impl Config {
    /// Returns the keys that differ in `wanted` and take effect only at the next start of the
    /// agent.
    pub(crate) fn needs_restart(&self, wanted: &Self) -> Vec<&'static str> {
        self.changed(wanted, Rule::Restart)
    }

    /// Returns the keys that differ in `wanted` and take effect at once. Pod CIDRs that were
    /// removed from the file stay: they may come from another source.
    pub(crate) fn reloadable(&self, wanted: &Self) -> Vec<&'static str> {
        let mut keys = self.changed(wanted, Rule::Live);
        keys.retain(|keys| *keys != "pod-cidr" || !wanted.ranges.is_empty());
        keys
    }
}
