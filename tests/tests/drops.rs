//! Dropped packets are explained: counters by pod and reason, the pods that lose packets in the
//! status, and events that no flood hides.

#[path = "drops/provoked.rs"]
#[expect(dead_code, reason = "another test uses the rest")]
mod provoked;
#[path = "admission/scene.rs"]
mod scene;

use anyhow::{Context as _, Result, ensure};
use e2e::{FrameFlood, FrameSender, Pod, SOCKET, until};
use serde_json::Value;
use verdict::simulator::frame::Frame;

use self::provoked::{FORGED, datagram, forged_mac, listen};
use self::scene::{PORT, REFUSED, Scene, abi};

/// Returns the counters of a pod.
fn counters(scene: &Scene, pod: &Pod) -> Result<Value> {
    let views = scene.agent.get(&format!("/v1/attachments/{}", pod.id()))?;
    Ok(views[0]["counters"].clone())
}

#[test]
fn drops_are_counted_for_the_pod_that_a_packet_was_from_or_for() -> Result<()> {
    let scene = Scene::new(&[])?;
    let forged = forged_mac(&scene)?;
    let [own, victim] = scene.own(0)?;
    // From outside, with a pod's address as the source.
    let outside = scene.frame_of_world(own, victim, PORT, REFUSED);
    for _ in 0..7 {
        scene.inside.send(&forged)?;
        scene.outside.send(&outside)?;
    }
    for (pod, reason, dropped) in [
        (&scene.sender, "spoofed-mac", "tx_dropped"),
        (&scene.victim, "spoofed-from-outside", "rx_dropped"),
    ] {
        let counters = until(&format!("7 packets are counted as {reason}"), || {
            let counters = counters(&scene, pod)?;
            Ok((counters["drops"][reason] == 7).then_some(counters))
        })?;
        let drops = counters["drops"].as_object().context("no drops")?;
        let sum: u64 = drops.values().filter_map(Value::as_u64).sum();
        let both = ["rx_dropped", "tx_dropped"].map(|key| counters[key].as_u64().unwrap_or(0));
        ensure!(sum == both.iter().sum::<u64>(), "{counters}");
        ensure!(counters[dropped].as_u64() >= Some(7), "{counters}");
    }
    let metrics = scene.sandbox.node.call(&format!(
        "curl --silent --fail --unix-socket {SOCKET} http://viaduct/metrics"
    ))?;
    let series = format!(
        "container=\"{}\",ifname=\"eth0\",reason=\"spoofed-mac\"}} 7",
        scene.sender.id()
    );
    ensure!(metrics.contains(&series), "{series} is not in {metrics}");
    Ok(())
}

#[test]
fn the_status_names_a_pod_that_loses_packets_with_the_reason_and_advice() -> Result<()> {
    let scene = Scene::new(&[])?;
    let forged = forged_mac(&scene)?;
    // The agent reads the counters every five seconds: these drops must be within two reads.
    let text = until("the status names the sender", || {
        scene.inside.send(&forged)?;
        let text = scene.agent.ctl("status")?;
        Ok(text.contains("Losses").then_some(text))
    })?;
    ensure!(text.contains("mainly spoofed-mac"), "{text}");
    ensure!(
        text.contains(::abi::DropReason::SpoofedMac.advice()),
        "{text}"
    );
    let list = scene.agent.ctl("list")?;
    ensure!(list.contains("DROPS"), "{list}");
    Ok(())
}

#[test]
fn a_flood_of_one_pod_hides_no_drop_of_another() -> Result<()> {
    let scene = Scene::new(&[])?;
    let listener = listen(&scene)?;
    let forged = forged_mac(&scene)?;
    let sender = FrameSender::new(&scene.sender.machine, "eth0", scene.gateways[0])?;
    let flood = FrameFlood::start(sender, move |_| forged.clone());
    listener.until("an event stands for many packets of the flood", |event| {
        event["reason"] == "spoofed-mac" && event["count"].as_u64() > Some(50)
    })?;
    // One packet of the other pod, for the same reason.
    let [own, victim] = scene.own(0)?;
    let frame = Frame::new(abi(victim), abi(own), datagram(REFUSED))
        .from_to(FORGED, scene.sender_mac)
        .bytes();
    let single = FrameSender::new(&scene.victim.machine, "eth0", scene.gateways[0])?;
    single.send(&frame)?;
    let event = listener.until("the drop of the other pod is an event", |event| {
        event["containerID"] == scene.victim.id() && event["reason"] == "spoofed-mac"
    })?;
    ensure!(event["count"] == 1, "{event}");
    flood.end()?;
    // The flood has cost few events: ten a second.
    let events = listener.events()?;
    let of_flood: Vec<_> = events
        .iter()
        .filter(|it| it["containerID"] == scene.sender.id() && it["reason"] == "spoofed-mac")
        .collect();
    let span = of_flood.last().zip(of_flood.first()).map(|(last, first)| {
        last["at_ms"].as_u64().unwrap_or(0) - first["at_ms"].as_u64().unwrap_or(0)
    });
    let most = span.unwrap_or(0) / 100 + 2;
    ensure!(
        of_flood.len() as u64 <= most,
        "{} events, at most {most}",
        of_flood.len()
    );
    Ok(())
}

#[test]
fn viaductctl_drops_prints_what_has_just_been_dropped_with_advice() -> Result<()> {
    let scene = Scene::new(&[])?;
    let listener = listen(&scene)?;
    scene.inside.send(&forged_mac(&scene)?)?;
    listener.until("the drop is an event", |event| {
        event["reason"] == "spoofed-mac"
    })?;
    let text = scene.agent.ctl("drops --for 0 --reason spoofed-mac")?;
    let [own, victim] = scene.own(0)?;
    for part in [
        "from_pod@veth",
        "spoofed-mac",
        &format!("udp {own}:41000 -> {victim}:{PORT}"),
        ::abi::DropReason::SpoofedMac.advice(),
    ] {
        ensure!(text.contains(part), "{part} is not in {text}");
    }
    let none = scene.agent.ctl("drops --for 0 --reason nat-clash")?;
    ensure!(none.starts_with("No dropped packets."), "{none}");
    Ok(())
}
