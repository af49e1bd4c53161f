//! Observability of the broker: the log, metrics, traces and the audit log. Read with the rest by
//! [`super::validation`].

use std::{path::PathBuf, time::Duration};

use protocol::ids::TenantId;
use serde_json::Value;

use super::{
    LogFormat, TelemetryConfig,
    config_key::{COUNT_MAX, ConfigKey, KeyKind, key, optional_key},
    config_reader::{ConfigReader, path, text},
    field_error::{InvalidReason, invalid_value},
    log_filter::parse_log_filter,
};

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(24 * 3_600);
const HOUR: Duration = Duration::from_secs(3_600);
const YEARS_10: Duration = Duration::from_secs(10 * 366 * 86_400);
/// Number of parts in a whole ratio.
pub const RATIO_WHOLE: u32 = 1_000_000;

pub(super) const TELEMETRY: &[ConfigKey] = &[
    key(
        "log",
        KeyKind::LogFilter,
        "info",
        "Level or filter of the log, which goes to standard error. SIGHUP applies a new value, and `mcp-broker log set` another one for a time.",
    ),
    key(
        "log_format",
        KeyKind::Choice(&["text", "json"]),
        "text",
        "`text` for people, `json` for machines.",
    ),
    key(
        "tenant_labels",
        KeyKind::Bool,
        "false",
        "Adds the metrics by tenant, and by tenant and backend (`mcp_tenant_…`).",
    ),
    optional_key(
        "traces.endpoint",
        KeyKind::HttpUrl,
        "http://127.0.0.1:4318/v1/traces",
        "Address that the broker sends spans to: OpenTelemetry's OTLP over HTTP with protobuf. Absent: no traces. The broker then forwards trace context, and changes only baggage that is too long.",
    ),
    key(
        "traces.ratio",
        KeyKind::Ratio { percent_min: 0 },
        "1",
        "Share of traces that the broker samples, at random. It always exports requests that fail.",
    ),
    key(
        "traces.trusted",
        KeyKind::Callers,
        "[]",
        "Callers for which the broker uses the sampling decision of the request: TENANT, TENANT/PRINCIPAL, or * for every caller. From other callers, the broker uses only the trace id.",
    ),
    key(
        "traces.queue_spans",
        KeyKind::Count { min: 1, max: COUNT_MAX },
        "8192",
        "Spans that wait for the collector. The broker drops and counts further ones.",
    ),
];

pub(super) const AUDIT: &[ConfigKey] = &[
    key(
        "calls",
        KeyKind::Choice(&["off", "metadata", "arguments"]),
        "off",
        "Data of clients' requests that the broker records. `off`: nothing. `metadata`: caller, request, backend and a digest of the arguments. `arguments`: the arguments too, up to 16 KiB, without values whose names indicate a secret. The broker always records changes by operators.",
    ),
    key(
        "retain",
        KeyKind::Duration { min: HOUR, max: YEARS_10 },
        "2160h",
        "How long the broker keeps a record. A longer time takes effect at the next start, a shorter one seven days after that start. The audit log records the change.",
    ),
    key(
        "checkpoint_interval",
        KeyKind::Duration { min: SECOND, max: DAY },
        "1m",
        "Interval at which the broker signs the newest records. It writes each checkpoint to the database and, at level `info`, to the log.",
    ),
    optional_key(
        "checkpoint_file",
        KeyKind::Path,
        "/var/log/mcp-broker/audit-checkpoints.jsonl",
        "File that the broker appends checkpoints to, one JSON object per line. Keep it where the owner of the database cannot write.",
    ),
];

/// Export of spans.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceConfig {
    pub endpoint: Option<String>,
    /// In parts of [`RATIO_WHOLE`].
    pub ratio: u32,
    pub trusted: Vec<String>,
    pub queue_spans: usize,
}

/// Content of audit records about clients' requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuditLevel {
    Off,
    Metadata,
    Arguments,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditConfig {
    pub calls: AuditLevel,
    pub retain: Duration,
    pub checkpoint_interval: Duration,
    pub checkpoint_file: Option<PathBuf>,
}

