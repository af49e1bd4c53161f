//! Protection of clients and backends from each other: breakers, retries, deadlines by method and
//! tool, and the concurrency of a backend. A part of the table of keys. [`super::validation`] reads
//! it from the configuration, [`super::spec_parser`] from bodies.

use std::{collections::BTreeMap, time::Duration};

use protocol::method::Method;

use super::{
    config_key::{
        CALL_MAX, COUNT, ConfigKey, DEADLINE, DEADLINE_MAX, DEADLINE_MIN, HOUR, KeyKind, key,
    },
    config_reader::ConfigReader,
    field_error::{FieldError, describe, invalid_value, join},
    range::{check_count, check_duration},
    spec::{BackendSpec, BackendTimeouts, TenantSpec, TenantTimeouts},
    units::{Ratio, parse_duration},
};

/// The keys of the section `breaker`.
pub(super) const BREAKER: &[ConfigKey] = &[
    key("enabled", KeyKind::Bool, "true", "Whether breakers open automatically."),
    key("failures", COUNT, "5", "Consecutive failures that open the breaker."),
    key(
        "error_ratio",
        ERROR_RATIO,
        "0.5",
        "Share of failures among the calls of the window that opens the breaker.",
    ),
    key("requests", COUNT, "20", "Calls in the window before `breaker.error_ratio` applies."),
    key("window", WINDOW, "10s", "Time over which the broker counts failures."),
    key(
        "probe_after",
        WINDOW,
        "1s",
        "Longest wait before the first probe; the shortest wait is half of it. The wait doubles after each failed probe.",
    ),
    key("probe_max", WINDOW, "3s", "Longest wait between two probes."),
];

const WINDOW: KeyKind = KeyKind::Duration { min: Duration::from_millis(10), max: HOUR };
const ERROR_RATIO: KeyKind = KeyKind::Ratio { percent_min: 1 };

/// The keys of the section `retries`.
pub(super) const RETRIES: &[ConfigKey] = &[
    key("enabled", KeyKind::Bool, "true", "Whether the broker retries failed calls."),
    key(
        "budget",
        KeyKind::Ratio { percent_min: 0 },
        "0.1",
        "Retries per call of one backend. The broker can accumulate a few unused retries.",
    ),
];

/// Largest number of tools, or of methods, in one body.
const NAMED_MAX: usize = 1_000;
/// Longest name of a tool, in bytes.
const NAME_BYTES_MAX: usize = 1_024;

/// Conditions under which breakers open, and the probes of open ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BreakerConfig {
    pub enabled: bool,
    pub failures: u32,
    pub error_ratio: Ratio,
    pub requests: u32,
    pub window: Duration,
    pub probe_after: Duration,
    pub probe_max: Duration,
}

/// Retries of calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetryConfig {
    pub enabled: bool,
    /// Retries per call of one backend.
    pub budget: Ratio,
}

impl ConfigReader<'_> {
    pub(super) fn breaker(&mut self) -> BreakerConfig {
        let breaker = BreakerConfig {
            enabled: self.bool("breaker.enabled"),
            failures: self.count("breaker.failures"),
            error_ratio: self.ratio("breaker.error_ratio"),
            requests: self.count("breaker.requests"),
            window: self.duration("breaker.window"),
            probe_after: self.duration("breaker.probe_after"),
            probe_max: self.duration("breaker.probe_max"),
        };
        if breaker.probe_max < breaker.probe_after {
            self.report(
                "breaker.probe_max",
                "is shorter than breaker.probe_after",
                "a time of at least breaker.probe_after",
            );
        }
        breaker
    }

    pub(super) fn retries(&mut self) -> RetryConfig {
        RetryConfig { enabled: self.bool("retries.enabled"), budget: self.ratio("retries.budget") }
    }

    fn ratio(&mut self, path: &str) -> Ratio {
        self.value(path, |value, kind| {
            let KeyKind::Ratio { percent_min } = kind else {
                unreachable!("{path} is read as a ratio")
            };
            value
                .as_f64()
                .filter(|share| *share * 100.0 >= f64::from(percent_min))
                .and_then(Ratio::new)
                .ok_or_else(|| invalid_value(value))
        })
    }

    pub(super) fn deadlines(&mut self, path: &str) -> BTreeMap<String, Duration> {
        self.value(path, |value, _| {
            let entries = value.as_object().ok_or_else(|| format!("is {}", describe(value)))?;
            let mut deadlines = BTreeMap::new();
            for (method, value) in entries {
                if !is_method(method) {
                    return Err(format!("names {method:?}, which is not a method of clients"));
                }
                let deadline =
                    value.as_str().and_then(|text| parse_duration(text).ok()).filter(is_deadline);
                deadlines.insert(
                    method.clone(),
                    deadline.ok_or_else(|| {
                        format!("has a value for {method} that {}", invalid_value(value))
                    })?,
                );
            }
            Ok(deadlines)
        })
    }
}

