//! Group commit: concurrent writes share a transaction.
//!
//! There are a few lanes, each a task with a bounded queue. A row always uses the same lane, so
//! writes to it keep their order. While a lane waits for one commit its queue fills, and all of it
//! makes the next batch. No write waits for others to come.

#[cfg(test)]
mod tests;

use std::{
    collections::{HashSet, VecDeque},
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::Instant,
};

use prometheus::IntGauge;
use records::{RowKey, WriteOp, WriteOutcome};
use rules::limits::{
    PERSIST_BATCH_BYTES_MAX, PERSIST_BATCH_MAX, PERSIST_QUEUE_MAX, PERSIST_SUSPECT_BYTES,
};
use storage::{DurableStore, StoreError};
use tokio::sync::{mpsc, oneshot};

use super::{availability::Availability, unsettled_sessions::UnsettledSessions};
use crate::metrics::Metrics;

/// Lanes for a database server, where transactions of several connections can commit together.
const SERVER_LANES: usize = 4;
/// Number of small writes that fail alone as busy before all writes count as busy.
const BUSY_ALONE_MAX: usize = 2;

pub(super) struct Persister {
    lanes: Vec<mpsc::Sender<PendingWrite>>,
    /// Writes that wait in any lane.
    depth: IntGauge,
    unsettled: Arc<UnsettledSessions>,
}

struct PendingWrite {
    write: WriteOp,
    done: oneshot::Sender<Result<WriteOutcome, StoreError>>,
}

impl Persister {
    /// Starts the lanes. Must be called inside the runtime. The lanes end with the value.
    pub(super) fn start(
        store: Arc<dyn DurableStore>,
        availability: Arc<Availability>,
        metrics: Arc<Metrics>,
    ) -> Self {
        // SQLite has one writer, so a second lane would only wait for the first.
        let lanes = if store.is_exclusive() { 1 } else { SERVER_LANES };
        let depth = metrics.queue_depth("persister");
        let unsettled: Arc<UnsettledSessions> = Arc::default();
        let start_lane = |_| {
            let (queue, jobs) = mpsc::channel(PERSIST_QUEUE_MAX);
            let lane = WriteLane {
                store: store.clone(),
                availability: availability.clone(),
                metrics: metrics.clone(),
                depth: depth.clone(),
                unsettled: unsettled.clone(),
                jobs,
                waiting: VecDeque::new(),
            };
            tokio::spawn(lane.run());
            queue
        };
        Self { lanes: (0..lanes).map(start_lane).collect(), depth, unsettled }
    }

    /// Returns the sessions that may still get into the store.
    pub(super) fn unsettled(&self) -> &UnsettledSessions {
        &self.unsettled
    }

    pub(super) async fn write(&self, write: WriteOp) -> Result<WriteOutcome, StoreError> {
        let mut hasher = DefaultHasher::new();
        write.row_key().hash(&mut hasher);
        let lane = usize::try_from(hasher.finish() % self.lanes.len() as u64).unwrap_or_default();
        let (done, outcome) = oneshot::channel();
        self.lanes[lane].try_send(PendingWrite { write, done }).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => {
                StoreError::Busy { detail: "too many writes wait already".into() }
            }
            mpsc::error::TrySendError::Closed(_) => ending(),
        })?;
        self.depth.inc();
        outcome.await.unwrap_or_else(|_| Err(StoreError::OutcomeUnknown(Box::new(ending()))))
    }
}

fn ending() -> StoreError {
    StoreError::Unavailable { detail: "the broker is shutting down".into() }
}

struct WriteLane {
    store: Arc<dyn DurableStore>,
    availability: Arc<Availability>,
    metrics: Arc<Metrics>,
    depth: IntGauge,
    unsettled: Arc<UnsettledSessions>,
    jobs: mpsc::Receiver<PendingWrite>,
    /// Writes from the queue that do not fit the batch before, or concern one of its rows.
    waiting: VecDeque<PendingWrite>,
}

impl WriteLane {
    async fn run(mut self) {
        while let Some(batch) = self.next_batch().await {
            self.write_batch(batch).await;
        }
    }

    async fn next_batch(&mut self) -> Option<Vec<PendingWrite>> {
        if self.waiting.is_empty() {
            let first = self.jobs.recv().await?;
            self.waiting.push_back(first);
        }
        while self.waiting.len() < PERSIST_BATCH_MAX {
            let Ok(job) = self.jobs.try_recv() else { break };
            self.waiting.push_back(job);
        }
        let all = std::mem::take(&mut self.waiting);
        let first_of_row = first_of_each_row(&all);
        let mut batch = Vec::with_capacity(all.len());
        let mut bytes = 0;
        for (job, is_first) in all.into_iter().zip(first_of_row) {
            let size = size(&job.write);
            let has_capacity = batch.is_empty() || bytes + size <= PERSIST_BATCH_BYTES_MAX;
            if is_first && has_capacity {
                bytes += size;
                batch.push(job);
            } else {
                self.waiting.push_back(job);
            }
        }
        Some(batch)
    }

