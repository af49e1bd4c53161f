//! The tasks that one stream of notifications is about (MCP 2026-07-28, Task Status Notifications): each is told of as
//! `tasks/get` shows it, whenever that has changed, whichever replica carries it out.

use std::collections::HashMap;

use bytes::Bytes;
use protocol::{
    error::{ErrorKind, Refusal},
    ids::{RequestId, TaskId},
};

use super::StatelessClient;
use crate::{
    limits::{LISTEN_TASKS_MAX, OUTBOX_BATCH_BYTES, STORE_RETRY_MAX},
    persistence::{InputCounts, StoredTaskSnapshot, TaskStatus},
    rules::{endpoint_info::EndpointInfo, stateless_tasks},
    sessions::tasks::TaskWatch,
};

/// How a task was told last. Two that are equal are told once.
type NotifiedState = (TaskStatus, InputCounts);

#[derive(Debug)]
pub(super) struct TaskSubscription {
    visitor: StatelessClient,
    watch: TaskWatch,
    /// Those that are not over, as their client knows them.
    told: HashMap<TaskId, NotifiedState>,
    may_have_changed: bool,
}

impl StatelessClient {
    /// What of these tasks is this client's, from now on. `None`: none of it.
    pub(super) async fn watch_tasks(
        &self,
        wish: Vec<String>,
        declared: bool,
        offer: &EndpointInfo,
    ) -> Result<Option<TaskSubscription>, Refusal> {
        if wish.is_empty() || !offer.capabilities.tasks_tools_call {
            return Ok(None);
        }
        if !declared {
            return Err(stateless_tasks::not_declared(
                "tasks are told of to requests that declare their extension",
            ));
        }
        if wish.len() > LISTEN_TASKS_MAX {
            let text = "params.notifications: it names too many tasks";
            return Err(
                Refusal::new(ErrorKind::InvalidParams, text).with("maxTasks", LISTEN_TASKS_MAX)
            );
        }
        let mut wish: Vec<TaskId> = wish.iter().map(|task| TaskId::new(task.as_str())).collect();
        wish.sort_unstable();
        wish.dedup();
        let mut watch = TaskWatch::new(&self.tasks, &wish); // before looking, so that no change is missed
        let looks = self
            .shared
            .durable
            .timed("look_at", self.shared.durable.store.task_snapshots(&wish))
            .await?;
        let audience = self.audience();
        let own = looks
            .into_iter()
            .map(|look| look.stored.record)
            .filter(|record| audience.may_see(record));
        let told: HashMap<TaskId, NotifiedState> = own
            .map(|record| (record.task, (TaskStatus::Working, InputCounts::default())))
            .collect();
        watch.retain(|task| told.contains_key(task));
        Ok((!told.is_empty()).then(|| TaskSubscription {
            visitor: self.clone(),
            watch,
            told,
            may_have_changed: true,
        }))
    }
}

impl TaskSubscription {
    pub(super) fn tasks(&self) -> Vec<String> {
        let mut tasks: Vec<String> =
            self.told.keys().map(|task| task.as_str().to_owned()).collect();
        tasks.sort_unstable();
        tasks
    }

    /// What there is to tell next, under the id of the request. Cancel-safe: what is not told is found again.
    pub(super) async fn news(&mut self, subscription: &RequestId) -> Vec<Bytes> {
        loop {
            if !self.may_have_changed {
                self.watch.changed().await;
                self.may_have_changed = true;
            }
            match self.look(subscription).await {
                Ok(news) => {
                    // A look stops where it has much to tell: what is left is found at the next.
                    self.may_have_changed = !news.is_empty();
                    if !news.is_empty() {
                        return self.tell(news);
                    }
                }
                // What the store does not tell now it tells later.
                Err(_) => tokio::time::sleep(STORE_RETRY_MAX).await,
            }
        }
    }

    async fn look(
        &self,
        subscription: &RequestId,
    ) -> Result<Vec<(TaskId, NotifiedState, Bytes)>, Refusal> {
        let durable = &self.visitor.shared.durable;
        let tasks: Vec<TaskId> = self.told.keys().cloned().collect();
        if tasks.is_empty() {
            return Ok(Vec::new());
        }
        let (mut news, mut bytes) = (Vec::new(), 0);
        for StoredTaskSnapshot { stored, inputs } in
            durable.timed("look_at", durable.store.task_snapshots(&tasks)).await?
        {
            let (task, now) = (stored.record.task.clone(), (stored.status, inputs));
            if bytes >= OUTBOX_BATCH_BYTES {
                break;
            }
            if self.told.get(&task).is_some_and(|told| *told != now) {
                let seen = self.visitor.seen(stored).await?;
                let frame = seen
                    .standing()
                    .notification(subscription, self.visitor.shared.task_settings().poll_interval);
                bytes += frame.len();
                news.push((task, now, frame));
            }
        }
        Ok(news)
    }

    fn tell(&mut self, news: Vec<(TaskId, NotifiedState, Bytes)>) -> Vec<Bytes> {
        let mut frames = Vec::with_capacity(news.len());
        for (task, now, frame) in news {
            if now.0.is_finished() {
                self.told.remove(&task); // it stays as it is
            } else {
                self.told.insert(task, now);
            }
            frames.push(frame);
        }
        let told = &self.told;
        self.watch.retain(|task| told.contains_key(task));
        frames
    }
}
