//! Generated frames of a hostile pod and of a hostile world, with receiving Linux namespaces as the
//! oracle: what their sockets, neighbour tables and routes accept must be allowed by name, and what
//! they do not accept must be accounted for (decision 110).

#[path = "hostile_frames/suite.rs"]
mod suite;

use anyhow::{Result, ensure};
use e2e::{FrameFlood, FrameSender};

use suite::{Origin, Policy, Scene, accepted_lies, kept, of_pod, of_world, run};

/// The fast path, and the stack alone.
const MODES: [&str; 2] = ["always", "never"];

#[expect(clippy::print_stderr, reason = "the report is a result of the test")]
fn attack_from_pod(policy: Policy, seeds: [u64; 2]) -> Result<()> {
    for (seed, mode) in seeds.into_iter().zip(MODES) {
        let mut scene = Scene::new(mode, policy)?;
        let cells = of_pod(&scene, seed);
        let report = run(&mut scene, Origin::Pod, &cells)?;
        let title = format!(
            "{} cells, bypass {mode}, policy {}",
            cells.len(),
            policy.name()
        );
        report.ensure_clean(&title)?;
        eprintln!("{title}:{report}");
        ensure!(
            report.count("accepted: the sender's own address") > 30,
            "{title}"
        );
        let spoofed = report.count("dropped: spoofed-address");
        ensure!(spoofed > 300 / kept(), "{title}: {spoofed}");
    }
    Ok(())
}

#[test]
fn frames_of_a_pod_are_accepted_where_the_policy_allows_them() -> Result<()> {
    attack_from_pod(Policy::Open, [1, 2])
}

#[test]
fn frames_of_a_pod_stay_on_their_bridge_with_the_policy_same_bridge() -> Result<()> {
    attack_from_pod(Policy::SameBridge, [3, 4])
}

#[test]
fn frames_of_an_isolated_pod_reach_no_pod() -> Result<()> {
    attack_from_pod(Policy::Isolated, [5, 6])
}

#[test]
fn frames_of_the_world_reach_pods_only_with_addresses_of_the_world() -> Result<()> {
    for (seed, mode) in (0..).zip(MODES) {
        let mut scene = Scene::new(mode, Policy::Open)?;
        let cells = of_world(&scene, seed);
        let report = run(&mut scene, Origin::World, &cells)?;
        let title = format!("{} cells of the world, bypass {mode}", cells.len());
        report.ensure_clean(&title)?;
        eprintln!("{title}:{report}");
        ensure!(
            report.count("accepted: the sender's own address") > 20,
            "{title}"
        );
        let spoofed = report.count("dropped: spoofed-from-outside");
        ensure!(spoofed > 150 / kept(), "{title}: {spoofed}");
    }
    Ok(())
}

/// How often the attacker is detached.
const DELS: usize = 4;
/// Frames that are sent before each DEL.
const BEFORE: u64 = 200;

#[test]
fn a_del_lets_no_frame_pass_that_was_dropped_before() -> Result<()> {
    for (seed, mode) in (0..).zip(MODES) {
        let mut scene = Scene::new(mode, Policy::Open)?;
        let node = scene.sandbox.node.clone();
        for round in 0..DELS {
            let cells = of_pod(&scene, seed);
            let frames: Vec<_> = cells
                .iter()
                .filter(|cell| cell.is_lie())
                .flat_map(|cell| cell.frames.clone())
                .collect();
            let gateway = scene.net.gateway.addresses[0];
            let sender = FrameSender::new(&scene.attacker.machine, "eth0", gateway)?;
            accepted_lies(&scene, &cells)?;
            let flood = FrameFlood::start(sender, move |number| {
                let index = usize::try_from(number).unwrap_or_default() % frames.len();
                frames[index].clone()
            });
            flood.await_sent(BEFORE)?;
            scene.attacker.del(&node)?;
            // The interface is gone: the sender has failed, or ends before its next frame.
            let _ended = flood.end();
            let accepted = accepted_lies(&scene, &cells)?;
            ensure!(
                accepted.is_empty(),
                "DEL {round}, bypass {mode}: {accepted:#?}"
            );
            scene.attach_again()?;
        }
    }
    Ok(())
}
