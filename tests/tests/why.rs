//! `viaductctl why`: explanations of packets agree with what happens to them.

#[path = "admission/scene.rs"]
mod scene;

use std::net::IpAddr;

use anyhow::{Context as _, Result, ensure};
use e2e::{NODE, Process, WORLD, ping, program, until};
use serde_json::{Value, json};

use self::scene::{HOSTPORT, MODES, PORT, REFUSED, Scene, declared};

/// Returns the explanation of a packet.
fn why(scene: &Scene, from: &str, to: &str, protocol: &str) -> Result<Value> {
    let to = to.replace('[', "%5B").replace(']', "%5D");
    scene
        .agent
        .get(&format!("/v1/why?from={from}&to={to}&protocol={protocol}"))
}

fn end(address: IpAddr, port: u16) -> String {
    std::net::SocketAddr::new(address, port).to_string()
}

/// Returns the texts of all decisions about packet and answer.
fn texts(view: &Value) -> String {
    ["request", "answer"]
        .iter()
        .filter_map(|leg| view[leg]["steps"].as_array())
        .flatten()
        .filter_map(|step| step["text"].as_str())
        .collect::<Vec<_>>()
        .join("\n")
}

#[test]
fn packets_that_arrive_are_explained_with_their_path_in_both_directions() -> Result<()> {
    for mode in MODES {
        let scene = Scene::new(&[mode])?;
        let path = if mode.ends_with("always") {
            "past bridge and stack"
        } else {
            "takes bridge and stack"
        };
        for family in [0, 1] {
            let [own, victim] = scene.own(family)?;
            let [sender, server] = [scene.sender.id(), scene.victim.id()];
            let arrives = format!("pod {server} receives");
            for (from, to, parts) in [
                (
                    sender.to_owned(),
                    format!("{server}:{PORT}"),
                    vec![path, &arrives],
                ),
                (own.to_string(), end(victim, PORT), vec![path, &arrives]),
                (
                    sender.to_owned(),
                    end(WORLD[family], PORT),
                    vec![path, "it is masqueraded", "leaves by"],
                ),
                (
                    WORLD[family].to_string(),
                    end(NODE[family], HOSTPORT),
                    vec![path, "is published by", &arrives],
                ),
                (
                    sender.to_owned(),
                    end(NODE[family], HOSTPORT),
                    vec!["is published by", &arrives],
                ),
                (
                    NODE[family].to_string(),
                    end(NODE[family], HOSTPORT),
                    vec!["the socket is connected to", &arrives],
                ),
            ] {
                let view = why(&scene, &from, &to, "udp")?;
                let all = texts(&view);
                ensure!(view["passes"] == true, "{mode}, {from} to {to}: {view:#}");
                for part in parts {
                    ensure!(all.contains(part), "{mode}: {part} is not in {all}");
                }
            }
            let echo = scene
                .agent
                .get(&format!("/v1/why?from={sender}&to={}", WORLD[family]))?;
            ensure!(echo["passes"] == true && echo["request"]["protocol"] == "icmp");
            ping(&scene.sender.machine, WORLD[family], 1)?;
        }
        let [own, victim] = scene.own(0)?;
        scene.must_reach_victim(&[scene.to_victim(own, victim, REFUSED)])?;
    }
    Ok(())
}

#[test]
fn an_explanation_changes_no_flow_and_no_counter() -> Result<()> {
    let scene = Scene::new(&[])?;
    let sender = scene.sender.id();
    let state = || -> Result<Value> {
        let flows = scene.agent.get("/v1/flows?port=7777")?;
        let counters = scene.agent.get("/v1/counters")?;
        Ok(json!([flows["flows"], counters["drops"]]))
    };
    let before = state()?;
    ensure!(why(&scene, sender, &end(WORLD[0], 7777), "tcp")?["passes"] == true);
    let refused = why(&scene, sender, "127.0.0.1:7777", "tcp")?;
    ensure!(refused["request"]["reason"] == "martian", "{refused:#}");
    let after = state()?;
    ensure!(after == before, "{after:#}, but was {before:#}");
    Ok(())
}

/// Sends a UDP packet until its drop is reported, and requires that the explanation of the last
/// drop of the pod has its reason.
fn provoke(
    scene: &Scene,
    listener: &Process,
    (pod, reason): (&str, &str),
    send: impl Fn() -> Result<()>,
) -> Result<()> {
    until(&format!("a drop as {reason} is reported"), || {
        send()?;
        Ok(listener
            .output()
            .contains(&format!("\"reason\":\"{reason}\""))
            .then_some(()))
    })?;
    let view = until(&format!("the last drop of {pod} is as {reason}"), || {
        let view = scene.agent.get(&format!("/v1/why?last_drop={pod}"))?;
        let dropped = &view["dropped"];
        if dropped["reason"] == reason && dropped["protocol"] == "udp" {
            return Ok(Some(view));
        }
        // Packets of the pods' own stacks are dropped as well, such as reports of multicast groups.
        send()?;
        Ok(None)
    })?;
    ensure!(view["dropped"]["containerID"] == pod, "{view:#}");
    ensure!(view["request"]["reason"] == reason, "{view:#}");
    ensure!(
        view["request"]["advice"] == view["dropped"]["advice"],
        "{view:#}"
    );
    ensure!(
        view["request"]["packet"] == view["dropped"]["packet"],
        "{view:#}"
    );
    Ok(())
}

