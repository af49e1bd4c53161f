//! The audit log for operators, and the records of their own actions.
//!
//! A record is on disk before the operator gets the answer. A change of stored data is recorded in
//! the transaction of that change, and every other action after it.

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
use protocol::ids::TenantId;
use records::{AdminChange, AuditFilter, AuditKind, AuditRecord, RestoreSummary};
use rules::{limits::AUDIT_VALUE_BYTES_MAX, operators::CONFIGURATION_NAME};
use serde_json::{Value, json};
use storage::StoreError;

use super::{Control, ControlError, ReloadSummary};
use crate::{
    telemetry::{audit, request::RequestName},
    views::AuditEntry,
};

/// An operator's request, as it came in.
#[derive(Debug, Clone)]
pub struct AuditedAction {
    /// Name of the operator, or `configuration` for an action of the process itself.
    pub who: String,
    pub action: String,
    pub target: Option<String>,
    pub tenant: Option<String>,
    pub address: Option<String>,
    pub request: RequestName,
}

impl AuditedAction {
    /// Returns an action of this process, which the configuration or a command caused.
    pub(super) fn of_process(action: &str, target: String) -> Self {
        Self {
            who: CONFIGURATION_NAME.to_owned(),
            action: action.to_owned(),
            target: Some(target),
            tenant: None,
            address: None,
            request: RequestName::random(),
        }
    }
}

/// Author of a change: the request, and whether the audit log contains it already. The default has
/// no request, for changes by the broker itself.
#[derive(Clone, Default)]
pub struct Author(Option<Arc<AuditedChange>>);

struct AuditedChange {
    action: AuditedAction,
    started_at: Instant,
    /// Digest of the body as far as it was read, and its length.
    body: Mutex<(digest::Context, usize)>,
    /// What was changed, before and after.
    values: Mutex<[Option<Value>; 2]>,
    is_recorded: AtomicBool,
}

impl Author {
    pub fn of(action: AuditedAction) -> Self {
        Self(Some(Arc::new(AuditedChange::of(action))))
    }

    /// Returns the name of the operator.
    pub(super) fn name(&self) -> &str {
        self.0.as_ref().map_or("", |audited| &audited.action.who)
    }

    /// Adds further bytes of the request's body.
    pub fn read(&self, bytes: &[u8]) {
        if let Some(audited) = &self.0 {
            let mut body = audited.body.lock();
            body.0.update(bytes);
            body.1 += bytes.len();
        }
    }

    /// Adds what the change replaces, and by what.
    pub(super) fn record_values(&self, before: Option<&str>, after: Option<&str>) {
        if let Some(audited) = &self.0 {
            *audited.values.lock() = [before, after].map(|text| text.map(recorded_value));
        }
    }

    /// Forgets what an attempt would have replaced. The next attempt may replace something else.
    pub(super) fn forget_values(&self) {
        if let Some(audited) = &self.0 {
            *audited.values.lock() = [None, None];
        }
    }

    /// Returns the record for the audit log, with the reason `error` of a refusal. `has_chain` tells
    /// which tenants have a chain of records. Returns `None` without a request.
    fn record(
        &self,
        node: &str,
        error: Option<String>,
        has_chain: impl FnOnce(&str) -> bool,
    ) -> Option<AuditRecord> {
        Some(self.0.as_ref()?.record(node, error, has_chain))
    }

    fn is_recorded(&self) -> bool {
        self.0.as_ref().is_some_and(|audited| audited.is_recorded.load(Ordering::Acquire))
    }
}

impl AuditedChange {
    fn of(action: AuditedAction) -> Self {
        Self {
            action,
            started_at: Instant::now(),
            body: Mutex::new((digest::Context::new(&digest::SHA256), 0)),
            values: Mutex::default(),
            is_recorded: AtomicBool::new(false),
        }
    }

    /// Returns the record of the change, see [`Author::record`].
    fn record(
        &self,
        node: &str,
        error: Option<String>,
        has_chain: impl FnOnce(&str) -> bool,
    ) -> AuditRecord {
        let now = jiff::Timestamp::now();
        let (body, length) = self.body.lock().clone();
        let action = &self.action;
        let [before, after] = self.values.lock().clone();
        let entry = AuditEntry {
            number: 0,
            at: now.to_string(),
            kind: AuditKind::Admin.name().to_owned(),
            tenant: action.tenant.clone().filter(|tenant| has_chain(tenant)),
            principal: action.who.clone(),
            api_key: None,
            action: action.action.clone(),
            target: action.target.clone(),
            backend: None,
            tool: None,
            definition: None,
            approval: None,
            arguments_digest: (length > 0)
                .then(|| format!("sha256:{}", URL_SAFE_NO_PAD.encode(body.finish()))),
            arguments: None,
            before,
            after,
            outcome: if error.is_some() { "refused" } else { "ok" }.to_owned(),
            error,
            duration_ms: Some(self.started_at.elapsed().as_secs_f64() * 1_000.0),
            request_id: action.request.to_string(),
            trace_id: None,
            session: None,
            transport: None,
            address: action.address.clone(),
            count: None,
            node: node.to_owned(),
        };
        audit::record(AuditKind::Admin, now, entry)
    }
}

