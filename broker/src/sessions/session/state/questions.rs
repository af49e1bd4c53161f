//! Requests of backends that wait for this client: sampling, elicitation, roots, and tasks of the
//! client.
//!
//! This is plain data under the session's lock. [`questions`](crate::sessions::session::questions) sends the questions and
//! relays the answers.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use bytes::Bytes;
use protocol::{
    error::{ErrorKind, Refusal},
    ids::{RequestId, TaskId},
};
use records::SessionKey;
use rules::limits::{
    CLIENT_TASKS_MAX, ELICITATION_BYTES_PER_SESSION_MAX, ELICITATION_ID_BYTES_MAX,
    ELICITATIONS_MAX, QUESTIONS_MAX,
};

use crate::{
    backends::link::connection::Connection,
    sessions::{session::OpenCall, stream::EventStream},
    telemetry::child_span::ChildSpan,
};

/// A question that the client has not answered yet.
#[derive(Debug)]
pub(in crate::sessions) struct Question {
    pub(in crate::sessions) destination: Destination,
    pub(in crate::sessions) call: Option<Arc<dyn OpenCall>>,
    pub(in crate::sessions) stream: Option<Arc<EventStream>>,
    pub(in crate::sessions) requested_at: Instant,
    pub(in crate::sessions) span: Option<ChildSpan>,
}

/// Destination of the answer.
#[derive(Debug)]
pub(in crate::sessions) enum Destination {
    Backend {
        connection: Arc<Connection>,
        backend_id: RequestId,
        /// The backend's progress token, if it requested progress.
        progress_token: Option<Bytes>,
    },
    /// The record of a task.
    TaskInput { task: TaskId, creator: SessionKey, number: i64 },
}

impl Question {
    fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.requested_at)
    }

    /// Refuses the question instead of the client.
    pub(in crate::sessions) fn refuse(&self, why: &str) {
        self.refuse_with(&Refusal::new(ErrorKind::Internal, why));
    }

    /// Answers a backend with an error. A task gets none: another session may answer it, and its
    /// owner expires the question.
    pub(in crate::sessions) fn refuse_with(&self, refusal: &Refusal) {
        if let Destination::Backend { connection, backend_id, .. } = &self.destination {
            connection.send_later(refusal.to_response(Some(backend_id), &crate::request_id()));
        }
    }

    /// Returns whether the question is a task's. The next request that waits for the task sends it
    /// again.
    fn is_task_input(&self) -> bool {
        matches!(self.destination, Destination::TaskInput { .. })
    }

    fn is_about(&self, task: &TaskId, number: i64) -> bool {
        matches!(&self.destination, Destination::TaskInput { task: requested, number: known, .. } if requested == task && *known == number)
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        if let Destination::Backend { connection, backend_id, .. } = &self.destination {
            connection.pending().forget_question(backend_id);
        }
        if let Some(call) = &self.call {
            call.question_closed();
        }
    }
}

/// The questions that this client has not answered, and what earlier ones left to it.
#[derive(Debug)]
pub(in crate::sessions) struct Questions {
    open: HashMap<u64, Question>,
    next_number: u64,
    /// Ids of URL elicitations that were sent to this client, the oldest first.
    elicited: VecDeque<String>,
    client_tasks: ClientTasks<Connection>,
}

/// Tasks that this client runs for backends, each with the connection of the request. The oldest come
/// first.
#[derive(Debug)]
struct ClientTasks<C>(VecDeque<(String, Weak<C>)>);

impl<C> ClientTasks<C> {
    fn connection(&self, id: &str) -> Option<Arc<C>> {
        let known = self.0.iter().rev().find(|(known, _)| known == id);
        known.and_then(|(_, connection)| connection.upgrade())
    }

    /// Notes a task. A client does not report the end of each one, so the oldest make room for it.
    fn record(&mut self, id: &str, connection: &Arc<C>) {
        if id.len() > ELICITATION_ID_BYTES_MAX {
            return;
        }
        self.0.retain(|(known, connection)| known != id && connection.strong_count() > 0);
        if self.0.len() >= CLIENT_TASKS_MAX {
            self.0.pop_front();
        }
        self.0.push_back((id.to_owned(), Arc::downgrade(connection)));
    }
}

