//! The audit log as operators see it, and what they do themselves, recorded before they hear that it is done: a change of what
//! is stored in the transaction of that change, everything else after it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use aws_lc_rs::digest;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use parking_lot::Mutex;
use storage::AdminChange;

use super::{Control, ControlError};
use crate::{
    persistence::{AuditFilter, AuditKind, AuditRecord},
    telemetry::{audit, request::RequestName},
    views::AuditEntry,
};

/// What an operator asks for, as it came in.
#[derive(Debug, Clone)]
pub struct AuditedAction {
    /// `admin`, or `configuration` for what a changed file brought.
    pub who: &'static str,
    pub action: String,
    pub target: Option<String>,
    pub tenant: Option<String>,
    pub address: Option<String>,
    pub request: RequestName,
}

/// Who has to answer for a change: what is asked for, and whether the audit log knows of it by now. The default is nobody, for
/// changes that the broker makes by itself.
#[derive(Clone, Default)]
pub struct Author(Option<Arc<AuditedChange>>);

struct AuditedChange {
    asked: AuditedAction,
    begun: Instant,
    /// Of the body as far as it was read, and its length.
    body: Mutex<(digest::Context, usize)>,
    is_told: AtomicBool,
}

impl Author {
    pub fn of(asked: AuditedAction) -> Self {
        let body = Mutex::new((digest::Context::new(&digest::SHA256), 0));
        Self(Some(Arc::new(AuditedChange {
            asked,
            begun: Instant::now(),
            body,
            is_told: AtomicBool::new(false),
        })))
    }

    /// Further bytes of what was asked for.
    pub fn read(&self, bytes: &[u8]) {
        if let Some(deed) = &self.0 {
            let mut body = deed.body.lock();
            body.0.update(bytes);
            body.1 += bytes.len();
        }
    }

    /// What the audit log holds of it; `error`: why it was refused. `None`: nobody asked.
    fn record(&self, node: &str, error: Option<String>) -> Option<AuditRecord> {
        let deed = self.0.as_ref()?;
        let now = jiff::Timestamp::now();
        let (body, length) = deed.body.lock().clone();
        let asked = &deed.asked;
        let entry = AuditEntry {
            number: 0,
            at: now.to_string(),
            kind: AuditKind::Admin.name().to_owned(),
            tenant: asked.tenant.clone(),
            principal: asked.who.to_owned(),
            api_key: None,
            action: asked.action.clone(),
            target: asked.target.clone(),
            backend: None,
            definition: None,
            arguments_digest: (length > 0)
                .then(|| format!("sha256:{}", URL_SAFE_NO_PAD.encode(body.finish()))),
            arguments: None,
            outcome: if error.is_some() { "refused" } else { "ok" }.to_owned(),
            error,
            duration_ms: Some(deed.begun.elapsed().as_secs_f64() * 1_000.0),
            request_id: asked.request.to_string(),
            trace_id: None,
            session: None,
            transport: None,
            address: asked.address.clone(),
            count: None,
            node: node.to_owned(),
        };
        Some(audit::record(AuditKind::Admin, now, entry))
    }

    fn is_told(&self) -> bool {
        self.0.as_ref().is_some_and(|deed| deed.is_told.load(Ordering::Acquire))
    }
}

impl Control {
    /// Makes a change of what is stored, and tells of it in the same transaction. False: there was nothing to change.
    pub(super) async fn commit(
        &self,
        change: AdminChange<'_>,
        author: &Author,
    ) -> Result<bool, ControlError> {
        let record = author.record(self.durable().node().as_str(), None);
        let made = self.ask(change.name(), self.store().change(change, record.as_ref())).await?;
        if let Some(deed) = author.0.as_ref().filter(|_| made) {
            deed.is_told.store(true, Ordering::Release);
            self.metrics.observed.audit("stored", 1);
        }
        Ok(made)
    }

    /// What was asked for is over; `error`: it was refused. Tells what no transaction told. On disk when this returns; while the
    /// database takes nothing, as soon as it takes something again.
    pub async fn record(&self, author: &Author, error: Option<String>) {
        if author.is_told() {
            return;
        }
        let Some(record) = author.record(self.durable().node().as_str(), error) else { return };
        let text = record.body.clone();
        if let Err(error) = self.durable().audit.add_now(record).await {
            tracing::error!(record = text, %error, "what an operator did could not be put into the audit log yet");
        }
    }

    /// The configuration file was read again, and what it declares is in force.
    pub async fn record_reload(&self, tenants: usize, backends: usize) {
        let asked = AuditedAction {
            who: "configuration",
            action: "reload".to_owned(),
            target: Some(format!("{tenants} tenants, {backends} backends")),
            tenant: None,
            address: None,
            request: RequestName::random(),
        };
        self.record(&Author::of(asked), None).await;
    }

    /// A page of the audit log, oldest first, and after which number the next one begins.
    pub async fn audit(
        &self,
        filter: &AuditFilter,
        after: Option<i64>,
        limit: u32,
    ) -> Result<(Vec<AuditEntry>, Option<i64>), ControlError> {
        let stored = self.ask("audit", self.store().audit(filter, after, limit)).await?;
        let entry = |stored: storage::StoredAuditRecord| {
            let mut entry: AuditEntry = serde_json::from_str(&stored.record.body).ok()?;
            entry.number = stored.number;
            Some(entry)
        };
        let next = stored.last().filter(|_| stored.len() >= limit as usize).map(|last| last.number);
        Ok((stored.into_iter().filter_map(entry).collect(), next))
    }
}
