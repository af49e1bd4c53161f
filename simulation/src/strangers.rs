//! Clients that reach for what is not theirs, during all faults: tasks and sessions of the other
//! principal, and a tool that a policy hides from one of them.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use serde_json::{Value, json};
use testkit::{AttemptOutcome, Effect, History, Observation, TestClient};

use crate::{choices::Choices, weather::pause};

/// The hidden tool, and the principal from whom it is hidden.
pub(crate) const HIDDEN_TOOL: &str = "hidden";
pub(crate) const HIDDEN_FROM: &str = "bob";
/// Part of the keys of calls that must have no effect.
const FORBIDDEN: &str = "forbidden";
const ANSWER_WITHIN: Duration = Duration::from_secs(15);

/// Sessions of strangers, with their principals.
pub(crate) type Sessions = Arc<Mutex<Vec<(&'static str, String)>>>;

/// A client of one principal that looks at another one's tasks and sessions.
pub(crate) struct Stranger {
    pub(crate) principal: &'static str,
    pub(crate) client: TestClient,
    pub(crate) own: History,
    pub(crate) other: History,
    pub(crate) sessions: Sessions,
    pub(crate) choices: Choices,
}

impl Stranger {
    /// Tries one thing after the other. Ends with its caller's patience.
    pub(crate) async fn try_everything(mut self) {
        for number in 0_u32.. {
            pause(self.choices.millis(500..4_000)).await;
            let has_session = self.client.session().is_some()
                || self.client.try_connect(json!({}), ANSWER_WITHIN).await.is_ok();
            if !has_session {
                continue;
            }
            self.publish_session();
            match self.choices.below(0..4) {
                0 => self.reach_for_task().await,
                1 => self.reach_for_session().await,
                2 => self.look_at_lists().await,
                _ => self.call_hidden_tool(number).await,
            }
        }
    }

    fn publish_session(&self) {
        let Some(session) = self.client.session() else { return };
        let mut known = self.sessions.lock();
        if !known.iter().any(|(_, other)| *other == session) {
            known.push((self.principal, session));
        }
    }

    fn wrong(&self, what: String) {
        self.own.record(Instant::now(), Observation::Wrong { what });
    }

    /// Notes a session that is gone, so that the next try opens another.
    fn record_end(&self, answer: &AttemptOutcome) {
        if answer.kind() == "session_not_found" {
            self.client.set_session(None);
        }
    }

    async fn attempt(&self, method: &str, params: Value) -> AttemptOutcome {
        let answer = self.client.attempt(method, params, ANSWER_WITHIN).await;
        self.record_end(&answer);
        answer
    }

    async fn reach_for_task(&mut self) {
        let tasks = self.other.acknowledged();
        if tasks.is_empty() {
            return;
        }
        let task = &tasks[self.choices.index(tasks.len())];
        let method = ["tasks/get", "tasks/result", "tasks/cancel"][self.choices.index(3)];
        let answer = self.attempt(method, json!({"taskId": task})).await;
        if let AttemptOutcome::Result(seen) = answer {
            self.wrong(format!("{}: {method} of a foreign task gave {seen}", self.principal));
        }
    }

    async fn reach_for_session(&mut self) {
        let foreign: Vec<String> = {
            let known = self.sessions.lock();
            let of_others = known.iter().filter(|(of, _)| *of != self.principal);
            of_others.map(|(_, session)| session.clone()).collect()
        };
        if foreign.is_empty() {
            return;
        }
        let thief = self.client.fresh();
        thief.set_session(Some(&foreign[self.choices.index(foreign.len())]));
        thief.set_version(Some(testkit::client::LATEST));
        let answer = thief.attempt("ping", json!({}), ANSWER_WITHIN).await;
        if let AttemptOutcome::Result(_) = answer {
            self.wrong(format!("{}: a foreign session answers", self.principal));
        }
    }

    async fn look_at_lists(&self) {
        if let AttemptOutcome::Result(listed) = self.attempt("tools/list", json!({})).await
            && self.principal == HIDDEN_FROM
            && listed.to_string().contains(&format!("b__{HIDDEN_TOOL}"))
        {
            self.wrong(format!("{}: a hidden tool is listed: {listed}", self.principal));
        }
        if let AttemptOutcome::Result(listed) = self.attempt("tasks/list", json!({})).await {
            let listed = listed.to_string();
            let foreign = self.other.acknowledged();
            if let Some(task) = foreign.iter().find(|task| listed.contains(task.as_str())) {
                self.wrong(format!("{}: the foreign task {task} is listed", self.principal));
            }
        }
    }

    async fn call_hidden_tool(&self, number: u32) {
        if self.principal != HIDDEN_FROM {
            return;
        }
        let arguments = json!({"key": format!("{FORBIDDEN}-{number}")});
        let params = json!({"name": format!("b__{HIDDEN_TOOL}"), "arguments": arguments});
        if let AttemptOutcome::Result(result) = self.attempt("tools/call", params).await {
            self.wrong(format!("{}: a hidden tool answered {result}", self.principal));
        }
    }
}

/// Returns the effects of calls that a policy forbids.
pub(crate) fn forbidden_effects(effects: &[Effect]) -> impl Iterator<Item = String> {
    let forbidden = effects.iter().filter(|effect| effect.key.starts_with(FORBIDDEN));
    forbidden.map(|effect| format!("the forbidden effect of {} was done", effect.key))
}
