//! The engine on its thread: one writer, bounded waiting, published state.

use std::sync::mpsc::{Receiver, Sender, channel};

use kernel::{Kernel, Measured, ObserveError, StepError};
use planner::{Scope, Step};
use tokio::runtime::Builder;

use super::*;
use crate::{Handle, spawn};

/// A kernel that waits for a permit before it sweeps.
struct Gate {
    fake: Fake,
    permits: Receiver<()>,
}

impl Kernel for Gate {
    fn observe(&mut self, scope: &Scope) -> Result<Observed, ObserveError> {
        self.fake.observe(scope)
    }

    fn execute(&mut self, step: &Step) -> Result<(), StepError> {
        if *step == Step::Sweep {
            self.permits.recv().unwrap();
        }
        self.fake.execute(step)
    }

    fn measure(&mut self) -> Result<Measured, ObserveError> {
        self.fake.measure()
    }
}

struct Running {
    handle: Handle,
    thread: std::thread::JoinHandle<()>,
    permits: Sender<()>,
    node: Node,
}

/// The agent of a node, on a thread.
fn run() -> Running {
    let mut node = Node::start();
    node.engine = None;
    let store = store::Store::open(&node.records()).unwrap();
    let settings = Settings {
        default_network: node.default_network.clone(),
        uplinks: BTreeSet::new(),
        non_masquerade: BTreeSet::new(),
        egress: BTreeSet::new(),
        flow_entries: abi::maps::FLOWS_CAPACITY,
        bypass: planner::BypassMode::Auto,
        boot_id: "this boot".to_owned(),
    };
    let (permits, waiting) = channel();
    let fake = node.fake.clone();
    let (handle, thread) = spawn(move || {
        let permits = waiting;
        let engine = Engine::start(Gate { fake, permits }, store, settings, NOW);
        engine.map_err(std::io::Error::other)
    })
    .unwrap();
    Running {
        handle,
        thread,
        permits,
        node,
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    Builder::new_current_thread()
        .build()
        .unwrap()
        .block_on(future)
}

#[test]
fn who_has_been_answered_sees_the_change_in_the_published_state() {
    let running = run();
    let intent = running.node.intent("c1");
    let key = intent.key.clone();
    let handle = running.handle;
    block_on(async {
        assert_eq!(handle.status().attachments, 0);
        let attachment = handle.add(intent, NOW).await.unwrap();
        assert_eq!(handle.status().attachments, 1);
        assert_eq!(handle.check(key.clone()).await.unwrap(), attachment);
        assert_eq!(handle.attachments().await.unwrap().len(), 1);
        handle.del(key).await.unwrap();
        assert_eq!(handle.status().attachments, 0);
    });
}

/// BEHAVIOURS A4.
#[test]
fn an_operation_is_finished_although_its_client_went_away() {
    let running = run();
    let intent = running.node.intent("c1");
    let handle = running.handle;
    handle.sweep();
    block_on(async {
        let mut add = Box::pin(handle.add(intent, NOW));
        let polled = futures_poll(&mut add).await;
        assert!(polled.is_none(), "the engine is busy");
        drop(add);
        running.permits.send(()).unwrap();
        assert_eq!(handle.attachments().await.unwrap().len(), 1);
    });
}

/// BEHAVIOURS A3
#[test]
fn a_del_wins_over_an_add_that_still_waits() {
    let running = run();
    let intent = running.node.intent("c1");
    let key = intent.key.clone();
    let handle = running.handle;
    handle.sweep();
    block_on(async {
        let mut add = Box::pin(handle.add(intent.clone(), NOW));
        assert!(futures_poll(&mut add).await.is_none());
        let mut del = Box::pin(handle.del(key.clone()));
        assert!(futures_poll(&mut del).await.is_none());
        let mut again = Box::pin(handle.add(intent, NOW));
        assert!(futures_poll(&mut again).await.is_none());
        running.permits.send(()).unwrap();
        assert!(matches!(add.await, Err(EngineError::Cancelled(of)) if of == key));
        del.await.unwrap();
        again.await.unwrap();
    });
}

/// BEHAVIOURS A1: a bounded time, never a hang.
#[test]
fn a_full_queue_is_told_at_once_and_stopping_finishes_what_waits() {
    let running = run();
    let handle = running.handle;
    handle.sweep();
    block_on(async {
        let mut waiting = Vec::new();
        let refused = loop {
            let mut asked = Box::pin(handle.attachments());
            match futures_poll(&mut asked).await {
                Some(answer) => break answer,
                None => waiting.push(asked),
            }
            assert!(waiting.len() < 10_000, "the queue has an end");
        };
        assert!(matches!(refused, Err(EngineError::Busy)));
        running.permits.send(()).unwrap();
        for asked in waiting {
            asked.await.unwrap();
        }
    });
    drop(handle);
    running.thread.join().unwrap();
}

#[test]
fn an_engine_that_cannot_start_says_why() {
    let failed = spawn::<Gate, _, _>(|| Err(std::io::Error::other("no kernel")));
    assert_eq!(failed.map(drop).unwrap_err().to_string(), "no kernel");
}

/// Polls once.
async fn futures_poll<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    std::future::poll_fn(|context| {
        let polled = std::pin::Pin::new(&mut *future).poll(context);
        std::task::Poll::Ready(match polled {
            std::task::Poll::Ready(output) => Some(output),
            std::task::Poll::Pending => None,
        })
    })
    .await
}
