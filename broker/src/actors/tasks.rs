//! Tasks of backends (MCP 2025-11-25, Tasks), as clients know them: a random id of ours, bound to tenant and principal.
//!
//! The backend's id and the link the task lives on stay inside. A foreign id is answered exactly like an unknown one. A task
//! is registered before the answer that made it goes anywhere, so whatever the backend says next already finds it.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, Weak},
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use protocol::{
    envelope::{Kind, Message},
    error::{ErrorKind, Refusal},
    ids::{PrincipalId, RequestId, TaskId, TenantId},
    json::{self, Document},
    method::Method,
    splice::Splice,
};

use super::{
    call::{Call, Carried},
    link::{Link, connection::Connection},
    session::Session,
    sync,
};
use crate::{
    limits::{TASKS_ASKED_AT_ONCE, TASKS_PER_TENANT_MAX},
    metrics::Metrics,
    views::TaskView,
};

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
    status: String,
    created_at: jiff::Timestamp,
    /// The task object as last told, with our id.
    object: Bytes,
    /// Its progress still comes under the token of the call that made it; this is the client's.
    progress_token: Option<Bytes>,
    places: Places,
}

/// Where the backend's messages find the task.
#[derive(Debug, Clone)]
struct Places {
    /// Two links may use the same id.
    by_id: (usize, String),
    by_wire_id: (usize, u64),
    /// Keeps the address in `by_wire_id` from being used again while the task is known.
    _connection: Weak<Connection>,
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
            message: None,
            session: None,
            updated_at: None,
            expires_at: None,
        }
    }
}

#[derive(Debug)]
pub struct TaskTable {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    metrics: Arc<Metrics>,
    by_id: HashMap<TaskId, Task>,
    by_backend_id: HashMap<(usize, String), TaskId>,
    by_wire_id: HashMap<(usize, u64), TaskId>,
    /// In the order they were made.
    by_tenant: HashMap<TenantId, BTreeSet<(jiff::Timestamp, TaskId)>>,
}

impl TaskTable {
    pub fn new(metrics: Arc<Metrics>) -> Self {
        let (by_id, by_backend_id, by_wire_id, by_tenant) = (HashMap::new(), HashMap::new(), HashMap::new(), HashMap::new());
        Self { inner: Mutex::new(Inner { metrics, by_id, by_backend_id, by_wire_id, by_tenant }) }
    }

    /// Registers the task an answer creates, when its call asked for one.
    pub fn note_created(&self, link: &Arc<Link>, connection: &Arc<Connection>, answer: &Message) {
        let Some(backend_task_id) = answer.text(answer.fields.task_task_id) else { return };
        let Some(wire_id) = answer.id.as_ref().and_then(RequestId::as_u64) else { return };
        let Some(call) = connection.call_by_wire_id(wire_id).filter(|call| call.augmented) else { return };
        let session = &call.session;
        let id = TaskId::new(URL_SAFE_NO_PAD.encode(rand::random::<[u8; 18]>()));
        let object = answer.fields.task.map(|span| span.of(&answer.frame)).unwrap_or_default();
        let task = Task {
            object: exposed_object(object, &id),
            status: text_member(object, "status").unwrap_or_else(|| "working".to_owned()),
            id,
            backend_task_id: backend_task_id.clone().into_owned(),
            link: link.clone(),
            tenant: session.tenant.id.clone(),
            principal: session.caller.principal.clone(),
            session: Arc::downgrade(session),
            created_at: jiff::Timestamp::now(),
            // A copy: a slice would keep the client's whole request alive with the task.
            progress_token: call.progress_token.as_deref().map(Bytes::copy_from_slice),
            places: Places {
                by_id: place(link, &backend_task_id),
                by_wire_id: (Arc::as_ptr(connection) as usize, wire_id),
                _connection: Arc::downgrade(connection),
            },
        };
        let mut inner = self.lock();
        if !link.is_closed() {
            inner.insert(task); // checked under the lock: whoever closes the link forgets its tasks after that
        }
    }

