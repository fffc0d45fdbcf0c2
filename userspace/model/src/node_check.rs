//! Checks of `viaductctl doctor`: what it looks at on a node, also without an agent. One list gives
//! word, meaning and advice.
//!
//! The table in `docs/operations.md` is generated from this list (`cargo xtask tidy --bless`).

/// Declares [`NodeCheck`] and everything that is derived from it.
macro_rules! node_checks {
    ($(
        $(#[doc = $meaning:literal])+
        $variant:ident = $word:literal, do $advice:literal;
    )+) => {
        /// Check of a node. The word is the same in the report, its JSON and the documentation; it
        /// never changes once released. A fault that the agent reports too has the word of its
        /// [`DegradedReason`](crate::DegradedReason) in addition.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum NodeCheck {
            $( $(#[doc = $meaning])+ $variant, )+
        }

        impl NodeCheck {
            /// All checks, in the order of the report.
            pub const ALL: [Self; [$($word),+].len()] = [$(Self::$variant),+];

            /// Returns the word in the report, such as `bpffs`.
            pub const fn word(self) -> &'static str {
                match self {
                    $( Self::$variant => $word, )+
                }
            }

            /// Returns what is checked, in one or two sentences.
            pub const fn meaning(self) -> &'static str {
                match self {
                    $( Self::$variant => concat!($($meaning),+), )+
                }
            }

            /// Returns the usual advice to the operator about a fault.
            pub const fn advice(self) -> &'static str {
                match self {
                    $( Self::$variant => $advice, )+
                }
            }
        }
    };
}

node_checks! {
    /// The agent answers. Each of its degraded reasons is a fault of this check.
    Agent = "agent",
        do "Start it with `systemctl start viaductd`; `journalctl -u viaductd` says why it stopped.";
    /// Agent, plugin and `viaductctl` are of one version.
    Version = "version",
        do "Install all of one release; those of neighbouring minor versions understand each other.";
    /// The agent has given up the privileges that it does not need.
    Sandbox = "sandbox",
        do "Start the agent without `--sandbox off`.";
    /// The kernel is 5.15 or later: older ones are not tested.
    KernelVersion = "kernel-version",
        do "Boot a kernel of 5.15 or later.";
    /// The kernel has the system call `bpf`, and its build has what the datapath needs: cgroup
    /// programs, clsact, bridges and veth pairs.
    KernelConfig = "kernel-config",
        do "Boot a kernel that is built with these options.";
    /// The directory of modules is that of the running kernel: after an upgrade of the kernel, it
    /// may be gone until the next boot.
    KernelModules = "kernel-modules",
        do "Reboot into the installed kernel, or install the modules of the running one.";
    /// eBPF programs are compiled (JIT).
    BpfJit = "bpf-jit",
        do "Set `net.core.bpf_jit_enable` to 1.";
    /// doctor may see everything that it checks.
    Privileges = "privileges",
        do "Run `viaductctl doctor` as root.";
    /// A BPF file system is mounted at `/sys/fs/bpf`.
    Bpffs = "bpffs",
        do "Mount it with `mount -t bpf bpf /sys/fs/bpf`; systemd does so at boot.";
    /// Programs of an agent are pinned.
    Datapath = "datapath",
        do "Start the agent.";
    /// A cgroup2 file system is mounted, and the agent's cgroup contains the processes of the node:
    /// they reach hostports.
    Cgroup = "cgroup",
        do "Mount it with `mount -t cgroup2 cgroup2 /sys/fs/cgroup`.";
    /// The node forwards packets.
    Forwarding = "forwarding",
        do "Start the agent, which turns it on, or set it to 1.";
    /// Frames that cross a bridge are not subject to rules of iptables as well.
    BridgeNetfilter = "bridge-netfilter",
        do "Check that no rule drops packets between pods of one bridge, or set \
            `net.bridge.bridge-nf-call-iptables` to 0 if no software needs it.";
    /// Netfilter's conntrack table has room.
    Conntrack = "conntrack",
        do "Raise `net.netfilter.nf_conntrack_max`, or find what opens so many connections.";
    /// The agent's unit may open enough files: each published port needs one.
    Files = "files",
        do "Raise `LimitNOFILE=` of the agent's unit.";
    /// The agent's configuration file is valid, as far as the following checks need it.
    Configuration = "configuration",
        do "Correct the file; `viaductd --config FILE --check-config` names every invalid key.";
    /// The agent's peers file is valid, and nothing prevents routes or tunnels to each peer.
    Peers = "peers",
        do "Correct the list of peers, or the software that writes it.";
    /// Software with rules for forwarded packets, and defaults of its tables that drop packets of
    /// pods.
    Firewall = "firewall",
        do "Accept the pods' packets in the table that the message names.";
    /// Uplinks exist, and neither subnets and routes of other links, reverse path filters, IPsec
    /// policies nor MTUs keep packets of pods from passing.
    Network = "network",
        do "Run `viaductctl doctor` as root.";
    /// systemd has the agent's unit, starts it at boot, and has started it.
    Unit = "unit",
        do "`systemctl status viaductd` shows its last result, and `journalctl -u viaductd` the reason.";
    /// The clock is not older than this program.
    Clock = "clock",
        do "Set the clock, and start a time service.";
    /// The file systems of the agent's state and of CNI's leases have free space and inodes.
    Space = "space",
        do "Remove files, or enlarge the file system.";
    /// Runtimes find a valid network configuration with Viaduct, and its plugins are installed.
    Conflist = "conflist",
        do "Correct the files of the runtime's directory of network configurations.";
    /// The network configuration declares the capabilities by which runtimes pass published ports
    /// and bandwidth limits.
    Capabilities = "capabilities",
        do "Add the capability to the plugin viaduct in the file, as in the sample \
            `05-viaduct.conflist`.";
    /// The plugin is in a directory of plugins, and can be executed.
    Plugin = "plugin",
        do "Install Viaduct's plugin in the runtime's CNI directory, or pass `--path`.";
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::NodeCheck;

    #[test]
    fn each_node_check_has_a_word_of_its_own_and_one_sentence_of_advice() {
        let words: BTreeSet<&str> = NodeCheck::ALL.map(NodeCheck::word).into();
        assert_eq!(words.len(), NodeCheck::ALL.len());
        for check in NodeCheck::ALL {
            let word = check.word();
            let is_kebab = |byte: u8| byte.is_ascii_lowercase() || byte == b'-';
            assert!(word.bytes().all(is_kebab), "{word}");
            assert!(check.meaning().trim().ends_with('.'), "{word}");
            assert!(check.advice().ends_with('.'), "{word}");
        }
    }
}
