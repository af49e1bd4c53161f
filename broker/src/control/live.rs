//! Nodes, sessions, subscriptions and tasks of all replicas: views for operators, and commands to
//! end them.
//!
//! Every view reads the database first, so that every replica shows the same. A local session
//! appears with its current state, even if it is not stored yet. Without the database, a view
//! returns an error and no partial data.

use std::collections::BTreeMap;

use protocol::ids::{TaskId, TenantId};
use records::{
    AdminChange, NodeRecord, SESSION_KEY_BYTES, SessionKey, SessionListPosition, StoredSession,
    StoredTask, TaskListPosition, TaskStatus,
};
use rules::limits::{ADMIN_PAGE_ROWS, TASKS_COMPARED_MAX};
use storage::Wakeup;

use super::{
    Author, Control, ControlError, ListPart, ListRange,
    list_part::{PartReader, creation_key},
    resource_views::moment,
    validation::now_us,
};
use crate::{
    sessions::{session::record::client_info, tasks},
    views::{NodeView, SessionView, SubscriptionView, TaskChange, TaskShown, TaskView},
};

impl Control {
    /// Returns the replicas with a valid lease.
    pub async fn nodes(&self) -> Result<Vec<NodeView>, ControlError> {
        let nodes = self.query_store("list_nodes", self.store().live_nodes()).await?;
        let own = self.persistence().node();
        let view = |node: NodeRecord| NodeView {
            is_this: node.node == own,
            draining: node.draining || (node.node == own && self.broker.draining()),
            lease_ms: self
                .persistence()
                .is_shared()
                .then(|| u64::try_from(node.remaining_lease.as_millis()).unwrap_or(u64::MAX)),
            node: node.node.to_string(),
            address: node.address,
        };
        Ok(nodes.into_iter().map(view).collect())
    }

    /// Returns the replica of this name, or else the only one with this `node.id`.
    pub async fn find_node(&self, name: &str) -> Result<NodeView, ControlError> {
        let nodes = self.nodes().await?;
        if let Some(exact) = nodes.iter().find(|node| node.node == name) {
            return Ok(exact.clone());
        }
        let has_id = |node: &NodeView| node.node.rsplit_once('/').is_some_and(|(id, _)| id == name);
        let mut found: Vec<NodeView> = nodes.into_iter().filter(has_id).collect();
        match (found.pop(), found.is_empty()) {
            (Some(only), true) => Ok(only),
            (Some(last), false) => {
                let nodes = found.into_iter().chain([last]).map(|node| node.node).collect();
                Err(ControlError::ManyNodes { id: name.to_owned(), nodes })
            }
            (None, _) => Err(ControlError::NotFound { what: "replica", name: name.to_owned() }),
        }
    }

