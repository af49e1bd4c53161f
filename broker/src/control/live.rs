//! What operators see and end of the things that replicas share: nodes, sessions, subscriptions and tasks.
//!
//! The database is asked first, so that every replica shows the same. A session that is here is shown as it is right now,
//! and one that is not stored yet is shown too. Without the database there is not an answer, rather than half of one.

use std::collections::BTreeMap;

use protocol::ids::{TaskId, TenantId};
use storage::{
    AdminChange, NodeRecord, StoredSession, StoredTask, TaskListPosition, TaskStatus, Wakeup,
};

use super::{Author, Control, ControlError, now_us, resource_views::moment};
use crate::{
    limits::{ADMIN_LIST_MAX, ADMIN_PAGE_ROWS},
    sessions::session::record::client_info,
    views::{NodeView, SessionView, SubscriptionView, TaskChange, TaskShown, TaskView},
};

impl Control {
    /// The replicas whose leases run.
    pub async fn nodes(&self) -> Result<Vec<NodeView>, ControlError> {
        let nodes = self.ask("nodes", self.store().live_nodes()).await?;
        let own = self.durable().node();
        let view = |node: NodeRecord| NodeView {
            is_this: node.node == own,
            draining: node.draining || (node.node == own && self.broker.draining()),
            lease_ms: self
                .durable()
                .is_shared()
                .then(|| u64::try_from(node.lease_left.as_millis()).unwrap_or(u64::MAX)),
            node: node.node.to_string(),
            address: node.address,
        };
        Ok(nodes.into_iter().map(view).collect())
    }

    /// Sessions of all replicas, oldest first.
    pub async fn sessions(
        &self,
        tenant: Option<&TenantId>,
    ) -> Result<Vec<SessionView>, ControlError> {
        let mut live: BTreeMap<String, SessionView> =
            self.broker.sessions(tenant).into_iter().map(|view| (view.id.clone(), view)).collect();
        let (mut views, mut after) = (Vec::new(), None);
        loop {
            let page = self
                .ask(
                    "sessions",
                    self.store().list_sessions(tenant, after.as_ref(), ADMIN_PAGE_ROWS),
                )
                .await?;
            after = page.last().map(|last| last.record.key);
            let is_last = page.len() < ADMIN_PAGE_ROWS as usize;
            views.extend(page.into_iter().map(|stored| {
                self.session_view(&stored, live.remove(&stored.record.key.digest()))
            }));
            if is_last || views.len() >= ADMIN_LIST_MAX {
                break;
            }
        }
        views.extend(live.into_values());
        views.sort_by(|a, b| (&a.created_at, &a.id).cmp(&(&b.created_at, &b.id)));
        views.truncate(ADMIN_LIST_MAX);
        Ok(views)
    }

    pub async fn session(&self, digest: &str) -> Result<SessionView, ControlError> {
        let stored =
            self.ask("sessions_by_digest", self.store().sessions_by_digest(digest)).await?;
        let live = self.broker.session(digest);
        match (stored.first(), live) {
            (Some(stored), live) => Ok(self.session_view(stored, live)),
            (None, Some(live)) => Ok(live),
            (None, None) => {
                Err(ControlError::NotFound { what: "session", name: digest.to_owned() })
            }
        }
    }

    /// Ends a session wherever it is: its owner is told at once, or with its next renewal of the lease.
    pub async fn end_session(&self, digest: &str, author: &Author) -> Result<(), ControlError> {
        let mut found = false;
        // First what is told of: it is ended here only once the record of it is on disk, where there is one to be written.
        for stored in
            self.ask("sessions_by_digest", self.store().sessions_by_digest(digest)).await?
        {
            let key = stored.record.key;
            found |= self.commit(AdminChange::EndSession(&key), author).await?;
            self.durable().hot.wake(Wakeup::SessionEnd(key));
            tracing::info!(session = digest, "an operator asked for the session's end");
        }
        found |= self.broker.end_session(digest);
        if found {
            Ok(())
        } else {
            Err(ControlError::NotFound { what: "session", name: digest.to_owned() })
        }
    }

