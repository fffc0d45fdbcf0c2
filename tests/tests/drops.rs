//! Dropped packets are explained: counters by pod and reason, and the pods that lose packets in the
//! status.

#[path = "admission/scene.rs"]
mod scene;

use ::abi::Mac;
use anyhow::{Context as _, Result, ensure};
use e2e::{Pod, until};
use serde_json::Value;
use verdict::simulator::frame::{Body, Frame};

use self::scene::{PORT, REFUSED, Scene, abi};

/// A MAC address that no pod has.
const FORGED: Mac = Mac::new([2, 0, 0, 0, 0, 0x77]);

/// Returns the counters of a pod.
fn counters(scene: &Scene, pod: &Pod) -> Result<Value> {
    let views = scene.agent.get(&format!("/v1/attachments/{}", pod.id()))?;
    Ok(views[0]["counters"].clone())
}

/// Returns a frame of the sender with a forged source MAC address.
fn forged_mac(scene: &Scene) -> Result<Vec<u8>> {
    let [own, victim] = scene.own(0)?;
    let body = Body::Udp(41_000, PORT, REFUSED.to_vec());
    let frame = Frame::new(abi(own), abi(victim), body);
    Ok(frame.from_to(FORGED, scene.victim_mac).bytes())
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
        "curl --silent --fail --unix-socket {} http://viaduct/metrics",
        e2e::SOCKET
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