/// Returns the record of the command that ends what a restored database must not continue. No broker
/// runs then, and the database adds the record to its chain.
pub fn restore_record(node: &str, ended: RestoreSummary) -> AuditRecord {
    let RestoreSummary { sessions, tasks, approvals } = ended;
    let target = format!("{sessions} sessions, {tasks} tasks, {approvals} approvals");
    let action = AuditedAction::of_process("after_restore", target);
    AuditedChange::of(action).record(node, None, |_| true)
}

/// Returns a changed value for the record: a digest if its JSON text is long.
fn recorded_value(text: &str) -> Value {
    if text.len() <= AUDIT_VALUE_BYTES_MAX
        && let Ok(value) = serde_json::from_str(text)
    {
        return value;
    }
    let hash = digest::digest(&digest::SHA256, text.as_bytes());
    json!({"digest": format!("sha256:{}", URL_SAFE_NO_PAD.encode(hash)), "bytes": text.len()})
}

impl Control {
    /// Commits a change of stored data together with its audit record. Returns false if nothing was
    /// changed. With a version, the change fails if the configuration has another one. Notes an
    /// unknown outcome, so that the running broker follows the store.
    pub(super) async fn commit(
        &self,
        version: Option<i64>,
        change: AdminChange<'_>,
        author: &Author,
    ) -> Result<bool, ControlError> {
        let record = author.record(self.persistence().node().as_str(), None, |_| true);
        let made = self
            .query_store(change.name(), self.store().apply_at(version, change, record.as_ref()))
            .await
            .inspect_err(|error| {
                if matches!(error, StoreError::OutcomeUnknown(_)) {
                    self.note_doubt();
                }
            })?;
        if let Some(audited) = author.0.as_ref().filter(|_| made) {
            audited.is_recorded.store(true, Ordering::Release);
            self.metrics.observability.audit("stored", 1);
        }
        Ok(made)
    }

    /// Records the end of a request, unless a transaction recorded it already. `error` is the
    /// reason of a refusal. The record is on disk when this returns. While the database refuses
    /// writes, it is written later.
    pub async fn record(&self, author: &Author, error: Option<String>) {
        if author.is_recorded() {
            return;
        }
        // A chain is permanent, so a name that no tenant has must not begin one.
        let is_tenant = |name: &str| {
            TenantId::parse(name).is_ok_and(|tenant| self.check_tenant(&tenant).is_ok())
        };
        let node = self.persistence().node();
        let Some(record) = author.record(node.as_str(), error, is_tenant) else { return };
        let text = record.body.clone();
        if let Err(error) = self.persistence().audit.add_now(record).await {
            tracing::error!(record = text, %error, "the broker could not store the audit record of an operator's action yet");
        }
    }

    /// Records that the configuration file was reloaded and is in force.
    pub async fn record_reload(&self, reloaded: ReloadSummary) {
        let ReloadSummary { tenants, backends, issuers, documents } = reloaded;
        let target = format!(
            "{tenants} tenants, {backends} backends, {issuers} issuers, {documents} documents"
        );
        self.record_reload_of(target).await;
    }

    /// Records that changed certificates of the listeners are in force.
    pub async fn record_certificates(&self) {
        self.record_reload_of("the certificates of the listeners".to_owned()).await;
    }

    async fn record_reload_of(&self, target: String) {
        self.record(&Author::of(AuditedAction::of_process("reload", target)), None).await;
    }

    /// Restricts a filter to the records of the present tenant of this name. Records outlive their
    /// tenant, and a later tenant of the name may belong to others.
    pub fn of_present_tenant(&self, filter: AuditFilter) -> AuditFilter {
        let created_at_us = filter.tenant.as_deref().and_then(|name| self.row_created_at_us(name));
        AuditFilter { since_us: filter.since_us.max(created_at_us), ..filter }
    }

    /// Returns the time at which the present tenant of a name was created. 0: the configuration
    /// declares it.
    pub(super) fn row_created_at_us(&self, tenant: &str) -> Option<i64> {
        let tenant = TenantId::parse(tenant).ok()?;
        let registry = self.registry.load();
        registry.tenants.get(&tenant).map(|entry| entry.row_created_at_us())
    }

    /// Returns a page of the audit log, in the order of the filter, and the number after which the
    /// next page begins.
    pub async fn audit(
        &self,
        filter: &AuditFilter,
        after: Option<i64>,
        limit: u32,
    ) -> Result<(Vec<AuditEntry>, Option<i64>), ControlError> {
        let stored = self
            .query_store("list_audit_records", self.store().audit_records(filter, after, limit))
            .await?;
        let entry = |stored: records::StoredAuditRecord| {
            let mut entry: AuditEntry = serde_json::from_str(&stored.record.body).ok()?;
            entry.number = stored.number;
            Some(entry)
        };
        let next = stored.last().filter(|_| stored.len() >= limit as usize).map(|last| last.number);
        Ok((stored.into_iter().filter_map(entry).collect(), next))
    }
}
