//! Bodies of the admin API: a backend, a tenant, an issuer. The readers against their printers, and
//! what the API shows of a backend against what an operator stores of it again.

use broker::control::BackendSettings;
use config::{
    parse_stored_issuer,
    spec::{BackendSpec, TenantSpec},
    validation::{parse_backend_spec, parse_tenant_spec, validate_backend_spec},
};
use protocol::ids::TenantId;
use serde_json::{Value, json};

use super::settings_faults::{check_faults, secrets_of};
use crate::{Outcome, Target};

pub(super) const TARGET: Target = Target {
    name: "admin_bodies",
    tokens: &[
        "{",
        "}",
        "[",
        "]",
        ",",
        "null",
        "true",
        "0",
        "1e9",
        "\"5m\"",
        "\"250ms\"",
        "\"1500ms\"",
        "\"61s\"",
        "\"2d\"",
        "536870913",
        "\"512MiB\"",
        "\"hush-hush-hush\"",
        "\\u0000",
        "é",
        "***",
        "%2e",
        "?key=hush-hush-hush",
        "user:hush-hush-hush@",
        "\"transport\":{\"type\":\"http\",\"url\":\"https://a.example/mcp\"},",
        "\"transport\":{\"type\":\"stdio\",\"command\":\"node\"},",
        "\"type\":\"sse\",",
        "\"type\":\"tcp\",\"address\":\"a:1\",",
        "\"type\":\"quic\",\"address\":\"[::1]:1\",",
        "\"type\":\"websocket\",\"url\":\"wss://a/\",",
        "\"tls\":true,",
        "\"server_name\":\"a\",",
        "\"args\":[\"--token\",\"hush-hush-hush\"],",
        "\"env\":{\"A\":\"hush-hush-hush\"},",
        "\"credentials\":{\"bearer\":\"hush-hush-hush\"},",
        "\"headers\":{\"x-key\":\"hush-hush-hush\"},",
        "\"auth\":{\"type\":\"oauth_client\",\"client_id\":\"a\",\"client_secret\":\"hush-hush-hush\"},",
        "\"limits\":{\"burst\":1},",
        "\"timeouts\":{\"call\":\"1s\"},",
        "\"methods\":{\"tools/call\":\"1s\"},",
        "\"breaker\":{\"error_ratio\":0.5},",
        "\"pins\":{\"mode\":\"warn\"},",
        "\"roots\":{\"mode\":\"merge\"},",
        "\"sandbox\":{\"read\":[\"/srv\"]},",
        "\"links\":\"shared\",",
        "\"protocol\":\"modern\",",
        "\"weight\":1,",
        "\"issuer\":\"https://a.example\",",
    ],
    bytes_max: 2048,
    check,
};

fn check(input: &[u8]) -> Outcome {
    let Ok(body) = serde_json::from_slice::<Value>(input) else {
        return Outcome::of(&"not JSON");
    };
    let backend = match parse_backend_spec(&body) {
        Ok(spec) => {
            is_read_again(&spec);
            is_stored_as_shown(&spec);
            names(&serde_json::to_value(&spec).expect("settings are plain values"), 2)
        }
        Err(faults) => check_faults(&faults, &body),
    };
    let tenant = match parse_tenant_spec(&body) {
        Ok(spec) => {
            let printed = serde_json::to_value(&spec).expect("settings are plain values");
            assert_eq!(parse_tenant_spec(&printed).as_ref(), Ok(&spec), "the round trip");
            let stored: TenantSpec = serde_json::from_value(printed.clone()).expect("it was read");
            assert_eq!(stored, spec, "what is stored is read without checks");
            names(&printed, 2)
        }
        Err(faults) => check_faults(&faults, &body),
    };
    let owner = TenantId::parse("acme").expect("a name");
    let issuer = match parse_stored_issuer(&owner, &body) {
        Ok(issuer) => {
            assert!(issuer.is_stored && issuer.can_name(&owner), "an issuer of its tenant");
            assert!(!issuer.can_name(&TenantId::parse("other").expect("a name")), "and no other");
            vec![format!("{} algorithms", issuer.algorithms.len())]
        }
        Err(faults) => check_faults(&faults, &body),
    };
    Outcome::of(&(backend, tenant, issuer))
}

/// Checks that the form in which settings are stored is read back, with checks and without them.
fn is_read_again(spec: &BackendSpec) {
    assert_eq!(validate_backend_spec(spec), Ok(()), "what was checked holds");
    let stored = serde_json::to_vec(spec).expect("settings are plain values");
    let read: BackendSpec = serde_json::from_slice(&stored).expect("what is stored is read");
    assert_eq!(&read, spec, "the round trip");
    let printed: Value = serde_json::from_slice(&stored).expect("it was read");
    assert_eq!(parse_backend_spec(&printed).as_ref(), Ok(spec), "the round trip with checks");
}

/// Checks that settings as the admin API shows them tell no secret, and that an operator can store
/// them again, with the secrets.
fn is_stored_as_shown(spec: &BackendSpec) {
    let view = BackendSettings::new(spec);
    let shown = serde_json::to_value(&view).expect("settings are plain values");
    assert_eq!(serde_json::from_value(shown.clone()).ok().as_ref(), Some(&view), "for clients");
    let text = shown.to_string();
    let printed = serde_json::to_value(spec).expect("settings are plain values");
    for secret in secrets_of(&printed) {
        assert!(!text.contains(&secret), "{secret} of {spec:?} is shown: {text}");
    }
    let mut body = shown;
    body["credentials"] = json!(spec.credentials);
    body["auth"] = json!(spec.auth);
    let stored = parse_backend_spec(&body)
        .unwrap_or_else(|faults| panic!("what is shown is refused: {body}: {faults:?}"));
    assert_eq!(BackendSettings::new(&stored), view, "what is shown again");
    // Masked values are stored as they are, and only a transport has them.
    let unmasked = BackendSpec { transport: spec.transport.clone(), ..stored };
    assert_eq!(&unmasked, spec, "what is stored again");
}

/// Returns the names of members down to a depth, and not below names that the input chooses.
fn names(value: &Value, depth: usize) -> Vec<String> {
    let mut found = Vec::new();
    for (name, inner) in value.as_object().into_iter().flatten().filter(|_| depth > 0) {
        found.push(match (name.as_str(), inner) {
            ("type" | "mode" | "links" | "protocol", Value::String(kind)) => kind.clone(),
            (name, _) => name.to_owned(),
        });
        if !matches!(name.as_str(), "methods" | "tools" | "env" | "headers" | "ignore") {
            found.extend(names(inner, depth - 1));
        }
    }
    found
}