    /// Puts our ids in place of the backend's in an answer.
    pub fn expose(&self, call: &Arc<Call>, answer: &Message, splice: &mut Splice<'_>) {
        let fields = &answer.fields;
        let Some(Carried { link, .. }) = call.sent() else { return };
        if let Some((span, id)) = fields.task_task_id.zip(answer.text(fields.task_task_id)).filter(|_| call.augmented) {
            self.replace(&link, span, &id, splice);
        }
        let about_a_task = matches!(call.method, Method::TasksGet | Method::TasksCancel);
        if let Some((span, id)) = fields.task_id.zip(answer.text(fields.task_id)).filter(|_| about_a_task) {
            if let (Some(ours), Some(result)) = (self.ours(&link, &id), answer.result) {
                self.note_object(&ours, result.of(&answer.frame));
            }
            self.replace(&link, span, &id, splice);
        }
        self.expose_related(&link, answer, splice);
    }

    /// A backend's answer about a task it was asked for: one it no longer knows is forgotten here too.
    pub fn note_answer(&self, call: &Call, answer: &Message) {
        if let Some(task) = call.task.as_ref().filter(|_| call.method == Method::TasksGet && is_unknown_task(answer)) {
            self.lock().remove(task);
        }
    }

    /// Rewrites `io.modelcontextprotocol/related-task` in `_meta`.
    pub fn expose_related(&self, link: &Arc<Link>, message: &Message, splice: &mut Splice<'_>) {
        let span = message.fields.meta_related_task_id;
        if let Some((span, id)) = span.zip(message.text(span)) {
            self.replace(link, span, &id, splice);
        }
    }

    fn replace(&self, link: &Arc<Link>, span: json::Span, backend_task_id: &str, splice: &mut Splice<'_>) {
        if let Some(ours) = self.ours(link, backend_task_id) {
            splice.replace(span, json::quote(ours.as_str()).into_bytes());
        }
    }

    /// The caller's own task; a foreign one is as good as none.
    pub fn find(&self, session: &Session, id: &str) -> Result<Task, Refusal> {
        let inner = self.lock();
        let own = |task: &&Task| task.tenant == session.tenant.id && task.principal == session.caller.principal;
        inner.by_id.get(&TaskId::new(id)).filter(own).cloned().ok_or_else(|| Refusal::new(ErrorKind::TaskNotFound, "no such task"))
    }

    /// The task a message is about, and the session it belongs to.
    pub fn owner_of(&self, link: &Arc<Link>, message: &Message) -> Option<(Arc<Session>, TaskId)> {
        let id = self.ours(link, &message.text(message.fields.meta_related_task_id)?)?;
        let session = self.lock().by_id.get(&id)?.session.upgrade()?;
        Some((session, id))
    }

    /// The tasks a session may list, oldest first: those of its principal, or only its own when nobody said who it is.
    pub fn of_session(&self, session: &Arc<Session>) -> Vec<Task> {
        let anonymous = session.caller.key.is_none();
        let inner = self.lock();
        let of_tenant = inner.by_tenant.get(&session.tenant.id).into_iter().flatten();
        of_tenant
            .filter_map(|(_, id)| inner.by_id.get(id))
            .filter(|task| task.principal == session.caller.principal)
            .filter(|task| !anonymous || task.session.as_ptr() == Arc::as_ptr(session))
            .cloned()
            .collect()
    }

    /// A task's new status, in the terms of the client that made it.
    pub fn status_changed(&self, link: &Arc<Link>, message: &Message) -> Option<(Arc<Session>, Bytes)> {
        let span = message.fields.task_id?;
        let ours = self.ours(link, &message.text(message.fields.task_id)?)?;
        self.note_object(&ours, message.bytes(message.params)?);
        let session = self.lock().by_id.get(&ours)?.session.upgrade()?;
        let mut splice = Splice::new(&message.frame);
        splice.replace(span, json::quote(ours.as_str()).into_bytes());
        self.expose_related(link, message, &mut splice);
        Some((session, splice.finish()))
    }

