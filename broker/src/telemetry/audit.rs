//! What the audit log holds of a client's request: collected beside the request, made into a record when it is over.
//!
//! Called by sessions and by tasks that run. No secret gets in: of arguments there is a digest, and their text only where the
//! operator wants it, without the values of members whose names announce a secret, and without what looks like one.

use std::{net::IpAddr, time::Instant};

use aws_lc_rs::digest;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use opentelemetry::TraceId;
use protocol::{ids::BackendId, method::Method};
use serde_json::Value;

use super::{
    inbound_context::RequestName,
    secrets::{self, REDACTED},
};
use crate::{
    auth::Caller,
    config::AuditLevel,
    limits::{AUDIT_ARGUMENTS_BYTES_MAX, AUDIT_TARGET_CHARS_MAX},
    persistence::{AuditKind, AuditRecord},
    rules::{
        catalog::DefinitionDigest,
        sign_in_failures::{FailureReport, Plane},
    },
    views::AuditEntry,
};

/// Parts of a member's name that announce a secret.
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

/// A record in the making.
#[derive(Debug)]
pub struct AuditDraft {
    pub how: AuditLevel,
    pub caller: Caller,
    /// `None`: the request stands alone.
    pub session: Option<String>,
    pub transport: &'static str,
    pub method: Method,
    /// The tool, prompt, resource or task that is asked for, as the client calls it.
    pub target: Option<String>,
    pub arguments: Option<Bytes>,
    pub backend: Option<BackendId>,
    pub definition: Option<DefinitionDigest>,
    pub begun: Instant,
    pub at: jiff::Timestamp,
    /// Of the client, where its wire says so.
    pub client: Option<IpAddr>,
}

impl AuditDraft {
    /// `None`: nothing anybody would ask for later, such as a ping or a list that is answered from memory.
    pub fn is_about(method: Method) -> bool {
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

    /// The record, now that it is over.
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
                .map(|target| told(&target).chars().take(AUDIT_TARGET_CHARS_MAX).collect()),
            backend: self.backend.map(|backend| backend.to_string()),
            definition: self.definition.map(|definition| format!("sha256:{}", hex(&definition))),
            arguments_digest: arguments.map(digest_of),
            arguments: arguments.filter(|_| self.how == AuditLevel::Arguments).and_then(shown),
            outcome: outcome.to_owned(),
            error,
            duration_ms: Some(self.begun.elapsed().as_secs_f64() * 1_000.0),
            request_id: request.to_string(),
            trace_id: trace.map(|trace| trace.to_string()),
            session: self.session,
            transport: Some(self.transport.to_owned()),
            address: self.client.map(|client| client.to_string()),
            count: None,
            node: node.to_owned(),
        };
        record(AuditKind::Call, self.at, entry)
    }
}

/// The record of sign-ins that failed. Those of clients are records of the kind `call`, others of the kind `admin`.
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
        definition: None,
        arguments_digest: None,
        arguments: None,
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

/// A record of its own id.
pub fn record(kind: AuditKind, at: jiff::Timestamp, entry: AuditEntry) -> AuditRecord {
    AuditRecord {
        id: rand::random(),
        at_us: at.as_microsecond(),
        kind,
        tenant: entry.tenant.clone(),
        body: serde_json::to_string(&entry).unwrap_or_else(|_| "{}".to_owned()),
    }
}

/// Tells two lists of arguments apart without showing them.
pub fn digest_of(bytes: &[u8]) -> String {
    format!("sha256:{}", URL_SAFE_NO_PAD.encode(digest::digest(&digest::SHA256, bytes)))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `None`: too long to be kept, or no JSON.
fn shown(arguments: &[u8]) -> Option<Value> {
    if arguments.len() > AUDIT_ARGUMENTS_BYTES_MAX {
        return None;
    }
    let mut value = serde_json::from_slice(arguments).ok()?;
    redact(&mut value);
    Some(value)
}

fn told(text: &str) -> String {
    secrets::masked(text).unwrap_or_else(|| text.to_owned())
}

/// Takes values out whose names announce a secret, and what looks like one.
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
            // A name may be a secret itself, where members are what somebody found.
            let secret: Vec<(String, String)> = members
                .keys()
                .filter_map(|name| secrets::masked(name).map(|shown| (name.clone(), shown)))
                .collect();
            for (name, shown) in secret {
                let value = members.remove(&name).unwrap_or_default();
                members.insert(shown, value);
            }
        }
        Value::String(text) => {
            if let Some(shown) = secrets::masked(text) {
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
    fn what_announces_a_secret_is_not_kept() {
        let arguments =
            br#"{"city":"Ulm","apiKey":"canary","nested":[{"Password":{"a":"canary"},"b":1}]}"#;
        let text = shown(arguments).unwrap().to_string();
        assert!(
            !text.contains("canary") && text.contains("Ulm") && text.contains("\"b\":1"),
            "{text}"
        );
    }

    #[test]
    fn what_looks_like_a_secret_is_not_kept_whatever_its_name() {
        let key = format!("sk-{}", "canary0Canary1Canary2");
        let arguments = format!(
            r#"{{"command":"curl -H 'x: Bearer canary+canary/9='","list":["{key}"],"{key}":1,"city":"Ulm"}}"#
        );
        let text = shown(arguments.as_bytes()).unwrap().to_string();
        assert!(
            !text.contains("anary") && text.contains("Ulm") && text.contains("curl -H"),
            "{text}"
        );
        assert_eq!(
            told(&format!("https://me:canary@example.com/{key}")),
            "https://[redacted]@example.com/[redacted]"
        );
    }

    #[test]
    fn giants_have_a_digest_only() {
        assert_eq!(shown(&vec![b' '; AUDIT_ARGUMENTS_BYTES_MAX + 1]), None);
        assert_ne!(digest_of(b"a"), digest_of(b"b"));
    }
}
