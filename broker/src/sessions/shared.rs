//! State that the sessions of one process share, on top of the context of the process.

use std::{
    ops::Deref,
    sync::{Arc, OnceLock},
};

use super::{
    approval_waits::ApprovalWaits,
    deadline_list::{DeadlineList, Expirable},
    registry::SessionRegistry,
    relayed_streams::RelayedStreams,
    stream::{RetainedBudget, UnreadBudget},
    task_host::TaskService,
};
use protocol::error::{ErrorKind, Refusal};

use crate::{admission::overload, context::Context};

/// The context, and the shared state of sessions and calls. It derefs to the context.
#[derive(Debug)]
pub struct Shared {
    pub context: Arc<Context>,
    /// The sessions of this process.
    pub registry: SessionRegistry,
    task_host: OnceLock<Arc<dyn TaskService>>,
    /// Counts the bytes that wait for clients.
    pub unread_budget: Arc<UnreadBudget>,
    /// Counts the delivered bytes that clients may request again.
    pub retained_budget: Arc<RetainedBudget>,
    /// Counts the unread bytes of streams between replicas.
    pub relayed_streams: Arc<RelayedStreams>,
    /// Limit of incomplete messages of one tenant's clients.
    pub unfinished_tenant_bytes: usize,
    /// Calls in flight, by deadline.
    pub deadlines: Arc<DeadlineList<dyn Expirable>>,
    /// Calls and tasks that wait for the approval of a person.
    pub approval_waits: Arc<ApprovalWaits>,
}

impl Shared {
    pub fn new(context: Arc<Context>) -> Arc<Self> {
        Arc::new(Self {
            unread_budget: UnreadBudget::new(
                overload::outbox_bytes_total(&context.config),
                context.metrics.clone(),
            ),
            retained_budget: RetainedBudget::new(overload::retained_events_bytes(&context.config)),
            relayed_streams: RelayedStreams::new(
                overload::relayed_unread_bytes(&context.config),
                context.metrics.clone(),
            ),
            unfinished_tenant_bytes: overload::unfinished_tenant_bytes(&context.config),
            context,
            registry: SessionRegistry::default(),
            task_host: OnceLock::new(),
            deadlines: Arc::default(),
            approval_waits: Arc::default(),
        })
    }
}

impl Shared {
    /// Sets the host of tasks. Before that, requests for tasks are refused.
    pub fn set_task_host(&self, host: Arc<dyn TaskService>) {
        let _set_once = self.task_host.set(host);
    }

    pub fn task_host(&self) -> Result<Arc<dyn TaskService>, Refusal> {
        self.task_host
            .get()
            .cloned()
            .ok_or_else(|| Refusal::new(ErrorKind::Internal, "tasks are not served yet"))
    }
}

impl Deref for Shared {
    type Target = Context;

    fn deref(&self) -> &Context {
        &self.context
    }
}