impl Questions {
    /// Starts without questions. The first one gets the number `first`.
    pub(in crate::sessions) fn numbered_from(first: u64) -> Self {
        Self {
            open: HashMap::new(),
            next_number: first,
            elicited: VecDeque::new(),
            client_tasks: ClientTasks(VecDeque::new()),
        }
    }

    /// Gives a question its number, if there is capacity for one more.
    pub(in crate::sessions) fn next_number(&mut self) -> Result<u64, Refusal> {
        if self.open.len() >= QUESTIONS_MAX {
            return Err(Refusal::new(
                ErrorKind::Overloaded,
                "too many requests of backends wait for an answer of this client",
            ));
        }
        let number = self.next_number;
        self.next_number += 1;
        Ok(number)
    }

    pub(in crate::sessions) fn insert(&mut self, number: u64, question: Question) {
        self.open.insert(number, question);
    }

    pub(in crate::sessions) fn get(&self, number: u64) -> Option<&Question> {
        self.open.get(&number)
    }

    /// Takes a question out, because it is answered, withdrawn, expired or refused.
    pub(in crate::sessions) fn take(&mut self, number: u64) -> Option<Question> {
        self.open.remove(&number)
    }

    pub(in crate::sessions) fn take_all(&mut self) -> Vec<Question> {
        self.open.drain().map(|(_, question)| question).collect()
    }

    /// Returns the numbers of the questions that have waited longer than `limit`.
    pub(in crate::sessions) fn older_than(&self, limit: Duration, now: Instant) -> Vec<u64> {
        let due = self.open.iter().filter(|(_, question)| question.age(now) > limit);
        due.map(|(number, _)| *number).collect()
    }

    /// Returns whether a backend waits for an answer. Questions of tasks wait in the store.
    pub(in crate::sessions) fn any_of_backends(&self) -> bool {
        self.open.values().any(|question| !question.is_task_input())
    }

    /// Returns whether the client has this question of a task, on a stream that it can reach.
    pub(in crate::sessions) fn shows_task_input(&self, task: &TaskId, number: i64) -> bool {
        self.open.values().any(|other| {
            other.is_about(task, number)
                && other.stream.as_ref().is_some_and(|stream| !stream.is_unreachable())
        })
    }

    /// Restores the ids that an earlier owner recorded, the oldest first.
    pub(in crate::sessions) fn restore_elicited(&mut self, ids: Vec<String>) {
        self.elicited = ids.into();
        self.drop_oldest_elicited();
    }

    /// Returns the ids of URL elicitations that were sent to this client, the oldest first.
    pub(in crate::sessions) fn elicited(&self) -> impl Iterator<Item = &String> {
        self.elicited.iter()
    }

    /// Returns whether the client was sent this URL elicitation.
    pub(in crate::sessions) fn was_elicited(&self, id: &str) -> bool {
        self.elicited.iter().any(|known| known == id)
    }

    /// Notes a URL elicitation that is sent to the client. The oldest ones make room for it. Returns
    /// whether it is new.
    pub(in crate::sessions) fn record_elicitation(&mut self, id: &str) -> bool {
        if id.len() > ELICITATION_ID_BYTES_MAX || self.was_elicited(id) {
            return false;
        }
        self.elicited.push_back(id.to_owned());
        self.drop_oldest_elicited();
        true
    }

    /// Drops the oldest ids until the others are within their limits.
    fn drop_oldest_elicited(&mut self) {
        let mut bytes: usize = self.elicited.iter().map(String::len).sum();
        while self.elicited.len() > ELICITATIONS_MAX || bytes > ELICITATION_BYTES_PER_SESSION_MAX {
            bytes -= self.elicited.pop_front().map_or(0, |oldest| oldest.len());
        }
    }

    /// Takes the URL elicitations whose ids begin with this text.
    pub(in crate::sessions) fn take_elicited(&mut self, id_prefix: &str) -> Vec<String> {
        let all = std::mem::take(&mut self.elicited).into_iter();
        let (taken, kept): (VecDeque<_>, _) = all.partition(|id| id.starts_with(id_prefix));
        self.elicited = kept;
        taken.into()
    }

    /// Returns the connection of the backend that the client runs this task for.
    pub(in crate::sessions) fn client_task(&self, id: &str) -> Option<Arc<Connection>> {
        self.client_tasks.connection(id)
    }

