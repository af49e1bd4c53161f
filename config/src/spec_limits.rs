//! Checks `limits` in the bodies of tenants and backends.

use super::{
    config_key::COUNT,
    field_error::{FieldError, join},
    limits::RATE,
    message_sizes::is_profile_name,
    range::check_count,
    spec::{BackendLimits, TenantLimits},
};

/// Largest number of tools with a rate of their own, per backend.
const TOOLS_MAX: usize = 1_000;
const PATH: &str = "limits";
const PROFILE: &str = "message_profile";

/// Checks the form of a profile's name. Its existence depends on the configuration in force.
fn check_profile(name: Option<&str>, faults: &mut Vec<FieldError>) {
    if name.is_some_and(|name| !is_profile_name(name)) {
        faults.push(FieldError::new(
            join(PATH, PROFILE),
            "is not a name for a profile",
            "1 to 64 characters of A-Z a-z 0-9 . _ -",
        ));
    }
}

/// Checks the rules that the types do not express.
pub(super) fn check_tenant(limits: &TenantLimits, faults: &mut Vec<FieldError>) {
    check_profile(limits.message_profile.as_deref(), faults);
    check_rate(PATH, "", limits.requests_per_second, limits.burst, faults);
    check_rate(
        PATH,
        "_per_principal",
        limits.requests_per_second_per_principal,
        limits.burst_per_principal,
        faults,
    );
    check_rate(
        PATH,
        "_per_backend",
        limits.requests_per_second_per_backend,
        limits.burst_per_backend,
        faults,
    );
    check_rate(
        PATH,
        "_per_tool",
        limits.requests_per_second_per_tool,
        limits.burst_per_tool,
        faults,
    );
    for (name, count) in [
        ("connections_per_tenant", limits.connections_per_tenant),
        ("sessions_per_tenant", limits.sessions_per_tenant),
        ("sessions_per_principal", limits.sessions_per_principal),
        ("calls_in_flight_per_tenant", limits.calls_in_flight_per_tenant),
    ] {
        check_count(join(PATH, name), count.map(|count| count as u64), COUNT, faults);
    }
}

pub(super) fn check_backend(limits: &BackendLimits, faults: &mut Vec<FieldError>) {
    check_profile(limits.message_profile.as_deref(), faults);
    check_rate(PATH, "", limits.requests_per_second, limits.burst, faults);
    check_rate(
        PATH,
        "_per_tool",
        limits.requests_per_second_per_tool,
        limits.burst_per_tool,
        faults,
    );
    for (tool, own) in &limits.tools {
        check_rate(
            &join(&join(PATH, "tools"), tool),
            "",
            own.requests_per_second,
            own.burst,
            faults,
        );
    }
    for (name, count) in
        [("calls_in_flight", limits.calls_in_flight), ("calls_queued", limits.calls_queued)]
    {
        check_count(join(PATH, name), count.map(|count| count as u64), COUNT, faults);
    }
    if limits.tools.len() > TOOLS_MAX {
        faults.push(FieldError::new(
            "limits.tools",
            "has too many entries",
            format!("at most {TOOLS_MAX}"),
        ));
    }
}

fn check_rate(
    path: &str,
    suffix: &str,
    per_second: Option<u32>,
    burst: Option<u32>,
    faults: &mut Vec<FieldError>,
) {
    check_count(
        format!("{path}.requests_per_second{suffix}"),
        per_second.map(u64::from),
        RATE,
        faults,
    );
    check_count(format!("{path}.burst{suffix}"), burst.map(u64::from), COUNT, faults);
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::validation::{parse_backend_spec, parse_tenant_spec};

    fn backend(limits: Value) -> Result<Value, Vec<String>> {
        let body =
            json!({"transport": {"type": "http", "url": "http://a.example/"}, "limits": limits});
        let spec = parse_backend_spec(&body)
            .map_err(|faults| faults.iter().map(ToString::to_string).collect::<Vec<_>>())?;
        Ok(serde_json::to_value(spec.limits).unwrap())
    }

    #[test]
    fn rates_of_a_backend_and_its_tools_are_read_as_they_are_written() {
        let limits = json!({"requests_per_second": 5, "burst_per_tool": 2, "tools": {"search": {"requests_per_second": 1, "burst": 3}}});
        assert_eq!(backend(limits.clone()).unwrap(), limits);
        assert_eq!(backend(json!({})).unwrap(), json!({}));
    }

    #[test]
    fn faults_have_their_path() {
        for (limits, fault) in [
            (json!({"burst": 0}), "limits.burst: is 0"),
            (json!({"tools": {"a": {"burst": 0}}}), "limits.tools.a.burst: is 0"),
            (json!({"tools": {"a": {"rate": 0}}}), "limits.tools.a.rate: is not a known key"),
            (
                json!({"tools": 5}),
                "limits.tools: is a number; allowed: a map from name to a map with requests_per_second, burst",
            ),
            (json!({"requests_per_second": 9_999_999}), "limits.requests_per_second: is 9999999"),
        ] {
            let faults = backend(limits).unwrap_err();
            assert!(faults[0].starts_with(fault), "{faults:?}");
        }
        let faults = parse_tenant_spec(
            &json!({"limits": {"burst_per_tool": 0, "sessions_per_principal": 0}}),
        )
        .unwrap_err();
        assert_eq!(faults.len(), 2, "{faults:?}");
    }
}
