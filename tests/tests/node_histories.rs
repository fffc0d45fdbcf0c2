//! Random event histories of a node on the real kernel: the engine against a model of the
//! invariants.
//!
//! The engine is called as the agent calls it, in a network namespace of its own; other events
//! change the node with the tools that operators use. After each event the records are consistent,
//! and every undamaged attachment passes a CHECK. At the end of each history one reconciliation
//! repairs everything, the next finds nothing to do, and after the DELs of all pods nothing of them
//! is left.
//!
//! `VIADUCT_SEED` repeats the histories of a printed seed; `VIADUCT_LIVES` sets their number.

#[path = "node_histories/event.rs"]
mod event;
#[path = "node_histories/world.rs"]
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

const HISTORIES: u32 = 500;

/// Nodes that run in parallel: a history spends much of its time waiting for the kernel.
const NODES: u32 = 4;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Returns `VIADUCT_SEED`, or a new random seed: the kernel seeds the standard library's hashers.
fn seed() -> u64 {
    let random = || RandomState::new().build_hasher().finish();
    number("VIADUCT_SEED").unwrap_or_else(random)
}

fn runner(seed: u64) -> TestRunner {
    let histories = number("VIADUCT_LIVES").and_then(|number| u32::try_from(number).ok());
    let config = Config {
        cases: histories.unwrap_or(HISTORIES).div_ceil(NODES),
        failure_persistence: None,
        max_shrink_iters: 200,
        ..Config::default()
    };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}

fn run_node(seed: u64) -> Result<()> {
    let sandbox = Sandbox::new()?;
    sandbox.node.run(|| run_histories(&sandbox, seed))
}

fn run_histories(sandbox: &Sandbox, seed: u64) -> Result<()> {
    let world = RefCell::new(World::new(sandbox)?);
    // Most histories start with ADDs, so that there are pods to damage.
    let first = prop::collection::vec(first_event(), PODS);
    let rest = prop::collection::vec(any_event(), 1..6);
    let events = (first, rest).prop_map(|(first, rest)| {
        let first = first.into_iter().flatten();
        first.chain(rest).collect::<Vec<Event>>()
    });
    let outcome = runner(seed).run(&events, |events| {
        let mut world = world.borrow_mut();
        let history = one_history(&mut world, &events);
        if history.is_err() {
            // A shrunk case must not start from the state that the failed one left behind.
            world.start_over().map_err(failed)?;
        }
        history.map_err(failed)
    });
    outcome.map_err(|failure| anyhow!("{failure}"))?;
    world.into_inner().foreign_state_is_unchanged()
}

fn one_history(world: &mut World<'_>, events: &[Event]) -> Result<()> {
    for event in events {
        world.apply(*event)?;
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
fn random_node_histories_on_a_real_kernel_converge() -> Result<()> {
    let seed = seed();
    eprintln!("VIADUCT_SEED={seed}");
    thread::scope(|scope| {
        let nodes: Vec<_> = (0..u64::from(NODES))
            .map(|node| scope.spawn(move || run_node(seed.wrapping_add(node))))
            .collect();
        let results: Result<Vec<()>> = nodes
            .into_iter()
            .map(|node| node.join().expect("the node's thread does not panic"))
            .collect();
        results.map(drop)
    })
    .with_context(|| format!("VIADUCT_SEED={seed}"))
}
