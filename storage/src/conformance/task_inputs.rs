//! Behaviours of every [`DurableStore`] for the inputs that a task requests from its client.

use records::{InputCounts, TaskInput, TaskStatus, WriteOp, WriteOutcome};

use super::{
    LONG, Outcome, create, done, node, task_id, task_record, tasks::end, tasks::task, write,
};
use crate::{DurableStore, StoreError};

pub async fn a_question_makes_the_task_wait(store: &dyn DurableStore) -> Outcome {
    done(store, create(task_record("t1"), "a")).await?;
    assert_eq!(store.open_task_inputs(&task_id("t1")).await?, []);
    done(store, request_input(1, 1, b"what?\0")).await?;
    let waiting = task(store, "t1").await?;
    assert_eq!((waiting.status, waiting.revision), (TaskStatus::InputRequired, 2));
    let open = TaskInput { number: 1, request: b"what?\0".to_vec(), answer: None };
    assert_eq!(store.open_task_inputs(&task_id("t1")).await?, [open]);
    let history = store.task_transitions(&task_id("t1")).await?;
    assert_eq!(
        (history.len(), history[1].to, history[1].epoch),
        (2, TaskStatus::InputRequired, Some(1))
    );
    assert_eq!(store.open_task_inputs(&task_id("t9")).await?, []);
    Ok(())
}

pub async fn a_repeated_question_is_stored_once(store: &dyn DurableStore) -> Outcome {
    done(store, create(task_record("t1"), "a")).await?;
    done(store, request_input(1, 1, b"what?")).await?;
    done(store, request_input(1, 1, b"what?")).await?;
    assert_eq!(numbers(store).await?, [1]);
    done(store, close(1, 1)).await?;
    assert_eq!(
        write(store, request_input(1, 1, b"what else?")).await?,
        WriteOutcome::AlreadyFinished,
        "a number is never used again"
    );
    let after = task(store, "t1").await?;
    assert_eq!((after.status, after.revision), (TaskStatus::Working, 3));
    Ok(())
}

pub async fn the_first_answer_counts(store: &dyn DurableStore) -> Outcome {
    done(store, create(task_record("t1"), "a")).await?;
    done(store, request_input(1, 1, b"what?")).await?;
    assert_eq!(write(store, answer(2, b"to nothing")).await?, WriteOutcome::NotFound);
    done(store, answer(1, b"this\xff")).await?;
    assert_eq!(write(store, answer(1, b"that")).await?, WriteOutcome::AlreadyFinished);
    let taken =
        TaskInput { number: 1, request: b"what?".to_vec(), answer: Some(b"this\xff".to_vec()) };
    assert_eq!(
        store.open_task_inputs(&task_id("t1")).await?,
        [taken],
        "until its owner has taken it"
    );
    assert_eq!(task(store, "t1").await?.status, TaskStatus::InputRequired);
    done(store, close(1, 1)).await?;
    assert!(numbers(store).await?.is_empty());
    assert_eq!(task(store, "t1").await?.status, TaskStatus::Working);
    assert_eq!(write(store, answer(1, b"late")).await?, WriteOutcome::AlreadyFinished);
    assert_eq!(write(store, answer_of("t9", 1, b"")).await?, WriteOutcome::NotFound);
    Ok(())
}

pub async fn only_one_of_many_answers_is_stored(store: &dyn DurableStore) -> Outcome {
    done(store, create(task_record("t1"), "a")).await?;
    done(store, request_input(1, 1, b"what?")).await?;
    let (a, b, c) = tokio::join!(
        write(store, answer(1, b"0")),
        write(store, answer(1, b"1")),
        write(store, answer(1, b"2"))
    );
    let outcomes = [a?, b?, c?];
    let taken =
        store.open_task_inputs(&task_id("t1")).await?.remove(0).answer.expect("one was taken");
    for (index, outcome) in outcomes.iter().enumerate() {
        let expected = if taken == index.to_string().into_bytes() {
            WriteOutcome::Done
        } else {
            WriteOutcome::AlreadyFinished
        };
        assert_eq!(*outcome, expected, "answer {index}");
    }
    Ok(())
}

pub async fn the_last_answer_resumes_the_task(store: &dyn DurableStore) -> Outcome {
    done(store, create(task_record("t1"), "a")).await?;
    for number in [3, 1, 2] {
        done(store, request_input(1, number, b"what?")).await?;
    }
    assert_eq!(numbers(store).await?, [1, 2, 3]);
    assert_eq!(task(store, "t1").await?.revision, 2, "it waits already");
    done(store, answer(2, b"two")).await?;
    done(store, close(1, 2)).await?;
    done(store, close(1, 2)).await?;
    done(store, close(1, 9)).await?;
    done(store, close(1, 1)).await?;
    assert_eq!(task(store, "t1").await?.status, TaskStatus::InputRequired);
    done(store, close(1, 3)).await?;
    let after = task(store, "t1").await?;
    assert_eq!((after.status, after.revision), (TaskStatus::Working, 3));
    let last = store.task_transitions(&task_id("t1")).await?.pop().expect("three");
    assert_eq!(
        (last.revision, last.to, last.at_us, last.epoch),
        (3, TaskStatus::Working, after.updated_at_us, Some(1))
    );
    done(store, close(1, 3)).await?;
    assert_eq!(task(store, "t1").await?.revision, 3, "nothing happened");
    done(store, request_input(1, 4, b"one more")).await?;
    assert_eq!(task(store, "t1").await?.revision, 4);
    Ok(())
}

