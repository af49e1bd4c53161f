//! Calls as links see them: senders of requests, and recipients of the backend's messages about
//! them.

use std::{pin::Pin, sync::Arc, time::Instant};

use bytes::Bytes;
use http::HeaderMap;
use protocol::{
    envelope::Message,
    error::{ErrorKind, Refusal},
    json::Span,
    splice::Splice,
};
use rules::{event_log::EventKind, log_level::LogLevel, tasks::BackendTask};

use super::Call;
use crate::{
    backends::link::{
        Era,
        connection::{
            Connection,
            requester::{
                ClientIdentity, Inbound, Requester, SentRequest, TaskFollower, client_info,
            },
        },
    },
    sessions::{
        progress::ProgressSeries,
        session::{OpenCall as _, questions},
    },
};

/// The progress notifications of a call.
#[derive(Debug)]
pub(super) struct ClientProgress {
    /// The client's token, as sent. `None` if the client requested no progress.
    token: Option<Bytes>,
    series: ProgressSeries,
}

impl ClientProgress {
    pub(super) fn of(request: &Message) -> Self {
        let token = request.fields.meta_progress_token.map(|span| span.slice(&request.frame));
        Self { token, series: ProgressSeries::default() }
    }
}

impl Inbound for Call {
    fn need_input(
        self: Arc<Self>,
        connection: &Arc<Connection>,
        question: &Message,
    ) -> Result<(), Refusal> {
        self.recheck_access("questions").map_err(|_| {
            let text = "the access policy does not allow the client this call now, so the broker does not ask it";
            Refusal::new(ErrorKind::InvalidRequest, text)
        })?;
        questions::send_question(&self.session.clone(), connection, question, Some(self))
    }

    fn withdraw(&self, number: u64, why: &str) {
        questions::withdraw(&self.session, number, why);
    }

    fn receive(&self, kind: EventKind, message: &Message) {
        self.deliver(kind, message.frame.clone());
    }

    fn complete_elicitation(&self, id: &str, message: &Message) -> bool {
        let was_elicited = questions::was_elicited(&self.session, id);
        if was_elicited {
            self.deliver(EventKind::Message, message.frame.clone());
        }
        was_elicited
    }

    /// Returns the level of the session, or that of a request without one.
    fn log_level(&self) -> Option<LogLevel> {
        if self.session.kind.has_client() {
            self.session.log_level()
        } else {
            self.stream.log_level()
        }
    }

    fn client_era(&self) -> Era {
        self.session.era()
    }
}

impl Requester for Call {
    fn sent_as(&self, sent: SentRequest, at: Instant) {
        self.clock.record_sent(at);
        self.sent.record(sent);
    }

    fn touch(&self) {
        self.clock.touch();
    }

    fn identity(&self) -> ClientIdentity<'_> {
        let (session, agreement) = (&self.session, &self.session.agreement);
        // A pooled session carries requests of several clients.
        let info = session
            .kind
            .has_client()
            .then(|| client_info(&agreement.client_name, &agreement.client_version));
        ClientIdentity { capabilities: agreement.client.raw(), info, log_level: self.log_level() }
    }

    fn forwarded_headers(&self) -> HeaderMap {
        self.forwarded_headers.get().cloned().unwrap_or_default()
    }

    fn progress(&self, message: &Message, token: Span, value: f64) {
        let Some(client_token) = &self.progress.token else { return };
        if !self.progress.series.advances(value) {
            self.session.shared.metrics.dropped_notification("progress");
            return;
        }
        let mut splice = Splice::new(&message.frame);
        splice.replace(token, client_token.to_vec());
        if let Some(params) = message.params.filter(|_| {
            self.session.client_dialect().strict
                && !self.session.agreement.version.progress_message()
        }) {
            splice.remove_member(params, "message");
        }
        self.deliver(EventKind::Droppable, splice.finish());
    }

    fn is_task(&self) -> bool {
        false
    }

    /// Does nothing, because no call requests a task.
    fn task_created(&self, _connection: &Connection, _backend_task: &str) {}

    fn created_task<'a>(
        &'a self,
        connection: &'a Arc<Connection>,
        task: &'a BackendTask,
    ) -> Pin<Box<dyn Future<Output = TaskFollower> + Send + 'a>> {
        Box::pin(async move {
            let link = self.sent.link();
            let (Some(handoff), Some(link)) = (&self.task_handoff, link) else {
                return TaskFollower::Link;
            };
            match handoff.offer(&link, connection, task).await {
                true => TaskFollower::TakenOver,
                false => TaskFollower::Link,
            }
        })
    }

    fn backend_task_changed(&self) {}
}

impl Call {
    /// Begins a new series of progress, because the client continues the call with a request that
    /// has a token of its own.
    pub(in crate::sessions) fn restart_progress(&self) {
        self.progress.series.restart();
    }

    fn deliver(&self, kind: EventKind, frame: Bytes) {
        // A client that left before anything was streamed cannot come back to that stream.
        if self.stream.is_unreachable() {
            self.session.deliver(kind, frame);
        } else {
            self.session.push_to(&self.stream, kind, frame);
        }
    }
}
