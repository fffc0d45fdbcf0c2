//! Tests of the journal: complete changes are replayed, incomplete and damaged ones are not.

use super::*;

fn keys(store: &Store) -> Vec<AttachmentKey> {
    store.records().keys().cloned().collect()
}

fn line_ends(bytes: &[u8]) -> Vec<usize> {
    bytes
        .iter()
        .enumerate()
        .filter(|(_, byte)| **byte == b'\n')
        .map(|(at, _)| at + 1)
        .collect()
}

#[test]
fn an_incomplete_journal_line_is_ignored() {
    let directory = directory();
    let path = directory.path().join("store.redb");
    let journal = journal::path_beside(&path);
    let mut store = Store::open(&path).unwrap();
    store.put(&record(5, State::Attached)).unwrap();
    let one = fs::read(&journal).unwrap();
    store.put(&record(6, State::Attached)).unwrap();
    drop(store);
    let both = fs::read(&journal).unwrap();
    for end in [one.len(), one.len() + 1, both.len() - 1] {
        // Killed while it wrote the second line: the head counts one.
        fs::write(&journal, [&one, &both[one.len()..end]].concat()).unwrap();
        let mut store = Store::open(&path).unwrap();
        assert_eq!(keys(&store), [key(5)], "{end} bytes");
        store.put(&record(7, State::Pending)).unwrap();
        drop(store);
        assert_eq!(keys(&Store::open(&path).unwrap()), [key(5), key(7)]);
    }
    // Killed between the second line and the head.
    fs::write(&journal, [&one, &both[one.len()..]].concat()).unwrap();
    let mut store = Store::open(&path).unwrap();
    assert_eq!(keys(&store), [key(5), key(6)]);
    store.put(&record(7, State::Pending)).unwrap();
    drop(store);
    assert_eq!(keys(&Store::open(&path).unwrap()), [key(5), key(6), key(7)]);
}

/// Without the head, each of these would be a shorter journal: records of live pods would be
/// missing, or pending again.
#[test]
fn a_journal_with_fewer_lines_than_were_written_is_damaged() {
    let directory = directory();
    let path = directory.path().join("store.redb");
    let journal = journal::path_beside(&path);
    let mut store = Store::open(&path).unwrap();
    for compacted in [false, true] {
        if compacted {
            store.compact_journal().unwrap();
        }
        for container in 5..8 {
            store.put(&record(container, State::Pending)).unwrap();
            store.put(&record(container, State::Attached)).unwrap();
        }
        let expected = store.contents().clone();
        drop(store);
        let whole = fs::read(&journal).unwrap();
        let ends = line_ends(&whole);
        assert_eq!(ends.len(), 7);
        let mut damages: Vec<Vec<u8>> = vec![vec![0; whole.len()]];
        for end in std::iter::once(0).chain(ends[..6].iter().copied()) {
            damages.push(whole[..end].to_vec());
            let zeroed = vec![0; whole.len() - end];
            damages.push([&whole[..end], &zeroed].concat());
        }
        for (number, bytes) in damages.iter().enumerate() {
            fs::write(&journal, bytes).unwrap();
            let error = Store::open(&path).unwrap_err();
            assert!(
                matches!(error, StoreError::Damaged { .. }),
                "{number}: {error:?}"
            );
            assert_eq!(fs::read(&journal).unwrap(), *bytes, "{number}");
        }
        fs::remove_file(&journal).unwrap();
        let error = Store::open(&path).unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }), "{error:?}");
        fs::write(&journal, &whole).unwrap();
        store = Store::open(&path).unwrap();
        assert_eq!(store.contents(), &expected);
    }
}

/// A version without heads wrote database and journal. The upgrade may be interrupted behind the
/// new journal, before the database has its new format.
#[test]
fn a_journal_without_a_head_is_taken_over() {
    let directory = directory();
    let path = directory.path().join("store.redb");
    let journal = journal::path_beside(&path);
    let mut store = Store::open(&path).unwrap();
    store.put(&record(5, State::Attached)).unwrap();
    store.put(&record(6, State::Attached)).unwrap();
    store.file.put_format(database::HEADLESS_JOURNAL).unwrap();
    drop(store);
    let upgraded = fs::read_to_string(&journal).unwrap();
    let (_, headless) = upgraded.split_once('\n').unwrap();
    for text in [headless, &upgraded] {
        fs::write(&journal, text).unwrap();
        let store = Store::open(&path).unwrap();
        assert_eq!(keys(&store), [key(5), key(6)]);
        assert_eq!(store.file.format(), FORMAT);
        assert_eq!(fs::read_to_string(&journal).unwrap(), upgraded);
        store.file.put_format(database::HEADLESS_JOURNAL).unwrap();
    }
    fs::remove_file(&journal).unwrap();
    assert!(Store::open(&path).unwrap().records().is_empty());
}

