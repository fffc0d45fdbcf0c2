//! Fuzzing entry points: the journal and the database as a crash, a full disk or another program
//! may have left them, for the fuzz targets and for replaying their corpus.

use std::fs;
use std::sync::OnceLock;

use crate::journal_overlay::JournalOverlay;
use crate::{Contents, Store, StoreError, format, journal};

/// Reads bytes as a journal, and each line as a change with a right checksum, which random bytes do
/// not have. What is accepted is applied.
///
/// # Panics
/// If a change is not read back as it was written.
pub fn journal(bytes: &[u8]) {
    let _ = journal::read(bytes);
    let mut contents = Contents::default();
    let mut overlay = JournalOverlay::of(&contents);
    for line in bytes.split(|byte| *byte == b'\n') {
        let Ok(change) = format::read_change(line) else {
            continue;
        };
        let written = journal::line(&change);
        let (again, length) = journal::read(&written).expect("a written line is read");
        assert_eq!(length, written.len() as u64, "the line is whole");
        assert_eq!(
            again,
            std::slice::from_ref(&change),
            "a change is read back as it was"
        );
        overlay.add(&change);
        change.apply(&mut contents);
    }
    for record in contents.records.values() {
        let written = format::write_record(record);
        let again = format::read_record(&written).expect("a written record is read");
        assert_eq!(again, *record, "a record is read back as it was");
    }
}

/// Reads bytes as the value of a record and of a network.
///
/// # Panics
/// If an accepted value is not read back as it was written.
pub fn values(bytes: &[u8]) {
    if let Ok(record) = format::read_record(bytes) {
        let again = format::read_record(&format::write_record(&record));
        assert_eq!(again.as_ref(), Ok(&record), "a record is read back");
    }
    if let Ok(network) = format::read_network(bytes) {
        let again = format::read_network(&format::write_network(&network));
        assert_eq!(again.as_ref(), Ok(&network), "a network is read back");
    }
}

/// Opens a database in which bytes are replaced: each group of three is a position, modulo the
/// length, and the new byte. With an incomplete group at the end, the file is cut off at it.
///
/// # Panics
/// If a file that was opened once, and compacted, is refused the next time.
pub fn database(edits: &[u8]) {
    let (whole, journal) = sound();
    let mut bytes = whole.clone();
    let (groups, rest) = edits.as_chunks::<3>();
    for [high, low, value] in groups {
        let at = usize::from(u16::from_be_bytes([*high, *low])) * 16 + usize::from(value & 15);
        let at = at % bytes.len();
        bytes[at] = *value;
    }
    if let [high, ..] = rest {
        bytes.truncate(usize::from(*high) * 512);
    }
    let folder = tempfile::tempdir().expect("there is a folder for temporary files");
    let path = folder.path().join("store");
    fs::write(&path, bytes).expect("the folder has room");
    fs::write(journal::path_beside(&path), journal).expect("the folder has room");
    let Ok(mut store) = Store::open(&path) else {
        return;
    };
    if store.compact_journal().is_ok() {
        drop(store);
        let again = Store::open(&path);
        assert!(
            again.is_ok(),
            "a compacted store is opened: {:?}",
            again.err()
        );
    }
}

/// Database and journal, as bytes.
type Files = (Vec<u8>, Vec<u8>);

/// Returns a sound database with a record, a network and a reserved port, and its empty journal.
fn sound() -> &'static Files {
    static SOUND: OnceLock<Files> = OnceLock::new();
    SOUND.get_or_init(|| create().expect("a new store is written"))
}

fn create() -> Result<Files, StoreError> {
    const RECORD: &[u8] = include_bytes!("../../../tests/fuzz/corpus/database/record.json");
    const NETWORK: &[u8] = include_bytes!("../../../tests/fuzz/corpus/database/network.json");
    let folder = tempfile::tempdir().expect("there is a folder for temporary files");
    let path = folder.path().join("store");
    let mut store = Store::open(&path)?;
    let record = format::read_record(RECORD).expect("the corpus has a record");
    store.put(&record)?;
    let network = format::read_network(NETWORK).expect("the corpus has a network");
    store.put_network(&network)?;
    store.compact_journal()?;
    drop(store);
    let read = |path| fs::read(path).expect("the store has two files");
    let journal = read(journal::path_beside(&path));
    Ok((read(path), journal))
}

#[cfg(test)]
mod tests {
    use model::testing::{Damage, corpus, damaged};
    use proptest::prelude::*;

    use super::*;

    fn files(target: &str) -> Vec<Vec<u8>> {
        corpus(target).into_values().collect()
    }

    #[test]
    fn every_journal_of_the_corpus_is_read_or_refused() {
        for bytes in files("journal") {
            journal(&bytes);
        }
    }

    #[test]
    fn every_database_of_the_corpus_is_read_or_refused() {
        for bytes in files("database") {
            values(&bytes);
            database(&bytes);
        }
    }

    #[test]
    fn the_database_that_is_damaged_by_the_fuzz_target_is_sound_before() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store");
        let (database, journal) = sound();
        fs::write(&path, database).unwrap();
        fs::write(journal::path_beside(&path), journal).unwrap();
        let store = Store::open(&path).unwrap();
        assert_eq!((store.records().len(), store.networks().len()), (1, 1));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2048))]

        #[test]
        fn damaged_journals_and_values_are_read_or_refused(
            lines in proptest::sample::select(files("journal")),
            value in proptest::sample::select(files("database")),
            damages in proptest::collection::vec(any::<Damage>(), 1..8),
        ) {
            journal(&damaged(&lines, &damages));
            values(&damaged(&value, &damages));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_damaged_database_is_opened_or_refused(
            edits in proptest::collection::vec(any::<u8>(), 0..24),
        ) {
            database(&edits);
        }
    }
}
