//! Tests of the file of events.

use api::EventOutcome;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use tempfile::TempDir;

use super::*;
use crate::telemetry::events::{Events, NewEvent};

fn emit(events: &Events, subject: &str) {
    events.emit(NewEvent::new("add", subject, EventOutcome::Done, ""));
}

/// Returns numbers and subjects of the history.
fn history(events: &Events) -> Vec<String> {
    let text = |event: &Arc<Event>| format!("{} {}", event.sequence, event.subject);
    events.history().iter().map(text).collect()
}

fn finish(events: &Events) {
    events.file().unwrap().finish();
}

fn event(sequence: u64, message: &str) -> Arc<Event> {
    Arc::new(Event {
        sequence,
        at: 1_790_000_000,
        time: "2026-09-21T14:13:20Z".to_owned(),
        action: "add".to_owned(),
        subject: "abc/eth0".to_owned(),
        pod: None,
        outcome: EventOutcome::Done,
        message: message.to_owned(),
        duration_us: 0,
    })
}

fn writer(directory: &TempDir) -> Writer {
    let path = directory.path().join(NAME);
    let (kept, is_whole) = read(&path);
    Writer::new(path, &kept, !is_whole)
}

#[test]
fn events_of_an_earlier_agent_stay_with_their_numbers() {
    let directory = TempDir::new().unwrap();
    let first = Events::open(directory.path());
    emit(&first, "a");
    emit(&first, "b");
    finish(&first);
    emit(&first, "after the end of the file");
    let second = Events::open(directory.path());
    assert_eq!(history(&second), ["1 a", "2 b"]);
    emit(&second, "c");
    finish(&second);
    let third = Events::open(directory.path());
    assert_eq!(history(&third), ["1 a", "2 b", "3 c"]);
}

#[test]
fn the_event_file_is_bounded_by_number_and_by_bytes() {
    let directory = TempDir::new().unwrap();
    let lengths = [(0, 5_000), (4_000, 1_000)];
    let mut sequence = 0;
    for (length, number) in lengths {
        let mut writer = writer(&directory);
        for _ in 0..number {
            sequence += 1;
            writer.append(&event(sequence, &"x".repeat(length)));
            assert!(writer.lines <= REWRITE_LINES);
        }
        let size = fs::metadata(directory.path().join(NAME)).unwrap().len();
        assert!(size < u64::try_from(REWRITE_BYTES).unwrap() + 5_000);
        let (kept, is_whole) = read(&directory.path().join(NAME));
        assert!(is_whole && kept.damage.is_none());
        assert!(kept.events.len() <= HISTORY_LENGTH);
        assert_eq!(kept.events.back().unwrap().sequence, sequence);
        let first = kept.events.front().unwrap().sequence;
        assert_eq!(
            sequence - first + 1,
            u64::try_from(kept.events.len()).unwrap()
        );
    }
}

#[test]
fn an_event_that_was_written_in_part_is_dropped_without_damage() {
    let directory = TempDir::new().unwrap();
    let events = Events::open(directory.path());
    emit(&events, "a");
    emit(&events, "b");
    finish(&events);
    let path = directory.path().join(NAME);
    let text = fs::read(&path).unwrap();
    fs::write(&path, &text[..text.len() - 5]).unwrap();
    let events = Events::open(directory.path());
    emit(&events, "c");
    finish(&events);
    let events = Events::open(directory.path());
    assert_eq!(history(&events), ["1 a", "2 c"]);
    assert!(!aside(&path).exists());
}

#[test]
fn a_damaged_event_file_is_set_aside_and_its_other_events_stay() {
    let directory = TempDir::new().unwrap();
    let events = Events::open(directory.path());
    for subject in ["a", "b", "c"] {
        emit(&events, subject);
    }
    finish(&events);
    let path = directory.path().join(NAME);
    let mut text = fs::read(&path).unwrap();
    let second = text.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    text[second] = 0xff;
    fs::write(&path, &text).unwrap();
    let events = Events::open(directory.path());
    assert_eq!(history(&events), ["1 a", "3 c", "4 events"]);
    let damage = events.history().back().unwrap().message.clone();
    assert!(damage.contains("1 of its lines"), "{damage}");
    assert_eq!(fs::read(aside(&path)).unwrap(), text);
    finish(&events);
    let events = Events::open(directory.path());
    assert_eq!(history(&events), ["1 a", "3 c", "4 events"]);
}

#[test]
fn an_event_file_that_is_no_regular_file_is_set_aside() {
    let target = TempDir::new().unwrap();
    let kinds: [fn(&Path, &Path); 3] = [
        |path, _| mkfifo(path, Mode::S_IRWXU).unwrap(),
        |path, _| fs::create_dir(path).unwrap(),
        |path, target| std::os::unix::fs::symlink(target.join("x"), path).unwrap(),
    ];
    for kind in kinds {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join(NAME);
        kind(&path, target.path());
        let events = Events::open(directory.path());
        assert_eq!(history(&events), ["1 events"]);
        finish(&events);
        assert_eq!(history(&Events::open(directory.path())), ["1 events"]);
    }
    assert_eq!(fs::read_dir(target.path()).unwrap().count(), 0);
}

#[test]
fn events_that_could_not_be_written_are_written_with_the_next_one() {
    let parent = TempDir::new().unwrap();
    let directory = parent.path().join("state");
    let mut writer = Writer::new(directory.join(NAME), &Kept::default(), false);
    writer.append(&event(1, ""));
    assert!(writer.has_failed && writer.is_stale);
    fs::create_dir(&directory).unwrap();
    writer.append(&event(2, ""));
    writer.append(&event(3, ""));
    assert!(!writer.has_failed);
    let (kept, _) = read(&directory.join(NAME));
    let numbers: Vec<u64> = kept.events.iter().map(|it| it.sequence).collect();
    assert_eq!(numbers, [1, 2, 3]);
}

#[test]
fn events_of_a_newer_version_are_read() {
    let directory = TempDir::new().unwrap();
    let line = r#"{"sequence":7,"at":1,"action":"new","subject":"x","outcome":"new","more":[1]}"#;
    fs::write(directory.path().join(NAME), format!("{line}\n")).unwrap();
    let events = Events::open(directory.path());
    assert_eq!(history(&events), ["7 x"]);
    emit(&events, "y");
    assert_eq!(history(&events), ["7 x", "8 y"]);
}
