//! Drops of fragments: those that overlap, that wait in vain, and that cannot be translated.

use std::cell::Cell;
use std::net::IpAddr;

use ::abi::DropReason;
use anyhow::Result;
use e2e::{Config, DropListener, ExpectedDrop, Mapping, NODE, WORLD, bare_ends};
use verdict::simulator::frame::{Body, Frame};

use crate::scene::{PORT, Scene, abi};

/// Published port of the pod with an SCTP server.
const SCTP_HOSTPORT: u16 = 8090;
/// Fragments for which a sender has places, and some more.
const TOO_MANY: u32 = ::abi::RING + 16;

/// Provokes each, and returns the reasons.
pub(crate) fn check(scene: &Scene, listener: &DropListener) -> Result<[&'static str; 3]> {
    let all = [
        overlapping(scene, listener)?,
        without_first(scene, listener)?,
        of_sctp(scene, listener)?,
    ];
    Ok(all.map(DropReason::name))
}

/// A datagram of the sender that is long enough for fragments.
fn datagram(scene: &Scene, [own, victim]: [IpAddr; 2]) -> Frame {
    let body = Body::Udp(41_000, PORT, vec![0; 64]);
    Frame::new(abi(own), abi(victim), body).from_to(scene.sender_mac, scene.victim_mac)
}

/// Counts identifications of datagrams.
fn identifications() -> impl Fn() -> u32 {
    let last = Cell::new(0_u16);
    move || {
        last.set(last.get().wrapping_add(1));
        last.get().into()
    }
}

fn of_sender(scene: &Scene, reason: DropReason) -> Result<ExpectedDrop> {
    let [own, victim] = scene.own(0)?;
    Ok(ExpectedDrop {
        reason,
        hook: "from_pod",
        pod: Some(scene.sender.id().to_owned()),
        // Later fragments have no ports.
        ends: Some(bare_ends(own, victim)),
    })
}

fn overlapping(scene: &Scene, listener: &DropListener) -> Result<DropReason> {
    let reason = DropReason::OverlappingFragment;
    let frame = datagram(scene, scene.own(0)?);
    let identification = identifications();
    of_sender(scene, reason)?.check(&scene.agent, listener, || {
        let number = identification();
        scene.inside.send(&frame.fragment(number, 0..32))?;
        scene.inside.send(&frame.fragment(number, 24..48))
    })?;
    Ok(reason)
}

/// The first of too many fragments that wait is dropped, without its interface in the report.
fn without_first(scene: &Scene, listener: &DropListener) -> Result<DropReason> {
    let reason = DropReason::FragmentWithoutFirst;
    let frame = datagram(scene, scene.own(0)?);
    let identification = identifications();
    of_sender(scene, reason)?.check(&scene.agent, listener, || {
        (0..TOO_MANY).try_for_each(|_| {
            let later = frame.fragment(identification(), 32..56);
            scene.inside.send(&later)
        })
    })?;
    Ok(reason)
}

/// The checksum of SCTP covers the ports and all fragments: a published port that is not the pod's
/// own gets whole packets only. The report has the addresses that the packet had got.
fn of_sctp(scene: &Scene, listener: &DropListener) -> Result<DropReason> {
    let reason = DropReason::RewriteFailed;
    let mut server = scene.sandbox.pod("sctp")?;
    let mapping = Mapping {
        host: SCTP_HOSTPORT,
        container: PORT,
        protocol: "sctp",
    };
    server.add_with(Config::new("1.1.0").publish(&[mapping]))?;
    let expected = ExpectedDrop {
        reason,
        hook: "uplink_in",
        pod: Some(server.id().to_owned()),
        ends: Some([
            format!("{}:41000", WORLD[0]),
            format!("{}:{PORT}", server.address(WORLD[0])?),
        ]),
    };
    let body = Body::Sctp(41_000, SCTP_HOSTPORT, vec![1; 64]);
    let frame = Frame::new(abi(WORLD[0]), abi(NODE[0]), body);
    let first = scene.first_fragment_of_world(&frame);
    expected.check(&scene.agent, listener, || scene.outside.send(&first))?;
    Ok(reason)
}
