//! The agent's drop counters, read over one connection: a client process for each read would take
//! longer than the frame.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;

use anyhow::{Context as _, Result};
use e2e::{Machine, SOCKET, deadline};
use serde_json::Value;

/// Packets by drop reason.
pub(crate) type Drops = BTreeMap<String, u64>;

/// A connection to the API of the agent.
#[derive(Debug)]
pub(crate) struct Counters(BufReader<UnixStream>);

impl Counters {
    pub(crate) fn connect(node: &Machine) -> Result<Self> {
        let stream = node.mounts().run(|| UnixStream::connect(SOCKET))?;
        stream.set_read_timeout(Some(deadline()))?;
        Ok(Self(BufReader::new(stream)))
    }

    /// Returns the drop counters.
    pub(crate) fn drops(&mut self) -> Result<Drops> {
        let request = "GET /v1/counters HTTP/1.1\r\nHost: viaduct\r\n\r\n";
        self.0.get_mut().write_all(request.as_bytes())?;
        let mut length = None;
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line)?;
            let line = line.trim_end().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(number) = line.strip_prefix("content-length:") {
                length = Some(number.trim().parse::<usize>()?);
            }
        }
        let mut body = vec![0; length.context("the answer has no length")?];
        self.0.read_exact(&mut body)?;
        let answer: Value = serde_json::from_slice(&body)?;
        let drops = answer["drops"].as_object().context("no drops")?;
        Ok(drops
            .iter()
            .filter_map(|(reason, count)| Some((reason.clone(), count.as_u64()?)))
            .collect())
    }
}

/// Returns the reasons whose counters have grown.
pub(crate) fn grown(before: &Drops, after: &Drops) -> Vec<String> {
    after
        .iter()
        .filter(|(reason, count)| before.get(*reason).copied().unwrap_or(0) < **count)
        .map(|(reason, _)| reason.clone())
        .collect()
}
