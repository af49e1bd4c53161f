//! What a store of event streams does.

use async_trait::async_trait;
use records::{LogEntry, SessionKey, StoredStream, StreamRecord};

use crate::StoreError;

/// A log of event streams.
#[async_trait]
pub trait EventStore: Send + Sync {
    /// Returns `sqlite`, `postgres` or `redis`, which is a metric label.
    fn engine(&self) -> &'static str;

    /// Adds entries in their order, those of one session in one step. A repeated entry changes nothing, so an append
    /// whose outcome is unknown may be repeated. Skips entries about a stream that the log does not
    /// have.
    async fn append(&self, entries: &[LogEntry]) -> Result<(), StoreError>;

    /// Does the same. An error comes with the positions of the entries that are lost: a log over
    /// several servers takes the others.
    async fn append_each(&self, entries: &[LogEntry]) -> Result<(), (StoreError, Vec<usize>)> {
        let all = |error| (error, (0..entries.len()).collect());
        self.append(entries).await.map_err(all)
    }

    /// Returns the streams of a session, by number, without their events.
    async fn streams(&self, session: &SessionKey) -> Result<Vec<StreamRecord>, StoreError>;

    /// Returns one stream with its events after `position`.
    async fn stream(
        &self,
        session: &SessionKey,
        number: u64,
        position: u64,
    ) -> Result<Option<StoredStream>, StoreError>;

    /// Removes all streams of a session that has ended.
    async fn forget_session(&self, session: &SessionKey) -> Result<(), StoreError>;

    /// Removes up to `limit` events, and emptied streams, that had no addition for `age`. Returns
    /// the number of events removed.
    async fn expire_events(&self, age: std::time::Duration, limit: u32) -> Result<u64, StoreError>;
}
