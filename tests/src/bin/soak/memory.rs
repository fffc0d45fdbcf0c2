//! Resident memory of the agent over the run, across restarts.

use anyhow::{Context as _, Result};
use e2e::Agent;

/// First, last and highest sample of the resident memory, in KiB.
#[derive(Default)]
pub(crate) struct Memory(Option<Figures>);

#[derive(Clone, Copy)]
struct Figures {
    first: u64,
    last: u64,
    most: u64,
}

impl Memory {
    /// Takes a sample from `/proc/<pid>/status`.
    pub(crate) fn sample(&mut self, agent: &Agent) -> Result<()> {
        let pid = agent.pid().context("the agent runs")?;
        let text = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let now = line.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
        let last = now.context("no VmRSS")?;
        let (first, most) = self.0.map_or((last, last), |past| (past.first, past.most));
        self.0 = Some(Figures {
            first,
            last,
            most: most.max(last),
        });
        Ok(())
    }
}

impl std::fmt::Display for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Some(Figures { first, last, most }) = self.0 else {
            return f.write_str("memory not sampled yet");
        };
        write!(f, "{last} KiB (first {first}, most {most})")
    }
}
