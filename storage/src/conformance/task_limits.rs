//! Behaviours of every [`DurableStore`] that bound the number of tasks: repeated requests, limits,
//! expiry.

use std::time::Duration;

use protocol::ids::{PrincipalId, TaskId};
use records::{AdminChange, TaskLimit, TaskLimits, TaskRecord, TaskStatus, WriteOp, WriteOutcome};

use super::{
    LONG, NO_LIMITS, Outcome,
    config::tenant_record,
    create, done, node, open, session_record, task_id, task_record,
    tasks::{counts, end, names, task},
    tenant, write,
};
use crate::DurableStore;

pub async fn creating_a_task_may_be_repeated_only_by_its_owner(
    store: &dyn DurableStore,
) -> Outcome {
    let first = write(store, create(task_record("t1"), "a")).await?;
    assert!(matches!(first, WriteOutcome::Created { .. }), "{first:?}");
    assert_eq!(
        write(store, create(task_record("t1"), "a")).await?,
        first,
        "as after a lost answer"
    );
    assert_eq!(write(store, create(task_record("t1"), "b")).await?, WriteOutcome::Fenced);
    assert_eq!(store.task_transitions(&task_id("t1")).await?.len(), 1);
    assert_eq!(counts(store).await?, [1, 0, 0, 0, 0]);
    Ok(())
}

pub async fn a_repeated_request_finds_its_task(store: &dyn DurableStore) -> Outcome {
    let again = |name: &str| TaskRecord { idempotency: Some(b"key".to_vec()), ..task_record(name) };
    done(store, create(again("t1"), "a")).await?;
    let batch = [
        create(again("t2"), "b"),
        create(TaskRecord { principal: PrincipalId::new("bob"), ..again("t3") }, "b"),
    ];
    let outcomes = store.write(&batch).await?;
    assert_eq!(outcomes[0], WriteOutcome::Duplicate(task_id("t1")));
    assert!(
        matches!(outcomes[1], WriteOutcome::Created { .. }),
        "another principal's key is another key: {outcomes:?}"
    );
    done(store, create(TaskRecord { tenant: tenant("umbrella"), ..again("t4") }, "a")).await?;
    let limits = TaskLimits { running: 0, stored: 0, bytes: 0 };
    let full = WriteOp::CreateTask { record: Box::new(again("t5")), owner: node("a"), limits };
    assert_eq!(
        write(store, full).await?,
        WriteOutcome::Duplicate(task_id("t1")),
        "found though there is no room"
    );
    done(store, end("t1", Some(1), TaskStatus::Completed)).await?;
    assert_eq!(
        write(store, create(again("t6"), "a")).await?,
        WriteOutcome::Duplicate(task_id("t1")),
        "finished or not"
    );
    assert_eq!(store.task(&task_id("t2")).await?, None);
    let (alice, acme) = (&task_record("t1").principal, &task_record("t1").tenant);
    assert_eq!(store.task_of_key(acme, alice, b"key").await?, Some(task_id("t1")));
    assert_eq!(
        store.task_of_key(acme, &PrincipalId::new("bob"), b"key").await?,
        Some(task_id("t3"))
    );
    assert_eq!(store.task_of_key(acme, alice, b"other").await?, None);
    assert_eq!(store.task_of_key(&tenant("other"), alice, b"key").await?, None);
    Ok(())
}

pub async fn the_same_request_twice_in_a_batch_is_one_task(store: &dyn DurableStore) -> Outcome {
    let again = |name: &str| TaskRecord { idempotency: Some(b"key".to_vec()), ..task_record(name) };
    let outcomes = store.write(&[create(again("t1"), "a"), create(again("t2"), "a")]).await?;
    assert!(matches!(outcomes[0], WriteOutcome::Created { .. }), "{outcomes:?}");
    assert_eq!(outcomes[1], WriteOutcome::Duplicate(task_id("t1")));
    Ok(())
}

pub async fn only_one_of_many_repeated_requests_creates_the_task(
    store: &dyn DurableStore,
) -> Outcome {
    let [a, b, c] = ["t1", "t2", "t3"].map(|name| {
        create(TaskRecord { idempotency: Some(b"key".to_vec()), ..task_record(name) }, "a")
    });
    let (a, b, c) = tokio::join!(write(store, a), write(store, b), write(store, c));
    let outcomes = [a?, b?, c?];
    let made = outcomes
        .iter()
        .position(|outcome| matches!(outcome, WriteOutcome::Created { .. }))
        .expect("one was made");
    let known = WriteOutcome::Duplicate(task_id(["t1", "t2", "t3"][made]));
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == known).count(), 2, "{outcomes:?}");
    Ok(())
}