    /// Whose progress this is, when the call that made the task is over: the session and the client's token.
    pub fn progress_owner(&self, connection: &Arc<Connection>, wire_id: u64) -> Option<(Arc<Session>, Bytes)> {
        let inner = self.lock();
        let task = inner.by_id.get(inner.by_wire_id.get(&(Arc::as_ptr(connection) as usize, wire_id))?)?;
        if task.is_over() {
            return None;
        }
        Some((task.session.upgrade()?, task.progress_token.clone()?))
    }

    /// The task objects of these tasks, in their order, as their backends tell them now, or as they last did.
    pub async fn current(&self, tasks: &[Task]) -> Vec<Bytes> {
        let asked: Vec<_> = tasks.iter().map(|task| self.current_one(task)).collect();
        stream::iter(asked).buffered(TASKS_ASKED_AT_ONCE).filter_map(std::future::ready).collect().await
    }

    /// `None`: its backend no longer knows the task.
    async fn current_one(&self, task: &Task) -> Option<Bytes> {
        let Some(connection) = task.link.live() else { return Some(task.object.clone()) };
        let params = format!("{{\"taskId\":{}}}", json::quote(&task.backend_task_id));
        match connection.ask(&task.link, Method::TasksGet, Some(params.as_bytes())).await {
            Ok(answer) if answer.result.is_some() => {
                self.note_object(&task.id, answer.bytes(answer.result).unwrap_or_default());
                Some(self.lock().by_id.get(&task.id).map_or_else(|| task.object.clone(), |task| task.object.clone()))
            }
            Ok(answer) if is_unknown_task(&answer) => {
                self.lock().remove(&task.id);
                None
            }
            _ => Some(task.object.clone()),
        }
    }

    /// Asks the task's backend to cancel it, for an operator.
    pub async fn cancel(&self, id: &str) -> Result<TaskView, Refusal> {
        let unknown = || Refusal::new(ErrorKind::TaskNotFound, "no such task");
        let task = self.lock().by_id.get(&TaskId::new(id)).cloned().ok_or_else(unknown)?;
        let connection = task.link.connection().await?;
        let params = format!("{{\"taskId\":{}}}", json::quote(&task.backend_task_id));
        let answer = connection.ask(&task.link, Method::TasksCancel, Some(params.as_bytes())).await;
        let answer = answer.map_err(|failure| task.link.backend.refusal(&failure))?;
        if answer.kind == Kind::Error {
            return Err(Refusal::new(ErrorKind::InvalidParams, "the backend refused: the task is over or unknown to it"));
        }
        self.note_object(&task.id, answer.bytes(answer.result).unwrap_or_default());
        self.view(id).ok_or_else(unknown)
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

    /// A link is closed for good: its tasks can not be reached any more.
    pub fn forget_link(&self, link: &Arc<Link>) {
        let mut inner = self.lock();
        let gone: Vec<TaskId> = inner.by_id.values().filter(|task| Arc::ptr_eq(&task.link, link)).map(|task| task.id.clone()).collect();
        gone.iter().for_each(|id| inner.remove(id));
    }

    /// Keeps what a backend says of a task, for lists and operators.
    fn note_object(&self, id: &TaskId, object: &[u8]) {
        let Some(status) = text_member(object, "status") else { return };
        let object = exposed_object(object, id);
        self.lock().update(id, status, object);
    }

    fn ours(&self, link: &Arc<Link>, backend_task_id: &str) -> Option<TaskId> {
        self.lock().by_backend_id.get(&place(link, backend_task_id)).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        sync::lock(&self.inner)
    }
}

impl Inner {
    fn insert(&mut self, task: Task) {
        if let Some(same) = self.by_backend_id.get(&task.places.by_id).cloned() {
            self.remove(&same); // the backend uses the id again, so its old task is no more
        }
        self.make_room(&task);
        self.by_backend_id.insert(task.places.by_id.clone(), task.id.clone());
        self.by_wire_id.insert(task.places.by_wire_id, task.id.clone());
        self.by_tenant.entry(task.tenant.clone()).or_default().insert((task.created_at, task.id.clone()));
        self.metrics.tasks(status_label(&task.status), 1);
        self.by_id.insert(task.id.clone(), task);
    }

