//! Writer of the audit log behind its callers: a bounded queue, and one task that stores all
//! waiting records in one commit. An operator's change is stored before the operator gets the
//! answer ([`AuditWriter::add_now`]).
//!
//! A call never waits for it. While the store is away, records wait in the queue, in order. Records
//! without capacity are dropped and counted, and the log reports that once.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use records::AuditRecord;
use rules::limits::{
    AUDIT_BATCH_BYTES_MAX, AUDIT_BATCH_MAX, AUDIT_CHECKPOINT_ROWS, AUDIT_FLUSH_WAIT,
    AUDIT_QUEUE_BYTES_MAX, AUDIT_QUEUE_MAX,
};
use storage::{DurableStore, StoreError};
use tokio::{
    sync::{Notify, mpsc, oneshot},
    time::{Instant, timeout},
};

use super::{StoreRetry, availability::Availability};
use crate::metrics::Metrics;

pub struct AuditWriter {
    queue: mpsc::Sender<AuditJob>,
    /// Bytes of the records in the queue.
    bytes: Arc<AtomicUsize>,
    /// Set while records are dropped, which the log has reported.
    dropping: AtomicBool,
    store: Arc<dyn DurableStore>,
    availability: Arc<Availability>,
    metrics: Arc<Metrics>,
    unsigned: Arc<Notify>,
}

enum AuditJob {
    Add(AuditRecord),
    /// Sends a message when everything before it is stored.
    Flush(oneshot::Sender<()>),
}

impl AuditWriter {
    /// Starts the writer. Must be called inside the runtime. The task ends with the value.
    pub(super) fn start(
        store: Arc<dyn DurableStore>,
        availability: Arc<Availability>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let (queue, jobs) = mpsc::channel(AUDIT_QUEUE_MAX);
        let bytes = Arc::new(AtomicUsize::new(0));
        let unsigned = Arc::new(Notify::new());
        let writing = AuditWorker {
            store: store.clone(),
            availability: availability.clone(),
            metrics: metrics.clone(),
            jobs,
            bytes: bytes.clone(),
            stored: 0,
            unsigned: unsigned.clone(),
        };
        tokio::spawn(writing.run());
        Self {
            queue,
            bytes,
            dropping: AtomicBool::new(false),
            store,
            availability,
            metrics,
            unsigned,
        }
    }

    /// Queues a record. It never waits.
    pub fn add(&self, record: AuditRecord) {
        let size = size(&record);
        let fits = self.bytes.fetch_add(size, Ordering::AcqRel) + size <= AUDIT_QUEUE_BYTES_MAX;
        if fits && self.queue.try_send(AuditJob::Add(record)).is_ok() {
            self.dropping.store(false, Ordering::Relaxed);
            return;
        }
        self.bytes.fetch_sub(size, Ordering::AcqRel);
        self.metrics.observability.audit("dropped", 1);
        if !self.dropping.swap(true, Ordering::Relaxed) {
            tracing::error!("the store does not keep up with the audit log: records are dropped");
        }
    }

    /// Stores a record at once. After an `Err`, the queue gets the record and tries it again.
    pub async fn add_now(&self, record: AuditRecord) -> Result<(), StoreError> {
        let started_at = Instant::now();
        let stored = self
            .availability
            .through("append_audit", self.store.append_audit(std::slice::from_ref(&record)))
            .await;
        self.metrics.store(
            "append_audit",
            self.store.engine(),
            started_at.elapsed(),
            stored.is_err(),
        );
        match &stored {
            Ok(()) => self.metrics.observability.audit("stored", 1),
            Err(_) => self.add(record),
        }
        stored
    }

    /// Returns the notification that enough records were stored for an early signature.
    pub fn unsigned(&self) -> Arc<Notify> {
        self.unsigned.clone()
    }

    /// Waits until the earlier records are stored, but not for long.
    pub async fn flush(&self) {
        let (done, stored) = oneshot::channel();
        let flushed = timeout(AUDIT_FLUSH_WAIT, async {
            self.queue.send(AuditJob::Flush(done)).await.ok()?;
            stored.await.ok()
        });
        if !matches!(flushed.await, Ok(Some(()))) {
            tracing::error!("the newest records of the audit log could not be stored in time");
        }
    }
}

