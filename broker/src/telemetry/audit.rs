//! Audit records of clients' requests: collected during a request and completed at its end.
//!
//! Called by sessions and by running tasks. A record contains a digest of the arguments. It
//! contains their text only if the operator configured that. The text has no values of members with
//! secret-sounding names, and no values that look like secrets.

use std::{net::IpAddr, time::Instant};

use aws_lc_rs::digest;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use config::AuditLevel;
use opentelemetry::TraceId;
use protocol::{
    ids::{ApprovalId, BackendId, TaskId},
    method::Method,
};
use records::{AuditKind, AuditRecord};
use rules::{
    catalog::DefinitionDigest,
    limits::{AUDIT_ARGUMENTS_BYTES_MAX, AUDIT_TARGET_CHARS_MAX},
    sign_in_failures::{FailureReport, Plane},
};
use serde_json::Value;

use super::{
    inbound_context::RequestName,
    secrets::{self, REDACTED},
};
use crate::{auth::Caller, views::AuditEntry};

/// Parts of a member's name that mark its value as a secret.
const SECRET_WORDS: [&str; 14] = [
    "token",
    "secret",
    "pass",
    "pwd",
    "key",
    "auth",
    "credential",
    "bearer",
    "cookie",
    "session",
    "signature",
    "jwt",
    "otp",
    "dsn",
];

/// An incomplete audit record.
#[derive(Debug)]
pub struct AuditDraft {
    pub how: AuditLevel,
    pub caller: Caller,
    /// `None`: the request is stateless.
    pub session: Option<String>,
    pub transport: &'static str,
    pub method: Method,
    /// Requested tool, prompt or resource, under the client's name for it, or the digest of a task.
    pub target: Option<String>,
    pub arguments: Option<Bytes>,
    pub backend: Option<BackendId>,
    /// The tool under its backend's name, for calls at a toolset.
    pub tool: Option<String>,
    pub definition: Option<DefinitionDigest>,
    /// The approval by which the request passed, or that it waited for.
    pub approval: Option<ApprovalId>,
    pub started_at: Instant,
    pub at: jiff::Timestamp,
    /// Address of the client, if its wire has one.
    pub client: Option<IpAddr>,
    /// Number of refused requests that this record stands for. `None`: this request alone.
    pub count: Option<u64>,
}

impl AuditDraft {
    /// Returns whether requests of this method are recorded. Returns false for pings, and for
    /// lists, which are answered from memory.
    pub fn is_audited(method: Method) -> bool {
        !matches!(
            method,
            Method::Ping
                | Method::ToolsList
                | Method::PromptsList
                | Method::ResourcesList
                | Method::ResourcesTemplatesList
                | Method::TasksList
        )
    }

    /// Returns the record of a completed request.
    pub fn into_record(
        self,
        request: RequestName,
        trace: Option<TraceId>,
        node: &str,
        outcome: &str,
        error: Option<String>,
    ) -> AuditRecord {
        let arguments = self.arguments.as_deref();
        let entry = AuditEntry {
            number: 0,
            at: self.at.to_string(),
            kind: AuditKind::Call.name().to_owned(),
            tenant: Some(self.caller.tenant.to_string()),
            principal: self.caller.principal.to_string(),
            api_key: self.caller.key.as_ref().map(ToString::to_string),
            action: self.method.name().to_owned(),
            target: self
                .target
                .map(|target| masked(&target).chars().take(AUDIT_TARGET_CHARS_MAX).collect()),
            backend: self.backend.map(|backend| backend.to_string()),
            tool: self
                .tool
                .map(|tool| masked(&tool).chars().take(AUDIT_TARGET_CHARS_MAX).collect()),
            definition: self.definition.map(|definition| format!("sha256:{}", hex(&definition))),
            approval: self.approval.map(|approval| approval.to_string()),
            arguments_digest: arguments.map(digest_of),
            arguments: arguments
                .filter(|_| self.how == AuditLevel::Arguments)
                .and_then(masked_arguments),
            before: None,
            after: None,
            outcome: outcome.to_owned(),
            error,
            duration_ms: Some(self.started_at.elapsed().as_secs_f64() * 1_000.0),
            request_id: request.to_string(),
            trace_id: trace.map(|trace| trace.to_string()),
            session: self.session,
            transport: Some(self.transport.to_owned()),
            address: self.client.map(|client| client.to_string()),
            count: self.count,
            node: node.to_owned(),
        };
        record(AuditKind::Call, self.at, entry)
    }
}