    fn update(&mut self, id: &TaskId, status: String, object: Bytes) {
        let Some(task) = self.by_id.get_mut(id) else { return };
        self.metrics.tasks(status_label(&task.status), -1);
        self.metrics.tasks(status_label(&status), 1);
        (task.status, task.object) = (status, object);
    }

    /// Forgets a task of the tenant when it has as many as it may: the oldest that is over, or the newcomer's own oldest.
    fn make_room(&mut self, newcomer: &Task) {
        let Some(of_tenant) = self.by_tenant.get(&newcomer.tenant).filter(|tasks| tasks.len() >= TASKS_PER_TENANT_MAX) else { return };
        let oldest = |wanted: &dyn Fn(&Task) -> bool| {
            of_tenant.iter().find(|(_, id)| self.by_id.get(id).is_some_and(wanted)).map(|(_, id)| id.clone())
        };
        let victim = oldest(&Task::is_over).or_else(|| oldest(&|task| task.principal == newcomer.principal));
        if let Some(victim) = victim.or_else(|| oldest(&|_| true)) {
            self.remove(&victim);
        }
    }

    fn remove(&mut self, id: &TaskId) {
        let Some(task) = self.by_id.remove(id) else { return };
        self.metrics.tasks(status_label(&task.status), -1);
        self.by_backend_id.remove(&task.places.by_id);
        self.by_wire_id.remove(&task.places.by_wire_id);
        if let Some(of_tenant) = self.by_tenant.get_mut(&task.tenant) {
            of_tenant.remove(&(task.created_at, task.id));
            if of_tenant.is_empty() {
                self.by_tenant.remove(&task.tenant);
            }
        }
    }
}

/// Statuses come from backends, so only those of the specification become labels.
fn status_label(status: &str) -> &'static str {
    const KNOWN: [&str; 5] = ["working", "input_required", "completed", "failed", "cancelled"];
    KNOWN.into_iter().find(|known| *known == status).unwrap_or("other")
}

/// MCP 2025-11-25, Tasks: an unknown or expired id is answered with invalid params.
fn is_unknown_task(answer: &Message) -> bool {
    answer.kind == Kind::Error && answer.bytes(answer.fields.error_code) == Some(b"-32602")
}

fn place(link: &Arc<Link>, backend_task_id: &str) -> (usize, String) {
    (Arc::as_ptr(link) as usize, backend_task_id.to_owned())
}

/// A task object (which may be a whole result) with our id and without `_meta`.
fn exposed_object(object: &[u8], id: &TaskId) -> Bytes {
    let object = Bytes::copy_from_slice(object);
    let Ok(document) = Document::parse(&object, &json::Limits::default()) else { return object };
    let root = document.root();
    let mut splice = Splice::new(&object);
    if let Some(task_id) = root.get("taskId") {
        splice.replace(task_id.span(), json::quote(id.as_str()).into_bytes());
    }
    if root.get("_meta").is_some() {
        splice.remove_member(root.span(), "_meta");
    }
    splice.finish()
}

fn text_member(object: &[u8], key: &str) -> Option<String> {
    let document = Document::parse(object, &json::Limits::default()).ok()?;
    document.root().get(key)?.as_str().map(|text| text.into_owned())
}