    fn session_view(&self, stored: &StoredSession, live: Option<SessionView>) -> SessionView {
        let record = &stored.record;
        // A lapsed lease owns nothing: whoever is asked for the session next takes it.
        let owner = stored
            .owner
            .as_ref()
            .filter(|owner| !owner.lease_left.is_zero())
            .map(|owner| owner.node.to_string());
        if let Some(live) = live {
            return SessionView { node: owner, ..live };
        }
        let (client_name, client_version) = client_info(record).unwrap_or_default();
        SessionView {
            id: record.key.digest(),
            tenant: record.seat.tenant.to_string(),
            principal: record.seat.principal.to_string(),
            transport: record.transport.clone(),
            endpoint: record
                .seat
                .endpoint
                .as_ref()
                .map_or_else(|| "aggregated".to_owned(), ToString::to_string),
            protocol_version: record.version.clone(),
            client_name,
            client_version,
            state: if owner.is_some() { "ready" } else { "parked" }.to_owned(),
            calls_in_flight: None,
            streams: None,
            subscriptions: usize::try_from(stored.subscriptions).unwrap_or(usize::MAX),
            idle_seconds: u64::try_from(now_us().saturating_sub(stored.seen_at_us) / 1_000_000)
                .unwrap_or(0),
            created_at: moment(stored.created_at_us),
            node: owner,
        }
    }

    /// Resources somebody listens to, on whichever replica.
    pub async fn subscriptions(
        &self,
        tenant: Option<&TenantId>,
    ) -> Result<Vec<SubscriptionView>, ControlError> {
        let counts =
            self.ask("subscription_counts", self.store().subscription_counts(tenant)).await?;
        let stored = counts.into_iter().map(|count| SubscriptionView {
            tenant: count.tenant.to_string(),
            backend: count.backend.to_string(),
            uri: count.uri,
            sessions: usize::try_from(count.sessions).unwrap_or(usize::MAX),
        });
        let mut views: BTreeMap<(String, String, String), SubscriptionView> = BTreeMap::new();
        for view in stored.chain(self.broker.subscriptions(tenant)) {
            let name = (view.tenant.clone(), view.backend.clone(), view.uri.clone());
            let known = views.entry(name).or_insert_with(|| view.clone());
            // What is here is among what is stored, but for what is being stored right now.
            known.sessions = known.sessions.max(view.sessions);
        }
        Ok(views.into_values().collect())
    }

    /// Tasks of all replicas, oldest first.
    pub async fn tasks(
        &self,
        tenant: Option<&TenantId>,
        status: Option<TaskStatus>,
    ) -> Result<Vec<TaskView>, ControlError> {
        let (mut views, mut after) = (Vec::new(), None);
        loop {
            let page = self
                .ask(
                    "tasks",
                    self.store().list_tasks(tenant, status, after.as_ref(), ADMIN_PAGE_ROWS),
                )
                .await?;
            after = page.last().map(|last| TaskListPosition {
                created_at_us: last.created_at_us,
                task: last.record.task.clone(),
            });
            views.extend(page.iter().map(task_view));
            if page.len() < ADMIN_PAGE_ROWS as usize || views.len() >= ADMIN_LIST_MAX {
                break;
            }
        }
        Ok(views)
    }

    /// One task with its history.
    pub async fn task(&self, id: &str) -> Result<TaskShown, ControlError> {
        let task = TaskId::new(id);
        let stored = self.ask("task", self.store().task(&task)).await?;
        let stored =
            stored.ok_or_else(|| ControlError::NotFound { what: "task", name: id.to_owned() })?;
        let history = self.ask("transitions", self.store().task_transitions(&task)).await?;
        let change = |step: &storage::TaskTransition| TaskChange {
            to: step.to.name().to_owned(),
            at: moment(step.at_us),
            epoch: step.epoch,
        };
        Ok(TaskShown { task: task_view(&stored), history: history.iter().map(change).collect() })
    }
}

fn task_view(stored: &StoredTask) -> TaskView {
    let record = &stored.record;
    let expires = record
        .ttl
        .and_then(|ttl| i64::try_from(ttl.as_micros()).ok())
        .map(|ttl| stored.created_at_us.saturating_add(ttl));
    TaskView {
        id: record.task.to_string(),
        tenant: record.tenant.to_string(),
        principal: record.principal.to_string(),
        backend: record.backend.to_string(),
        status: stored.status.name().to_owned(),
        created_at: moment(stored.created_at_us),
        message: stored.message.clone(),
        session: Some(record.session.digest()),
        updated_at: Some(moment(stored.updated_at_us)),
        expires_at: expires.map(moment),
    }
}
