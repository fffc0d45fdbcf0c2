//! Crash points of the agent: lists those that an operation reaches, and makes the agent exit at
//! one.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use crate::{Agent, Machine, program};

/// Folder of an agent's crash point files (`VIADUCT_CRASH_POINTS`), inside the sandbox.
const DIRECTORY: &str = "/run/crash-points";

/// The crash points of a node's agent.
#[derive(Debug)]
pub struct CrashPoints {
    node: Machine,
}

impl CrashPoints {
    /// Replaces `agent`'s binary by one with crash points, from its next start on.
    pub fn enable(node: &Machine, agent: &mut Agent) -> Result<Self> {
        Self::enable_with(node, agent, &program("../dist-next/bin/viaductd"))
    }

    /// As [`CrashPoints::enable`], with the binary at `path`, which must have crash points.
    pub fn enable_with(node: &Machine, agent: &mut Agent, path: &Path) -> Result<Self> {
        ensure!(
            path.is_file(),
            "{} is missing: `cargo xtask dist --next` builds it",
            path.display()
        );
        agent.replace(path);
        agent.set("VIADUCT_CRASH_POINTS", DIRECTORY);
        let points = Self { node: node.clone() };
        points.files(|directory| std::fs::create_dir_all(directory))?;
        Ok(points)
    }

    /// Returns the crash points of an agent for which [`CrashPoints::enable`] was called before.
    pub fn enabled_before(node: &Machine) -> Self {
        Self { node: node.clone() }
    }

    /// Returns the points of `verb` that the agent reaches during `work`, each once, in order.
    pub fn reached_in(&self, verb: &str, work: impl FnOnce() -> Result<()>) -> Result<Vec<String>> {
        self.files(|directory| std::fs::write(directory.join("reached"), ""))?;
        work()?;
        let text = self.files(|directory| std::fs::read_to_string(directory.join("reached")))?;
        let mut seen = BTreeSet::new();
        let of_verb = |point: &&str| point.split('/').next() == Some(verb);
        let points = text
            .lines()
            .filter(of_verb)
            .filter(|point| seen.insert((*point).to_owned()));
        Ok(points.map(str::to_owned).collect())
    }

    /// Makes the agent exit at `point`, the next time that it reaches it.
    pub fn arm(&self, point: &str) -> Result<()> {
        self.files(|directory| std::fs::write(directory.join("armed"), point))
    }

    /// Returns whether the agent has exited at the armed point.
    pub fn was_hit(&self) -> Result<bool> {
        Ok(!self.files(|directory| directory.join("armed").try_exists())?)
    }

    /// Disarms the point, if the agent has not reached it.
    pub fn disarm(&self) -> Result<()> {
        if !self.was_hit()? {
            self.files(|directory| std::fs::remove_file(directory.join("armed")))?;
        }
        Ok(())
    }

    fn files<T: Send>(&self, work: impl FnOnce(&Path) -> std::io::Result<T> + Send) -> Result<T> {
        let done = self.node.mounts().run(|| work(Path::new(DIRECTORY)));
        done.with_context(|| format!("cannot use {DIRECTORY}"))
    }
}
