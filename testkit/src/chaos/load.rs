//! The clients: each does its share of work through the balancer, whatever happens meanwhile, and
//! notes its observations.

mod ending;
mod questions;
mod stateless;
mod streams;
mod subscriptions;
mod tasks;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::task::JoinSet;

pub(super) use self::ending::{finish, read_all};
use self::{stateless::StatelessCall, subscriptions::Subscription, tasks::TaskFollowUp};
use super::{ChaosPlan, seed::Seed, text_of};
use crate::{
    client::{AttemptOutcome, TestClient},
    history::{History, Observation, Outcome},
};

/// Time after which a request without an answer is given up.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);
/// Time after which an operation that is always refused is given up.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time between two tries, and between two reads of a status.
const PAUSE: Duration = Duration::from_millis(150);
/// Longest time for all work after its last piece has begun.
const FINISHED_WITHIN: Duration = Duration::from_secs(120);

/// One piece of work.
#[derive(Debug, Clone)]
enum WorkItem {
    Task {
        tool: &'static str,
        millis: u64,
        then: TaskFollowUp,
    },
    Call {
        millis: u64,
    },
    Stream {
        steps: u64,
        millis: u64,
    },
    /// `millis`: time until the client answers the question.
    Question {
        millis: u64,
    },
    Stateless(StatelessCall),
    Subscribe,
}

/// Clients that have no session yet.
#[derive(Debug)]
pub(super) struct SessionOpener {
    clients: Vec<TestClient>,
    history: History,
}

impl SessionOpener {
    /// Opens all sessions, with as many tries as it takes.
    pub(super) async fn open(&mut self) -> Load {
        for client in &self.clients {
            let began = Instant::now();
            while let Err(answer) =
                client.try_connect(json!({"elicitation": {}}), ANSWER_WITHIN).await
            {
                if began.elapsed() > PATIENCE {
                    self.history.record(
                        began,
                        Observation::Wrong {
                            what: format!("no session in {PATIENCE:?}; last: {answer:?}"),
                        },
                    );
                    break;
                }
                tokio::time::sleep(PAUSE).await;
            }
        }
        Load {
            sessions: std::mem::take(&mut self.clients),
            history: self.history.clone(),
            subscriptions: Mutex::default(),
        }
    }
}

/// Clients with a session each, which take the pieces of work in turn.
#[derive(Debug)]
pub(super) struct Load {
    sessions: Vec<TestClient>,
    history: History,
    subscriptions: Mutex<Vec<Subscription>>,
}

impl Load {
    /// Opens sessions with the address and the credentials of `client`.
    pub(super) async fn open(client: &TestClient, sessions: usize, history: &History) -> Arc<Self> {
        Arc::new(Self::opener(client, sessions, history).open().await)
    }

    /// Returns clients whose sessions are opened later, by a task without access to the cluster.
    pub(super) fn opener(client: &TestClient, sessions: usize, history: &History) -> SessionOpener {
        SessionOpener {
            clients: (0..sessions).map(|_| client.fresh()).collect(),
            history: history.clone(),
        }
    }

    pub(super) fn session(&self, index: usize) -> &TestClient {
        &self.sessions[index % self.sessions.len()]
    }

    /// Starts the whole load, each piece at its time.
    pub(super) fn spread(self: &Arc<Self>, plan: &ChaosPlan, seed: &mut Seed) -> JoinSet<()> {
        let mut pieces: Vec<(String, WorkItem)> = Vec::new();
        for number in 0..plan.tasks {
            let then = match seed.below(0..100) {
                0..40 => TaskFollowUp::Poll,
                40..70 => TaskFollowUp::Wait,
                70..95 => TaskFollowUp::Ignore,
                _ => TaskFollowUp::Cancel,
            };
            let tool = if seed.chance(20) { "put" } else { "write" };
            pieces.push((
                format!("{:x}-task-{number}", plan.seed),
                WorkItem::Task { tool, millis: seed.below(0..1_500), then },
            ));
        }
        for number in 0..plan.calls {
            pieces.push((
                format!("{:x}-call-{number}", plan.seed),
                WorkItem::Call { millis: seed.below(0..300) },
            ));
        }
        for number in 0..plan.streams {
            let (steps, millis) = (seed.below(5..40), seed.below(500..3_000));
            pieces.push((
                format!("{:x}-stream-{number}", plan.seed),
                WorkItem::Stream { steps, millis },
            ));
        }
        for number in 0..plan.questions {
            pieces.push((
                format!("{:x}-question-{number}", plan.seed),
                WorkItem::Question { millis: seed.below(0..1_000) },
            ));
        }
        for number in 0..plan.stateless {
            pieces.push((
                format!("{:x}-stateless-{number}", plan.seed),
                WorkItem::Stateless(StatelessCall::of(seed)),
            ));
        }
        for number in 0..plan.subscriptions {
            pieces.push((format!("{:x}-subscription-{number}", plan.seed), WorkItem::Subscribe));
        }
        seed.shuffle(&mut pieces);
        self.start(pieces, plan.duration, 0)
    }

    /// Starts a few tasks at once.
    pub(super) fn tasks_now(
        self: &Arc<Self>,
        label: &str,
        count: usize,
        seed: &mut Seed,
    ) -> JoinSet<()> {
        let then =
            [TaskFollowUp::Wait, TaskFollowUp::Poll, TaskFollowUp::Ignore, TaskFollowUp::Cancel];
        let piece = |number: usize| {
            let tool = if number % 4 == 3 { "put" } else { "write" };
            let piece = WorkItem::Task {
                tool,
                millis: seed.below(0..200),
                then: then[seed.index(then.len())],
            };
            (format!("{label}-{number}"), piece)
        };
        self.start((0..count).map(piece).collect(), Duration::from_millis(50), 0)
    }