fn size(record: &AuditRecord) -> usize {
    record.body.len() + 128
}

struct AuditWorker {
    store: Arc<dyn DurableStore>,
    availability: Arc<Availability>,
    metrics: Arc<Metrics>,
    jobs: mpsc::Receiver<AuditJob>,
    bytes: Arc<AtomicUsize>,
    /// Records since the last notification of [`AuditWriter::unsigned`].
    stored: usize,
    unsigned: Arc<Notify>,
}

impl AuditWorker {
    async fn run(mut self) {
        let mut next = None;
        loop {
            let first = match next.take() {
                Some(job) => job,
                None => match self.jobs.recv().await {
                    Some(job) => job,
                    None => return,
                },
            };
            let (mut batch, mut flushed, mut bytes) = (Vec::new(), Vec::new(), 0);
            let mut job = Some(first);
            while let Some(one) = job {
                match one {
                    AuditJob::Add(record) => {
                        bytes += size(&record);
                        batch.push(record);
                    }
                    AuditJob::Flush(done) => flushed.push(done),
                }
                if batch.len() >= AUDIT_BATCH_MAX || bytes >= AUDIT_BATCH_BYTES_MAX {
                    break;
                }
                job = self.jobs.try_recv().ok();
            }
            self.store_all(&batch).await;
            self.bytes.fetch_sub(bytes, Ordering::AcqRel);
            for done in flushed {
                let _receiver_dropped = done.send(());
            }
        }
    }

    /// Retries until the store takes the records. Each has an id, so that none is added twice.
    async fn store_all(&mut self, batch: &[AuditRecord]) {
        let mut retry = StoreRetry::default();
        while !batch.is_empty() {
            let started_at = Instant::now();
            let stored =
                self.availability.through("append_audit", self.store.append_audit(batch)).await;
            self.metrics.store(
                "append_audit",
                self.store.engine(),
                started_at.elapsed(),
                stored.is_err(),
            );
            match stored {
                Ok(()) => {
                    self.metrics.observability.audit("stored", batch.len());
                    self.stored += batch.len();
                    if self.stored >= AUDIT_CHECKPOINT_ROWS as usize {
                        self.stored = 0;
                        self.unsigned.notify_one();
                    }
                    return;
                }
                Err(_) => retry.pause().await, // it is in the log already
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use records::{AuditFilter, AuditKind};
    use storage::SqliteStore;

    use super::*;

    fn record(number: u8, body: usize) -> AuditRecord {
        AuditRecord {
            id: [number; 16],
            at_us: 1,
            kind: AuditKind::Call,
            tenant: None,
            body: format!("\"{}\"", "x".repeat(body)),
        }
    }

    async fn writer() -> (Arc<dyn DurableStore>, AuditWriter, Arc<Metrics>) {
        let store: Arc<dyn DurableStore> = Arc::new(SqliteStore::in_memory().await.unwrap());
        let metrics = Arc::new(Metrics::new(false));
        let writer = AuditWriter::start(
            store.clone(),
            Arc::new(Availability::new("sqlite")),
            metrics.clone(),
        );
        (store, writer, metrics)
    }

    #[tokio::test]
    async fn a_flush_waits_until_added_records_are_stored() {
        let (store, writer, metrics) = writer().await;
        (0..200).for_each(|number| writer.add(record(number, 10)));
        writer.flush().await;
        assert_eq!(
            store.audit_records(&AuditFilter::default(), None, 1_000).await.unwrap().len(),
            200
        );
        assert_eq!(writer.bytes.load(Ordering::Relaxed), 0);
        assert!(metrics.render().contains(r#"mcp_audit_records_total{outcome="stored"} 200"#));
    }

    #[tokio::test]
    async fn records_beyond_the_queue_limit_are_dropped_and_counted() {
        let (store, writer, metrics) = writer().await;
        store.close().await; // nothing leaves the queue any more
        for number in 0..4 {
            writer.add(record(number, AUDIT_QUEUE_BYTES_MAX / 3));
        }
        assert!(
            metrics.render().contains(r#"mcp_audit_records_total{outcome="dropped"} 2"#),
            "{}",
            metrics.render()
        );
        writer.add_now(record(9, 1)).await.unwrap_err();
    }
}