pub async fn a_question_survives_its_owner(store: &dyn DurableStore) -> Outcome {
    store.join(&node("b"), None, LONG).await?;
    done(store, create(task_record("t1"), "gone")).await?;
    done(store, request_input(1, 1, b"what?")).await?;
    let claimed = super::tasks::claim(store, &node("b"), 1).await?;
    assert_eq!((claimed[0].status, claimed[0].epoch), (TaskStatus::InputRequired, 2));
    assert_eq!(write(store, close(1, 1)).await?, WriteOutcome::Fenced);
    done(store, answer(1, b"this")).await?;
    done(store, close(2, 1)).await?;
    assert_eq!(store.task_transitions(&task_id("t1")).await?.pop().expect("three").epoch, Some(2));
    Ok(())
}

pub async fn an_ended_task_has_no_open_questions(store: &dyn DurableStore) -> Outcome {
    for (name, epoch) in [("t1", Some(1)), ("t2", None)] {
        done(store, create(task_record(name), "a")).await?;
        for number in 1..=2 {
            done(
                store,
                WriteOp::RequestInput {
                    task: task_id(name),
                    epoch: 1,
                    number,
                    request: Vec::new(),
                    bytes_max: u64::MAX,
                },
            )
            .await?;
        }
        done(store, answer_of(name, 2, b"")).await?;
        done(store, end(name, epoch, TaskStatus::Cancelled)).await?;
        assert_eq!(store.open_task_inputs(&task_id(name)).await?, []);
        assert_eq!(write(store, answer_of(name, 1, b"")).await?, WriteOutcome::AlreadyFinished);
        assert_eq!(task(store, name).await?.status, TaskStatus::Cancelled);
    }
    Ok(())
}

pub async fn a_task_snapshot_changes_with_each_input(store: &dyn DurableStore) -> Outcome {
    for name in ["t1", "t2", "t3"] {
        done(store, create(task_record(name), "a")).await?;
    }
    done(store, end("t3", Some(1), TaskStatus::Completed)).await?;
    let all = [task_id("t1"), task_id("t9"), task_id("t3")];
    let mut looks = store.task_snapshots(&all).await?;
    looks.sort_by(|one, other| one.stored.record.task.cmp(&other.stored.record.task));
    let stored: Vec<_> = looks.iter().map(|look| look.stored.clone()).collect();
    assert_eq!(
        stored,
        [task(store, "t1").await?, task(store, "t3").await?],
        "what is not there is left out"
    );
    assert!(looks.iter().all(|look| look.inputs == InputCounts::default()));
    assert_eq!(store.task_snapshots(&[]).await?, []);
    let mut seen = vec![inputs(store).await?];
    for (change, newest, open, answered) in [
        (request_input(1, 1, b"what?"), 1, 1, 0),
        (request_input(1, 2, b"what else?"), 2, 2, 0),
        (answer(1, b"this"), 2, 2, 1),
        (close(1, 1), 2, 1, 0),
        (request_input(1, 3, b"and?"), 3, 2, 0),
    ] {
        done(store, change).await?;
        let now = inputs(store).await?;
        assert_eq!(now, InputCounts { newest, open, answered });
        assert!(!seen.contains(&now), "no two looks are the same");
        seen.push(now);
    }
    done(store, end("t1", Some(1), TaskStatus::Completed)).await?;
    assert_eq!(inputs(store).await?, InputCounts::default());
    Ok(())
}

async fn inputs(store: &dyn DurableStore) -> Result<InputCounts, StoreError> {
    Ok(store.task_snapshots(&[task_id("t1")]).await?.remove(0).inputs)
}

fn request_input(epoch: i64, number: i64, request: &[u8]) -> WriteOp {
    let request = request.to_vec();
    WriteOp::RequestInput { task: task_id("t1"), epoch, number, request, bytes_max: u64::MAX }
}

fn answer(number: i64, answer: &[u8]) -> WriteOp {
    answer_of("t1", number, answer)
}

fn answer_of(task: &str, number: i64, answer: &[u8]) -> WriteOp {
    let (task, answer) = (task_id(task), answer.to_vec());
    WriteOp::AnswerInput { task, number, answer, bytes_max: u64::MAX }
}

fn close(epoch: i64, number: i64) -> WriteOp {
    WriteOp::CloseInput { task: task_id("t1"), epoch, number }
}

/// Returns the numbers of the inputs of `t1` that are not closed.
async fn numbers(store: &dyn DurableStore) -> Result<Vec<i64>, StoreError> {
    Ok(store.open_task_inputs(&task_id("t1")).await?.iter().map(|input| input.number).collect())
}
