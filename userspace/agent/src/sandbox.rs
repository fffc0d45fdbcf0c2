//! Reduces the privileges of the agent's process to those that it uses while it serves.
//!
//! The only module of the agent that changes its own credentials. Each layer works without the
//! others, and `--sandbox` selects them.

mod capabilities;

use std::fmt;
use std::fs;
use std::str::FromStr;

use anyhow::{Context as _, Result, bail};

/// Layers of the sandbox, as configured (`--sandbox`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SandboxLayers {
    /// Drops capabilities, and sets `no_new_privs`.
    capabilities: bool,
}

impl SandboxLayers {
    pub(crate) const OFF: Self = Self {
        capabilities: false,
    };
    pub(crate) const ON: Self = Self { capabilities: true };

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

    /// Logs the layers that are in force.
    pub(crate) fn log(self) {
        let view = view();
        tracing::info!(
            capabilities = view.capabilities.join(" "),
            no_new_privs = view.no_new_privs,
            "sandbox {self}: privileges of the agent"
        );
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
                _ => bail!("{word:?} must be on, off, or a list of: capabilities"),
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
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_view_names_the_capabilities_of_the_process() {
        let status = "Name:\tviaductd\nCapPrm:\t0000000000000000\nCapEff:\t0000000000003401\nNoNewPrivs:\t1\n";
        let view = parse(status);
        let names = ["chown", "net_bind_service", "net_admin", "net_raw"];
        assert_eq!(view.capabilities, names);
        assert!(view.no_new_privs);
        assert!(!parse("").no_new_privs);
    }

    #[test]
    fn an_unknown_layer_is_refused_with_the_list_of_layers() {
        for (text, layers) in [
            ("on", SandboxLayers::ON),
            ("off", SandboxLayers::OFF),
            ("capabilities", SandboxLayers::ON),
        ] {
            assert_eq!(text.parse::<SandboxLayers>().unwrap(), layers, "{text}");
        }
        for text in ["", "true", "capabilities,", "capability"] {
            let error = text.parse::<SandboxLayers>().unwrap_err().to_string();
            assert!(error.contains("a list of: capabilities"), "{error}");
        }
    }
}
