//! Tasks of backends (MCP 2025-11-25, Tasks), as clients know them: a random id of ours, bound to tenant and principal.
//!
//! The backend's id and the link the task lives on stay inside. A foreign id is answered exactly like an unknown one.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use protocol::{
    envelope::Message,
    error::{ErrorKind, Refusal},
    ids::{PrincipalId, TaskId, TenantId},
    json::{self, Document},
    method::Method,
    splice::Splice,
};

use super::{
    call::Call,
    link::{Link, connection::Connection},
    session::Session,
};
use crate::{limits::TASKS_PER_TENANT_MAX, views::TaskView};

/// A task and where it lives.
#[derive(Debug, Clone)]
pub struct Task {
    pub id: TaskId,
    pub backend_task_id: String,
    pub link: Arc<Link>,
    pub tenant: TenantId,
    pub principal: PrincipalId,
    /// The session that made it.
    pub session: Weak<Session>,
    pub status: String,
    created_at: jiff::Timestamp,
    /// Its progress still comes under the token of the call that made it: connection, wire id, the client's token.
    progress: Option<(Weak<Connection>, u64, Bytes)>,
}

impl Task {
    fn is_over(&self) -> bool {
        matches!(self.status.as_str(), "completed" | "failed" | "cancelled")
    }

    fn view(&self) -> TaskView {
        TaskView {
            id: self.id.to_string(),
            tenant: self.tenant.to_string(),
            principal: self.principal.to_string(),
            backend: self.link.backend.id.to_string(),
            status: self.status.clone(),
            created_at: self.created_at.to_string(),
        }
    }
}

#[derive(Debug, Default)]
pub struct TaskTable {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    by_id: HashMap<TaskId, Task>,
    /// By link and the backend's id: two links may use the same id.
    by_backend_id: HashMap<(usize, String), TaskId>,
}

impl TaskTable {
    /// Puts our ids in place of the backend's in an answer; a task that is new is registered first.
    pub fn expose(&self, call: &Arc<Call>, answer: &Message, splice: &mut Splice<'_>) {
        let fields = &answer.fields;
        let Some((link, connection, wire_id)) = call.sent() else { return };
        if let Some((span, id)) = fields.task_task_id.zip(answer.text(fields.task_task_id)) {
            let progress = call.progress_token.clone().map(|token| (Arc::downgrade(&connection), wire_id, token));
            let ours = self.register(call, &link, &id, progress);
            splice.replace(span, json::quote(ours.as_str()).into_bytes());
        }
        let about_a_task = matches!(call.method, Method::TasksGet | Method::TasksCancel);
        if let Some((span, id)) = fields.task_id.zip(answer.text(fields.task_id)).filter(|_| about_a_task)
            && let Some(ours) = self.ours(&link, &id)
        {
            self.note_status(&ours, answer.text(fields.status).as_deref());
            splice.replace(span, json::quote(ours.as_str()).into_bytes());
        }
        self.expose_related(&link, answer, splice);
    }

    /// Rewrites `io.modelcontextprotocol/related-task` in `_meta`.
    pub fn expose_related(&self, link: &Arc<Link>, message: &Message, splice: &mut Splice<'_>) {
        let span = message.fields.meta_related_task_id;
        if let Some((span, id)) = span.zip(message.text(span))
            && let Some(ours) = self.ours(link, &id)
        {
            splice.replace(span, json::quote(ours.as_str()).into_bytes());
        }
    }

    /// The caller's own task; a foreign one is as good as none.
    pub fn find(&self, session: &Session, id: &str) -> Result<Task, Refusal> {
        let inner = self.lock();
        let own = |task: &&Task| task.tenant == session.tenant.id && task.principal == session.caller.principal;
        inner.by_id.get(&TaskId::new(id)).filter(own).cloned().ok_or_else(|| Refusal::new(ErrorKind::TaskNotFound, "no such task"))
    }

    /// The tasks a session may list: those of its principal, or only its own when nobody said who it is.
    pub fn of_session(&self, session: &Arc<Session>) -> Vec<Task> {
        let anonymous = session.caller.key.is_none();
        let mut tasks: Vec<Task> = self
            .lock()
            .by_id
            .values()
            .filter(|task| task.tenant == session.tenant.id && task.principal == session.caller.principal)
            .filter(|task| !anonymous || task.session.as_ptr() == Arc::as_ptr(session))
            .cloned()
            .collect();
        tasks.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
        tasks
    }

    /// A task's new status, in the terms of the client that made it.
    pub fn status_changed(&self, link: &Arc<Link>, message: &Message) -> Option<(Arc<Session>, Bytes)> {
        let span = message.fields.task_id?;
        let ours = self.ours(link, &message.text(message.fields.task_id)?)?;
        self.note_status(&ours, message.text(message.fields.status).as_deref());
        let session = self.lock().by_id.get(&ours)?.session.upgrade()?;
        Some((session, Splice::new(&message.frame).replace(span, json::quote(ours.as_str()).into_bytes()).finish()))
    }