/// Returns the record of failed sign-ins. Those of clients have the kind `call`, others the kind
/// `admin`.
pub fn sign_in_failures(report: &FailureReport, node: &str) -> AuditRecord {
    let FailureReport { series, count, .. } = report;
    let kind = if series.plane == Plane::Data { AuditKind::Call } else { AuditKind::Admin };
    let now = jiff::Timestamp::now();
    let entry = AuditEntry {
        number: 0,
        at: now.to_string(),
        kind: kind.name().to_owned(),
        tenant: None,
        principal: "unknown".to_owned(),
        api_key: None,
        action: "sign_in".to_owned(),
        target: Some(series.plane.name().to_owned()),
        backend: None,
        tool: None,
        definition: None,
        approval: None,
        arguments_digest: None,
        arguments: None,
        before: None,
        after: None,
        outcome: "refused".to_owned(),
        error: Some(series.reason.name().to_owned()),
        duration_ms: None,
        request_id: RequestName::random().to_string(),
        trace_id: None,
        session: None,
        transport: None,
        address: series.address.map(|address| address.to_string()),
        count: Some(*count),
        node: node.to_owned(),
    };
    record(kind, now, entry)
}

/// Returns a record with a new random id.
pub fn record(kind: AuditKind, at: jiff::Timestamp, entry: AuditEntry) -> AuditRecord {
    AuditRecord {
        id: rand::random(),
        at_us: at.as_microsecond(),
        kind,
        tenant: entry.tenant.clone(),
        body: serde_json::to_string(&entry).unwrap_or_else(|_| "{}".to_owned()),
    }
}

/// Returns a digest that distinguishes texts without showing them.
pub fn digest_of(bytes: &[u8]) -> String {
    format!("sha256:{}", URL_SAFE_NO_PAD.encode(digest::digest(&digest::SHA256, bytes)))
}

/// Bytes of a task's digest.
pub const TASK_DIGEST_BYTES: usize = 8;

/// Returns a name of the task for logs and operators. The id itself must not be shown, because some
/// callers need only the id to see the task.
pub fn task_digest(task: &TaskId) -> String {
    let hash = digest::digest(&digest::SHA256, task.as_str().as_bytes());
    hex(&hash.as_ref()[..TASK_DIGEST_BYTES])
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the redacted arguments, or `None` if they are too long or not JSON.
fn masked_arguments(arguments: &[u8]) -> Option<Value> {
    if arguments.len() > AUDIT_ARGUMENTS_BYTES_MAX {
        return None;
    }
    let mut value = serde_json::from_slice(arguments).ok()?;
    redact(&mut value);
    Some(value)
}

pub(super) fn masked(text: &str) -> String {
    secrets::mask_secrets(text).unwrap_or_else(|| text.to_owned())
}

/// Redacts values of members with secret-sounding names, and values that look like secrets.
pub(super) fn redact(value: &mut Value) {
    match value {
        Value::Object(members) => {
            for (name, value) in members.iter_mut() {
                if announces_secret(name) {
                    *value = Value::from(REDACTED);
                } else {
                    redact(value);
                }
            }
            // A member's name may itself be a secret, if a client sends data as members.
            let secret: Vec<(String, String)> = members
                .keys()
                .filter_map(|name| secrets::mask_secrets(name).map(|shown| (name.clone(), shown)))
                .collect();
            for (name, shown) in secret {
                let value = members.remove(&name).unwrap_or_default();
                members.insert(shown, value);
            }
        }
        Value::String(text) => {
            if let Some(shown) = secrets::mask_secrets(text) {
                *text = shown;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(redact),
        _ => {}
    }
}

pub(super) fn announces_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SECRET_WORDS.iter().any(|word| name.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_with_secret_names_are_masked() {
        let arguments =
            br#"{"city":"Ulm","apiKey":"canary","nested":[{"Password":{"a":"canary"},"b":1}]}"#;
        let text = masked_arguments(arguments).unwrap().to_string();
        assert!(
            !text.contains("canary") && text.contains("Ulm") && text.contains("\"b\":1"),
            "{text}"
        );
    }

    #[test]
    fn arguments_that_look_like_secrets_are_masked_under_any_name() {
        let key = format!("sk-{}", "canary0Canary1Canary2");
        let arguments = format!(
            r#"{{"command":"curl -H 'x: Bearer canary+canary/9='","list":["{key}"],"{key}":1,"city":"Ulm"}}"#
        );
        let text = masked_arguments(arguments.as_bytes()).unwrap().to_string();
        assert!(
            !text.contains("anary") && text.contains("Ulm") && text.contains("curl -H"),
            "{text}"
        );
        assert_eq!(
            masked(&format!("https://me:canary@example.com/{key}")),
            "https://[redacted]@example.com/[redacted]"
        );
    }

    #[test]
    fn huge_arguments_are_recorded_as_a_digest_only() {
        assert_eq!(masked_arguments(&vec![b' '; AUDIT_ARGUMENTS_BYTES_MAX + 1]), None);
        assert_ne!(digest_of(b"a"), digest_of(b"b"));
    }
}
