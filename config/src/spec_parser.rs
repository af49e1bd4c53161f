//! Parses and checks the bodies of tenants and backends. The configuration file and the admin API
//! both use it, so both accept the same bodies and report the same faults. Every fault has the path
//! of its field.
//!
//! [`BodySchema`] reads the shape. The checks after it find the faults that the types do not
//! express.

use std::sync::LazyLock;

use serde_json::Value;

use super::{
    backend_auth_check, backend_tls,
    body_schema::BodySchema,
    config_key::{KeyKind, is_secret},
    field_error::{FieldError, join},
    pins, policy,
    range::check_count,
    resilience, roots, sandbox,
    spec::{BackendSpec, Credentials, ProtocolChoice, TenantSpec, TransportSpec},
    spec_limits, transport_check,
};

static BACKEND: LazyLock<BodySchema<BackendSpec>> = LazyLock::new(BodySchema::new);
static TENANT: LazyLock<BodySchema<TenantSpec>> = LazyLock::new(BodySchema::new);

const WEIGHT: KeyKind = KeyKind::Count { min: 1, max: 1_000 };
/// Largest number of configured headers per backend.
const HEADERS_MAX: usize = 64;
/// Largest value of a configured header, in bytes.
const HEADER_BYTES_MAX: usize = 32 * 1024;

