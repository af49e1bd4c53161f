//! Tests of the limits of a batch, and of writes that the store refuses.

use std::time::Instant;

use futures_util::future::join_all;
use parking_lot::Mutex;
use protocol::ids::TaskId;
use records::{NodeName, TaskRecord, TaskStatus};

use super::*;
use crate::persistence::tests::{Meddled, Verdict, task_creation, task_record};

const MIB: usize = 1024 * 1024;

fn start(store: &Arc<Meddled>) -> Persister {
    Persister::start(
        store.clone(),
        Arc::new(Availability::new("test")),
        Arc::new(Metrics::new(false)),
    )
}

fn create(number: usize, bytes: usize) -> WriteOp {
    let record = TaskRecord { request: vec![b'x'; bytes], ..task_record(&format!("t{number}")) };
    task_creation(record, NodeName::new("a"))
}

fn end(number: usize) -> WriteOp {
    WriteOp::EndTask {
        task: TaskId::new(format!("t{number}")),
        epoch: Some(1),
        status: TaskStatus::Failed,
        message: None,
        outcome: None,
    }
}

fn busy() -> StoreError {
    StoreError::Busy { detail: "test".into() }
}

/// Writes all at once, so that they share batches.
async fn all(persister: &Persister, writes: Vec<WriteOp>) -> Vec<Result<WriteOutcome, StoreError>> {
    join_all(writes.into_iter().map(|write| persister.write(write))).await
}

#[tokio::test]
async fn a_batch_is_bounded_in_bytes_too() {
    let store = Meddled::start("sqlite").await;
    let seen: Arc<Mutex<Vec<(usize, usize)>>> = Arc::default();
    let recorded = seen.clone();
    store.on_write(move |batch| {
        recorded.lock().push((batch.len(), batch.iter().map(size).sum()));
        Verdict::Pass
    });
    let persister = start(&store);
    // One write is longer than a batch may be, and many are not.
    let mut writes: Vec<WriteOp> = (0..20).map(|number| create(number, MIB)).collect();
    writes.push(create(20, 2 * PERSIST_BATCH_BYTES_MAX));
    writes.extend((21..40).map(|number| create(number, 10)));
    for written in all(&persister, writes).await {
        assert!(matches!(written, Ok(WriteOutcome::Created { .. })), "{written:?}");
    }
    let seen = seen.lock();
    assert!(
        seen.iter().all(|(writes, bytes)| *bytes <= PERSIST_BATCH_BYTES_MAX || *writes == 1),
        "{seen:?}"
    );
    assert!(seen.len() < 10, "they still come together: {seen:?}");
}

#[tokio::test]
async fn a_write_that_is_too_large_fails_alone() {
    let store = Meddled::start("sqlite").await;
    store.on_write(|batch| {
        if batch.iter().any(|write| size(write) >= MIB) {
            Verdict::Fail(busy())
        } else {
            Verdict::Pass
        }
    });
    let persister = start(&store);
    let writes: Vec<WriteOp> = (0..50)
        .map(|number| create(number, if number == 7 || number == 8 { MIB } else { 10 }))
        .collect();
    for (number, written) in all(&persister, writes).await.iter().enumerate() {
        match number {
            7 | 8 => assert_eq!(*written, Err(busy()), "{number}"),
            _ => assert!(
                matches!(written, Ok(WriteOutcome::Created { .. })),
                "{number}: {written:?}"
            ),
        }
    }
}

#[tokio::test]
async fn a_busy_store_is_detected_after_a_few_attempts() {
    let store = Meddled::start("sqlite").await;
    store.on_write(|_| Verdict::Fail(busy()));
    let persister = start(&store);
    let started = Instant::now();
    assert_eq!(
        all(&persister, (0..200).map(|number| create(number, 10)).collect()).await,
        vec![Err(busy()); 200]
    );
    assert!(
        store.count("write") <= 2 * (1 + BUSY_ALONE_MAX),
        "{} tries, {:?}",
        store.count("write"),
        started.elapsed()
    );
}

#[tokio::test]
async fn a_write_stays_unknown_if_its_batch_may_have_been_committed() {
    let store = Meddled::start("sqlite").await;
    store.on_write(|batch| match batch.len() {
        1 => Verdict::Fail(busy()),
        _ => Verdict::LoseAnswer(StoreError::OutcomeUnknown(Box::new(busy()))),
    });
    let persister = start(&store);
    let first = persister.write(create(0, 10)).await;
    assert_eq!(first, Err(busy()), "alone it was certainly not done");
    for written in all(&persister, (1..5).map(|number| create(number, 10)).collect()).await {
        assert_eq!(written, Err(StoreError::OutcomeUnknown(Box::new(busy()))));
    }
}

#[tokio::test]
async fn writes_about_one_task_keep_their_order_when_the_first_does_not_fit() {
    let store = Meddled::start("sqlite").await;
    let persister = start(&store);
    let writes = vec![create(0, PERSIST_BATCH_BYTES_MAX - 10), create(1, MIB), end(1), end(0)];
    let written = all(&persister, writes).await;
    assert!(matches!(written[1], Ok(WriteOutcome::Created { .. })), "{written:?}");
    assert_eq!(written[2..], [Ok(WriteOutcome::Done), Ok(WriteOutcome::Done)]);
}
