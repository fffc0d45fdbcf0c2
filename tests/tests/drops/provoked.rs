//! Packets that the node drops, the events about them, and their explanations.

use std::net::IpAddr;

use ::abi::{Address, Mac};
use anyhow::{Context as _, Result, ensure};
use e2e::{FrameSender, Process, WORLD, until};
use serde_json::{Value, json};
use verdict::simulator::frame::{Body, Frame};

use crate::scene::{PORT, REFUSED, Scene, abi};

/// A MAC address that no pod has.
pub(crate) const FORGED: Mac = Mac::new([2, 0, 0, 0, 0, 0x77]);

/// Returns a frame of the sender with a forged source MAC address.
pub(crate) fn forged_mac(scene: &Scene) -> Result<Vec<u8>> {
    let [own, victim] = scene.own(0)?;
    let body = Body::Udp(41_000, PORT, REFUSED.to_vec());
    let frame = Frame::new(abi(own), abi(victim), body);
    Ok(frame.from_to(FORGED, scene.victim_mac).bytes())
}

/// Parameter of `GET /v1/why` for the last packet of which no pod is known, `(node)`.
const NO_POD: &str = "%28node%29";

/// A client of `GET /v1/drops`, which runs until the end of the test.
pub(crate) struct Listener(Process);

impl Listener {
    /// Starts to listen, and waits until the datapath reports to it.
    pub(crate) fn start(scene: &Scene) -> Result<Self> {
        let listener = Self(scene.agent.follow_drops()?);
        let probe = Frame::new(
            abi(WORLD[0]),
            Address::v4([127, 0, 0, 9]),
            datagram(b"probe"),
        );
        let probe = scene.outside_to_node(&probe);
        until("the datapath reports to the agent", || {
            scene.outside.send(&probe)?;
            let is_probe = |event: &Value| event["packet"]["destination"] == "127.0.0.9:7000";
            Ok(listener.events()?.iter().any(is_probe).then_some(()))
        })?;
        Ok(listener)
    }

    pub(crate) fn events(&self) -> Result<Vec<Value>> {
        let output = self.0.output();
        // The last line may not be complete yet.
        let whole = output.rsplit_once('\n').map_or("", |(lines, _)| lines);
        whole
            .lines()
            .map(|line| Ok(serde_json::from_str(line)?))
            .collect()
    }

    /// Waits for an event that `is_wanted`, and returns it.
    pub(crate) fn until(&self, what: &str, is_wanted: impl Fn(&Value) -> bool) -> Result<Value> {
        let found = until(what, || {
            Ok(self.events()?.into_iter().find(|it| is_wanted(it)))
        });
        found.with_context(|| self.0.output())
    }
}

pub(crate) fn datagram(payload: &[u8]) -> Body {
    Body::Udp(41_000, PORT, payload.to_vec())
}

/// A packet that is dropped, and what its event must say.
pub(crate) struct Provoked {
    pub(crate) reason: &'static str,
    hook: &'static str,
    /// Whether the pod is the victim; `None` where no pod is known.
    is_victim: Option<bool>,
    from_world: bool,
    frame: Vec<u8>,
    /// Source and destination; `None` where the packet has no addresses.
    ends: Option<[String; 2]>,
}

impl Provoked {
    /// A packet of the sender.
    pub(crate) fn by_pod(
        reason: &'static str,
        frame: Vec<u8>,
        ends: impl Into<Option<[String; 2]>>,
    ) -> Self {
        Self {
            reason,
            hook: "from_pod",
            is_victim: Some(false),
            from_world: false,
            frame,
            ends: ends.into(),
        }
    }

    /// A packet of the world for the victim, or for no pod.
    pub(crate) fn by_world(
        reason: &'static str,
        frame: Vec<u8>,
        is_for_victim: bool,
        ends: [String; 2],
    ) -> Self {
        Self {
            hook: "uplink_in",
            is_victim: is_for_victim.then_some(true),
            from_world: true,
            ..Self::by_pod(reason, frame, ends)
        }
    }

    /// The same, dropped by another program.
    pub(crate) fn at(self, hook: &'static str) -> Self {
        Self { hook, ..self }
    }

    pub(crate) fn check(&self, scene: &Scene, listener: &Listener) -> Result<()> {
        let sender = if self.from_world {
            &scene.outside
        } else {
            &scene.inside
        };
        sender.send(&self.frame)?;
        let ends = self.ends.as_ref().map_or(
            Value::Null,
            |[source, destination]| json!({ "source": source, "destination": destination }),
        );
        let what = format!("an event of {} with {ends}", self.reason);
        let event = listener.until(&what, |event| {
            event["reason"] == self.reason && event["packet"] == ends
        })?;
        let pod = self.is_victim.map(|is_victim| {
            if is_victim {
                scene.victim.id()
            } else {
                scene.sender.id()
            }
        });
        ensure!(event["containerID"].as_str() == pod, "{event}");
        ensure!(event["hook"] == self.hook, "{event}");
        ensure!(event["count"].as_u64() >= Some(1), "{event}");
        let known = ::abi::DropReason::ALL
            .into_iter()
            .find(|it| it.name() == self.reason);
        ensure!(
            event["advice"].as_str() == known.map(::abi::DropReason::advice),
            "{event}"
        );
        self.explain(scene, sender, pod.unwrap_or(NO_POD), &ends)
    }

    /// Requires that the explanation of the pod's last drop has the reason, and its packet.
    fn explain(&self, scene: &Scene, sender: &FrameSender, pod: &str, ends: &Value) -> Result<()> {
        // Another packet of the pod may have been dropped since.
        let view = until(&format!("the last drop is as {}", self.reason), || {
            let view = scene.agent.get(&format!("/v1/why?last_drop={pod}"))?;
            if view["dropped"]["reason"] == self.reason && view["dropped"]["packet"] == *ends {
                return Ok(Some(view));
            }
            sender.send(&self.frame)?;
            Ok(None)
        })?;
        let request = &view["request"];
        ensure!(request["reason"] == self.reason, "{view:#}");
        ensure!(request["advice"] == view["dropped"]["advice"], "{view:#}");
        let steps = request["steps"].as_array().context("steps")?;
        let last = steps.last().context("a step")?;
        ensure!(last["ends"] == true, "{view:#}");
        let text = last["text"].as_str().unwrap_or_default();
        ensure!(text.contains(self.reason), "{view:#}");
        if !ends.is_null() {
            ensure!(request["packet"] == *ends, "{view:#}");
        }
        Ok(())
    }
}

/// Returns source and destination of a datagram as events show them.
pub(crate) fn ports(from: IpAddr, to: IpAddr) -> [String; 2] {
    [format!("{from}:41000"), format!("{to}:{PORT}")]
}

pub(crate) fn bare(from: IpAddr, to: IpAddr) -> [String; 2] {
    [from.to_string(), to.to_string()]
}

/// Puts a VLAN tag into a frame.
pub(crate) fn tagged(frame: &[u8], vlan: u16) -> Vec<u8> {
    let [high, low] = vlan.to_be_bytes();
    [&frame[..12], &[0x81, 0, high, low], &frame[12..]].concat()
}