pub async fn task_limits_apply_within_a_batch(store: &dyn DurableStore) -> Outcome {
    let limits = TaskLimits { stored: 3, ..NO_LIMITS };
    let batch: Vec<WriteOp> = ["t1", "t2", "t3", "t4", "t5"]
        .into_iter()
        .map(|name| WriteOp::CreateTask {
            record: Box::new(task_record(name)),
            owner: node("a"),
            limits,
        })
        .collect();
    let outcomes = store.write(&batch).await?;
    assert!(
        outcomes[..3].iter().all(|outcome| matches!(outcome, WriteOutcome::Created { .. })),
        "{outcomes:?}"
    );
    assert_eq!(
        outcomes[3..],
        [
            WriteOutcome::LimitReached(TaskLimit::Stored),
            WriteOutcome::LimitReached(TaskLimit::Stored)
        ]
    );
    assert_eq!(store.task(&task_id("t4")).await?, None);
    assert_eq!(store.task_transitions(&task_id("t4")).await?, []);
    let elsewhere = TaskRecord { tenant: tenant("umbrella"), ..task_record("t6") };
    done(store, WriteOp::CreateTask { record: Box::new(elsewhere), owner: node("a"), limits }).await
}

pub async fn limits_hold_among_many(store: &dyn DurableStore) -> Outcome {
    let limits = TaskLimits { running: 2, ..NO_LIMITS };
    let make = |name: &str| WriteOp::CreateTask {
        record: Box::new(task_record(name)),
        owner: node("a"),
        limits,
    };
    let [a, b, c, d] = ["t1", "t2", "t3", "t4"].map(make);
    let (a, b, c, d) =
        tokio::join!(write(store, a), write(store, b), write(store, c), write(store, d));
    let outcomes = [a?, b?, c?, d?];
    assert_eq!(
        outcomes
            .iter()
            .filter(|outcome| **outcome == WriteOutcome::LimitReached(TaskLimit::Running))
            .count(),
        2,
        "{outcomes:?}"
    );
    Ok(())
}

pub async fn a_finished_task_frees_a_permit_for_a_running_one(store: &dyn DurableStore) -> Outcome {
    let limits = TaskLimits { running: 1, stored: 3, bytes: u64::MAX };
    let make = |name: &str| WriteOp::CreateTask {
        record: Box::new(task_record(name)),
        owner: node("a"),
        limits,
    };
    for (name, epoch) in [("t1", Some(1)), ("t2", None)] {
        done(store, make(name)).await?;
        assert_eq!(write(store, make("tx")).await?, WriteOutcome::LimitReached(TaskLimit::Running));
        done(store, request_input(name, 1, Vec::new(), u64::MAX)).await?;
        assert_eq!(
            write(store, make("tx")).await?,
            WriteOutcome::LimitReached(TaskLimit::Running),
            "waiting for input is running"
        );
        let status = if epoch.is_some() { TaskStatus::Completed } else { TaskStatus::Cancelled };
        done(store, end(name, epoch, status)).await?;
        assert_eq!(
            write(store, end(name, epoch, status)).await?,
            WriteOutcome::AlreadyFinished,
            "twice does not count twice"
        );
    }
    done(store, make("t3")).await?;
    done(store, end("t3", Some(1), TaskStatus::Failed)).await?;
    assert_eq!(write(store, make("t4")).await?, WriteOutcome::LimitReached(TaskLimit::Stored));
    Ok(())
}

pub async fn requests_details_and_outcomes_count_as_bytes(store: &dyn DurableStore) -> Outcome {
    let limits = TaskLimits { bytes: 100, ..NO_LIMITS };
    let make = |name: &str, bytes: usize| {
        let record =
            TaskRecord { request: vec![1; bytes - 3], details: vec![2; 3], ..task_record(name) };
        WriteOp::CreateTask { record: Box::new(record), owner: node("a"), limits }
    };
    assert_eq!(write(store, make("t1", 101)).await?, WriteOutcome::LimitReached(TaskLimit::Bytes));
    done(store, make("t1", 60)).await?;
    assert_eq!(write(store, make("t2", 41)).await?, WriteOutcome::LimitReached(TaskLimit::Bytes));
    done(store, make("t2", 20)).await?;
    let outcome = Some(vec![0; 16]);
    let (task, status) = (task_id("t1"), TaskStatus::Completed);
    done(store, WriteOp::EndTask { task, epoch: Some(1), status, message: None, outcome }).await?;
    assert_eq!(
        write(store, make("t3", 5)).await?,
        WriteOutcome::LimitReached(TaskLimit::Bytes),
        "96 are taken"
    );
    done(store, make("t3", 4)).await
}

