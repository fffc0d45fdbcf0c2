//! Engine thread: one writer, bounded queue, published status.

use std::sync::mpsc::{Receiver, Sender, channel};

use kernel::{Kernel, Measured, Observe, ObserveError, StepError};
use steps::{Question, Step};
use tokio::runtime::Builder;

use super::*;
use crate::{Handle, Phase, TraceRecorder, TracedPhase, spawn};

/// Kernel that reports certain steps and waits for a permit before it executes them.
struct Gate {
    fake: Fake,
    is_held: fn(&Step) -> bool,
    reached: Sender<()>,
    permits: Receiver<()>,
}

impl<Q: Question> Observe<Q> for Gate
where
    Fake: Observe<Q>,
{
    fn observe(&mut self, question: &Q) -> Result<Q::Answer, ObserveError> {
        self.fake.observe(question)
    }
}

impl Kernel for Gate {
    fn execute(&mut self, step: &Step) -> Result<(), StepError> {
        if (self.is_held)(step) {
            self.reached.send(()).unwrap();
            self.permits.recv().unwrap();
        }
        self.fake.execute(step)
    }

    fn measure(&mut self) -> Result<Measured, ObserveError> {
        self.fake.measure()
    }

    fn sent(
        &mut self,
        slots: &BTreeSet<u32>,
    ) -> Result<BTreeMap<u32, abi::Counters>, ObserveError> {
        self.fake.sent(slots)
    }
}

struct Running {
    handle: Handle,
    thread: std::thread::JoinHandle<()>,
    reached: Receiver<()>,
    permits: Sender<()>,
    node: Node,
}

/// Runs the engine of a node on a thread; it waits for a permit before each sweep.
fn run() -> Running {
    run_held(|step| *step == Step::Sweep)
}

/// Runs the engine of a node on a thread; it waits for a permit before the steps of `is_held`.
fn run_held(is_held: fn(&Step) -> bool) -> Running {
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
        forwarding: planner::ForwardingMode::Auto,
        shaper: planner::ShaperMode::Auto,
        xdp_prefilter: planner::XdpPrefilterMode::Off,
        peers: planner::PeerOptions::default(),
        boot_id: "this boot".to_owned(),
    };
    let (permits, waiting) = channel();
    let (arrival, reached) = channel();
    let gate = Gate {
        fake: node.fake.clone(),
        is_held,
        reached: arrival,
        permits: waiting,
    };
    let (handle, thread) = spawn(move || {
        let engine = Engine::start(gate, store, settings, NOW);
        engine.map_err(std::io::Error::other)
    })
    .unwrap();
    Running {
        handle,
        thread,
        reached,
        permits,
        node,
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap()
        .block_on(future)
}

