//! Runs of tasks as links see them: senders of requests, and recipients of the backend's messages
//! about them.

use std::{pin::Pin, sync::Arc, time::Instant};

use http::HeaderMap;
use protocol::{envelope::Message, error::Refusal, json::Span, splice::Splice};
use rules::{
    event_log::EventKind,
    log_level::LogLevel,
    stateless_tasks::NO_SESSION,
    tasks::{self, BackendTask},
};

use super::{inputs, run::TaskRun};
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
    sessions::session::questions,
};

impl Inbound for TaskRun {
    fn need_input(
        self: Arc<Self>,
        connection: &Arc<Connection>,
        question: &Message,
    ) -> Result<(), Refusal> {
        inputs::accept_question(&self, connection, question)
    }

    fn withdraw(&self, number: u64, _why: &str) {
        if let Some(run) = self.this.upgrade() {
            run.withdraw_input(number.cast_signed());
        }
    }

    /// Sends the client the notification with the broker's id of the task.
    fn receive(&self, kind: EventKind, message: &Message) {
        let mut splice = Splice::new(&message.frame);
        splice.set_meta(message, tasks::RELATED_TASK, &tasks::related_task_meta(&self.id));
        self.send(kind, splice.finish());
    }

    fn complete_elicitation(&self, id: &str, message: &Message) -> bool {
        let elicited = self
            .tasks
            .listeners(self)
            .into_iter()
            .find(|session| questions::was_elicited(session, id));
        elicited
            .inspect(|session| session.deliver(EventKind::Message, message.frame.clone()))
            .is_some()
    }

    fn log_level(&self) -> Option<LogLevel> {
        self.creator().map_or_else(|| self.stored_log_level(), |session| session.log_level())
    }

    /// Returns the era of the client that created the task, which decides the form of its outcome.
    fn client_era(&self) -> Era {
        if self.record.session == NO_SESSION { Era::Stateless } else { Era::Sessions }
    }
}

impl Requester for TaskRun {
    /// Notes the request. Its progress token stays valid on the connection until the task is over.
    fn sent_as(&self, sent: SentRequest, _at: Instant) {
        self.tasks.record_token(self, &sent);
        self.lock().sent_request = Some(sent);
    }

    /// Does nothing, because the time of a task does not depend on its backend.
    fn touch(&self) {}

    fn identity(&self) -> ClientIdentity<'_> {
        let info = self.creator().map(|session| {
            client_info(&session.agreement.client_name, &session.agreement.client_version)
        });
        ClientIdentity { capabilities: self.client.raw(), info, log_level: self.log_level() }
    }

    fn forwarded_headers(&self) -> HeaderMap {
        HeaderMap::new()
    }

    /// Sends the client the progress under its own token.
    fn progress(&self, message: &Message, token: Span, value: f64) {
        let Some(client_token) = self.progress_token() else { return };
        if !self.notifications.progress.advances(value) {
            self.shared.metrics.dropped_notification("progress");
            return;
        }
        let mut splice = Splice::new(&message.frame);
        splice.replace(token, client_token.to_vec()).set_meta(
            message,
            tasks::RELATED_TASK,
            &tasks::related_task_meta(&self.id),
        );
        self.send(EventKind::Droppable, splice.finish());
    }

    fn is_task(&self) -> bool {
        true
    }

    fn task_created(&self, connection: &Connection, backend_task: &str) {
        if let Some(link) = self.held_link() {
            self.track_backend_task(&link, connection, backend_task);
        }
    }

    fn created_task<'a>(
        &'a self,
        connection: &'a Arc<Connection>,
        task: &'a BackendTask,
    ) -> Pin<Box<dyn Future<Output = TaskFollower> + Send + 'a>> {
        if let Some(link) = self.held_link() {
            self.track_unrequested_task(&link, connection, &task.id);
        }
        Box::pin(std::future::ready(TaskFollower::Requester))
    }

    fn backend_task_changed(&self) {
        self.backend_notified.notify_one();
    }
}
