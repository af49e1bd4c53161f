//! The tasks of one stream of notifications (MCP 2026-07-28, Task Status Notifications). The stream
//! sends the state of a task, as `tasks/get` shows it, whenever it has changed. The task may run on
//! any replica.

use std::collections::HashMap;

use bytes::Bytes;
use protocol::{
    error::{ErrorKind, Refusal},
    ids::{RequestId, TaskId},
};
use records::{InputCounts, StoredTaskSnapshot, TaskRecord, TaskStatus};
use rules::{
    endpoint_info::EndpointInfo,
    limits::{LISTEN_TASKS_MAX, OUTBOX_BATCH_BYTES, STORE_RETRY_MAX},
    stateless_tasks,
};
use tokio_util::task::AbortOnDropHandle;

use super::StatelessClient;
use crate::sessions::tasks::{self, TaskWatch};

/// The state of a task at its last notification. Equal states are sent once.
type NotifiedState = (TaskStatus, InputCounts);

/// A task whose state has changed, with its notification.
type TaskUpdate = (TaskId, NotifiedState, Bytes);

#[derive(Debug)]
pub(super) struct TaskSubscription {
    client: StatelessClient,
    watch: TaskWatch,
    /// Unfinished tasks, with the state of the last notification.
    notified: HashMap<TaskId, NotifiedState>,
    may_have_changed: bool,
    /// The look that is under way. It continues when a call of [`TaskSubscription::updates`] was
    /// dropped, so that a caller with other events does not start it again at each of them.
    look: Option<AbortOnDropHandle<Vec<TaskUpdate>>>,
}

impl StatelessClient {
    /// Subscribes to those of the tasks that this client may see. `None` if it may see none of
    /// them.
    pub(super) async fn watch_tasks(
        &self,
        requested: Vec<String>,
        declared: bool,
        offer: &EndpointInfo,
    ) -> Result<Option<TaskSubscription>, Refusal> {
        if requested.is_empty() || !offer.capabilities.tasks_tools_call {
            return Ok(None);
        }
        if !declared {
            return Err(stateless_tasks::extension_required(
                "notifications about tasks require that the request declares the tasks extension",
            ));
        }
        if requested.len() > LISTEN_TASKS_MAX {
            let text = "params.notifications names too many tasks";
            return Err(
                Refusal::new(ErrorKind::InvalidParams, text).with("maxTasks", LISTEN_TASKS_MAX)
            );
        }
        let mut requested: Vec<TaskId> =
            requested.iter().map(|task| TaskId::new(task.as_str())).collect();
        requested.sort_unstable();
        requested.dedup();
        let mut watch = TaskWatch::new(&self.tasks, &requested); // before looking, so that no change is missed
        let snapshots = self
            .shared
            .persistence
            .timed("get_task_snapshots", self.shared.persistence.store.task_snapshots(&requested))
            .await?;
        let audience = self.audience();
        let own = snapshots
            .into_iter()
            .map(|snapshot| snapshot.stored.record)
            .filter(|record| audience.may_see(record) && self.may_watch(record));
        let notified: HashMap<TaskId, NotifiedState> = own
            .map(|record| (record.task, (TaskStatus::Working, InputCounts::default())))
            .collect();
        watch.retain(|task| notified.contains_key(task));
        Ok((!notified.is_empty()).then(|| TaskSubscription {
            client: self.clone(),
            watch,
            notified,
            may_have_changed: true,
            look: None,
        }))
    }
}

impl StatelessClient {
    /// Returns whether the policy in force lets the caller see a task.
    fn may_watch(&self, record: &TaskRecord) -> bool {
        tasks::is_listed(&self.tenant, &self.caller.subject, record, "tasks of subscriptions")
    }
}

impl TaskSubscription {
    pub(super) fn tasks(&self) -> Vec<String> {
        let mut tasks: Vec<String> =
            self.notified.keys().map(|task| task.as_str().to_owned()).collect();
        tasks.sort_unstable();
        tasks
    }

    /// Returns the next notifications, under the id of the request. Cancel-safe: changes that were
    /// not returned are found again.
    pub(super) async fn updates(&mut self, subscription: &RequestId) -> Vec<Bytes> {
        loop {
            let look = match &mut self.look {
                Some(look) => look,
                None => {
                    if !self.may_have_changed {
                        self.watch.changed().await;
                        self.may_have_changed = true;
                    }
                    let look = self.start_look(subscription);
                    self.look.insert(look)
                }
            };
            let updates = look.await.unwrap_or_default();
            self.look = None;
            // A look stops at its size limit, and the next one finds the rest.
            self.may_have_changed = !updates.is_empty();
            if !updates.is_empty() {
                return self.commit(updates);
            }
        }
    }