/// Headers that the broker writes itself. A configured one would break the transport or impersonate
/// a client.
const OWN_HEADERS: [&str; 18] = [
    "accept",
    "accept-encoding",
    "connection",
    "content-length",
    "content-type",
    "expect",
    "host",
    "keep-alive",
    "last-event-id",
    "mcp-method",
    "mcp-name",
    "mcp-protocol-version",
    "mcp-session-id",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Reads and checks a backend's body.
pub fn parse_backend_spec(body: &Value) -> Result<BackendSpec, Vec<FieldError>> {
    let spec = BACKEND.read(body).map_err(policy::with_ranges)?;
    validate_backend_spec(&spec).map(|()| spec)
}

/// Reads and checks a tenant's body.
pub fn parse_tenant_spec(body: &Value) -> Result<TenantSpec, Vec<FieldError>> {
    let spec = TENANT.read(body)?;
    validate_tenant_spec(&spec).map(|()| spec)
}

/// Checks the rules that the types do not express.
pub fn validate_backend_spec(spec: &BackendSpec) -> Result<(), Vec<FieldError>> {
    let mut faults = Vec::new();
    transport_check::check(&spec.transport, &mut faults);
    check_protocol(spec, &mut faults);
    backend_tls::check(&spec.tls, &spec.transport, &mut faults);
    spec_limits::check_backend(&spec.limits, &mut faults);
    resilience::check_backend(spec, &mut faults);
    check_credentials(&spec.credentials, &spec.transport, &mut faults);
    backend_auth_check::check(spec, &mut faults);
    policy::check_resources(&spec.resources, &mut faults);
    roots::check(&spec.roots, spec.protocol, &mut faults);
    sandbox::check(&spec.sandbox, &spec.transport, &mut faults);
    policy::check_tools(&spec.tools, &mut faults);
    pins::check(&spec.pins, &mut faults);
    if faults.is_empty() { Ok(()) } else { Err(faults) }
}

/// Checks the rules that the types do not express.
pub fn validate_tenant_spec(spec: &TenantSpec) -> Result<(), Vec<FieldError>> {
    let mut faults = Vec::new();
    check_count("weight", Some(spec.weight.into()), WEIGHT, &mut faults);
    spec_limits::check_tenant(&spec.limits, &mut faults);
    resilience::check_tenant(spec, &mut faults);
    if faults.is_empty() { Ok(()) } else { Err(faults) }
}

/// Checks that the transport exists in the revisions that the operator chose.
fn check_protocol(spec: &BackendSpec, faults: &mut Vec<FieldError>) {
    if matches!(spec.transport, TransportSpec::Sse { .. })
        && spec.protocol == ProtocolChoice::Modern
    {
        let wrong = "is modern, but HTTP+SSE belongs to a revision with sessions";
        faults.push(FieldError::new("protocol", wrong, "auto or legacy for an sse backend"));
    }
}

fn check_credentials(
    credentials: &Credentials,
    transport: &TransportSpec,
    faults: &mut Vec<FieldError>,
) {
    if *credentials == Credentials::default() {
        return;
    }
    if !matches!(
        transport,
        TransportSpec::Http { .. } | TransportSpec::Sse { .. } | TransportSpec::Websocket { .. }
    ) {
        let wrong = format!("are HTTP headers, which a {} backend does not use", transport.kind());
        faults.push(FieldError::new(
            "credentials",
            wrong,
            "transport.env for a child process; leave credentials out for other backends",
        ));
        return;
    }
    if credentials.bearer.as_ref().is_some_and(|bearer| !is_secret(bearer)) {
        faults.push(FieldError::new(
            "credentials.bearer",
            "is empty, too long or not a token",
            "1 to 4096 visible ASCII characters without spaces",
        ));
    }
    if credentials.headers.len() > HEADERS_MAX {
        faults.push(FieldError::new(
            "credentials.headers",
            "has too many entries",
            format!("at most {HEADERS_MAX}"),
        ));
    }
    let mut seen = std::collections::HashSet::new();
    for (name, value) in &credentials.headers {
        let Ok(parsed) = http::HeaderName::from_bytes(name.as_bytes()) else {
            faults.push(FieldError::new(
                "credentials.headers",
                "has a name that is not a header name",
                "names such as x-api-key",
            ));
            continue;
        };
        let path = join("credentials.headers", parsed.as_str());
        if OWN_HEADERS.contains(&parsed.as_str()) {
            faults.push(FieldError::new(
                &path,
                "is a header the broker sets itself",
                format!("any header but {}", OWN_HEADERS.join(", ")),
            ));
        }
        if parsed == http::header::AUTHORIZATION && credentials.bearer.is_some() {
            faults.push(FieldError::new(
                &path,
                "is set together with credentials.bearer, which is the same header",
                "one of the two",
            ));
        }
        if value.len() > HEADER_BYTES_MAX || http::HeaderValue::from_str(value).is_err() {
            faults.push(FieldError::new(
                &path,
                "is too long or holds a control character",
                "one line of text",
            ));
        }
        if !seen.insert(parsed) {
            faults.push(FieldError::new(
                path,
                "is given twice, in different cases",
                "each header once",
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{Just, Strategy, any, prop_oneof};
    use serde_json::{Map, json};

    use super::*;

    fn faults_of(body: Value) -> Vec<String> {
        parse_backend_spec(&body)
            .err()
            .unwrap_or_default()
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    fn assert_fault(body: Value, start: &str) {
        let faults = faults_of(body.clone());
        assert!(
            faults.iter().any(|fault| fault.starts_with(start)),
            "{body}: no fault starts with {start:?} in {faults:#?}"
        );
    }

    #[test]
    fn valid_bodies_are_read_and_their_stored_form_is_read_again() {
        for body in [
            json!({"transport": {"type": "http", "url": "http://127.0.0.1:1/mcp"}}),
            json!({"transport": {"type": "http", "url": "https://a.example/mcp"}, "links": "per-session", "timeouts": {"call": "2s", "control": "1s", "initialize": "1h"},
                   "credentials": {"bearer": "abc", "headers": {"X-Api-Key": "1"}}}),
            json!({"transport": {"type": "stdio", "command": "node", "args": ["a", ""], "env": {"A": "b"}, "cwd": "/tmp"}, "links": "shared"}),
            json!({"transport": {"type": "tcp", "address": "[::1]:7000"}}),
            json!({"transport": {"type": "tcp", "address": "a:7000", "tls": true}}),
            json!({"transport": {"type": "tcp", "address": "10.0.0.1:7000", "tls": {"server_name": "tools.internal"}}}),
            json!({"transport": {"type": "quic", "address": "a:7000", "server_name": "tools.internal"}}),
            json!({"transport": {"type": "websocket", "url": "wss://a.example/ws?x=1"}, "credentials": {"bearer": "t"}}),
        ] {
            let parsed =
                parse_backend_spec(&body).unwrap_or_else(|faults| panic!("{body}: {faults:?}"));
            let stored = serde_json::to_value(&parsed).unwrap();
            assert_eq!(serde_json::from_value::<BackendSpec>(stored.clone()).unwrap(), parsed);
            assert_eq!(parse_backend_spec(&stored), Ok(parsed));
        }
        for body in [
            json!({}),
            json!({"enabled": false, "weight": 3, "limits": {"requests_per_second": 0, "burst": 5, "sessions_per_tenant": 9, "calls_in_flight_per_tenant": 1}}),
        ] {
            let parsed = parse_tenant_spec(&body).unwrap();
            let stored = serde_json::to_value(&parsed).unwrap();
            assert_eq!(serde_json::from_value::<TenantSpec>(stored.clone()).unwrap(), parsed);
            assert_eq!(parse_tenant_spec(&stored), Ok(parsed));
        }
    }

    #[test]
    fn each_fault_of_a_backend_names_its_field() {
        let http = json!({"type": "http", "url": "http://a.example/"});
        assert_fault(json!(5), "document: is a number");
        assert_fault(json!({}), "transport: is missing");
        assert_fault(json!({"transport": "http"}), "transport: is text");
        assert_fault(json!({"transport": {}}), "transport.type: is missing");
        assert_fault(json!({"transport": {"type": "http"}}), "transport.url: is missing");
        assert_fault(json!({"transport": {"type": "http", "url": "ftp://x"}}), "transport.url: ");
        assert_fault(
            json!({"transport": {"type": "http", "url": "http://a.example/", "command": "x"}}),
            "transport.command: is not a known key",
        );
        for address in ["", "a", ":1", "a:0", "http://a:1"] {
            assert_fault(
                json!({"transport": {"type": "tcp", "address": address}}),
                "transport.address: is not a host and port; allowed: HOST:PORT",
            );
        }
        assert_fault(json!({"transport": {"type": "tcp"}}), "transport.address: is missing");
        assert_fault(
            json!({"transport": {"type": "tcp", "address": "a:1"}, "credentials": {"bearer": "x"}}),
            "credentials: are HTTP headers, which a tcp backend does not use",
        );
        let tcp = |tls: Value| json!({"transport": {"type": "tcp", "address": "a:1", "tls": tls}});
        assert_fault(
            tcp(json!("yes")),
            "transport.tls: is text; allowed: true, false or a map with server_name",
        );
        assert_fault(tcp(json!({"name": "x"})), "transport.tls.name: is not a known key");
        assert_fault(
            tcp(json!({"server_name": "a b"})),
            "transport.tls.server_name: is not the name of a server",
        );
        for url in ["", "http://a/", "ws://", "ws://u:p@a/", "wss://a/#f", "wsx://a/", "ws:a"] {
            assert_fault(
                json!({"transport": {"type": "websocket", "url": url}}),
                "transport.url: ",
            );
        }
        assert_fault(json!({"transport": {"type": "quic"}}), "transport.address: is missing");
        assert_fault(
            json!({"transport": {"type": "quic", "address": "a"}}),
            "transport.address: is not a host and port",
        );
        assert_fault(
            json!({"transport": {"type": "quic", "address": "a:1", "server_name": ""}}),
            "transport.server_name: is not the name",
        );
        assert_fault(
            json!({"transport": {"type": "carrier-pigeon"}}),
            "transport.type: is not a known transport",
        );
        assert_fault(
            json!({"transport": http, "breaker": {"failure": 1}}),
            "breaker.failure: is not a known key, perhaps `failures`",
        );
        assert_fault(
            json!({"transport": http, "link": "auto"}),
            "link: is not a known key, perhaps `links`",
        );
        assert_fault(json!({"transport": http, "links": "some"}), "links: ");
        assert_fault(json!({"transport": http, "protocol": "2026-07-28"}), "protocol: ");
        assert_fault(
            json!({"transport": http, "timeouts": {"call": 5}}),
            "timeouts.call: is a number",
        );
        assert_fault(
            json!({"transport": http, "timeouts": {"call": "5 apples"}}),
            "timeouts.call: \"5 apples\" is not a duration",
        );
        assert_fault(
            json!({"transport": http, "timeouts": {"call": "0s"}}),
            "timeouts.call: is out of range; allowed: a duration from 1ms to 1h",
        );
        assert_fault(
            json!({"transport": http, "timeouts": {"control": "2h"}}),
            "timeouts.control: is out of range",
        );
    }

    #[test]
    fn child_processes_are_checked() {
        let stdio = |extra: Value| {
            let mut transport = json!({"type": "stdio", "command": "node"});
            transport.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            json!({ "transport": transport })
        };
        assert_fault(stdio(json!({"command": " "})), "transport.command: ");
        assert_fault(stdio(json!({"command": "a\0b"})), "transport.command: ");
        assert_fault(stdio(json!({"args": ["a", 5]})), "transport.args[1]: is a number");
        assert_fault(stdio(json!({"args": ["a\0"]})), "transport.args[0]: ");
        assert_fault(stdio(json!({"args": vec!["a"; 300]})), "transport.args: has too many");
        assert_fault(stdio(json!({"env": {"A=B": "x"}})), "transport.env: has a name");
        assert_fault(stdio(json!({"env": {"A": 5}})), "transport.env.A: is a number");
        assert_fault(stdio(json!({"cwd": "relative"})), "transport.cwd: is not an absolute path");
        let mut with_credentials = stdio(json!({}));
        with_credentials["credentials"] = json!({"bearer": "x"});
        assert_fault(with_credentials, "credentials: are HTTP headers");
    }

    #[test]
    fn credentials_are_checked_and_never_shown() {
        let with = |credentials: Value| json!({"transport": {"type": "http", "url": "http://a.example/"}, "credentials": credentials});
        assert_fault(with(json!({"bearer": ""})), "credentials.bearer: is empty");
        assert_fault(with(json!({"headers": {"x y": "v"}})), "credentials.headers: has a name");
        assert_fault(
            with(json!({"headers": {"Host": "v"}})),
            "credentials.headers.host: is a header the broker sets itself",
        );
        assert_fault(
            with(json!({"headers": {"X-A": "1", "x-a": "2"}})),
            "credentials.headers.x-a: is given twice",
        );
        assert_fault(
            with(json!({"bearer": "b", "headers": {"Authorization": "Basic x"}})),
            "credentials.headers.authorization: is set together with",
        );
        let shown =
            faults_of(with(json!({"bearer": "hush hush", "headers": {"x-key": "hush\nhush"}})))
                .join("\n");
        assert!(
            shown.contains("credentials.bearer")
                && shown.contains("credentials.headers.x-key")
                && !shown.contains("hush"),
            "{shown}"
        );
    }

    #[test]
    fn every_fault_of_a_body_is_reported_at_once() {
        let body = json!({"transport": {"type": "stdio", "args": 5, "env": [], "cwd": 1}, "links": 5, "timeouts": [], "credentials": "x", "foo": 1});
        let faults = faults_of(body);
        assert_eq!(faults.len(), 8, "{faults:#?}");
    }

    #[test]
    fn tenants_are_checked() {
        let faults = |body: Value| {
            parse_tenant_spec(&body)
                .err()
                .unwrap_or_default()
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            faults(json!({"weight": 0})),
            ["weight: is 0; allowed: a whole number from 1 to 1000"]
        );
        assert_eq!(faults(json!({"weight": -1}))[0], "weight: is -1; allowed: a whole number");
        assert_eq!(faults(json!({"enabled": "yes", "limits": {"burst": 1.5, "bust": 1}})).len(), 3);
        assert_eq!(faults(json!({"limits": {"burst": 0, "sessions_per_tenant": 0}})).len(), 2);
        assert_eq!(
            faults(json!([]))[0],
            "document: is a list; allowed: a map with enabled, weight, limits, timeouts"
        );
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let names = [
            "transport",
            "type",
            "http",
            "stdio",
            "url",
            "command",
            "args",
            "env",
            "cwd",
            "links",
            "timeouts",
            "call",
            "credentials",
            "headers",
            "limits",
        ];
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            ".{0,8}".prop_map(Value::from),
            proptest::sample::select(names.to_vec()).prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 40, 6, move |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::vec((proptest::sample::select(names.to_vec()), inner), 0..6)
                    .prop_map(|members| members
                        .into_iter()
                        .map(|(name, value)| (name.to_owned(), value))
                        .collect::<Map<_, _>>()
                        .into()),
            ]
        })
    }

    proptest::proptest! {
        #[test]
        fn a_body_is_read_or_every_fault_of_its_shape_is_named(body in any_value()) {
            for faults in [parse_backend_spec(&body).err(), parse_tenant_spec(&body).err()].into_iter().flatten() {
                assert!(!faults.is_empty() && faults.iter().all(|fault| !fault.problem.contains("is not accepted")), "{body}: {faults:?}");
            }
        }
    }
}