/// Checks the rules of a backend that the types do not express.
pub(super) fn check_backend(spec: &BackendSpec, faults: &mut Vec<FieldError>) {
    let BackendTimeouts { call, control, initialize, call_max, methods, tools } = &spec.timeouts;
    check_deadlines(
        &[("call", *call), ("control", *control), ("initialize", *initialize)],
        *call_max,
        methods,
        faults,
    );
    check_named(
        "tools",
        tools,
        |tool| !tool.is_empty() && tool.len() <= NAME_BYTES_MAX,
        "names of tools, as the backend has them",
        faults,
    );
    let breaker = &spec.breaker;
    for (name, count) in [("failures", breaker.failures), ("requests", breaker.requests)] {
        check_count(format!("breaker.{name}"), count.map(u64::from), COUNT, faults);
    }
    for (name, time) in [
        ("window", breaker.window),
        ("probe_after", breaker.probe_after),
        ("probe_max", breaker.probe_max),
    ] {
        check_duration(format!("breaker.{name}"), time, WINDOW, faults);
    }
}

/// Checks the rules of a tenant that the types do not express.
pub(super) fn check_tenant(spec: &TenantSpec, faults: &mut Vec<FieldError>) {
    let TenantTimeouts { call, control, call_max, methods } = &spec.timeouts;
    check_deadlines(&[("call", *call), ("control", *control)], *call_max, methods, faults);
}

fn check_deadlines(
    deadlines: &[(&str, Option<Duration>)],
    call_max: Option<Duration>,
    methods: &BTreeMap<String, Duration>,
    faults: &mut Vec<FieldError>,
) {
    for (name, deadline) in deadlines {
        check_duration(format!("timeouts.{name}"), *deadline, DEADLINE, faults);
    }
    check_duration("timeouts.call_max", call_max, CALL_MAX, faults);
    check_named(
        "methods",
        methods,
        is_method,
        "methods that clients call, such as tools/call",
        faults,
    );
}

fn check_named(
    member: &str,
    named: &BTreeMap<String, Duration>,
    is_name: impl Fn(&str) -> bool,
    allowed: &str,
    faults: &mut Vec<FieldError>,
) {
    let path = format!("timeouts.{member}");
    if named.len() > NAMED_MAX {
        faults.push(FieldError::new(&path, "has too many entries", format!("at most {NAMED_MAX}")));
    }
    for (name, deadline) in named {
        let shown: String = name.chars().take(64).collect();
        if !is_name(name) {
            faults.push(FieldError::new(
                &path,
                format!("names {shown:?}, which is not allowed"),
                allowed,
            ));
        } else {
            check_duration(join(&path, &shown), Some(*deadline), DEADLINE, faults);
        }
    }
}

fn is_deadline(deadline: &Duration) -> bool {
    (DEADLINE_MIN..=DEADLINE_MAX).contains(deadline)
}

