//! Tests of a file that was cut, changed or locked by another process. The store reports it at
//! opening, and never serves wrong data.
//!
//! SQLite has no checksums, so it detects damage to the structure of the file only. A flipped bit
//! inside a value gives another value. The broker seals the values that need protection (settings
//! of backends, links of sessions).

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use sqlx::{Connection, sqlite::SqliteConnection};

use super::{
    in_file, options,
    state::{create, everything, fill, open},
};
use crate::{
    ConfigStore, DurableStore, SessionStore, SqliteOptions, SqliteStore, StoreError, TaskStore,
    sqlite::DEADLINE,
};

const PAGE_BYTES: usize = 4096;
/// First byte of the pages of a B-tree. Other pages contain the rest of long values.
const TREE_PAGES: [u8; 4] = [2, 5, 10, 13];
/// Header of such a page: its kind, free space, number of cells, last child.
const HEADER_BYTES: usize = 12;

/// Returns the bytes of a database with all kinds of rows, closed in order, and its content as
/// text.
async fn intact() -> (Vec<u8>, String) {
    let (folder, store) = in_file().await;
    crate::conformance::fill(&store).await.unwrap();
    fill(&store).await;
    let contents = everything(&store).await;
    store.close().await;
    drop(store);
    (fs::read(options(&folder).path).unwrap(), contents)
}

/// A database file in its own folder.
struct Copy {
    folder: tempfile::TempDir,
}

impl Copy {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("broker.db")
    }

    async fn opened_as(&self, bytes: &[u8]) -> Result<SqliteStore, StoreError> {
        fs::write(self.path(), bytes).unwrap();
        SqliteStore::open(&SqliteOptions { path: self.path(), migrate: true }).await
    }
}

#[tokio::test]
async fn f_41_a_damaged_file_is_refused() {
    let (mut bytes, _) = intact().await;
    // The first page stays, because its header marks the file as a database.
    bytes[PAGE_BYTES..].fill(0xa5);
    let error = Copy::new().opened_as(&bytes).await.unwrap_err();
    assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
}

#[tokio::test]
async fn f_41_a_file_truncated_anywhere_is_refused() {
    let (bytes, contents) = intact().await;
    let pages = bytes.len() / PAGE_BYTES;
    assert!(pages > 20, "{pages}");
    let copy = Copy::new();
    let cuts = (1..pages).map(|page| page * PAGE_BYTES).chain([20, 100, PAGE_BYTES + 1]);
    for length in cuts {
        let error = copy
            .opened_as(&bytes[..length])
            .await
            .expect_err(&format!("cut to {length} of {}", bytes.len()));
        assert!(matches!(error, StoreError::Corrupt { .. }), "cut to {length}: {error}");
    }
    // The cut removes half of the last page, which may have been empty.
    match copy.opened_as(&bytes[..bytes.len() - PAGE_BYTES / 2]).await {
        Err(error) => assert!(matches!(error, StoreError::Corrupt { .. }), "{error}"),
        Ok(store) => {
            assert_eq!(everything(&store).await, contents);
            store.close().await;
        }
    }
    copy.opened_as(&bytes).await.expect("whole again");
}

#[tokio::test]
async fn f_41_a_flipped_bit_in_the_file_structure_is_reported_or_harmless() {
    let (bytes, contents) = intact().await;
    let trees: Vec<usize> = (PAGE_BYTES..bytes.len())
        .step_by(PAGE_BYTES)
        .filter(|at| TREE_PAGES.contains(&bytes[*at]))
        .collect();
    assert!(trees.len() > 20, "{}", trees.len());
    let copy = Copy::new();
    let mut refused = 0;
    for (number, page) in trees.iter().enumerate() {
        // Each page is damaged at another offset, so that all offsets occur.
        let (at, bit) = (page + number % HEADER_BYTES, 1 << (number % 8));
        let mut flipped = bytes.clone();
        flipped[at] ^= bit;
        match copy.opened_as(&flipped).await {
            Err(error) => {
                assert!(
                    matches!(error, StoreError::Corrupt { .. }),
                    "bit {bit} of byte {at}: {error}"
                );
                refused += 1;
            }
            Ok(store) => assert_eq!(everything(&store).await, contents, "bit {bit} of byte {at}"),
        }
    }
    assert!(refused > trees.len() / 2, "{refused} of {} were noticed", trees.len());
}

#[tokio::test]
async fn f_41_a_file_without_its_wal_is_older_and_consistent() {
    let (folder, store) = in_file().await;
    for number in 1..=20 {
        store.write(&[open(number), create(&format!("t{number}"))]).await.unwrap();
    }
    let bytes = fs::read(options(&folder).path).unwrap();
    let copy = Copy::new();
    let store =
        copy.opened_as(&bytes).await.expect("as it was when the log was last moved into it");
    let (sessions, tasks) = (
        store.list_sessions(None, None, 100).await.unwrap(),
        store.list_tasks(None, None, None, 100).await.unwrap(),
    );
    assert_eq!(sessions.len(), tasks.len(), "no half of a batch");
}

async fn held(path: &Path) -> SqliteConnection {
    SqliteConnection::connect(&format!("sqlite:{}", path.display())).await.unwrap()
}

#[tokio::test]
async fn f_41_a_file_that_another_program_writes_to_is_busy_when_it_is_opened() {
    let (bytes, contents) = intact().await;
    let copy = Copy::new();
    fs::write(copy.path(), &bytes).unwrap();
    let mut other = held(&copy.path()).await;
    let writing = other.begin_with("BEGIN EXCLUSIVE").await.unwrap();
    let started = Instant::now();
    let error =
        SqliteStore::open(&SqliteOptions { path: copy.path(), migrate: true }).await.unwrap_err();
    assert!(matches!(error, StoreError::Busy { .. }), "{error}");
    assert!(started.elapsed() < DEADLINE * 2 + Duration::from_secs(1), "{:?}", started.elapsed());
    writing.rollback().await.unwrap();
    let store = SqliteStore::open(&SqliteOptions { path: copy.path(), migrate: true })
        .await
        .expect("free again");
    assert_eq!(everything(&store).await, contents);
}
