//! Reduces the privileges of the agent's process to those that it uses while it serves.
//!
//! The only module of the agent that changes its own credentials. Each layer works without the
//! others, and `--sandbox` selects them.

mod capabilities;
mod system_calls;

use std::str::FromStr;
use std::{fmt, fs};

use anyhow::{Context as _, Result, bail};

/// Layers of the sandbox, as configured (`--sandbox`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SandboxLayers {
    /// Drops capabilities, and sets `no_new_privs`.
    capabilities: bool,
    /// Filters system calls; sets `no_new_privs` too.
    seccomp: bool,
}

impl SandboxLayers {
    pub(crate) const OFF: Self = Self {
        capabilities: false,
        seccomp: false,
    };
    pub(crate) const ON: Self = Self {
        capabilities: true,
        seccomp: true,
    };

    /// Enters the layers that threads inherit. Must be called while the process has one thread.
    pub(crate) fn enter_before_threads(self) -> Result<()> {
        // Raising the hard limit needs CAP_SYS_RESOURCE, which the agent does not keep.
        kernel::raise_file_limit().context("cannot raise the limit of open files")?;
        if self.capabilities {
            capabilities::reduce().context(
                "cannot reduce the capabilities; `--sandbox off` starts the agent with all of them",
            )?;
        }
        Ok(())
    }

    /// Enters the layers that concern all threads, and logs what is in force. Must be called after
    /// the start of the engine, which may mount a BPF file system.
    pub(crate) fn enter_after_start(self) -> Result<()> {
        if self.seccomp {
            system_calls::filter().context(
                "cannot filter system calls; `--sandbox capabilities` starts the agent without a filter",
            )?;
        }
        let view = view();
        tracing::info!(
            capabilities = view.capabilities.join(" "),
            no_new_privs = view.no_new_privs,
            seccomp = view.seccomp,
            "sandbox {self}: privileges of the agent"
        );
        Ok(())
    }
}

impl FromStr for SandboxLayers {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "on" => return Ok(Self::ON),
            "off" => return Ok(Self::OFF),
            _ => {}
        }
        let mut layers = Self::OFF;
        for word in text.split(',').map(str::trim) {
            match word {
                "capabilities" => layers.capabilities = true,
                "seccomp" => layers.seccomp = true,
                _ => bail!("{word:?} must be on, off, or a list of: capabilities, seccomp"),
            }
        }
        Ok(layers)
    }
}

impl fmt::Display for SandboxLayers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::ON => f.write_str("on"),
            Self::OFF => f.write_str("off"),
            Self {
                capabilities: true, ..
            } => f.write_str("capabilities"),
            Self { .. } => f.write_str("seccomp"),
        }
    }
}

/// Returns the privileges of the calling thread, from `/proc/thread-self/status`. All threads have
/// the same capabilities, `no_new_privs` and filter.
pub(crate) fn view() -> api::SandboxView {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    parse(&status)
}

/// Parses lines such as `CapEff:\t0000000000283401` and `NoNewPrivs:\t1` (`proc_pid_status(5)`).
fn parse(status: &str) -> api::SandboxView {
    let field = |name: &str| {
        status
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .map_or("", str::trim)
    };
    let effective = u64::from_str_radix(field("CapEff"), 16).unwrap_or_default();
    api::SandboxView {
        capabilities: capabilities::names(effective),
        no_new_privs: field("NoNewPrivs") == "1",
        // 1 is the strict mode, which no service manager sets.
        seccomp: field("Seccomp") == "2",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_view_names_the_capabilities_of_the_process() {
        let status = "Name:\tviaductd\nCapPrm:\t0000000000000000\nCapEff:\t0000000000003401\nNoNewPrivs:\t1\n\
            Seccomp:\t2\nSeccomp_filters:\t2\n";
        let view = parse(status);
        let names = ["chown", "net_bind_service", "net_admin", "net_raw"];
        assert_eq!(view.capabilities, names);
        assert!(view.no_new_privs && view.seccomp);
        let without = parse("");
        assert!(!without.no_new_privs && !without.seccomp);
    }

    #[test]
    fn an_unknown_layer_is_refused_with_the_list_of_layers() {
        for (text, layers) in [
            ("on", SandboxLayers::ON),
            ("off", SandboxLayers::OFF),
            ("seccomp, capabilities", SandboxLayers::ON),
            (
                "capabilities",
                SandboxLayers {
                    seccomp: false,
                    ..SandboxLayers::ON
                },
            ),
        ] {
            let parsed: SandboxLayers = text.parse().unwrap();
            assert_eq!(parsed, layers, "{text}");
            assert_eq!(parsed.to_string().parse::<SandboxLayers>().unwrap(), layers);
        }
        for text in ["", "true", "capabilities,", "capability"] {
            let error = text.parse::<SandboxLayers>().unwrap_err().to_string();
            assert!(
                error.contains("a list of: capabilities, seccomp"),
                "{error}"
            );
        }
    }
}