fn is_method(name: &str) -> bool {
    let method = Method::parse(name);
    method != Method::Unknown && method.from_client()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{
        load_from,
        validation::{parse_backend_spec, parse_tenant_spec},
    };
    use super::*;

    #[test]
    fn resilience_settings_of_the_file_a_tenant_and_a_backend_are_read() {
        let config = load_from(
            "breaker: {failures: 3, error_ratio: 0.25, probe_after: 200ms}\nretries: {enabled: false}\n\
             timeouts: {call_max: 2h, methods: {resources/read: 10s}}\nlimits: {calls_in_flight: 5}",
            [("MCP_BROKER__TIMEOUTS__METHODS".to_owned(), "{prompts/get: 3s}".to_owned())],
        )
        .unwrap();
        assert_eq!(
            (config.breaker.failures, config.breaker.error_ratio.get(), config.breaker.requests),
            (3, 0.25, 20)
        );
        assert!(!config.retries.enabled && config.limits.calls_in_flight == 5);
        assert_eq!(
            config.timeouts.methods,
            BTreeMap::from([("prompts/get".to_owned(), Duration::from_secs(3))])
        );
        let body = json!({
            "transport": {"type": "stdio", "command": "x"},
            "timeouts": {"call_max": "5m", "methods": {"tools/call": "9s"}, "tools": {"slow": "2m"}},
            "breaker": {"failures": 2, "error_ratio": 0.75, "window": "3s", "enabled": true},
            "limits": {"calls_in_flight": 4, "calls_queued": 8, "adaptive_concurrency": true},
        });
        let spec = parse_backend_spec(&body).unwrap();
        assert_eq!(spec.timeouts.tools["slow"], Duration::from_secs(120));
        assert_eq!((spec.breaker.failures, spec.limits.calls_queued), (Some(2), Some(8)));
        let again: BackendSpec =
            serde_json::from_str(&serde_json::to_string(&spec).unwrap()).unwrap();
        assert_eq!(again, spec, "it is stored as it was read");
        let tenant = parse_tenant_spec(
            &json!({"timeouts": {"call": "9s", "methods": {"tools/call": "8s"}}}),
        )
        .unwrap();
        assert_eq!(
            (tenant.timeouts.call, tenant.timeouts.methods.len()),
            (Some(Duration::from_secs(9)), 1)
        );
    }

    #[test]
    fn every_fault_is_named() {
        let body = json!({
            "transport": {"type": "stdio", "command": "x"},
            "timeouts": {"call_max": "48h", "methods": {"sampling/createMessage": "9s", "tools/call": "2h"}, "tools": {"": "1s", "t": 5}},
            "breaker": {"failures": 0, "error_ratio": 0, "window": "1ms", "enabled": 1, "treshold": 3},
            "limits": {"calls_in_flight": 0},
        });
        let mut faults: Vec<String> =
            parse_backend_spec(&body).unwrap_err().iter().map(|fault| fault.path.clone()).collect();
        faults.sort();
        assert_eq!(
            faults,
            ["breaker.enabled", "breaker.error_ratio", "breaker.treshold", "timeouts.tools.t"],
            "the shape first"
        );
        let body = json!({
            "transport": {"type": "stdio", "command": "x"},
            "timeouts": {"call_max": "48h", "methods": {"sampling/createMessage": "9s", "tools/call": "2h"}, "tools": {"": "1s"}},
            "breaker": {"failures": 0, "window": "1ms"},
            "limits": {"calls_in_flight": 0},
        });
        let mut faults: Vec<String> =
            parse_backend_spec(&body).unwrap_err().iter().map(|fault| fault.path.clone()).collect();
        faults.sort();
        assert_eq!(
            faults,
            [
                "breaker.failures",
                "breaker.window",
                "limits.calls_in_flight",
                "timeouts.call_max",
                "timeouts.methods",
                "timeouts.methods.tools/call",
                "timeouts.tools",
            ]
        );
        for ratio in [json!("high"), json!(0), json!(1.5)] {
            let body = json!({
                "transport": {"type": "stdio", "command": "x"}, "breaker": {"error_ratio": ratio},
            });
            let faults = parse_backend_spec(&body).unwrap_err();
            assert_eq!(faults[0].allowed, "a number from 0.01 to 1", "{ratio}");
        }
        for (text, path) in [
            ("breaker: {error_ratio: 1.5}", "breaker.error_ratio"),
            ("breaker: {probe_max: 500ms}", "breaker.probe_max"),
            ("timeouts: {methods: {no/such: 5s}}", "timeouts.methods"),
            ("timeouts: {methods: {ping: never}}", "timeouts.methods"),
            ("retries: {budget: lots}", "retries.budget"),
        ] {
            let faults = load_from(text, []).unwrap_err();
            assert!(faults.0.iter().any(|fault| fault.path == path), "{text}: {faults:?}");
        }
    }
}
