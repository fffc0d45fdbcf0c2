//! Clients of drop events, with reports that the tests send.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use abi::{DropHook, DropReason, DropRecord, DroppedPacket};
use engine::{Background, Engine, Settings};
use futures_util::StreamExt as _;
use kernel::fake::Fake;
use store::Store;
use tempfile::TempDir;
use tokio::time::timeout;

use super::*;

/// Returns an engine on a fake kernel, without networks.
fn engine() -> (Handle, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let records = directory.path().join("records.redb");
    let config = crate::config::Config::load(clap::Parser::parse_from(["viaductd"])).unwrap();
    let settings = Settings {
        default_network: config.default_network(),
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
    let (handle, _) = engine::spawn_with(Background::Never, move || {
        let store = Store::open(&records)?;
        anyhow::Ok(Engine::start(Fake::new(), store, settings, 1_700_000_000)?)
    })
    .unwrap();
    (handle, directory)
}

/// Drop events whose reports a test sends.
struct Scene {
    events: DropEvents,
    sender: Arc<Mutex<Option<mpsc::Sender<Vec<DropReport>>>>>,
    begun: Arc<AtomicUsize>,
    _stop: watch::Sender<bool>,
    stopped: watch::Receiver<bool>,
    _directory: TempDir,
}

impl Scene {
    fn new() -> Self {
        // Its start blocks the thread.
        let (handle, directory) = std::thread::spawn(engine).join().unwrap();
        let sender: Arc<Mutex<Option<mpsc::Sender<_>>>> = Arc::default();
        let begun = Arc::new(AtomicUsize::new(0));
        let (place, count) = (Arc::clone(&sender), Arc::clone(&begun));
        let events = DropEvents::new(handle, Duration::from_millis(100), move |_| {
            let (sender, reports) = mpsc::channel(QUEUED_BATCHES);
            *place.lock().unwrap() = Some(sender);
            count.fetch_add(1, Ordering::Relaxed);
            Ok(reports)
        });
        let (stop, stopped) = watch::channel(false);
        Self {
            events,
            sender,
            begun,
            _stop: stop,
            stopped,
            _directory: directory,
        }
    }

    fn client(
        &self,
        query: DropQuery,
    ) -> std::pin::Pin<Box<impl Stream<Item = Result<String, Infallible>> + use<>>> {
        Box::pin(self.events.lines(query, self.stopped.clone()).unwrap())
    }

    /// Sends a report for each reason, with the counts 1, 2, …
    async fn send(&self, reasons: &[DropReason]) {
        let reports = reasons.iter().zip(1..).map(|(reason, count)| DropReport {
            record: DropRecord {
                count,
                reason: *reason as u32,
                packet: DroppedPacket {
                    hook: DropHook::UplinkIn as u8,
                    ..DroppedPacket::default()
                },
                ..DropRecord::default()
            },
            interface: None,
            age: Duration::ZERO,
        });
        let sender = self.sender.lock().unwrap().clone().unwrap();
        sender.send(reports.collect()).await.unwrap();
    }
}

fn follow() -> DropQuery {
    DropQuery {
        follow: true,
        ..DropQuery::default()
    }
}

fn parsed(line: Option<Result<String, Infallible>>) -> DropEvent {
    serde_json::from_str(&line.unwrap().unwrap()).unwrap()
}

#[tokio::test]
async fn a_later_client_gets_the_remembered_events_and_the_datapath_is_listened_to_once() {
    let scene = Scene::new();
    let mut first = scene.client(follow());
    scene.send(&[DropReason::Martian]).await;
    assert_eq!(parsed(first.next().await).reason, "martian");
    let mut second = scene.client(DropQuery::default());
    assert_eq!(parsed(second.next().await).reason, "martian");
    assert!(second.next().await.is_none(), "neither follow nor seconds");
    assert_eq!(scene.begun.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_client_gets_only_events_of_the_reason_that_it_has_asked_for() {
    let scene = Scene::new();
    let mut client = scene.client(DropQuery {
        reason: Some("no-port".to_owned()),
        ..follow()
    });
    scene
        .send(&[DropReason::Martian, DropReason::NoPort, DropReason::Martian])
        .await;
    let event = parsed(client.next().await);
    assert_eq!((event.reason.as_str(), event.count), ("no-port", 2));
    assert_eq!(event.advice, DropReason::NoPort.advice());
    assert_eq!(event.hook, "uplink_in");
}

#[tokio::test]
async fn a_slow_client_gets_an_event_with_the_number_missed() {
    let scene = Scene::new();
    let mut slow = scene.client(follow());
    let mut quick = scene.client(follow());
    for _ in 0..REMEMBERED + 5 {
        scene.send(&[DropReason::Martian]).await;
        parsed(quick.next().await);
    }
    let gap = parsed(slow.next().await);
    assert_eq!((gap.reason.as_str(), gap.count), ("gap", 5));
    assert_eq!(parsed(slow.next().await).reason, "martian");
}

#[tokio::test(start_paused = true)]
async fn the_datapath_is_listened_to_until_a_while_after_the_last_client() {
    let scene = Scene::new();
    let mut client = scene.client(follow());
    scene.send(&[DropReason::Martian]).await;
    parsed(client.next().await);
    drop(client);
    let sender = scene.sender.lock().unwrap().clone().unwrap();
    tokio::time::sleep(GRACE.saturating_sub(RENEWAL)).await;
    let second = scene.client(follow());
    tokio::time::sleep(GRACE * 2).await;
    assert!(!sender.is_closed(), "a client is there");
    drop(second);
    tokio::time::sleep(GRACE.saturating_sub(RENEWAL)).await;
    assert!(!sender.is_closed());
    timeout(2 * RENEWAL, sender.closed()).await.unwrap();
    let mut later = scene.client(DropQuery::default());
    assert!(later.next().await.is_none(), "the events are forgotten");
    assert_eq!(scene.begun.load(Ordering::Relaxed), 2);
}

#[tokio::test(start_paused = true)]
async fn a_response_without_follow_ends_after_its_seconds() {
    let scene = Scene::new();
    let mut client = scene.client(DropQuery {
        seconds: 3,
        ..DropQuery::default()
    });
    let start = Instant::now();
    assert!(client.next().await.is_none());
    assert_eq!(start.elapsed().as_secs(), 3);
}