#[test]
fn the_status_shows_a_change_before_its_caller_gets_the_answer() {
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

/// behaviour A4.
#[test]
fn a_started_add_is_finished_although_its_client_went_away() {
    let running = run_held(|step| matches!(step, Step::CreateVeth(_)));
    let intent = running.node.intent("c1");
    let handle = running.handle;
    block_on(async {
        let mut add = Box::pin(handle.add(intent, NOW));
        assert!(futures_poll(&mut add).await.is_none());
        running.reached.recv().unwrap();
        drop(add);
        running.permits.send(()).unwrap();
        assert_eq!(handle.attachments().await.unwrap().len(), 1);
    });
}

/// behaviour A4: the attachment would have no owner.
#[test]
fn a_queued_add_whose_client_went_away_is_not_executed() {
    let running = run();
    let [gone, stays] = ["gone", "stays"].map(|name| running.node.intent(name));
    let handle = running.handle;
    handle.sweep();
    running.reached.recv().unwrap();
    block_on(async {
        let mut add = Box::pin(handle.add(gone, NOW));
        let mut other = Box::pin(handle.add(stays.clone(), NOW));
        assert!(futures_poll(&mut add).await.is_none());
        assert!(futures_poll(&mut other).await.is_none());
        drop(add);
        running.permits.send(()).unwrap();
        assert_eq!(other.await.unwrap().key, stays.key);
        let records = handle.attachments().await.unwrap();
        let keys: Vec<_> = records
            .iter()
            .map(|record| &record.attachment.key)
            .collect();
        assert_eq!(keys, [&stays.key]);
    });
}

/// behaviour A4: a DEL does not depend on its caller.
#[test]
fn a_queued_del_is_executed_although_its_client_went_away() {
    let running = run();
    let intent = running.node.intent("c1");
    let key = intent.key.clone();
    let handle = running.handle;
    block_on(async {
        handle.add(intent, NOW).await.unwrap();
        handle.sweep();
        running.reached.recv().unwrap();
        let mut del = Box::pin(handle.del(key));
        assert!(futures_poll(&mut del).await.is_none());
        drop(del);
        running.permits.send(()).unwrap();
        assert!(handle.attachments().await.unwrap().is_empty());
    });
}

#[test]
fn a_queue_full_of_adds_has_room_for_dels() {
    let running = run();
    let handle = running.handle;
    let there = running.node.intent("there");
    let intents: Vec<_> = (0..1000)
        .map(|number| running.node.intent(&format!("c{number}")))
        .collect();
    block_on(async {
        handle.add(there.clone(), NOW).await.unwrap();
        handle.sweep();
        running.reached.recv().unwrap();
        let (mut waiting, mut refused) = (Vec::new(), 0);
        for intent in intents {
            let mut add = Box::pin(handle.add(intent, NOW));
            match futures_poll(&mut add).await {
                None => waiting.push(add),
                Some(Err(EngineError::QueueFull)) => refused += 1,
                Some(answer) => panic!("{answer:?}"),
            }
        }
        assert_eq!(waiting.len() + refused, 1000);
        assert!(!waiting.is_empty() && refused > 0);
        let mut del = Box::pin(handle.del(there.key));
        assert!(futures_poll(&mut del).await.is_none(), "the DEL is queued");
        running.permits.send(()).unwrap();
        del.await.unwrap();
        // The pool has 13 addresses. Every other ADD got an error and left no record.
        let mut added = 0;
        for add in waiting {
            added += usize::from(add.await.is_ok());
        }
        assert_eq!(handle.attachments().await.unwrap().len(), added);
    });
}

/// behaviour A1: the paused clock of this test advances by itself when no future can proceed.
#[test]
fn a_request_that_waits_too_long_fails_with_queue_timeout() {
    let running = run();
    let intent = running.node.intent("c1");
    let handle = running.handle;
    handle.sweep();
    running.reached.recv().unwrap();
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let refused = runtime.block_on(handle.add(intent, NOW));
    assert!(matches!(refused, Err(EngineError::QueueTimeout(_))));
    running.permits.send(()).unwrap();
    let records = block_on(handle.attachments()).unwrap();
    assert!(
        records.is_empty(),
        "the error means that no attachment was made"
    );
}

/// behaviour A3
#[test]
fn a_del_cancels_a_queued_add_and_a_later_add_succeeds() {
    let running = run();
    let intent = running.node.intent("c1");
    let key = intent.key.clone();
    let handle = running.handle;
    handle.sweep();
    running.reached.recv().unwrap();
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

/// behaviour A1: a bounded time, never a hang.
#[test]
fn a_full_queue_refuses_at_once_and_stopping_finishes_queued_requests() {
    let running = run();
    let handle = running.handle;
    handle.sweep();
    block_on(async {
        let mut waiting = Vec::new();
        let refused = loop {
            let mut query = Box::pin(handle.attachments());
            match futures_poll(&mut query).await {
                Some(answer) => break answer,
                None => waiting.push(query),
            }
            assert!(waiting.len() < 10_000, "the queue is bounded");
        };
        assert!(matches!(refused, Err(EngineError::QueueFull)));
        running.permits.send(()).unwrap();
        for query in waiting {
            query.await.unwrap();
        }
    });
    drop(handle);
    running.thread.join().unwrap();
}

#[test]
fn spawn_returns_the_error_of_an_engine_that_cannot_start() {
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

#[test]
fn operations_list_running_and_queued_requests_in_order() {
    let running = run();
    let intent = running.node.intent("c1");
    let handle = running.handle;
    handle.sweep();
    running.reached.recv().unwrap();
    block_on(async {
        let mut add = Box::pin(handle.add(intent.clone(), NOW));
        assert!(futures_poll(&mut add).await.is_none());
        let listed: Vec<_> = handle
            .operations()
            .into_iter()
            .map(|one| (one.verb, one.key, one.runs))
            .collect();
        let waits = ("ADD", Some(intent.key.clone()), false);
        assert_eq!(listed, [("sweep", None, true), waits]);
        running.permits.send(()).unwrap();
        add.await.unwrap();
    });
}

#[test]
fn phases_of_add_and_del_are_reported_once_each_in_their_order() {
    let running = run();
    let intent = running.node.intent("c1");
    let key = intent.key.clone();
    let handle = running.handle;
    let (report, reported) = channel();
    handle.set_phase_listener(move |command, phase, _| {
        // The test has ended.
        let _ended = report.send((command, phase));
    });
    let next = |count| -> Vec<(&str, Phase)> { reported.iter().take(count).collect() };
    let of = |command, phases: &[Phase]| -> Vec<(&str, Phase)> {
        phases.iter().map(|phase| (command, *phase)).collect()
    };
    block_on(handle.add(intent, NOW)).unwrap();
    let add = [
        Phase::Queue,
        Phase::Network,
        Phase::Observe,
        Phase::Plan,
        Phase::Record,
        Phase::Apply,
        Phase::Publish,
        // In the background.
        Phase::Verify,
    ];
    assert_eq!(next(add.len()), of("add", &add));
    block_on(handle.del(key)).unwrap();
    let del = [
        Phase::Queue,
        Phase::Observe,
        Phase::Plan,
        Phase::Record,
        Phase::Apply,
        Phase::Publish,
    ];
    assert_eq!(next(del.len()), of("del", &del));
}

#[test]
fn a_failed_add_has_the_phase_in_which_it_is_undone() {
    let running = run();
    let mut intent = running.node.intent("c1");
    intent.requested.addresses = vec!["192.0.2.1".parse().unwrap()];
    let handle = running.handle;
    let (report, reported) = channel();
    handle.set_phase_listener(move |_, phase, took| {
        let _ended = report.send((phase, took));
    });
    block_on(handle.add(intent, NOW)).unwrap_err();
    let phases: Vec<Phase> = reported
        .iter()
        .map(|(phase, _)| phase)
        .take_while(|phase| *phase != Phase::Publish)
        .collect();
    let expected = [Phase::Queue, Phase::Network, Phase::Observe, Phase::Undo];
    assert_eq!(phases, expected);
}

/// Sends the phases of traced commands.
struct Sent(Sender<Vec<TracedPhase>>);

impl TraceRecorder for Sent {
    fn record(&self, phases: Vec<TracedPhase>) {
        // The test has ended.
        let _ended = self.0.send(phases);
    }
}

#[test]
fn a_traced_add_has_its_phases_with_their_steps_and_later_its_verification() {
    let running = run();
    let intent = running.node.intent("c1");
    let handle = running.handle;
    let (report, reported) = channel();
    let add = crate::traced(std::sync::Arc::new(Sent(report)), handle.add(intent, NOW));
    block_on(add).unwrap();
    let phases = reported.recv().unwrap();
    let apply = phases.iter().find(|it| it.phase == Phase::Apply).unwrap();
    assert!(apply.steps.iter().any(|step| step.name == "create veth"));
    for pair in phases.windows(2) {
        assert_eq!(pair[0].span.ended, pair[1].span.begun);
    }
    for phase in &phases {
        assert_eq!(phase.failure, None);
        for step in &phase.steps {
            assert!(phase.span.begun <= step.span.begun && step.span.ended <= phase.span.ended);
            assert_eq!(step.failure, None);
        }
    }
    let verified = reported.recv().unwrap();
    assert_eq!(verified[0].phase, Phase::Verify);
    assert!(verified[0].span.begun >= apply.span.ended);
}
