//! The stamp: tools that setup found or installed, saved so that the next run need not search.

use std::path::PathBuf;

use anyhow::Result;
use serde_json::json;

use super::musl;
use super::toolchain::{self, Toolchain};
use crate::project;

/// Version of the stamp: raised when setup installs something else than before.
const RECIPE: u64 = 3;

/// Compiler, linker and targets.
pub(crate) struct Tools {
    pub(crate) toolchain: Toolchain,
    pub(crate) linker: PathBuf,
    /// The target for which the programs are built, if not the host.
    pub(crate) static_target: Option<String>,
}

impl Tools {
    /// Returns the tools of the last run, if all still exist and the compiler is the same.
    pub(super) fn remembered() -> Option<Self> {
        let text = std::fs::read_to_string(path()).ok()?;
        let stamp: serde_json::Value = serde_json::from_str(&text).ok()?;
        let linker = PathBuf::from(stamp["linker"].as_str()?);
        let name = stamp["toolchain"].as_str();
        if stamp["recipe"] != RECIPE || !linker.exists() || toolchain::chosen().is_some() {
            return None;
        }
        let static_target = stamp["static-target"].as_str().map(str::to_owned);
        if static_target
            .as_deref()
            .is_some_and(|target| !musl::is_installed(target))
        {
            return None;
        }
        let toolchain = Toolchain::examine(name)?;
        (stamp["version"] == toolchain.version.as_str()).then_some(Self {
            toolchain,
            linker,
            static_target,
        })
    }

    /// Saves the stamp, unless the environment chose the toolchain for this run.
    pub(super) fn remember(&self) -> Result<()> {
        if toolchain::chosen().is_some() {
            return Ok(());
        }
        let stamp_text = json!({
            "recipe": RECIPE,
            "toolchain": self.toolchain.name,
            "version": self.toolchain.version,
            "linker": self.linker,
            "static-target": self.static_target,
        });
        std::fs::create_dir_all(project::tools())?;
        std::fs::write(path(), format!("{stamp_text:#}\n"))?;
        Ok(())
    }
}

/// Path of the stamp.
pub(super) fn path() -> PathBuf {
    project::tools().join("setup.json")
}