    async fn write_batch(&mut self, batch: Vec<PendingWrite>) {
        self.depth.sub(batch.len() as i64);
        let (writes, waiting): (Vec<WriteOp>, Vec<_>) =
            batch.into_iter().map(|job| (job.write, job.done)).unzip();
        match self.write(&writes).await {
            Ok(outcomes) => waiting.into_iter().zip(outcomes).for_each(|(done, outcome)| {
                let _receiver_dropped = done.send(Ok(outcome));
            }),
            Err(error) if writes.len() > 1 && may_be_one(&error) => {
                if let Some(error) = self.one_by_one(&writes, waiting, &error).await {
                    self.refuse_behind(&error);
                }
            }
            Err(error) => {
                tracing::debug!(writes = writes.len(), %error, "the store did not accept a batch of writes");
                // A single large write may be the cause, rather than the store.
                if writes.len() > 1 || !is_busy(&error) || size(&writes[0]) < PERSIST_SUSPECT_BYTES
                {
                    self.refuse_behind(&error);
                }
                for done in waiting {
                    let _receiver_dropped = done.send(Err(error.clone()));
                }
            }
        }
    }

    /// Writes one by one after a batch failed, so that only the write at fault fails. `first` is
    /// the error of the batch. Returns the error of all if the store as a whole fails.
    async fn one_by_one(
        &self,
        writes: &[WriteOp],
        waiting: Vec<oneshot::Sender<Result<WriteOutcome, StoreError>>>,
        first: &StoreError,
    ) -> Option<StoreError> {
        let is_open = matches!(first, StoreError::OutcomeUnknown(_));
        let mut each: Vec<_> = writes.iter().zip(waiting).collect();
        each.sort_by_key(|(write, _)| size(write)); // they are about different rows
        let (mut busy_alone, mut given_up) = (0, None);
        for (write, done) in each {
            let outcome = match &given_up {
                Some(error) => Err(StoreError::clone(error)),
                None => self
                    .write(std::slice::from_ref(write))
                    .await
                    .and_then(|mut outcomes| outcomes.pop().ok_or_else(ending)),
            };
            if let Err(error) = &outcome
                && given_up.is_none()
                && is_outage(error)
            {
                busy_alone += usize::from(size(write) < PERSIST_SUSPECT_BYTES);
                if !is_busy(error) || busy_alone >= BUSY_ALONE_MAX {
                    given_up = Some(error.cause().clone());
                }
            }
            // The write may have been stored with the others.
            let outcome = outcome.map_err(|error| {
                if is_open {
                    StoreError::OutcomeUnknown(Box::new(error.cause().clone()))
                } else {
                    error
                }
            });
            let _receiver_dropped = done.send(outcome);
        }
        given_up
    }

    /// Refuses the writes that wait behind. They would only fail later, and none of them was
    /// started.
    fn refuse_behind(&mut self, error: &StoreError) {
        let behind = std::mem::take(&mut self.waiting).into_iter().map(|job| job.done);
        let queued = std::iter::from_fn(|| self.jobs.try_recv().ok()).map(|job| job.done);
        let behind: Vec<_> = behind.chain(queued).collect();
        self.depth.sub(behind.len() as i64);
        for done in behind {
            let _receiver_dropped = done.send(Err(error.cause().clone()));
        }
    }

    async fn write(&self, writes: &[WriteOp]) -> Result<Vec<WriteOutcome>, StoreError> {
        let started_at = Instant::now();
        let outcome = self.availability.through("write", self.store.write(writes)).await;
        self.metrics.store("write", self.store.engine(), started_at.elapsed(), outcome.is_err());
        self.unsettled.record(writes, &outcome);
        let fenced =
            outcome.iter().flatten().filter(|written| **written == WriteOutcome::Fenced).count();
        self.metrics.writes_fenced(fenced as u64);
        outcome
    }
}

/// Returns the bytes of the parts of a write that may be long.
fn size(write: &WriteOp) -> usize {
    match write {
        WriteOp::CreateTask { record, .. } => record.request.len() + record.details.len(),
        WriteOp::EndTask { outcome, .. } => outcome.as_ref().map_or(0, Vec::len),
        WriteOp::RequestInput { request, .. } => request.len(),
        WriteOp::AnswerInput { answer, .. } => answer.len(),
        WriteOp::OpenSession { record, .. } => {
            record.agreement.len() + record.state.len() + record.links.len()
        }
        WriteOp::UpdateSession { state, links, .. } => {
            [state, links].into_iter().flatten().map(Vec::len).sum()
        }
        WriteOp::ReleaseSession { state, links, .. } => state.len() + links.len(),
        _ => 0,
    }
}

/// Returns for each job whether it is the first for its row.
fn first_of_each_row(jobs: &VecDeque<PendingWrite>) -> Vec<bool> {
    let mut rows: HashSet<RowKey<'_>> = HashSet::with_capacity(jobs.len());
    jobs.iter().map(|job| rows.insert(job.write.row_key())).collect()
}

/// Returns whether one write of several may be the cause.
fn may_be_one(error: &StoreError) -> bool {
    is_busy(error) || !is_outage(error)
}

fn is_busy(error: &StoreError) -> bool {
    matches!(error.cause(), StoreError::Busy { .. })
}

/// Returns whether the store as a whole fails, not one write.
fn is_outage(error: &StoreError) -> bool {
    matches!(
        error.cause(),
        StoreError::Unavailable { .. } | StoreError::Busy { .. } | StoreError::Full
    )
}