    pub(in crate::sessions) fn record_client_task(
        &mut self,
        id: &str,
        connection: &Arc<Connection>,
    ) {
        self.client_tasks.record(id, connection);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a question of a task, asked at `requested_at`.
    fn question(task: &str, number: i64, requested_at: Instant) -> Question {
        let destination = Destination::TaskInput {
            task: TaskId::new(task),
            creator: SessionKey::new([0; records::SESSION_KEY_BYTES]),
            number,
        };
        Question { destination, call: None, stream: None, requested_at, span: None }
    }

    #[test]
    fn question_numbers_are_unique_and_questions_are_bounded() {
        let mut questions = Questions::numbered_from(7);
        for expected in 0..QUESTIONS_MAX as u64 {
            let number = questions.next_number().unwrap();
            assert_eq!(number, 7 + expected);
            questions.insert(number, question("t", 1, Instant::now()));
        }
        assert_eq!(questions.next_number().unwrap_err().kind, ErrorKind::Overloaded);
        assert!(questions.take(7).is_some() && questions.take(7).is_none());
        assert_eq!(questions.next_number().unwrap(), 7 + QUESTIONS_MAX as u64);
    }

    #[test]
    fn questions_of_tasks_do_not_keep_a_session_and_expire_by_age() {
        let (mut questions, now) = (Questions::numbered_from(1), Instant::now());
        questions.insert(1, question("t", 1, now));
        questions.insert(2, question("t", 2, now + Duration::from_secs(5)));
        assert!(!questions.any_of_backends());
        assert!(!questions.shows_task_input(&TaskId::new("t"), 1), "it is on no stream");
        let later = now + Duration::from_secs(7);
        assert_eq!(questions.older_than(Duration::from_secs(3), later), [1]);
        assert_eq!(questions.take_all().len(), 2);
    }

    #[test]
    fn elicitations_are_recorded_once_and_bounded() {
        let mut questions = Questions::numbered_from(1);
        assert!(questions.record_elicitation("a"));
        assert!(!questions.record_elicitation("a"), "nothing new to store");
        assert!(!questions.record_elicitation(&"x".repeat(ELICITATION_ID_BYTES_MAX + 1)));
        for number in 0..ELICITATIONS_MAX {
            assert!(questions.record_elicitation(&number.to_string()), "a full list takes it");
        }
        assert_eq!(questions.elicited().count(), ELICITATIONS_MAX);
        assert!(!questions.was_elicited("a"), "the oldest made room");
        assert_eq!(questions.take_elicited("1").len(), 111);
        assert_eq!(questions.elicited().next().map(String::as_str), Some("0"), "the order stays");
    }

    #[test]
    fn the_oldest_tasks_of_a_client_make_room_for_new_ones() {
        let (one, other) = (Arc::new(1), Arc::new(2));
        let mut tasks = ClientTasks(VecDeque::new());
        for number in 0..CLIENT_TASKS_MAX {
            tasks.record(&number.to_string(), &one);
        }
        tasks.record("0", &other);
        assert_eq!(tasks.0.len(), CLIENT_TASKS_MAX, "a known task takes no more room");
        tasks.record("new", &other);
        assert_eq!(tasks.connection("new"), Some(other.clone()));
        assert_eq!(tasks.connection("0"), Some(other.clone()), "it was named again");
        assert!(tasks.connection("1").is_none() && tasks.connection("2").is_some());
        tasks.record(&"x".repeat(ELICITATION_ID_BYTES_MAX + 1), &other);
        drop(one);
        tasks.record("last", &other);
        assert_eq!(tasks.0.len(), 3, "the connection of the others has ended");
    }

    #[test]
    fn the_ids_of_elicitations_are_bounded_in_bytes() {
        let mut questions = Questions::numbered_from(1);
        let width = ELICITATION_ID_BYTES_MAX;
        let long = |number: usize| format!("{number:0width$}");
        let fit = ELICITATION_BYTES_PER_SESSION_MAX / ELICITATION_ID_BYTES_MAX;
        questions.restore_elicited((0..=fit).map(long).collect());
        assert_eq!(questions.elicited().count(), fit);
        assert!(!questions.was_elicited(&long(0)) && questions.was_elicited(&long(fit)));
        assert!(questions.record_elicitation("short"));
        assert!(!questions.was_elicited(&long(1)) && questions.was_elicited("short"));
    }
}