    /// Starts plain calls and streams at this rate for this time. The session changes from piece to
    /// piece: one that is always busy would hold up every drain.
    pub(super) fn calls_for(
        self: &Arc<Self>,
        label: &str,
        per_second: usize,
        time: Duration,
        seed: &mut Seed,
    ) -> JoinSet<()> {
        let count = (per_second as f64 * time.as_secs_f64()) as usize;
        let first = seed.index(self.sessions.len());
        let piece = |number: usize| {
            let piece = if number.is_multiple_of(50) {
                WorkItem::Stream { steps: 20, millis: seed.below(500..2_500) }
            } else {
                WorkItem::Call { millis: seed.below(0..50) }
            };
            (format!("{label}-{number}"), piece)
        };
        self.start((0..count).map(piece).collect(), time, first)
    }

    /// Starts the pieces spread over the time, in one session after the other from `first` on.
    fn start(
        self: &Arc<Self>,
        pieces: Vec<(String, WorkItem)>,
        time: Duration,
        first: usize,
    ) -> JoinSet<()> {
        let (began, count) = (tokio::time::Instant::now(), pieces.len().max(1) as u32);
        let mut work = JoinSet::new();
        for (number, (key, piece)) in pieces.into_iter().enumerate() {
            let load = self.clone();
            work.spawn(async move {
                tokio::time::sleep_until(began + time * number as u32 / count).await;
                let client = load.session(first + number).clone();
                match piece {
                    WorkItem::Task { tool, millis, then } => {
                        load.task(&client, &key, tool, millis, then).await
                    }
                    WorkItem::Call { millis } => load.call(&client, &key, millis).await,
                    WorkItem::Stream { steps, millis } => {
                        load.stream(&client, &key, steps, millis).await
                    }
                    WorkItem::Question { millis } => load.question(&client, &key, millis).await,
                    WorkItem::Stateless(call) => load.stateless(&client, &key, call).await,
                    WorkItem::Subscribe => load.subscribe(&client, &key).await,
                }
            });
        }
        work
    }

    /// Notes a session that the broker no longer knows as lost; its client opens another.
    async fn record_loss(&self, client: &TestClient, attempt: &AttemptOutcome) {
        if attempt.kind() != "session_not_found" {
            return;
        }
        let session = client.session().unwrap_or_default();
        self.history.record(Instant::now(), Observation::SessionLost { session });
        let _ = client.try_connect(json!({}), ANSWER_WITHIN).await;
    }

    async fn call(&self, client: &TestClient, key: &str, millis: u64) {
        let began = Instant::now();
        let params = json!({"name": "b__write", "arguments": {"key": key, "millis": millis}});
        let answer = client.attempt("tools/call", params, ANSWER_WITHIN).await;
        self.record_loss(client, &answer).await;
        self.history.record(
            began,
            Observation::Called { key: key.to_owned(), outcome: outcome_of(&answer) },
        );
    }

    /// Checks that each session that was opened still exists.
    pub(super) async fn sessions_live(&self) {
        for client in &self.sessions {
            let began = Instant::now();
            let answer = client.attempt("ping", json!({}), ANSWER_WITHIN).await;
            if !matches!(answer, AttemptOutcome::Result(_)) {
                let session = client.session().unwrap_or_default();
                self.history.record(
                    began,
                    Observation::Wrong {
                        what: format!(
                            "the session {session} does not answer at the end: {answer:?}"
                        ),
                    },
                );
            }
        }
    }

    /// Uses the other methods of a session, in a session of its own, then ends it and checks that
    /// it stays ended.
    pub(super) async fn use_session(&self) {
        let client = self.session(0).fresh();
        let mut opener =
            SessionOpener { clients: vec![client.clone()], history: self.history.clone() };
        opener.open().await;
        for (method, params) in [
            ("resources/subscribe", json!({"uri": "b+test://one"})),
            ("logging/setLevel", json!({"level": "error"})),
            ("resources/unsubscribe", json!({"uri": "b+test://one"})),
            ("tools/list", json!({})),
        ] {
            let answer = client.attempt(method, params, ANSWER_WITHIN).await;
            self.record_loss(&client, &answer).await;
        }
        let began = Instant::now();
        let headers = client.headers_without(&["content-type", "accept"]);
        let ended = tokio::time::timeout(
            ANSWER_WITHIN,
            client.try_send("DELETE", &headers, bytes::Bytes::new()),
        )
        .await;
        let Ok(Ok(ended)) = ended else { return };
        if (200..300).contains(&ended.status)
            && let AttemptOutcome::Result(_) =
                client.attempt("ping", json!({}), ANSWER_WITHIN).await
        {
            self.history.record(
                began,
                Observation::Wrong {
                    what: format!(
                        "the session {:?} was ended and is there again",
                        client.session()
                    ),
                },
            );
        }
    }
}

/// Returns the answer to the ledger's question.
fn told() -> Value {
    json!({"action": "accept", "content": {"word": "yes"}})
}

fn of_message(status: u16, message: &Value) -> AttemptOutcome {
    match message.get("result") {
        Some(result) => AttemptOutcome::Result(result.clone()),
        None => AttemptOutcome::Error { status, error: message["error"].clone() },
    }
}

/// Returns the outcome of a plain call. An answer that no broker sent (a gateway's own refusal)
/// counts as a refusal: nothing was sent.
fn outcome_of(answer: &AttemptOutcome) -> Option<Outcome> {
    match answer {
        AttemptOutcome::Result(result) => Some(Outcome::Completed(text_of(result))),
        AttemptOutcome::Error { .. } => Some(Outcome::Failed(answer.kind())),
        AttemptOutcome::NoAnswer(_) => None,
    }
}