    /// Starts a look into the store. While the store fails, the look begins again.
    fn start_look(&self, subscription: &RequestId) -> AbortOnDropHandle<Vec<TaskUpdate>> {
        let (client, notified) = (self.client.clone(), self.notified.clone());
        let subscription = subscription.clone();
        AbortOnDropHandle::new(self.client.shared.running.spawn(async move {
            loop {
                match changed_tasks(&client, &notified, &subscription).await {
                    Ok(updates) => return updates,
                    Err(_) => tokio::time::sleep(STORE_RETRY_MAX).await,
                }
            }
        }))
    }

    fn commit(&mut self, updates: Vec<TaskUpdate>) -> Vec<Bytes> {
        let mut frames = Vec::with_capacity(updates.len());
        for (task, now, frame) in updates {
            if now.0.is_finished() {
                self.notified.remove(&task); // it stays as it is
            } else {
                self.notified.insert(task, now);
            }
            frames.push(frame);
        }
        let notified = &self.notified;
        self.watch.retain(|task| notified.contains_key(task));
        frames
    }
}

/// Returns the tasks whose state differs from that of their last notification.
async fn changed_tasks(
    client: &StatelessClient,
    notified: &HashMap<TaskId, NotifiedState>,
    subscription: &RequestId,
) -> Result<Vec<TaskUpdate>, Refusal> {
    let persistence = &client.shared.persistence;
    let tasks: Vec<TaskId> = notified.keys().cloned().collect();
    if tasks.is_empty() {
        return Ok(Vec::new());
    }
    let (mut updates, mut bytes) = (Vec::new(), 0);
    for StoredTaskSnapshot { stored, inputs } in
        persistence.timed("get_task_snapshots", persistence.store.task_snapshots(&tasks)).await?
    {
        let (task, now) = (stored.record.task.clone(), (stored.status, inputs));
        if bytes >= OUTBOX_BATCH_BYTES {
            break;
        }
        let has_changed = notified.get(&task).is_some_and(|notified| *notified != now);
        if has_changed && client.may_watch(&stored.record) {
            let seen = client.seen(stored).await?;
            let frame = seen
                .report(&crate::request_id())
                .notification(subscription, client.shared.task_settings().poll_interval);
            bytes += frame.len();
            updates.push((task, now, frame));
        }
    }
    Ok(updates)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use records::{WriteOp, WriteOutcome};
    use rules::{
        catalog::ToolTraits, endpoint::Endpoint, stateless_tasks::NO_SESSION, tasks::TaskDetails,
    };
    use storage::hot::MemoryHotStore;

    use super::*;
    use crate::{
        broker::Broker,
        persistence::{
            Stores,
            tests::{Meddled, task_creation, task_record},
        },
        sessions::stateless::tests::anonymous_client,
    };

    #[tokio::test]
    async fn a_dropped_wait_does_not_start_the_look_again() {
        let store = Meddled::start("sqlite").await;
        let hot = std::sync::Arc::new(MemoryHotStore::new());
        let broker = Broker::over(Stores { durable: store.clone(), events: None, hot });
        let client = anonymous_client(&broker);
        let (task, persistence) = (TaskId::new("t1"), &client.shared.persistence);
        let endpoint = Endpoint::Aggregated;
        let details =
            TaskDetails::new("2026-07-28", &endpoint, b"{}", ToolTraits::default(), "b__t".into());
        let record = TaskRecord {
            tenant: client.tenant.id.clone(),
            principal: client.caller.principal.clone(),
            session: NO_SESSION,
            details: details.encode(),
            ..task_record("t1")
        };
        let create = task_creation(record, persistence.node());
        assert!(matches!(persistence.write(create).await, Ok(WriteOutcome::Created { .. })));
        let end = WriteOp::EndTask {
            task: task.clone(),
            epoch: None,
            status: TaskStatus::Cancelled,
            message: None,
            outcome: None,
        };
        assert_eq!(persistence.write(end).await.unwrap(), WriteOutcome::Done);
        let watch = TaskWatch::new(&client.tasks, std::slice::from_ref(&task));
        let notified = [(task, (TaskStatus::Working, InputCounts::default()))].into();
        let mut subscription =
            TaskSubscription { client, watch, notified, may_have_changed: true, look: None };
        let (id, before) = (RequestId::from_u64(1), store.count("task_snapshots"));
        for _other_event in 0..3 {
            assert!(subscription.updates(&id).now_or_never().is_none());
        }
        assert_eq!(subscription.updates(&id).await.len(), 1);
        assert_eq!(store.count("task_snapshots") - before, 1, "one look sufficed");
    }
}
