//! The agent's crash points, from outside: which there are, and dying at one.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use crate::{Agent, Machine, program};

/// Where an agent with crash points looks, inside the sandbox.
const DIRECTORY: &str = "/run/crash-points";

/// The crash points of a node's agent.
#[derive(Debug)]
pub struct Points {
    node: Machine,
}

impl Points {
    /// From its next start on, `agent` is one that has crash points.
    pub fn of(node: &Machine, agent: &mut Agent) -> Result<Self> {
        let path = program("../dist-next/bin/viaductd");
        ensure!(
            path.is_file(),
            "no {}: `cargo xtask dist --next` makes it",
            path.display()
        );
        agent.replace(&path);
        agent.set("VIADUCT_CRASH_POINTS", DIRECTORY);
        let points = Self { node: node.clone() };
        points.files(|directory| std::fs::create_dir_all(directory))?;
        Ok(points)
    }

    /// As [`Points::of`], of an agent that has crash points already.
    pub fn again(node: &Machine) -> Self {
        Self { node: node.clone() }
    }

    /// The points of `verb` that are reached in `work`, in the order in which they are reached first.
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

    /// The next time that the agent comes to `point` it dies there.
    pub fn arm(&self, point: &str) -> Result<()> {
        self.files(|directory| std::fs::write(directory.join("armed"), point))
    }

    /// Whether the agent has died where it was to.
    pub fn has_struck(&self) -> Result<bool> {
        Ok(!self.files(|directory| directory.join("armed").try_exists())?)
    }

    /// Nobody dies any more.
    pub fn disarm(&self) -> Result<()> {
        if !self.has_struck()? {
            self.files(|directory| std::fs::remove_file(directory.join("armed")))?;
        }
        Ok(())
    }

    fn files<T: Send>(&self, work: impl FnOnce(&Path) -> std::io::Result<T> + Send) -> Result<T> {
        let done = self.node.mounts().run(|| work(Path::new(DIRECTORY)));
        done.with_context(|| format!("cannot use {DIRECTORY}"))
    }
}
