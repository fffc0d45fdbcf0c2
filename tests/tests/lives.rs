//! Random lives of a node, on the real kernel: the engine with everything that may happen to it, against a model of what
//! must be true.
//!
//! The engine is called as the agent calls it, in a network namespace of its own; others interfere with the tools that
//! operators have. After each event the records agree with each other, and what nobody has touched passes a CHECK. In the
//! end of each life one comparison puts everything right, the next finds nothing, and when the pods are gone nothing of
//! them is left.
//!
//! `VIADUCT_SEED` repeats the lives of a seed that was printed, and `VIADUCT_LIVES` says how many there are.

#[path = "lives/event.rs"]
mod event;
#[path = "lives/world.rs"]
mod world;

use std::cell::RefCell;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::thread;

use anyhow::{Context as _, Result, anyhow};
use e2e::Sandbox;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

use event::{Event, PODS, any_event, first_event};
use world::World;

const LIVES: u32 = 500;

/// Nodes that live side by side: much of a life is waiting for the kernel.
const NODES: u32 = 4;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Another one for each run: the standard library's hashers are seeded by the kernel.
fn seed() -> u64 {
    let random = || RandomState::new().build_hasher().finish();
    number("VIADUCT_SEED").unwrap_or_else(random)
}

fn runner(seed: u64) -> TestRunner {
    let lives = number("VIADUCT_LIVES").and_then(|lives| u32::try_from(lives).ok());
    let config = Config {
        cases: lives.unwrap_or(LIVES).div_ceil(NODES),
        failure_persistence: None,
        max_shrink_iters: 200,
        ..Config::default()
    };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}

fn live(seed: u64) -> Result<()> {
    let sandbox = Sandbox::new()?;
    sandbox.node.run(|| live_on(&sandbox, seed))
}

fn live_on(sandbox: &Sandbox, seed: u64) -> Result<()> {
    let world = RefCell::new(World::new(sandbox)?);
    // Most lives begin with pods, so that there is something to harm.
    let first = prop::collection::vec(first_event(), PODS);
    let rest = prop::collection::vec(any_event(), 1..6);
    let events = (first, rest).prop_map(|(first, rest)| {
        let first = first.into_iter().flatten();
        first.chain(rest).collect::<Vec<Event>>()
    });
    let lived = runner(seed).run(&events, |events| {
        let mut world = world.borrow_mut();
        let life = one_life(&mut world, &events);
        if life.is_err() {
            // What is found while a failure is made smaller must not be the ruins of the one before.
            world.begin_anew().map_err(failed)?;
        }
        life.map_err(failed)
    });
    lived.map_err(|failure| anyhow!("{failure}"))?;
    world.into_inner().strangers_are_untouched()
}

fn one_life(world: &mut World<'_>, events: &[Event]) -> Result<()> {
    for event in events {
        world.happen(*event)?;
        world.check_now()?;
    }
    world.end()
}

#[expect(clippy::needless_pass_by_value, reason = "a conversion, for map_err")]
fn failed(error: anyhow::Error) -> TestCaseError {
    TestCaseError::fail(format!("{error:#}"))
}

/// behaviours K5, K11, K25, K35; S10
#[test]
fn whatever_happens_on_a_real_kernel_the_node_converges() -> Result<()> {
    let seed = seed();
    eprintln!("VIADUCT_SEED={seed}");
    thread::scope(|scope| {
        let nodes: Vec<_> = (0..u64::from(NODES))
            .map(|node| scope.spawn(move || live(seed.wrapping_add(node))))
            .collect();
        let ends: Result<Vec<()>> = nodes
            .into_iter()
            .map(|node| node.join().expect("it ends"))
            .collect();
        ends.map(drop)
    })
    .with_context(|| format!("VIADUCT_SEED={seed}"))
}
