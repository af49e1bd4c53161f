//! The audit log as operators see it, and what they do themselves, recorded before they hear that it is done.

use super::{Control, ControlError};
use crate::{
    durable::{AuditFilter, AuditKind},
    telemetry::{audit, request::RequestName},
    views::AuditEntry,
};

/// What an operator did.
#[derive(Debug)]
pub struct Deed {
    /// `admin`, or `configuration` for what a changed file brought.
    pub who: &'static str,
    pub action: String,
    pub target: Option<String>,
    pub tenant: Option<String>,
    pub body_digest: Option<String>,
    pub outcome: String,
    pub error: Option<String>,
    pub duration_ms: Option<f64>,
    pub address: Option<String>,
    pub request: RequestName,
}

impl Control {
    /// On disk when this returns; while the database takes nothing, as soon as it takes something again.
    pub async fn record(&self, deed: Deed) {
        let now = jiff::Timestamp::now();
        let entry = AuditEntry {
            number: 0,
            at: now.to_string(),
            kind: AuditKind::Admin.name().to_owned(),
            tenant: deed.tenant,
            principal: deed.who.to_owned(),
            api_key: None,
            action: deed.action,
            target: deed.target,
            backend: None,
            definition: None,
            arguments_digest: deed.body_digest,
            arguments: None,
            outcome: deed.outcome,
            error: deed.error,
            duration_ms: deed.duration_ms,
            request_id: deed.request.to_string(),
            trace_id: None,
            session: None,
            transport: None,
            address: deed.address,
            node: self.durable().node().to_string(),
        };
        let record = audit::record(AuditKind::Admin, now, entry);
        let text = record.body.clone();
        if let Err(error) = self.durable().audit.add_now(record).await {
            tracing::error!(record = text, %error, "what an operator did could not be put into the audit log yet");
        }
    }

    /// The configuration file was read again, and what it declares is in force.
    pub async fn record_reload(&self, tenants: usize, backends: usize) {
        let deed = Deed {
            who: "configuration",
            action: "reload".to_owned(),
            target: Some(format!("{tenants} tenants, {backends} backends")),
            tenant: None,
            body_digest: None,
            outcome: "ok".to_owned(),
            error: None,
            duration_ms: None,
            address: None,
            request: RequestName::random(),
        };
        self.record(deed).await;
    }

    /// A page of the audit log, oldest first, and after which number the next one begins.
    pub async fn audit(
        &self,
        filter: &AuditFilter,
        after: Option<i64>,
        limit: u32,
    ) -> Result<(Vec<AuditEntry>, Option<i64>), ControlError> {
        let stored = self.ask("audit", self.store().audit(filter, after, limit)).await?;
        let entry = |stored: storage::StoredAudit| {
            let mut entry: AuditEntry = serde_json::from_str(&stored.record.body).ok()?;
            entry.number = stored.number;
            Some(entry)
        };
        let next = stored.last().filter(|_| stored.len() >= limit as usize).map(|last| last.number);
        Ok((stored.into_iter().filter_map(entry).collect(), next))
    }
}