#[test]
fn a_damaged_journal_is_refused_by_name_and_renamed() {
    let directory = directory();
    let path = directory.path().join("store.redb");
    let journal = journal::path_beside(&path);
    let mut store = Store::open(&path).unwrap();
    store.put(&record(5, State::Attached)).unwrap();
    drop(store);
    let whole = fs::read_to_string(&journal).unwrap();
    let other_mtu = whole.replace("1500", "1501");
    assert_ne!(other_mtu, whole);
    for broken in [other_mtu.as_str(), "text\n", "\n", "00000000 {}\n"] {
        fs::write(&journal, broken).unwrap();
        let error = Store::open(&path).unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }), "{error:?}");
        assert!(error.to_string().contains(journal.to_str().unwrap()));
        assert_eq!(fs::read_to_string(&journal).unwrap(), broken);
    }
    let (store, _) = Store::replace(&path).unwrap();
    assert!(store.records().is_empty());
    let aside = fs::read(path.with_extension("journal.damaged")).unwrap();
    assert_eq!(aside, b"00000000 {}\n");
}

#[test]
fn a_new_store_discards_the_journal_of_a_removed_one() {
    let directory = directory();
    let path = directory.path().join("store.redb");
    let mut store = Store::open(&path).unwrap();
    store.put(&record(5, State::Attached)).unwrap();
    drop(store);
    fs::remove_file(&path).unwrap();
    assert!(Store::open(&path).unwrap().records().is_empty());
}

/// A crash between commit and truncation: the journal repeats changes that the database has.
/// The lines of removals fit into what is allocated behind those of records.
#[test]
fn room_for_removals_is_allocated_behind_the_lines() {
    use std::os::unix::fs::MetadataExt as _;
    let directory = directory();
    let path = directory.path().join("store.redb");
    let journal = journal::path_beside(&path);
    let mut store = Store::open(&path).unwrap();
    let room = || {
        let metadata = fs::metadata(&journal).unwrap();
        metadata.blocks() * 512 - metadata.len()
    };
    for container in 5..9 {
        store.put(&record(container, State::Pending)).unwrap();
        assert!(room() >= 32 << 10, "{} bytes", room());
    }
    let before = room();
    store.remove(&key(5)).unwrap();
    assert!(before - room() < 512);
    store.compact_journal().unwrap();
    assert!(room() >= 32 << 10, "{} bytes", room());
}

#[test]
fn replaying_a_compacted_journal_changes_nothing() {
    let directory = directory();
    let path = directory.path().join("store.redb");
    let journal = journal::path_beside(&path);
    let mut store = Store::open(&path).unwrap();
    let ports = |last: u16| (1..last).collect::<PortSet>();
    store
        .put_reserving(&record(5, State::Pending), &ports(9))
        .unwrap();
    store.put(&record(6, State::Attached)).unwrap();
    store.remove_reserving(&key(5), &ports(3)).unwrap();
    let lines = fs::read(&journal).unwrap();
    store.compact_journal().unwrap();
    let expected = store.contents().clone();
    drop(store);
    // The agent was killed behind the commit. A part of the lines would undo the later ones.
    for end in line_ends(&lines) {
        fs::write(&journal, &lines[..end]).unwrap();
        assert_eq!(Store::open(&path).unwrap().contents(), &expected);
    }
}

#[test]
fn a_journal_that_is_never_compacted_when_idle_has_a_bounded_size() {
    let directory = directory();
    let path = directory.path().join("store.redb");
    let mut store = Store::open(&path).unwrap();
    let mut longest = 0;
    for _ in 0..4000 {
        store.put(&record(5, State::Attached)).unwrap();
        longest = longest.max(store.journal.length());
    }
    assert!(store.is_compaction_due() || store.journal.length() <= COMPACT_WHEN_IDLE);
    assert!(
        (COMPACT_AT_ONCE..COMPACT_AT_ONCE + 4096).contains(&longest),
        "{longest}"
    );
    let expected = store.contents().clone();
    drop(store);
    assert_eq!(Store::open(&path).unwrap().contents(), &expected);
}
