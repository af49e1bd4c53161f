//! Questions of backends to this client: sampling, elicitation, roots, and the tasks a client keeps.
//!
//! A question travels under an id of ours, unique in the session; the client's answer goes back under the backend's id, to
//! the connection that asked and to no other. Every question ends: answered, withdrawn, expired, or refused for a client
//! that is gone.

use std::{
    sync::{Arc, Weak, atomic::Ordering},
    time::{Duration, Instant},
};

use bytes::Bytes;
use protocol::{
    envelope::Message,
    error::{ErrorKind, Refusal},
    handshake,
    ids::RequestId,
    json,
    method::Method,
    splice::Splice,
};

use super::{Session, State};
use crate::{
    actors::{
        call::Call,
        link::{Link, connection::Connection},
        stream::EventStream,
    },
    limits::{CLIENT_TASKS_MAX, ELICITATION_ID_BYTES_MAX, ELICITATIONS_MAX, QUESTIONS_MAX},
    rules::event_log::EventKind,
};

/// A question the client has not answered yet.
#[derive(Debug)]
pub(super) struct Question {
    connection: Arc<Connection>,
    backend_id: RequestId,
    /// The backend's progress token, when it asked for progress.
    progress_token: Option<Bytes>,
    call: Option<Arc<Call>>,
    stream: Option<Arc<EventStream>>,
    asked_at: Instant,
}

impl Question {
    pub(super) fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.asked_at)
    }

    /// Answers for the client.
    pub(super) fn refuse(&self, why: &str) {
        let refusal = Refusal::new(ErrorKind::Internal, why);
        self.connection.send_later(refusal.to_response(Some(&self.backend_id), &crate::request_id()));
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        self.connection.forget_asked(&self.backend_id);
        if let Some(call) = &self.call {
            call.open_questions.fetch_sub(1, Ordering::Relaxed);
            call.touch();
        }
    }
}

impl Session {
    /// Passes a backend's request on to the client, if the client said it can answer such.
    pub fn ask(
        self: &Arc<Self>,
        link: &Arc<Link>,
        connection: &Arc<Connection>,
        message: &Message,
        call: Option<&Arc<Call>>,
    ) -> Result<(), Refusal> {
        self.client.permits(message, self.version)?;
        let backend_id = message.id.clone().ok_or_else(|| Refusal::new(ErrorKind::InvalidRequest, "a request has an id"))?;
        let stream = call.map(|call| call.stream.clone()).filter(|stream| !stream.is_lost());
        let question = Question {
            connection: connection.clone(),
            backend_id: backend_id.clone(),
            progress_token: message.fields.meta_progress_token.map(|span| span.slice(&message.frame)),
            call: call.cloned(),
            stream: stream.clone(),
            asked_at: Instant::now(),
        };
        if let Some(call) = call {
            call.open_questions.fetch_add(1, Ordering::Relaxed);
        }
        let number = {
            let mut state = self.lock();
            state.is_here()?;
            if state.questions.len() >= QUESTIONS_MAX {
                return Err(Refusal::new(ErrorKind::Overloaded, "too many questions wait for this client"));
            }
            if let Some(id) = message.text(message.fields.elicitation_id) {
                state.note_elicited(&id);
            }
            let number = state.next_question;
            state.next_question += 1;
            connection.note_asked(backend_id, self, number);
            state.questions.insert(number, question);
            number
        };
        if connection.is_closed() {
            // Whoever closed it may have looked before the question was there.
            self.withdraw_question(number, "the backend's connection ended");
            return Ok(());
        }
        let frame = self.question_frame(link, message, number);
        let sent = match &stream {
            Some(stream) => stream.push(Instant::now(), EventKind::Message, frame).is_ok(),
            None => {
                self.deliver(EventKind::Message, frame);
                true
            }
        };
        if !sent {
            let _refused = self.lock().questions.remove(&number);
            return Err(Refusal::new(ErrorKind::Overloaded, "the client does not read its stream"));
        }
        Ok(())
    }

    fn question_frame(&self, link: &Arc<Link>, message: &Message, number: u64) -> Bytes {
        let digits = number.to_string().into_bytes();
        let mut splice = Splice::new(&message.frame);
        for span in [message.id_span, message.fields.meta_progress_token].into_iter().flatten() {
            splice.replace(span, digits.clone());
        }
        self.shared.tasks.expose_related(link, message, &mut splice);
        splice.finish()
    }

