//! What the sessions of one process share, above the context of the process.

use std::{ops::Deref, sync::Arc};

use super::{
    call::{Call, DeadlineList},
    stream::UnreadBudget,
    tasks::TaskManager,
};
use crate::{admission::overload, context::Context};

/// The context of the process, and what sessions, calls and tasks share. It is used like the context that it holds.
#[derive(Debug)]
pub struct Shared {
    pub context: Arc<Context>,
    pub tasks: TaskManager,
    /// What waits for clients.
    pub unread_budget: Arc<UnreadBudget>,
    /// Calls in flight, to be told when their time is up.
    pub deadlines: Arc<DeadlineList<Call>>,
}

impl Shared {
    pub fn new(context: Arc<Context>) -> Arc<Self> {
        Arc::new(Self {
            unread_budget: UnreadBudget::new(
                overload::outbox_bytes_total(&context.config),
                context.metrics.clone(),
            ),
            context,
            tasks: TaskManager::default(),
            deadlines: Arc::default(),
        })
    }
}

impl Deref for Shared {
    type Target = Context;

    fn deref(&self) -> &Context {
        &self.context
    }
}
