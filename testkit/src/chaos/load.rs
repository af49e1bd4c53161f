//! The clients: each does its share of work through the balancer, whatever happens meanwhile, and notes what it saw.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{ChaosPlan, seed::Seed, text_of};
use crate::{
    client::{AttemptOutcome, TestClient},
    cluster::TestCluster,
    events::EventReader,
    history::{History, Observation, Outcome},
};

/// A request that gets no answer for so long is given up.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);
/// An operation that is refused for so long is given up.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two tries, and between two looks.
const PAUSE: Duration = Duration::from_millis(150);
/// Looks at one task before its client goes away.
const LOOKS: usize = 20;
/// How long all work may take after its last piece has begun.
const FINISHED_WITHIN: Duration = Duration::from_secs(120);
const TTL_MS: u64 = 3_600_000;

/// What one client does once its task is acknowledged.
#[derive(Debug, Clone, Copy)]
enum TaskFollowUp {
    Poll,
    Wait,
    Leave,
    Cancel,
}

/// One piece of work.
#[derive(Debug, Clone)]
enum WorkItem {
    Task { tool: &'static str, millis: u64, then: TaskFollowUp },
    Call { millis: u64 },
    Stream { steps: u64, millis: u64 },
}

/// Clients that have no session yet.
#[derive(Debug)]
pub(super) struct SessionOpener {
    clients: Vec<TestClient>,
    history: History,
}

impl SessionOpener {
    /// Opens them all, however often it takes.
    pub(super) async fn open(&mut self) -> Load {
        for client in &self.clients {
            let began = Instant::now();
            while let Err(answer) =
                client.try_connect(json!({"elicitation": {}}), ANSWER_WITHIN).await
            {
                if began.elapsed() > PATIENCE {
                    self.history.saw(
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
        Load { sessions: std::mem::take(&mut self.clients), history: self.history.clone() }
    }
}

/// Clients with a session each, in which the pieces take turns.
#[derive(Debug)]
pub(super) struct Load {
    sessions: Vec<TestClient>,
    history: History,
}

impl Load {
    pub(super) async fn open(
        cluster: &TestCluster,
        key: &str,
        sessions: usize,
        history: &History,
    ) -> Arc<Self> {
        Arc::new(Self::opener(cluster, key, sessions, history).open().await)
    }

    /// Sessions to be opened somewhere else than where the cluster is.
    pub(super) fn opener(
        cluster: &TestCluster,
        key: &str,
        sessions: usize,
        history: &History,
    ) -> SessionOpener {
        let client = cluster.client("/mcp").bearer(key);
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
                70..95 => TaskFollowUp::Leave,
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
        seed.shuffle(&mut pieces);
        self.start(pieces, plan.duration, 0)
    }

    /// A few tasks at once.
    pub(super) fn tasks_now(
        self: &Arc<Self>,
        label: &str,
        count: usize,
        seed: &mut Seed,
    ) -> JoinSet<()> {
        let then =
            [TaskFollowUp::Wait, TaskFollowUp::Poll, TaskFollowUp::Leave, TaskFollowUp::Cancel];
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

    /// Plain calls and streams at this rate for this long, in sessions that differ from time to time: one that is always
    /// busy would hold up every drain.
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

    /// The pieces spread over the time, in one session after the other beginning with the `first`.
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
                }
            });
        }
        work
    }

    /// A session that is said to be none was lost; its client opens another.
    async fn note_loss(&self, client: &TestClient, attempt: &AttemptOutcome) {
        if attempt.kind() != "session_not_found" {
            return;
        }
        let session = client.session().unwrap_or_default();
        self.history.saw(Instant::now(), Observation::SessionLost { session });
        let _ = client.try_connect(json!({}), ANSWER_WITHIN).await;
    }