    /// The client's answer to a question. One that answers nothing we asked is ignored (it may simply be late).
    pub fn answer(&self, message: &Message) {
        let number = message.id.as_ref().and_then(RequestId::as_u64);
        let Some(question) = number.and_then(|number| self.lock().questions.remove(&number)) else {
            self.shared.metrics.dropped_answer("client_unknown_id");
            return;
        };
        let mut splice = Splice::new(&message.frame);
        if let Some(span) = message.id_span {
            splice.replace(span, question.backend_id.raw().to_vec());
        }
        let related = message.fields.meta_related_task_id;
        if let Some((span, id)) = related.zip(message.text(related))
            && let Ok(task) = self.shared.tasks.find(self, &id)
        {
            splice.replace(span, json::quote(&task.backend_task_id).into_bytes());
        }
        if let Some(id) = message.text(message.fields.task_task_id) {
            self.lock().note_client_task(&id, &question.connection);
        }
        question.connection.send_later(splice.finish());
    }

    /// The client tells how a task it works on for a backend is going: only that backend's connection hears it.
    pub(super) fn client_task_status(&self, message: &Message) {
        let Some(id) = message.text(message.fields.task_id) else { return };
        let connection = self.lock().client_tasks.get(&*id).and_then(Weak::upgrade);
        match connection {
            Some(connection) => connection.send_later(message.frame.clone()),
            None => self.shared.metrics.dropped_notification("task"),
        }
    }

    /// Progress of the client on a question goes back under the backend's own token.
    pub fn question_progress(&self, message: &Message) {
        let Some(span) = message.fields.progress_token else { return };
        let number = std::str::from_utf8(span.of(&message.frame)).ok().and_then(|text| text.parse::<u64>().ok());
        let state = self.lock();
        let Some(question) = number.and_then(|number| state.questions.get(&number)) else { return };
        if let (Some(token), connection) = (&question.progress_token, &question.connection) {
            connection.send_later(Splice::new(&message.frame).replace(span, token.to_vec()).finish());
        }
    }

    /// The backend (or its connection) no longer needs the answer: the client is told so.
    pub fn withdraw_question(&self, number: u64, why: &str) {
        let question = self.lock().questions.remove(&number);
        if let Some(question) = question {
            self.tell_withdrawn(number, &question, why);
        }
    }

    /// The client took too long (MCP 2025-11-25, Lifecycle, Timeouts): it is told, and the backend gets an error.
    pub(super) fn question_expired(&self, number: u64) {
        let question = self.lock().questions.remove(&number);
        if let Some(question) = question {
            let refusal = Refusal::new(ErrorKind::Timeout, "the client did not answer in time");
            question.connection.send_later(refusal.to_response(Some(&question.backend_id), &crate::request_id()));
            self.tell_withdrawn(number, &question, "no answer in time");
        }
    }

    fn tell_withdrawn(&self, number: u64, question: &Question, why: &str) {
        let params = format!("{{\"requestId\":{number},\"reason\":{}}}", json::quote(why));
        let frame = handshake::notification(Method::Cancelled, Some(params.as_bytes()));
        match &question.stream {
            Some(stream) if stream.is_connected() => {
                let _cut = stream.push(Instant::now(), EventKind::Message, frame);
            }
            _ => self.deliver(EventKind::Message, frame),
        }
    }

    /// Whether this client was asked to open the URL of this elicitation.
    pub fn was_elicited(&self, id: &str) -> bool {
        self.lock().elicited.contains(id)
    }

    /// The backend's error asks the client to open URLs (MCP 2025-11-25, Elicitation: -32042).
    pub fn note_elicitations_required(&self, answer: &Message) {
        let Some(data) = answer.bytes(answer.fields.error_data) else { return };
        let Ok(document) = json::Document::parse(data, &json::Limits::default()) else { return };
        let elicitations = document.root().get("elicitations");
        let mut state = self.lock();
        for id in elicitations.into_iter().flat_map(|list| list.elements()).filter_map(|one| one.get("elicitationId")) {
            if let Some(id) = id.as_str() {
                state.note_elicited(&id);
            }
        }
    }
}

impl State {
    fn note_elicited(&mut self, id: &str) {
        if self.elicited.len() < ELICITATIONS_MAX && id.len() <= ELICITATION_ID_BYTES_MAX {
            self.dirty.state |= self.elicited.insert(id.to_owned());
        }
    }

    fn note_client_task(&mut self, id: &str, connection: &Arc<Connection>) {
        self.client_tasks.retain(|_, connection| connection.strong_count() > 0);
        if self.client_tasks.len() < CLIENT_TASKS_MAX && id.len() <= ELICITATION_ID_BYTES_MAX {
            self.client_tasks.insert(id.to_owned(), Arc::downgrade(connection));
        }
    }
}
