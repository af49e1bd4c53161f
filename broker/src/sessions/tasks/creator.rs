//! The client that creates a task, as the record of the task names it.

use std::time::Duration;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use protocol::ids::{BackendId, TaskId};
use records::{NodeName, SessionKey, StoredTask, TaskAudience, TaskRecord, TaskStatus, TaskStep};
use rules::{
    limits::TASK_ID_BYTES,
    routing::TaskTarget,
    stateless_tasks::NO_SESSION,
    tasks::{self, TaskDetails},
};

use crate::sessions::session::Session;

/// The creator of tasks: the client of a session, pooled or not.
#[derive(Debug, Clone, Copy)]
pub(super) struct TaskCreator<'s> {
    session: &'s Session,
}

impl<'s> TaskCreator<'s> {
    pub(super) fn new(session: &'s Session) -> Self {
        Self { session }
    }

    /// Returns whether the client has no credential. Only such a client's own session sees its
    /// tasks.
    pub(super) fn is_anonymous(self) -> bool {
        self.session.caller.is_anonymous()
    }

    /// Returns the key that the client's tasks are stored under: that of its session. A client
    /// without a session has only its principal.
    pub(super) fn key(self) -> SessionKey {
        if self.session.kind.has_client() { self.session.key } else { NO_SESSION }
    }

    /// Returns the audience that the client belongs to: it may see the tasks of that audience.
    pub(super) fn audience(self) -> TaskAudience {
        TaskAudience {
            tenant: self.session.tenant.id.clone(),
            principal: self.session.caller.principal.clone(),
            session: self.key(),
        }
    }

    /// Returns the details that a run needs to carry out the call for this client.
    pub(super) fn details(self, target: TaskTarget) -> TaskDetails {
        let mut details = TaskDetails::new(
            self.session.agreement.version.as_str(),
            &self.session.endpoint,
            self.session.agreement.client.raw(),
            target.traits,
            target.tool,
        );
        if !target.is_repeatable {
            details = details.never_repeated();
        }
        details.native = Some(target.native);
        let session = self.session;
        let token =
            session.shared.oauth.subjects.digest_of(&session.tenant.id, &session.caller.principal);
        details.subject_token = token.map(|digest| digest.to_string());
        details
    }

    /// Returns the record of a new task, which is not stored yet.
    pub(super) fn record(
        self,
        call: &Bytes,
        backend: BackendId,
        details: &TaskDetails,
        ttl: Option<Duration>,
    ) -> TaskRecord {
        let settings = self.session.shared.task_settings();
        TaskRecord {
            task: TaskId::new(URL_SAFE_NO_PAD.encode(rand::random::<[u8; TASK_ID_BYTES]>())),
            tenant: self.session.tenant.id.clone(),
            principal: self.session.caller.principal.clone(),
            session: self.key(),
            private: self.is_anonymous(),
            backend,
            idempotency: None,
            details: details.encode(),
            request: call.to_vec(),
            ttl: Some(tasks::effective_ttl(ttl, settings.ttl, settings.ttl_max)),
        }
    }

    /// Counts and logs a task that was stored. Returns it as the store has it.
    pub(super) fn record_stored(
        self,
        record: TaskRecord,
        at_us: i64,
        owner: &NodeName,
    ) -> StoredTask {
        let Session { shared, tenant, caller, .. } = self.session;
        shared.metrics.task_transition(TaskStatus::Working.name());
        let stored = new_task(record, at_us, owner.clone());
        tracing::info!(task = super::digest(&stored.record.task), tenant = %tenant.id, principal = %caller.principal, backend = %stored.record.backend, "task created");
        stored
    }
}

fn new_task(record: TaskRecord, at_us: i64, owner: NodeName) -> StoredTask {
    StoredTask {
        record,
        status: TaskStatus::Working,
        message: None,
        step: TaskStep::Queued,
        owner: Some(owner),
        created_at_us: at_us,
        updated_at_us: at_us,
        epoch: 1,
        revision: 1,
    }
}