    /// Asks until the task is acknowledged, each time under a new key, and does what comes then.
    async fn task(
        &self,
        client: &TestClient,
        key: &str,
        tool: &str,
        millis: u64,
        then: TaskFollowUp,
    ) {
        let first = Instant::now();
        for attempt in 0.. {
            let (began, name) = (Instant::now(), key);
            let key = format!("{name}.{attempt}");
            let arguments = json!({"key": key, "millis": millis});
            let params = json!({"name": format!("b__{tool}"), "arguments": arguments, "task": {"ttl": TTL_MS}});
            let answer = client.attempt("tools/call", params, ANSWER_WITHIN).await;
            match &answer {
                AttemptOutcome::Result(result) => match result["task"]["taskId"].as_str() {
                    Some(task) => {
                        self.history
                            .saw(began, Observation::Created { key, task: task.to_owned() });
                        return self.follow(client, task, then).await;
                    }
                    None => {
                        return self.history.saw(
                            began,
                            Observation::Wrong {
                                what: format!("{key} was answered without a task: {result}"),
                            },
                        );
                    }
                },
                AttemptOutcome::NoAnswer(_) => self.history.saw(began, Observation::Lost { key }),
                AttemptOutcome::Error { .. }
                    if answer.kind() == crate::history::OUTCOME_UNKNOWN =>
                {
                    self.history.saw(began, Observation::Lost { key })
                }
                AttemptOutcome::Error { .. } => {
                    self.history.saw(began, Observation::Refused { key, kind: answer.kind() })
                }
            }
            self.note_loss(client, &answer).await;
            // A commit in doubt is final for its key only.
            if answer.is_final()
                && !["session_not_found", crate::history::OUTCOME_UNKNOWN]
                    .contains(&answer.kind().as_str())
            {
                return self.history.saw(
                    began,
                    Observation::Wrong { what: format!("{name} was refused for good: {answer:?}") },
                );
            }
            if first.elapsed() > PATIENCE {
                let what =
                    format!("{name} was never acknowledged in {PATIENCE:?}; last: {answer:?}");
                return self.history.saw(first, Observation::Wrong { what });
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn follow(&self, client: &TestClient, task: &str, then: TaskFollowUp) {
        match then {
            TaskFollowUp::Leave => {}
            TaskFollowUp::Poll => {
                for _ in 0..LOOKS {
                    if self
                        .look(client, task)
                        .await
                        .is_some_and(|status| !matches!(&*status, "working" | "input_required"))
                    {
                        self.end_of(client, task).await;
                        return;
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            }
            TaskFollowUp::Wait => {
                for _ in 0..LOOKS {
                    if self.end_of(client, task).await.is_some() {
                        return;
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            }
            TaskFollowUp::Cancel => {
                tokio::time::sleep(PAUSE).await;
                let began = Instant::now();
                self.history.saw(began, Observation::CancelAsked { task: task.to_owned() });
                let answer =
                    client.attempt("tasks/cancel", json!({"taskId": task}), ANSWER_WITHIN).await;
                self.note_status(task, began, &answer);
                self.note_loss(client, &answer).await;
            }
        }
    }

    fn note_status(&self, task: &str, began: Instant, answer: &AttemptOutcome) -> Option<String> {
        match answer {
            AttemptOutcome::Result(view) => {
                let status = view["status"].as_str().unwrap_or("none").to_owned();
                self.history.saw(
                    began,
                    Observation::Status { task: task.to_owned(), status: status.clone() },
                );
                Some(status)
            }
            AttemptOutcome::Error { .. } if answer.kind() == "task_not_found" => {
                self.history.saw(began, Observation::Absent { task: task.to_owned() });
                None
            }
            _ => None,
        }
    }

    /// The status, if it was told.
    async fn look(&self, client: &TestClient, task: &str) -> Option<String> {
        let began = Instant::now();
        let answer = client.attempt("tasks/get", json!({"taskId": task}), ANSWER_WITHIN).await;
        let status = self.note_status(task, began, &answer);
        self.note_loss(client, &answer).await;
        status
    }

    /// How the task ended, if that was told. An error is the task's own only if the task says that it is over.
    async fn end_of(&self, client: &TestClient, task: &str) -> Option<Outcome> {
        let began = Instant::now();
        let answer = client.attempt("tasks/result", json!({"taskId": task}), ANSWER_WITHIN).await;
        self.note_loss(client, &answer).await;
        let outcome = match &answer {
            AttemptOutcome::Result(result) => Outcome::Completed(text_of(result)),
            AttemptOutcome::NoAnswer(_) => return None,
            AttemptOutcome::Error { .. } => match self.look(client, task).await.as_deref() {
                Some("failed") => Outcome::Failed(answer.kind()),
                Some("cancelled") => Outcome::Cancelled,
                _ => return None,
            },
        };
        self.history
            .saw(began, Observation::Ended { task: task.to_owned(), outcome: outcome.clone() });
        Some(outcome)
    }

    async fn call(&self, client: &TestClient, key: &str, millis: u64) {
        let began = Instant::now();
        let params = json!({"name": "b__write", "arguments": {"key": key, "millis": millis}});
        let answer = client.attempt("tools/call", params, ANSWER_WITHIN).await;
        self.note_loss(client, &answer).await;
        self.history
            .saw(began, Observation::Called { key: key.to_owned(), outcome: outcome_of(&answer) });
    }

    /// A call whose progress is read event by event, over as many connections as it takes.
    async fn stream(&self, client: &TestClient, key: &str, steps: u64, millis: u64) {
        let began = Instant::now();
        let params = json!({"name": "b__write", "arguments": {"key": key, "millis": millis, "steps": steps}, "_meta": {"progressToken": key}});
        let id = client.take_id();
        let body = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})
            .to_string();
        let asked = tokio::time::timeout(
            ANSWER_WITHIN,
            client.try_send("POST", &client.usual_headers(), body.into()),
        )
        .await;
        let mut last = None;
        let mut answer = AttemptOutcome::NoAnswer("no head of an answer".to_owned());
        if let Ok(Ok(response)) = asked {
            if response.is_event_stream() {
                answer = self.read_stream(key, response.events(), &mut last).await;
            } else {
                let status = response.status;
                let body: Value = response
                    .try_bytes()
                    .await
                    .ok()
                    .and_then(|body| serde_json::from_slice(&body).ok())
                    .unwrap_or_default();
                answer = of_message(status, &body);
            }
        }
        while let (AttemptOutcome::NoAnswer(_), Some(from)) = (&answer, last.clone()) {
            if began.elapsed() > PATIENCE {
                break;
            }
            tokio::time::sleep(PAUSE).await;
            answer = self.resume(client, key, &from, &mut last).await;
        }
        self.note_loss(client, &answer).await;
        self.history
            .saw(began, Observation::Called { key: key.to_owned(), outcome: outcome_of(&answer) });
    }

    async fn read_stream(
        &self,
        key: &str,
        mut events: EventReader,
        last: &mut Option<String>,
    ) -> AttemptOutcome {
        let mut gaps = 0;
        while let Ok(Some(event)) = events.next_event(ANSWER_WITHIN).await {
            let began = Instant::now();
            if events.gaps() > gaps {
                gaps = events.gaps();
                self.history.saw(began, Observation::Gap { stream: key.to_owned() });
            }
            if event.is_priming() {
                self.note_priming(key, event.id, last);
                continue;
            }
            let message = event.message().unwrap_or_default();
            if let Some(id) = event.id {
                let number = message["params"]["progress"].as_f64().map(|progress| progress as u64);
                self.history.saw(
                    began,
                    Observation::Event { stream: key.to_owned(), id: id.clone(), number },
                );
                *last = Some(id);
            }
            if message.get("result").is_some() || message.get("error").is_some() {
                return of_message(200, &message);
            }
        }
        AttemptOutcome::NoAnswer("the stream ended".to_owned())
    }

    /// A priming event says nothing but where the stream goes on: after the event its client came back with.
    fn note_priming(&self, key: &str, id: Option<String>, last: &mut Option<String>) {
        if last.is_some() && *last != id {
            let what =
                format!("{key} was resumed after {last:?}, and its stream begins after {id:?}");
            self.history.saw(Instant::now(), Observation::Wrong { what });
        }
        *last = id;
    }

    async fn resume(
        &self,
        client: &TestClient,
        key: &str,
        from: &str,
        last: &mut Option<String>,
    ) -> AttemptOutcome {
        let mut headers =
            client.headers_with(&[("accept", "text/event-stream"), ("last-event-id", from)]);
        headers.retain(|(name, _)| name != "content-type");
        let asked = tokio::time::timeout(
            ANSWER_WITHIN,
            client.try_send("GET", &headers, bytes::Bytes::new()),
        )
        .await;
        match asked {
            Ok(Ok(response)) if response.is_event_stream() => {
                self.read_stream(key, response.events(), last).await
            }
            Ok(Ok(response)) => {
                let status = response.status;
                let body: Value = response
                    .try_bytes()
                    .await
                    .ok()
                    .and_then(|body| serde_json::from_slice(&body).ok())
                    .unwrap_or_default();
                let refused = of_message(status, &body);
                match refused.kind().as_str() {
                    // The broker says that what was said on this stream is lost, the answer included.
                    "events_gone" => {
                        self.history
                            .saw(Instant::now(), Observation::Gap { stream: key.to_owned() });
                        *last = None;
                        AttemptOutcome::NoAnswer("the events are gone".to_owned())
                    }
                    "session_not_found" => refused,
                    _ => AttemptOutcome::NoAnswer(refused.kind()),
                }
            }
            _ => AttemptOutcome::NoAnswer("nobody answers".to_owned()),
        }
    }

    /// Each session that was opened must still be one.
    pub(super) async fn sessions_live(&self) {
        for client in &self.sessions {
            let began = Instant::now();
            let answer = client.attempt("ping", json!({}), ANSWER_WITHIN).await;
            if !matches!(answer, AttemptOutcome::Result(_)) {
                let session = client.session().unwrap_or_default();
                self.history.saw(
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

    /// What a session can be asked for beside calls, in a session of its own, which is ended and stays so.
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
            self.note_loss(&client, &answer).await;
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
            self.history.saw(
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

fn of_message(status: u16, message: &Value) -> AttemptOutcome {
    match message.get("result") {
        Some(result) => AttemptOutcome::Result(result.clone()),
        None => AttemptOutcome::Error { status, error: message["error"].clone() },
    }
}

/// The outcome of a plain call. What no broker said (a gateway's own refusal) is as good as a refusal: nothing was sent.
fn outcome_of(answer: &AttemptOutcome) -> Option<Outcome> {
    match answer {
        AttemptOutcome::Result(result) => Some(Outcome::Completed(text_of(result))),
        AttemptOutcome::Error { .. } => Some(Outcome::Failed(answer.kind())),
        AttemptOutcome::NoAnswer(_) => None,
    }
}

/// Waits for the last piece. One that panicked, or never ends, is a violation.
pub(super) async fn finish(mut work: JoinSet<()>, history: &History) {
    let began = Instant::now();
    let all = async {
        while let Some(ended) = work.join_next().await {
            if let Err(error) = ended {
                history
                    .saw(began, Observation::Wrong { what: format!("a client gave up: {error}") });
            }
        }
    };
    if tokio::time::timeout(FINISHED_WITHIN, all).await.is_err() {
        history.saw(
            began,
            Observation::Wrong { what: format!("clients still wait after {FINISHED_WITHIN:?}") },
        );
    }
}

/// Reads these tasks to their end, from a session that has not seen them, and the list of all tasks.
pub(super) async fn read_all(
    cluster: &TestCluster,
    key: &str,
    history: &History,
    tasks: &[String],
) {
    let load = Load::open(cluster, key, 1, history).await;
    let client = load.session(0);
    let began = Instant::now();
    for task in tasks {
        let mut outcome = load.end_of(client, task).await;
        while outcome.is_none() && began.elapsed() < FINISHED_WITHIN {
            tokio::time::sleep(PAUSE).await;
            outcome = load.end_of(client, task).await;
        }
        history.saw(began, Observation::Finally { task: task.clone(), outcome });
    }
    let began = Instant::now();
    let Some(listed) = list(client, history).await else { return };
    let missing: Vec<&String> =
        tasks.iter().filter(|task| !listed.contains(task)).take(3).collect();
    if !missing.is_empty() {
        history.saw(
            began,
            Observation::Wrong {
                what: format!("tasks/list names {} tasks, and not {missing:?}", listed.len()),
            },
        );
    }
    history.saw(began, Observation::Listed { tasks: listed });
}

/// Every page of the list of tasks.
async fn list(client: &TestClient, history: &History) -> Option<Vec<String>> {
    let (mut listed, mut params) = (Vec::new(), json!({}));
    loop {
        let began = Instant::now();
        let page = match client.attempt("tasks/list", params, ANSWER_WITHIN).await {
            AttemptOutcome::Result(page) => page,
            other => {
                history.saw(
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
