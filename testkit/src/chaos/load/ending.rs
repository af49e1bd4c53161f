//! The end of a load: every task is followed to its end and read once more.

use std::time::Instant;

use serde_json::json;
use tokio::task::JoinSet;

use super::{ANSWER_WITHIN, FINISHED_WITHIN, Load, PAUSE};
use crate::{
    client::{AttemptOutcome, TestClient},
    history::{History, Observation},
};

/// Waits for the last piece. A piece that panicked, or never ends, is a violation.
pub(in crate::chaos) async fn finish(mut work: JoinSet<()>, history: &History) {
    let began = Instant::now();
    let all = async {
        while let Some(ended) = work.join_next().await {
            if let Err(error) = ended {
                history.record(
                    began,
                    Observation::Wrong { what: format!("a client gave up: {error}") },
                );
            }
        }
    };
    if tokio::time::timeout(FINISHED_WITHIN, all).await.is_err() {
        history.record(
            began,
            Observation::Wrong { what: format!("clients still wait after {FINISHED_WITHIN:?}") },
        );
    }
}

/// Reads these tasks to their end, from a session that has not seen them, and the list of all
/// tasks.
pub(in crate::chaos) async fn read_all(client: &TestClient, history: &History, tasks: &[String]) {
    let load = Load::open(client, 1, history).await;
    let client = load.session(0);
    let began = Instant::now();
    for task in tasks {
        let mut outcome = load.end_of(client, task).await;
        while outcome.is_none() && began.elapsed() < FINISHED_WITHIN {
            tokio::time::sleep(PAUSE).await;
            outcome = load.end_of(client, task).await;
        }
        history.record(began, Observation::Finally { task: task.clone(), outcome });
    }
    let began = Instant::now();
    let Some(listed) = list(client, history).await else { return };
    let missing: Vec<&String> =
        tasks.iter().filter(|task| !listed.contains(task)).take(3).collect();
    if !missing.is_empty() {
        history.record(
            began,
            Observation::Wrong {
                what: format!("tasks/list names {} tasks, and not {missing:?}", listed.len()),
            },
        );
    }
    history.record(began, Observation::Listed { tasks: listed });
}

/// Returns every page of the list of tasks.
async fn list(client: &TestClient, history: &History) -> Option<Vec<String>> {
    let (mut listed, mut params) = (Vec::new(), json!({}));
    loop {
        let began = Instant::now();
        let page = match client.attempt("tasks/list", params, ANSWER_WITHIN).await {
            AttemptOutcome::Result(page) => page,
            other => {
                history.record(
                    began,
                    Observation::Wrong {
                        what: format!("tasks/list does not answer at the end: {other:?}"),
                    },
                );
                return None;
            }
        };
        let tasks = page["tasks"].as_array().map_or(&[][..], Vec::as_slice);
        listed.extend(tasks.iter().filter_map(|task| task["taskId"].as_str().map(str::to_owned)));
        match page["nextCursor"].as_str() {
            Some(cursor) => params = json!({"cursor": cursor}),
            None => return Some(listed),
        }
    }
}