#[test]
fn the_last_drop_of_a_pod_is_explained_with_the_same_reason() -> Result<()> {
    let scene = Scene::new(&["--drop-event-interval=1"])?;
    let listener = scene.agent.follow_drops()?;
    let [own, victim] = scene.own(0)?;
    let [sender, server] = [scene.sender.id(), scene.victim.id()];
    let other: IpAddr = "10.244.1.77".parse()?;
    let loopback: IpAddr = "127.0.0.1".parse()?;
    let spoofed = scene.to_victim(other, victim, REFUSED);
    let martian = scene.to_gateway(own, loopback, REFUSED);
    let outside = scene.frame_of_world(own, victim, PORT, REFUSED);
    provoke(&scene, &listener, (sender, "spoofed-address"), || {
        scene.inside.send(&spoofed)
    })?;
    provoke(&scene, &listener, (sender, "martian"), || {
        scene.inside.send(&martian)
    })?;
    provoke(&scene, &listener, (server, "spoofed-from-outside"), || {
        scene.outside.send(&outside)
    })?;
    // The same packets, by sender and destination.
    let view = why(&scene, sender, "127.0.0.1:7000", "udp")?;
    ensure!(view["request"]["reason"] == "martian", "{view:#}");
    let view = why(&scene, &WORLD[0].to_string(), "10.244.1.99:7000", "udp")?;
    ensure!(view["request"]["reason"] == "unknown-pod", "{view:#}");
    let unassigned = scene.frame_of_world(WORLD[0], "10.244.1.99".parse()?, PORT, REFUSED);
    scene.outside.send(&unassigned)?;
    scene.await_drops("unknown-pod", 1)?;
    let view = why(&scene, sender, "10.244.1.99:7000", "udp")?;
    ensure!(view["request"]["outcome"] == "discarded", "{view:#}");
    ensure!(
        texts(&view).contains("no pod of its network has the address"),
        "{view:#}"
    );
    let ctl = program("bin/viaductctl").display().to_string();
    let output = scene
        .sandbox
        .node
        .output(&[&ctl, "why", "--last-drop", sender])?;
    let text = String::from_utf8(output.stdout)?;
    ensure!(output.status.code() == Some(1), "{text}");
    for part in [
        "Dropped: ",
        "drops it as martian",
        ::abi::DropReason::Martian.advice(),
    ] {
        ensure!(text.contains(part), "{part} is not in {text}");
    }
    let text = scene
        .agent
        .ctl(&format!("why {sender} {} --proto udp", end(victim, PORT)))?;
    ensure!(text.contains("Result: passes"), "{text}");
    Ok(())
}

#[test]
fn policies_of_networks_are_explained_with_the_reason_of_the_drop() -> Result<()> {
    let closed = declared().with("directAccess", json!(false));
    let scene = Scene::with(&["--drop-event-interval=1"], &closed)?;
    let listener = scene.agent.follow_drops()?;
    let [_, victim] = scene.own(0)?;
    let frame = scene.frame_of_world(WORLD[0], victim, PORT, REFUSED);
    provoke(
        &scene,
        &listener,
        (scene.victim.id(), "direct-access"),
        || scene.outside.send(&frame),
    )?;
    let view = why(&scene, &WORLD[0].to_string(), &end(victim, PORT), "udp")?;
    ensure!(view["request"]["reason"] == "direct-access", "{view:#}");
    let view = why(
        &scene,
        &WORLD[0].to_string(),
        &end(NODE[0], HOSTPORT),
        "udp",
    )?;
    ensure!(view["passes"] == true, "{view:#}");

    let isolated = declared().with("ingressPolicy", json!("isolated"));
    let scene = Scene::with(&["--drop-event-interval=1"], &isolated)?;
    let listener = scene.agent.follow_drops()?;
    let [own, victim] = scene.own(0)?;
    let frame = scene.to_victim(own, victim, REFUSED);
    provoke(
        &scene,
        &listener,
        (scene.sender.id(), "ingress-policy"),
        || scene.inside.send(&frame),
    )?;
    let view = why(&scene, scene.sender.id(), &end(victim, PORT), "udp")?;
    ensure!(view["request"]["reason"] == "ingress-policy", "{view:#}");
    Ok(())
}

#[test]
fn routes_and_rules_that_discard_a_packet_are_named() -> Result<()> {
    let scene = Scene::new(&["--bypass-netfilter=never"])?;
    let node = &scene.sandbox.node;
    let sender = scene.sender.id();
    let world = end(WORLD[0], PORT);
    ensure!(why(&scene, sender, &world, "tcp")?["passes"] == true);
    node.call("ip route add blackhole 203.0.113.0/24")?;
    let view = why(&scene, sender, "203.0.113.9:80", "tcp")?;
    ensure!(view["request"]["outcome"] == "discarded", "{view:#}");
    ensure!(
        view["request"]["steps"]
            .as_array()
            .and_then(|all| all.last())
            .context("a step")?["decision"]
            == "route",
        "{view:#}"
    );
    node.call("nft add table ip house")?;
    node.call(
        "nft add chain ip house passage { type filter hook forward priority 0; policy accept; }",
    )?;
    node.call(&format!(
        "nft add rule ip house passage ip daddr {} drop",
        WORLD[0]
    ))?;
    let view = why(&scene, sender, &world, "tcp")?;
    ensure!(view["request"]["outcome"] == "discarded", "{view:#}");
    ensure!(
        texts(&view).contains("dropped by rule 1 of chain passage of table ip house"),
        "{view:#}"
    );
    ensure!(why(&scene, sender, &end(WORLD[1], PORT), "tcp")?["passes"] == true);
    Ok(())
}
