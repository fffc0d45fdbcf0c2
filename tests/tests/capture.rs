//! `viaductctl capture`: both directions of a pod's packets on every path, with the verdict of
//! dropped ones and the other side of translations.

#[path = "admission/scene.rs"]
mod scene;

use std::net::{IpAddr, SocketAddr, UdpSocket};

use anyhow::{Result, ensure};
use e2e::{Machine, NODE, Process, WORLD, deadline, program, until};
use nix::sys::signal::Signal;
use verdict::simulator::frame::{Body, Frame};

use self::scene::{HOSTPORT, MODES, PORT, REFUSED, Scene, abi};

/// Starts to capture packets of a pod, and waits until the socket is open.
fn start(scene: &Scene, words: &[&str]) -> Result<Process> {
    let ctl = program("bin/viaductctl").display().to_string();
    let words = [&[ctl.as_str(), "capture"], words].concat();
    let process = Process::start(&scene.sandbox.node, &words)?;
    until("the capture begins", || {
        ensure!(process.ended()?.is_none(), "{}", process.output());
        Ok(process.output().contains("Capturing").then_some(()))
    })?;
    Ok(process)
}

/// Waits until the capture has printed a line with all of `parts`.
fn until_line(capture: &Process, parts: &[&str]) -> Result<()> {
    until(&format!("a line with {parts:?}"), || {
        let output = capture.output();
        let is_found = |line: &str| parts.iter().all(|part| line.contains(part));
        Ok(output.lines().any(is_found).then_some(()))
    })
}

#[test]
fn a_capture_shows_both_directions_and_translations_on_fast_path_and_stack() -> Result<()> {
    for mode in MODES {
        let scene = Scene::new(&[mode])?;
        let pod = scene.victim.id();
        let capture = start(&scene, &[pod, "--proto", "udp"])?;
        for family in [0, 1] {
            let [_, own] = scene.own(family)?;
            // From outside to the published port, and back.
            let server = socket(&scene.victim.machine, own, PORT)?;
            let client = socket(&scene.sandbox.world, WORLD[family], 0)?;
            client.send_to(b"question", (NODE[family], HOSTPORT))?;
            let mut buffer = [0; 64];
            let (_, from) = server.recv_from(&mut buffer)?;
            ensure!(from == client.local_addr()?, "{from}");
            server.send_to(b"answer", from)?;
            client.recv_from(&mut buffer)?;
            let (own, node) = (end(own, PORT), end(NODE[family], HOSTPORT));
            let question = format!("udp {from} -> {own}");
            let was = format!("published: was {from} -> {node}");
            until_line(&capture, &["  <  ", &question, &was])?;
            let answer = format!("udp {own} -> {from}");
            let becomes = format!("published: becomes {node} -> {from}");
            until_line(&capture, &["  >  ", &answer, &becomes])?;
        }
        let (status, output) = capture.end(Signal::SIGINT)?;
        ensure!(status.success(), "{mode}: {output}");
        ensure!(output.contains("4 packets captured, 0 lost"), "{output}");
    }
    Ok(())
}

fn end(address: IpAddr, port: u16) -> String {
    SocketAddr::new(address, port).to_string()
}

/// Returns a UDP socket whose reads fail after a deadline.
fn socket(machine: &Machine, address: IpAddr, port: u16) -> Result<UdpSocket> {
    let socket = machine.run(|| UdpSocket::bind((address, port)))?;
    socket.set_read_timeout(Some(deadline()))?;
    Ok(socket)
}

#[test]
fn a_capture_has_the_reason_of_a_drop_and_its_file_is_complete_after_a_signal() -> Result<()> {
    let scene = Scene::new(&["--drop-event-interval=1"])?;
    let [own, victim] = scene.own(0)?;
    let body = Body::Udp(41_000, PORT, REFUSED.to_vec());
    let forged = Frame::new(abi(own), abi(victim), body)
        .from_to(::abi::Mac::new([2, 0, 0, 0, 0, 0x77]), scene.victim_mac)
        .bytes();
    let file = "/run/pod.pcapng";
    let lines = start(&scene, &[scene.sender.id()])?;
    let written = start(&scene, &[scene.sender.id(), "--port", "7000", "-w", file])?;
    // Programs report drops only when the agent listens.
    until("the drop is in the capture", || {
        scene.inside.send(&forged)?;
        let output = lines.output();
        let is_drop = |line: &str| {
            line.contains("  >  ") && line.contains("dropped by from_pod as spoofed-mac")
        };
        Ok(output.lines().any(is_drop).then_some(()))
    })?;
    for capture in [lines, written] {
        let (status, output) = capture.end(Signal::SIGTERM)?;
        ensure!(status.success(), "{output}");
    }
    let bytes = scene.sandbox.node.run(|| std::fs::read(file))?;
    ensure!(bytes.starts_with(&[0x0a, 0x0d, 0x0d, 0x0a]), "{bytes:02x?}");
    for part in [REFUSED, b"eth0", b"dropped by from_pod as spoofed-mac"] {
        ensure!(e2e::contains(&bytes, part), "{part:?} is not in the file");
    }
    Ok(())
}