impl ConfigReader<'_> {
    pub(super) fn telemetry(&mut self) -> TelemetryConfig {
        let log = self.value("telemetry.log", |value, _| {
            let filter = text(value)
                .filter(|text| !text.trim().is_empty())
                .ok_or_else(|| invalid_value(value))?;
            parse_log_filter(filter).map(|_| filter.to_owned())
        });
        let log_format = self.value("telemetry.log_format", |value, _| match value.as_str() {
            Some("text") => Ok(LogFormat::Text),
            Some("json") => Ok(LogFormat::Json),
            _ => Err(invalid_value(value)),
        });
        let traces = TraceConfig {
            endpoint: self.optional("telemetry.traces.endpoint", endpoint),
            ratio: self.value("telemetry.traces.ratio", ratio),
            trusted: self.list("telemetry.traces.trusted", caller),
            queue_spans: self.count("telemetry.traces.queue_spans") as usize,
        };
        TelemetryConfig {
            log,
            log_format,
            tenant_labels: self.bool("telemetry.tenant_labels"),
            traces,
        }
    }

    pub(super) fn audit(&mut self) -> AuditConfig {
        let calls = self.value("audit.calls", |value, _| match value.as_str() {
            // YAML 1.1 reads `off` as false.
            Some("off") => Ok(AuditLevel::Off),
            Some("metadata") => Ok(AuditLevel::Metadata),
            Some("arguments") => Ok(AuditLevel::Arguments),
            _ => Err(invalid_value(value)),
        });
        AuditConfig {
            calls,
            retain: self.duration("audit.retain"),
            checkpoint_interval: self.duration("audit.checkpoint_interval"),
            checkpoint_file: self.optional("audit.checkpoint_file", path),
        }
    }
}

fn endpoint(value: &Value, _: KeyKind) -> Result<String, InvalidReason> {
    let url = text(value).ok_or_else(|| invalid_value(value))?;
    // The URL may hold a token, so a fault does not show it.
    transport::url::parse_http_url(url)
        .map(|_| url.to_owned())
        .map_err(|_| "is not an http or https URL".to_owned())
}

fn ratio(value: &Value, _: KeyKind) -> Result<u32, InvalidReason> {
    let number = value.as_f64().or_else(|| text(value)?.parse().ok());
    let share =
        number.filter(|share| (0.0..=1.0).contains(share)).ok_or_else(|| invalid_value(value))?;
    Ok((share * f64::from(RATIO_WHOLE)).round() as u32)
}

fn caller(text: &str) -> Option<String> {
    let (tenant, principal) =
        text.split_once('/').map_or((text, None), |(tenant, principal)| (tenant, Some(principal)));
    let known = text == "*" || TenantId::parse(tenant).is_ok();
    (known && principal.is_none_or(|principal| !principal.is_empty())).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load_from;

    #[test]
    fn traces_are_off_until_an_endpoint_is_configured() {
        let config = load_from("", []).unwrap();
        assert_eq!(config.telemetry.traces.endpoint, None);
        assert_eq!(
            (config.audit.calls, config.audit.retain),
            (AuditLevel::Off, Duration::from_secs(90 * 86_400))
        );
    }

    #[test]
    fn nested_and_dotted_keys_are_the_same() {
        for text in [
            "telemetry: {traces: {endpoint: 'http://c:4318/v1/traces', ratio: 0.25, trusted: [acme, b/ada]}}",
            "telemetry: {traces.endpoint: 'http://c:4318/v1/traces', traces.ratio: 0.25, traces.trusted: [acme, b/ada]}",
        ] {
            let traces = load_from(text, [])
                .unwrap_or_else(|faults| panic!("{text}: {faults}"))
                .telemetry
                .traces;
            assert_eq!(
                (traces.endpoint.as_deref(), traces.ratio),
                (Some("http://c:4318/v1/traces"), 250_000)
            );
            assert_eq!(traces.trusted, ["acme", "b/ada"]);
        }
        let variable = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let environment = [
            variable("MCP_BROKER__TELEMETRY__TRACES__ENDPOINT", "https://c/v1/traces"),
            variable("MCP_BROKER__TELEMETRY__TRACES__RATIO", "0.5"),
        ];
        let traces =
            load_from("telemetry: {traces: {ratio: 1}}", environment).unwrap().telemetry.traces;
        assert_eq!(
            (traces.endpoint.as_deref(), traces.ratio),
            (Some("https://c/v1/traces"), 500_000)
        );
    }

    #[test]
    fn invalid_settings_are_refused() {
        for (text, path) in [
            (
                "telemetry: {traces: {endpoint: 'ftp://c'}}",
                "telemetry.traces.endpoint: is not an http or https URL",
            ),
            (
                "telemetry: {traces: {ratio: 1.5}}",
                "telemetry.traces.ratio: is 1.5; allowed: a number from 0 to 1",
            ),
            ("telemetry: {traces: {trusted: [/x]}}", "telemetry.traces.trusted[0]: is \"/x\""),
            ("telemetry: {traces: {sampler: x}}", "telemetry.traces.sampler: is not a known key"),
            ("telemetry: {traces: 5}", "telemetry.traces: is not a known key"),
            ("audit: {calls: all}", "audit.calls: is \"all\"; allowed: off, metadata, arguments"),
            ("audit: {retain: 1m}", "audit.retain: is \"1m\""),
            ("audit: {checkpoint_interval: 10ms}", "audit.checkpoint_interval: is \"10ms\""),
        ] {
            let faults = load_from(text, []).unwrap_err().to_string();
            assert!(faults.contains(path), "{text}: {faults}");
        }
    }
}