    /// Whose progress this is, when the call that made the task is over: the session and the client's token.
    pub fn progress_owner(&self, connection: &Arc<Connection>, wire_id: u64) -> Option<(Arc<Session>, Bytes)> {
        let inner = self.lock();
        inner.by_id.values().filter(|task| !task.is_over()).find_map(|task| {
            let (on, id, token) = task.progress.as_ref()?;
            let matches = *id == wire_id && on.as_ptr() == Arc::as_ptr(connection);
            matches.then(|| Some((task.session.upgrade()?, token.clone())))?
        })
    }

    /// The task objects of these tasks as their backends tell them now, ready for a list.
    pub async fn current(&self, tasks: &[Task]) -> Vec<Bytes> {
        let asked = tasks.iter().map(|task| async move {
            let connection = task.link.live()?;
            let params = format!("{{\"taskId\":{}}}", json::quote(&task.backend_task_id));
            let answer = connection.ask(&task.link, Method::TasksGet, Some(params.as_bytes())).await.ok()?;
            self.note_status(&task.id, answer.text(answer.fields.status).as_deref());
            let result = answer.result?.slice(&answer.frame);
            let document = Document::parse(&result, &json::Limits::default()).ok()?;
            let root = document.root();
            let mut splice = Splice::new(&result);
            splice.replace(root.get("taskId")?.span(), json::quote(task.id.as_str()).into_bytes());
            splice.remove_member(root.span(), "_meta");
            Some(splice.finish())
        });
        futures_util::future::join_all(asked).await.into_iter().flatten().collect()
    }

    pub fn views(&self, tenant: Option<&TenantId>, status: Option<&str>) -> Vec<TaskView> {
        let inner = self.lock();
        let wanted = |task: &&Task| tenant.is_none_or(|tenant| task.tenant == *tenant) && status.is_none_or(|status| task.status == status);
        let mut tasks: Vec<_> = inner.by_id.values().filter(wanted).collect();
        tasks.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
        tasks.into_iter().map(Task::view).collect()
    }

    pub fn view(&self, id: &str) -> Option<TaskView> {
        self.lock().by_id.get(&TaskId::new(id)).map(Task::view)
    }

    pub fn get(&self, id: &str) -> Option<Task> {
        self.lock().by_id.get(&TaskId::new(id)).cloned()
    }

    pub fn note_status(&self, id: &TaskId, status: Option<&str>) {
        let Some(status) = status else { return };
        if let Some(task) = self.lock().by_id.get_mut(id) {
            status.clone_into(&mut task.status);
        }
    }

    /// A link is closed for good: its tasks can not be reached any more.
    pub fn forget_link(&self, link: &Arc<Link>) {
        let mut inner = self.lock();
        let gone: Vec<TaskId> = inner.by_id.values().filter(|task| Arc::ptr_eq(&task.link, link)).map(|task| task.id.clone()).collect();
        gone.iter().for_each(|id| inner.remove(id));
    }

    fn register(
        &self,
        call: &Arc<Call>,
        link: &Arc<Link>,
        backend_task_id: &str,
        progress: Option<(Weak<Connection>, u64, Bytes)>,
    ) -> TaskId {
        let session = &call.session;
        let id = TaskId::new(URL_SAFE_NO_PAD.encode(rand::random::<[u8; 18]>()));
        let task = Task {
            id: id.clone(),
            backend_task_id: backend_task_id.to_owned(),
            link: link.clone(),
            tenant: session.tenant.id.clone(),
            principal: session.caller.principal.clone(),
            session: Arc::downgrade(session),
            status: "working".to_owned(),
            created_at: jiff::Timestamp::now(),
            progress,
        };
        let mut inner = self.lock();
        inner.make_room(&task.tenant);
        inner.by_backend_id.insert(place(link, backend_task_id), id.clone());
        inner.by_id.insert(id.clone(), task);
        id
    }

    fn ours(&self, link: &Arc<Link>, backend_task_id: &str) -> Option<TaskId> {
        self.lock().by_backend_id.get(&place(link, backend_task_id)).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Forgets the tenant's oldest finished task (or its oldest) when it has as many as it may.
    fn make_room(&mut self, tenant: &TenantId) {
        let of_tenant = || self.by_id.values().filter(|task| task.tenant == *tenant);
        if of_tenant().count() < TASKS_PER_TENANT_MAX {
            return;
        }
        let oldest = of_tenant().min_by_key(|task| (!task.is_over(), task.created_at)).map(|task| task.id.clone());
        if let Some(oldest) = oldest {
            self.remove(&oldest);
        }
    }

    fn remove(&mut self, id: &TaskId) {
        if let Some(task) = self.by_id.remove(id) {
            self.by_backend_id.remove(&place(&task.link, &task.backend_task_id));
        }
    }
}

fn place(link: &Arc<Link>, backend_task_id: &str) -> (usize, String) {
    (Arc::as_ptr(link) as usize, backend_task_id.to_owned())
}