pub async fn open_inputs_count_as_bytes_until_they_are_closed(store: &dyn DurableStore) -> Outcome {
    let limits = TaskLimits { bytes: 100, ..NO_LIMITS };
    let make = |name: &str, bytes: usize| {
        let record =
            TaskRecord { request: vec![1; bytes], details: Vec::new(), ..task_record(name) };
        WriteOp::CreateTask { record: Box::new(record), owner: node("a"), limits }
    };
    let ask = |name: &str, number, bytes| request_input(name, number, vec![3; bytes], limits.bytes);
    let close = |name: &str, number| WriteOp::CloseInput { task: task_id(name), epoch: 1, number };
    let too_large = WriteOutcome::LimitReached(TaskLimit::Bytes);
    done(store, make("t1", 20)).await?;
    done(store, make("t2", 20)).await?;
    assert_eq!(write(store, ask("t1", 1, 61)).await?, too_large, "40 are taken");
    assert_eq!(store.open_task_inputs(&task_id("t1")).await?, []);
    assert_eq!(task(store, "t1").await?.status, TaskStatus::Working);
    done(store, ask("t1", 1, 40)).await?;
    done(store, ask("t1", 1, 40)).await?;
    assert_eq!(write(store, ask("t2", 1, 21)).await?, too_large, "80 are taken, not 120");
    assert_eq!(write(store, make("t3", 21)).await?, too_large);
    done(store, ask("t2", 1, 20)).await?;
    done(store, close("t1", 1)).await?;
    done(store, close("t1", 1)).await?;
    assert_eq!(write(store, make("t3", 41)).await?, too_large, "60 are taken, not 20");
    done(store, ask("t1", 2, 30)).await?;
    let answer = |number, bytes| WriteOp::AnswerInput {
        task: task_id("t1"),
        number,
        answer: vec![4; bytes],
        bytes_max: limits.bytes,
    };
    assert_eq!(write(store, answer(2, 11)).await?, too_large, "90 are taken");
    assert_eq!(write(store, answer(1, 11)).await?, WriteOutcome::AlreadyFinished, "it is closed");
    assert_eq!(write(store, answer(9, 11)).await?, WriteOutcome::NotFound);
    assert_eq!(store.open_task_inputs(&task_id("t1")).await?[0].answer, None);
    done(store, answer(2, 10)).await?;
    assert_eq!(write(store, answer(2, 10)).await?, WriteOutcome::AlreadyFinished);
    assert_eq!(write(store, make("t3", 1)).await?, too_large, "the answer counts too");
    let (task, status) = (task_id("t1"), TaskStatus::Completed);
    let outcome = Some(vec![0; 5]);
    done(store, WriteOp::EndTask { task, epoch: Some(1), status, message: None, outcome }).await?;
    assert_eq!(write(store, make("t3", 36)).await?, too_large, "65 are taken");
    done(store, make("t3", 35)).await
}

/// Returns a request of the backend for an input.
fn request_input(name: &str, number: i64, request: Vec<u8>, bytes_max: u64) -> WriteOp {
    WriteOp::RequestInput { task: task_id(name), epoch: 1, number, request, bytes_max }
}

pub async fn expired_results_free_their_capacity(store: &dyn DurableStore) -> Outcome {
    let limits = TaskLimits { running: 2, stored: 2, bytes: 1_000 };
    for (round, finished) in [false, true].into_iter().enumerate() {
        let names = [format!("t{round}a"), format!("t{round}b")];
        for name in &names {
            let record = TaskRecord {
                ttl: Some(Duration::ZERO),
                request: vec![0; 400],
                ..task_record(name)
            };
            done(store, WriteOp::CreateTask { record: Box::new(record), owner: node("a"), limits })
                .await?;
            if finished {
                let (task, status) = (task_id(name), TaskStatus::Failed);
                done(
                    store,
                    WriteOp::EndTask {
                        task,
                        epoch: Some(1),
                        status,
                        message: None,
                        outcome: Some(vec![0; 50]),
                    },
                )
                .await?;
            }
        }
        let late =
            WriteOp::CreateTask { record: Box::new(task_record("late")), owner: node("a"), limits };
        assert!(matches!(write(store, late).await?, WriteOutcome::LimitReached(_)));
        assert_eq!(store.expire_tasks(10).await?.len(), 2);
        assert_eq!(counts(store).await?, [0; 5]);
    }
    let record = TaskRecord { request: vec![0; 900], ..task_record("big") };
    done(store, WriteOp::CreateTask { record: Box::new(record), owner: node("a"), limits }).await
}