    /// Returns a part of the sessions of all replicas.
    pub async fn sessions(
        &self,
        tenant: Option<&TenantId>,
        range: ListRange<'_>,
    ) -> Result<ListPart<SessionView>, ControlError> {
        let mut live: BTreeMap<String, SessionView> =
            self.broker.sessions(tenant).into_iter().map(|view| (view.id.clone(), view)).collect();
        let mut reader =
            PartReader::new(range, |view: &SessionView| creation_key(&view.created_at, &view.id));
        let mut after = range.after_us().map(|created_at_us| SessionListPosition {
            created_at_us,
            key: SessionKey::new([u8::MAX; SESSION_KEY_BYTES]),
        });
        'read: loop {
            let page = self.store().list_sessions(tenant, after.as_ref(), ADMIN_PAGE_ROWS);
            let page = self.query_store("list_sessions", page).await?;
            // A page omits rows that cannot be read, so a short page is not the last one.
            let Some(last) = page.last() else { break };
            after = Some(last.position());
            for stored in page {
                let live = live.remove(&stored.record.key.digest());
                if !reader.add(stored.created_at_us, self.visible_session(&stored, live)) {
                    break 'read;
                }
            }
        }
        Ok(reader.finish(live.into_values()))
    }

    pub async fn session(&self, digest: &str) -> Result<SessionView, ControlError> {
        let stored = self
            .query_store("find_sessions_by_digest", self.store().sessions_by_digest(digest))
            .await?;
        let live = self.broker.session(digest);
        let shown = match stored.first() {
            Some(stored) => self.visible_session(stored, live),
            None => live,
        };
        shown.ok_or_else(|| ControlError::NotFound { what: "session", name: digest.to_owned() })
    }

    /// Returns the view of a session. `None`: the session is stored only, and its key or principal was
    /// revoked.
    fn visible_session(
        &self,
        stored: &StoredSession,
        live: Option<SessionView>,
    ) -> Option<SessionView> {
        let is_live = live.is_some() || has_live_owner(stored);
        (is_live || !self.is_revoked(stored)).then(|| self.session_view(stored, live))
    }

    /// Ends a session on any replica. The owner learns of it at once, or with the next renewal of
    /// its lease.
    pub async fn end_session(&self, digest: &str, author: &Author) -> Result<(), ControlError> {
        let mut found = false;
        // The stored sessions come first: a session ends here only after its audit record is on
        // disk, if one is written.
        for stored in self
            .query_store("find_sessions_by_digest", self.store().sessions_by_digest(digest))
            .await?
        {
            let key = stored.record.key;
            found |= self.commit(None, AdminChange::EndSession(&key), author).await?;
            self.persistence().hot.publish(Wakeup::SessionEnd(key));
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
        let owner = stored.owner.as_ref().filter(|_| has_live_owner(stored));
        let owner = owner.map(|owner| owner.node.to_string());
        if let Some(live) = live {
            return SessionView { node: owner, ..live };
        }
        let (client_name, client_version) = client_info(record).unwrap_or_default();
        SessionView {
            id: record.key.digest(),
            tenant: record.identity.tenant.to_string(),
            principal: record.identity.principal.to_string(),
            transport: record.transport.clone(),
            endpoint: record
                .identity
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

    /// Returns the resources with subscribers on any replica.
    pub async fn subscriptions(
        &self,
        tenant: Option<&TenantId>,
    ) -> Result<Vec<SubscriptionView>, ControlError> {
        let counts = self
            .query_store("count_subscriptions", self.store().subscription_counts(tenant))
            .await?;
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
            // The stored count includes local sessions, except those whose storage is in progress.
            known.sessions = known.sessions.max(view.sessions);
        }
        Ok(views.into_values().collect())
    }

    /// Returns a part of the tasks of all replicas.
    pub async fn tasks(
        &self,
        tenant: Option<&TenantId>,
        status: Option<TaskStatus>,
        range: ListRange<'_>,
    ) -> Result<ListPart<TaskView>, ControlError> {
        let mut reader =
            PartReader::new(range, |view: &TaskView| creation_key(&view.created_at, &view.id));
        let after = range
            .after_us()
            .map(|created_at_us| TaskListPosition { created_at_us, task: TaskId::new("") });
        self.visit_tasks(tenant, status, after, |page| {
            page.iter().all(|stored| reader.add(stored.created_at_us, Some(task_view(stored))))
        })
        .await?;
        Ok(reader.finish([]))
    }

    /// Passes pages of stored tasks after a position to `visit`, oldest first, until it returns
    /// false.
    async fn visit_tasks(
        &self,
        tenant: Option<&TenantId>,
        status: Option<TaskStatus>,
        mut after: Option<TaskListPosition>,
        mut visit: impl FnMut(&[StoredTask]) -> bool,
    ) -> Result<(), ControlError> {
        loop {
            let page = self.store().list_tasks(tenant, status, after.as_ref(), ADMIN_PAGE_ROWS);
            let page = self.query_store("list_tasks", page).await?;
            let Some(last) = page.last() else { return Ok(()) };
            after = Some(TaskListPosition {
                created_at_us: last.created_at_us,
                task: last.record.task.clone(),
            });
            if !visit(&page) {
                return Ok(());
            }
        }
    }

    /// Returns the task with this id, or the task of these tenants with this digest of its id.
    /// Clients know the id, and operators the digest. The tenant `None` stands for all tenants.
    pub async fn find_task(
        &self,
        name: &str,
        tenants: &[Option<TenantId>],
    ) -> Result<StoredTask, ControlError> {
        let task = TaskId::new(name);
        if let Some(stored) = self.query_store("get_task", self.store().task(&task)).await? {
            return Ok(stored);
        }
        let found = match tasks::is_digest(name) {
            true => self.find_task_by_digest(name, tenants, TASKS_COMPARED_MAX).await?,
            false => None,
        };
        found.ok_or_else(|| ControlError::NotFound { what: "task", name: name.to_owned() })
    }

    /// Compares tasks of these tenants with a digest, oldest first. Returns an error after more than
    /// `compared_max` tasks: no index of the store has digests, so each comparison reads a row.
    async fn find_task_by_digest(
        &self,
        digest: &str,
        tenants: &[Option<TenantId>],
        compared_max: usize,
    ) -> Result<Option<StoredTask>, ControlError> {
        let (mut found, mut compared) = (None, 0);
        for tenant in tenants {
            self.visit_tasks(tenant.as_ref(), None, None, |page| {
                compared += page.len();
                let mut page = page.iter();
                found = page.find(|stored| tasks::digest(&stored.record.task) == digest).cloned();
                found.is_none() && compared <= compared_max
            })
            .await?;
            if found.is_some() {
                break;
            }
            if compared > compared_max {
                return Err(ControlError::TooManyTasks { digest: digest.to_owned(), compared });
            }
        }
        Ok(found)
    }

    /// Returns one task with its history, as [`Control::find_task`] finds it.
    pub async fn task(
        &self,
        name: &str,
        tenants: &[Option<TenantId>],
    ) -> Result<TaskShown, ControlError> {
        let stored = self.find_task(name, tenants).await?;
        let history = self.store().task_transitions(&stored.record.task);
        let history = self.query_store("list_task_transitions", history).await?;
        let change = |step: &records::TaskTransition| TaskChange {
            to: step.to.name().to_owned(),
            at: moment(step.at_us),
            epoch: step.epoch,
        };
        Ok(TaskShown { task: task_view(&stored), history: history.iter().map(change).collect() })
    }
}

/// Returns whether a replica owns the session. A lapsed lease owns nothing: the replica that gets the
/// next request of the session takes it over.
fn has_live_owner(stored: &StoredSession) -> bool {
    stored.owner.as_ref().is_some_and(|owner| !owner.remaining_lease.is_zero())
}

fn task_view(stored: &StoredTask) -> TaskView {
    let record = &stored.record;
    let expires = record
        .ttl
        .and_then(|ttl| i64::try_from(ttl.as_micros()).ok())
        .map(|ttl| stored.created_at_us.saturating_add(ttl));
    TaskView {
        id: tasks::digest(&record.task),
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use records::{NodeName, TaskRecord};

    use super::*;
    use crate::{
        control::tests::Rig,
        persistence::tests::{task_creation, task_record},
    };

    fn named(tenant: &str) -> Option<TenantId> {
        Some(TenantId::parse(tenant).unwrap())
    }

    /// Stores tasks of another replica, given their tenants and ids.
    async fn store_tasks(control: &Control, tasks: &[(&str, &str)]) {
        let store = control.store();
        let owner = NodeName::new("other/1");
        store.join(&owner, Some("127.0.0.1:1"), Duration::from_secs(600)).await.unwrap();
        for (tenant, task) in tasks {
            let tenant = TenantId::parse(tenant).unwrap();
            let record = TaskRecord { tenant, ..task_record(task) };
            store.write(&[task_creation(record, owner.clone())]).await.unwrap();
        }
    }

    #[tokio::test]
    async fn parts_of_a_list_that_is_cut_have_all_tasks() {
        let folder = tempfile::tempdir().unwrap();
        let control = Rig::start(folder.path(), "").await.control;
        let names = ["a1", "a2", "a3", "a4", "a5"];
        store_tasks(&control, &names.map(|name| ("acme", name))).await;
        for entries_max in [1, 2, 5, 6] {
            let (mut seen, mut after) = (Vec::new(), None::<String>);
            loop {
                let range = ListRange { after: after.as_deref(), entries_max };
                let part = control.tasks(None, None, range).await.unwrap();
                seen.extend(part.entries.into_iter().map(|view| view.id));
                after = part.complete_to;
                if after.is_none() {
                    break;
                }
            }
            let mut expected = names.map(|name| tasks::digest(&TaskId::new(name)));
            seen.sort();
            expected.sort();
            assert_eq!(seen, expected, "{entries_max}");
        }
    }

    #[tokio::test]
    async fn a_list_has_the_rows_of_all_queries() {
        let folder = tempfile::tempdir().unwrap();
        let control = Rig::start(folder.path(), "").await.control;
        let owner = NodeName::new("other/1");
        control.store().join(&owner, None, Duration::from_secs(600)).await.unwrap();
        let names: Vec<String> = (0..=ADMIN_PAGE_ROWS).map(|number| format!("t{number}")).collect();
        let creations = names.iter().map(|name| task_creation(task_record(name), owner.clone()));
        control.store().write(&creations.collect::<Vec<_>>()).await.unwrap();
        let range = ListRange { after: None, entries_max: names.len() };
        let part = control.tasks(None, None, range).await.unwrap();
        let mut ids: Vec<String> = part.entries.into_iter().map(|view| view.id).collect();
        let mut expected: Vec<String> =
            names.into_iter().map(|name| tasks::digest(&TaskId::new(name))).collect();
        ids.sort();
        expected.sort();
        assert_eq!(ids, expected);
    }

    #[tokio::test]
    async fn a_digest_is_compared_with_tasks_of_the_given_tenants_only() {
        let folder = tempfile::tempdir().unwrap();
        let control = Rig::start(folder.path(), "").await.control;
        store_tasks(&control, &[("acme", "a1"), ("zoo", "z1"), ("acme", "a2")]).await;
        let digest = tasks::digest(&TaskId::new("a2"));
        for tenants in [vec![None], vec![named("zoo"), named("acme")]] {
            let found = control.find_task(&digest, &tenants).await.unwrap();
            assert_eq!(found.record.task, TaskId::new("a2"));
        }
        let other = control.find_task(&digest, &[named("zoo")]).await;
        assert!(matches!(other, Err(ControlError::NotFound { .. })), "{other:?}");
    }

    #[tokio::test]
    async fn a_search_for_a_digest_ends_at_its_limit() {
        let folder = tempfile::tempdir().unwrap();
        let control = Rig::start(folder.path(), "").await.control;
        store_tasks(&control, &[("acme", "a1"), ("zoo", "z1"), ("acme", "a2")]).await;
        let absent = "0123456789abcdef";
        let acme_and_zoo = [named("acme"), named("zoo")];
        let whole = control.find_task_by_digest(absent, &acme_and_zoo, 3).await;
        assert!(matches!(whole, Ok(None)), "{whole:?}");
        for (tenants, compared) in [(&acme_and_zoo[..], 2), (&[None], 3)] {
            let ended = control.find_task_by_digest(absent, tenants, compared - 1).await;
            let error = ended.unwrap_err();
            assert!(
                matches!(error, ControlError::TooManyTasks { compared: read, .. } if read == compared),
                "{error}"
            );
        }
        // The id finds a task whatever their number is.
        let found = control.find_task("a2", &[named("zoo")]).await.unwrap();
        assert_eq!(found.record.tenant.as_str(), "acme");
    }
}
