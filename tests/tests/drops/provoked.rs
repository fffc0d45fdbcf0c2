//! Packets that the node drops, the events about them, and their explanations.

use std::net::IpAddr;

use ::abi::{Address, DropReason, Mac};
use anyhow::Result;
use e2e::{DropListener, ExpectedDrop, FrameSender, WORLD};
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

/// Starts to listen, and waits until the datapath reports to the agent.
pub(crate) fn listen(scene: &Scene) -> Result<DropListener> {
    let loopback = Address::v4([127, 0, 0, 9]);
    let probe = Frame::new(abi(WORLD[0]), loopback, datagram(b"probe"));
    let probe = scene.outside_to_node(&probe);
    DropListener::start(&scene.agent, "127.0.0.9:7000", || {
        scene.outside.send(&probe)
    })
}

pub(crate) fn datagram(payload: &[u8]) -> Body {
    Body::Udp(41_000, PORT, payload.to_vec())
}

/// The pod of an event.
enum Owner {
    Sender,
    Victim,
    None,
}

/// Frames of which the last one is dropped, and what its event must say.
pub(crate) struct Provoked {
    reason: DropReason,
    hook: &'static str,
    owner: Owner,
    from_world: bool,
    frames: Vec<Vec<u8>>,
    /// Source and destination; `None` where the packet has no addresses.
    ends: Option<[String; 2]>,
}

impl Provoked {
    /// A packet of the sender.
    pub(crate) fn by_pod(
        reason: DropReason,
        frame: Vec<u8>,
        ends: impl Into<Option<[String; 2]>>,
    ) -> Self {
        Self {
            reason,
            hook: "from_pod",
            owner: Owner::Sender,
            from_world: false,
            frames: vec![frame],
            ends: ends.into(),
        }
    }

    /// A packet of the world for the victim, or for no pod.
    pub(crate) fn by_world(
        reason: DropReason,
        frame: Vec<u8>,
        is_for_victim: bool,
        ends: [String; 2],
    ) -> Self {
        Self {
            hook: "uplink_in",
            owner: if is_for_victim {
                Owner::Victim
            } else {
                Owner::None
            },
            from_world: true,
            ..Self::by_pod(reason, frame, ends)
        }
    }

    /// The same, dropped by another program.
    pub(crate) fn at(self, hook: &'static str) -> Self {
        Self { hook, ..self }
    }

    /// The same, with frames that are sent before.
    pub(crate) fn after(mut self, frames: impl IntoIterator<Item = Vec<u8>>) -> Self {
        self.frames.splice(0..0, frames);
        self
    }

    pub(crate) const fn reason(&self) -> DropReason {
        self.reason
    }

    pub(crate) fn check(&self, scene: &Scene, listener: &DropListener) -> Result<()> {
        let sender = if self.from_world {
            &scene.outside
        } else {
            &scene.inside
        };
        self.check_from(sender, scene, listener)
    }

    /// As [`Provoked::check`], with the frames sent by another socket.
    pub(crate) fn check_from(
        &self,
        sender: &FrameSender,
        scene: &Scene,
        listener: &DropListener,
    ) -> Result<()> {
        let expected = ExpectedDrop {
            reason: self.reason,
            hook: self.hook,
            pod: match self.owner {
                Owner::Sender => Some(scene.sender.id().to_owned()),
                Owner::Victim => Some(scene.victim.id().to_owned()),
                Owner::None => None,
            },
            ends: self.ends.clone(),
        };
        expected.check(&scene.agent, listener, || {
            self.frames.iter().try_for_each(|it| sender.send(it))
        })
    }
}

/// Returns source and destination of a datagram as events show them.
pub(crate) fn ports(from: IpAddr, to: IpAddr) -> [String; 2] {
    [format!("{from}:41000"), format!("{to}:{PORT}")]
}

/// Puts a VLAN tag into a frame.
pub(crate) fn tagged(frame: &[u8], vlan: u16) -> Vec<u8> {
    let [high, low] = vlan.to_be_bytes();
    [&frame[..12], &[0x81, 0, high, low], &frame[12..]].concat()
}