pub async fn expiry_removes_at_most_its_limit_of_tasks(store: &dyn DurableStore) -> Outcome {
    for (name, ttl) in [
        ("t1", Some(Duration::ZERO)),
        ("t2", Some(LONG)),
        ("t3", None),
        ("t4", Some(Duration::MAX)),
    ] {
        done(store, create(TaskRecord { ttl, ..task_record(name) }, "a")).await?;
    }
    let batch: Vec<WriteOp> = (0..20)
        .map(|number| {
            create(
                TaskRecord { ttl: Some(Duration::ZERO), ..task_record(&format!("x{number}")) },
                "a",
            )
        })
        .collect();
    store.write(&batch).await?;
    done(store, end("x3", Some(1), TaskStatus::Completed)).await?;
    done(store, request_input("x4", 1, Vec::new(), u64::MAX)).await?;
    let mut gone: Vec<TaskId> = Vec::new();
    loop {
        let step = store.expire_tasks(8).await?;
        assert!(step.len() <= 8);
        if step.is_empty() {
            break;
        }
        gone.extend(step);
    }
    assert_eq!(gone.len(), 21);
    for name in ["t1", "x3", "x4"] {
        assert_eq!(store.task(&task_id(name)).await?, None, "{name}");
        assert_eq!(store.task_outcome(&task_id(name)).await?, None);
        assert_eq!(store.task_transitions(&task_id(name)).await?, []);
        assert_eq!(store.open_task_inputs(&task_id(name)).await?, []);
    }
    assert_eq!(names(&store.list_tasks(None, None, None, 100).await?), ["t2", "t3", "t4"]);
    assert_eq!(write(store, end("t1", Some(1), TaskStatus::Failed)).await?, WriteOutcome::Fenced);
    Ok(())
}

pub async fn tasks_end_with_their_tenant(store: &dyn DurableStore) -> Outcome {
    store.apply(AdminChange::PutTenant(&tenant_record("acme")), None).await?;
    let limits = TaskLimits { stored: 1, ..NO_LIMITS };
    let make = |name: &str| WriteOp::CreateTask {
        record: Box::new(task_record(name)),
        owner: node("a"),
        limits,
    };
    done(store, make("t1")).await?;
    done(store, create(TaskRecord { tenant: tenant("umbrella"), ..task_record("t2") }, "a"))
        .await?;
    assert!(store.apply(AdminChange::DeleteTenant(&tenant("acme")), None).await?);
    assert_eq!(names(&store.list_tasks(None, None, None, 10).await?), ["t2"]);
    assert_eq!(counts(store).await?, [1, 0, 0, 0, 0]);
    done(store, make("t3")).await
}

pub async fn a_tenant_with_many_tasks_is_removed(store: &dyn DurableStore) -> Outcome {
    store.apply(AdminChange::PutTenant(&tenant_record("acme")), None).await?;
    for batch in 0..5 {
        let create = |number| create(task_record(&format!("t{batch}-{number}")), "a");
        store.write(&(0..500).map(create).collect::<Vec<_>>()).await?;
    }
    done(store, end("t0-0", Some(1), TaskStatus::Failed)).await?;
    let other = TaskRecord { tenant: tenant("umbrella"), ..task_record("other") };
    done(store, create(other, "a")).await?;
    for number in 0..250 {
        done(store, open(session_record(number), "a")).await?;
    }
    assert!(store.apply(AdminChange::DeleteTenant(&tenant("acme")), None).await?);
    assert_eq!(counts(store).await?, [1, 0, 0, 0, 0]);
    assert_eq!(store.list_sessions(None, None, 10).await?, []);
    assert!(!store.apply(AdminChange::DeleteTenant(&tenant("acme")), None).await?);
    Ok(())
}
