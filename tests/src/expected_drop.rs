//! Drops that a test provokes: the event about each, and the explanation of the last one.

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};

use abi::DropReason;
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::{Agent, Process, until};

/// Parameter of `GET /v1/why` for the last packet of which no pod is known, `(node)`.
const NO_POD: &str = "%28node%29";

/// A client of `GET /v1/drops`, which runs until it is dropped.
#[derive(Debug)]
pub struct DropListener(Process);

impl DropListener {
    /// Starts to listen, and waits until the datapath has reported a packet that `probe` sends to
    /// `destination`.
    pub fn start(agent: &Agent, destination: &str, probe: impl Fn() -> Result<()>) -> Result<Self> {
        let listener = Self(agent.follow_drops()?);
        until("the datapath reports to the agent", || {
            probe()?;
            let is_probe = |event: &Value| event["packet"]["destination"] == destination;
            Ok(listener.events()?.iter().any(is_probe).then_some(()))
        })?;
        Ok(listener)
    }

    /// Returns the events so far.
    pub fn events(&self) -> Result<Vec<Value>> {
        let output = self.0.output();
        // The last line may not be complete yet.
        let whole = output.rsplit_once('\n').map_or("", |(lines, _)| lines);
        whole
            .lines()
            .map(|line| Ok(serde_json::from_str(line)?))
            .collect()
    }

    /// Waits for an event that `is_wanted`, and returns it.
    pub fn until(&self, what: &str, is_wanted: impl Fn(&Value) -> bool) -> Result<Value> {
        let found = until(what, || {
            Ok(self.events()?.into_iter().find(|it| is_wanted(it)))
        });
        found.with_context(|| self.0.output())
    }
}

/// What the event about a dropped packet must contain, and its explanation.
#[derive(Clone, Debug)]
pub struct ExpectedDrop {
    /// Why the packet is dropped.
    pub reason: DropReason,
    /// The program that drops it.
    pub hook: &'static str,
    /// Container ID of the pod; `None` where no pod is known.
    pub pod: Option<String>,
    /// Source and destination; `None` where the packet has no addresses. A source without a port
    /// stands for all ports if the destination has one.
    pub ends: Option<[String; 2]>,
}

impl ExpectedDrop {
    /// Sends a packet by `send`, and requires its event and its explanation. `send` is called again
    /// where the packet was not dropped, or another one of the pod has been dropped meanwhile.
    pub fn check(
        &self,
        agent: &Agent,
        listener: &DropListener,
        send: impl Fn() -> Result<()>,
    ) -> Result<()> {
        let checked = self.check_event(listener, &send);
        checked
            .and_then(|()| self.check_explanation(agent, &send))
            .context(self.reason.name())
    }

    /// Returns whether source and destination of a packet are the expected ones.
    fn is_packet(&self, packet: &Value) -> bool {
        let Some([source, destination]) = &self.ends else {
            return packet.is_null();
        };
        let found = packet["source"].as_str().unwrap_or_default();
        let of_any_port = || {
            let with_port: Result<SocketAddr, _> = found.parse();
            with_port.is_ok_and(|found| found.ip().to_string() == *source)
        };
        packet["destination"] == *destination && (found == source || of_any_port())
    }

    fn check_event(&self, listener: &DropListener, send: &impl Fn() -> Result<()>) -> Result<()> {
        let reason = self.reason.name();
        let what = format!("an event of {reason} with {:?}", self.ends);
        let found = until(&what, || {
            send()?;
            let mut events = listener.events()?.into_iter();
            let is_it = |it: &Value| it["reason"] == reason && self.is_packet(&it["packet"]);
            Ok(events.find(is_it))
        });
        let event = found.with_context(|| listener.0.output())?;
        ensure!(
            event["containerID"].as_str() == self.pod.as_deref(),
            "{event}"
        );
        ensure!(event["hook"] == self.hook, "{event}");
        ensure!(event["count"].as_u64() >= Some(1), "{event}");
        ensure!(event["advice"] == self.reason.advice(), "{event}");
        Ok(())
    }

    /// Requires that the explanation of the pod's last drop has the reason, and its packet.
    fn check_explanation(&self, agent: &Agent, send: &impl Fn() -> Result<()>) -> Result<()> {
        let reason = self.reason.name();
        let pod = self.pod.as_deref().unwrap_or(NO_POD);
        let last = RefCell::new(Value::Null);
        let explained = until(&format!("the last drop is explained as {reason}"), || {
            let view = agent.get(&format!("/v1/why?last_drop={pod}"))?;
            let dropped = &view["dropped"];
            let is_it = dropped["reason"] == reason && self.is_packet(&dropped["packet"]);
            if is_it && view["request"]["reason"] == reason {
                return Ok(Some(view));
            }
            last.replace(view);
            send()?;
            Ok(None)
        });
        let view = explained.with_context(|| format!("{:#}", last.borrow()))?;
        let (request, dropped) = (&view["request"], &view["dropped"]);
        ensure!(request["advice"] == dropped["advice"], "{view:#}");
        let steps = request["steps"].as_array().context("steps")?;
        let step = steps.last().context("a step")?;
        ensure!(step["ends"] == true, "{view:#}");
        let text = step["text"].as_str().unwrap_or_default();
        ensure!(text.contains(reason), "{view:#}");
        let packet = &dropped["packet"];
        ensure!(packet.is_null() || request["packet"] == *packet, "{view:#}");
        Ok(())
    }
}

/// Returns source and destination of a packet without ports, as events show them.
pub fn bare_ends(from: IpAddr, to: IpAddr) -> [String; 2] {
    [from.to_string(), to.to_string()]
}
