//! `limits` in the bodies of tenants and backends, read and checked.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{
    config_key::COUNT_MAX,
    field_error::{FieldError, join},
    message_sizes::is_profile_name,
    spec::{BackendLimits, RateSpec, TenantLimits},
    spec_reader::{SpecReader, check_count, given},
};

/// Tools of one backend with a rate of their own.
const TOOLS_MAX: usize = 1_000;
const PATH: &str = "limits";
const PROFILE: &str = "message_profile";

pub(super) fn tenant(reader: &mut SpecReader<'_>, value: &Value) -> TenantLimits {
    const KNOWN: [&str; 13] = [
        "requests_per_second",
        "burst",
        "requests_per_second_per_principal",
        "burst_per_principal",
        "requests_per_second_per_backend",
        "burst_per_backend",
        "requests_per_second_per_tool",
        "burst_per_tool",
        "connections_per_tenant",
        "sessions_per_tenant",
        "sessions_per_principal",
        "calls_in_flight_per_tenant",
        PROFILE,
    ];
    let Some(members) = reader.object(PATH, value, &KNOWN, &[]) else {
        return TenantLimits::default();
    };
    let message_profile = reader.text(PATH, members, PROFILE);
    let mut count = |name| reader.count(PATH, members, name);
    TenantLimits {
        message_profile,
        requests_per_second: count("requests_per_second"),
        burst: count("burst"),
        requests_per_second_per_principal: count("requests_per_second_per_principal"),
        burst_per_principal: count("burst_per_principal"),
        requests_per_second_per_backend: count("requests_per_second_per_backend"),
        burst_per_backend: count("burst_per_backend"),
        requests_per_second_per_tool: count("requests_per_second_per_tool"),
        burst_per_tool: count("burst_per_tool"),
        connections_per_tenant: count("connections_per_tenant").map(|count| count as usize),
        sessions_per_tenant: count("sessions_per_tenant").map(|count| count as usize),
        sessions_per_principal: count("sessions_per_principal").map(|count| count as usize),
        calls_in_flight_per_tenant: count("calls_in_flight_per_tenant").map(|count| count as usize),
    }
}

pub(super) fn backend(reader: &mut SpecReader<'_>, value: &Value) -> BackendLimits {
    const KNOWN: [&str; 9] = [
        "requests_per_second",
        "burst",
        "requests_per_second_per_tool",
        "burst_per_tool",
        "tools",
        "calls_in_flight",
        "calls_queued",
        "adaptive_concurrency",
        PROFILE,
    ];
    let Some(members) = reader.object(PATH, value, &KNOWN, &[]) else {
        return BackendLimits::default();
    };
    let tools = given(members, "tools").map(|value| tools(reader, value)).unwrap_or_default();
    let adaptive_concurrency = reader.switch(PATH, members, "adaptive_concurrency");
    let message_profile = reader.text(PATH, members, PROFILE);
    let mut count = |name| reader.count(PATH, members, name);
    BackendLimits {
        message_profile,
        requests_per_second: count("requests_per_second"),
        burst: count("burst"),
        requests_per_second_per_tool: count("requests_per_second_per_tool"),
        burst_per_tool: count("burst_per_tool"),
        tools,
        calls_in_flight: count("calls_in_flight").map(|count| count as usize),
        calls_queued: count("calls_queued").map(|count| count as usize),
        adaptive_concurrency,
    }
}

fn tools(reader: &mut SpecReader<'_>, value: &Value) -> BTreeMap<String, RateSpec> {
    const RATE: [&str; 2] = ["requests_per_second", "burst"];
    let path = join(PATH, "tools");
    let Some(tools) = value.as_object() else {
        reader.fault(&path, "is no map", "a map from a tool's name to its rate");
        return BTreeMap::new();
    };
    let mut rates = BTreeMap::new();
    for (tool, value) in tools {
        let path = join(&path, tool);
        let Some(members) = reader.object(&path, value, &RATE, &[]) else { continue };
        let [requests_per_second, burst] = RATE.map(|name| reader.count(&path, members, name));
        rates.insert(tool.clone(), RateSpec { requests_per_second, burst });
    }
    rates
}

/// Whether there is such a profile depends on the configuration in force.
fn check_profile(name: Option<&str>, faults: &mut Vec<FieldError>) {
    if name.is_some_and(|name| !is_profile_name(name)) {
        faults.push(FieldError::new(
            join(PATH, PROFILE),
            "is no name for a profile",
            "1 to 64 characters of A-Z a-z 0-9 . _ -",
        ));
    }
}

/// Checks what the types can not say.
pub(super) fn check_tenant(limits: &TenantLimits, faults: &mut Vec<FieldError>) {
    check_profile(limits.message_profile.as_deref(), faults);
    let of_size = |count: Option<usize>| count.map(|count| count as u64);
    for (name, value, min) in [
        ("requests_per_second", limits.requests_per_second.map(u64::from), 0),
        ("burst", limits.burst.map(u64::from), 1),
        (
            "requests_per_second_per_principal",
            limits.requests_per_second_per_principal.map(u64::from),
            0,
        ),
        ("burst_per_principal", limits.burst_per_principal.map(u64::from), 1),
        (
            "requests_per_second_per_backend",
            limits.requests_per_second_per_backend.map(u64::from),
            0,
        ),
        ("burst_per_backend", limits.burst_per_backend.map(u64::from), 1),
        ("requests_per_second_per_tool", limits.requests_per_second_per_tool.map(u64::from), 0),
        ("burst_per_tool", limits.burst_per_tool.map(u64::from), 1),
        ("connections_per_tenant", of_size(limits.connections_per_tenant), 1),
        ("sessions_per_tenant", of_size(limits.sessions_per_tenant), 1),
        ("sessions_per_principal", of_size(limits.sessions_per_principal), 1),
        ("calls_in_flight_per_tenant", of_size(limits.calls_in_flight_per_tenant), 1),
    ] {
        if let Some(value) = value {
            check_count(&join(PATH, name), value, min, COUNT_MAX, faults);
        }
    }
}

pub(super) fn check_backend(limits: &BackendLimits, faults: &mut Vec<FieldError>) {
    check_profile(limits.message_profile.as_deref(), faults);
    let mut rate = |path: &str, per_second: Option<u32>, burst: Option<u32>, suffix: &str| {
        for (name, value, min) in [("requests_per_second", per_second, 0), ("burst", burst, 1)] {
            if let Some(value) = value {
                check_count(
                    &join(path, &format!("{name}{suffix}")),
                    value.into(),
                    min,
                    COUNT_MAX,
                    faults,
                );
            }
        }
    };
    rate(PATH, limits.requests_per_second, limits.burst, "");
    rate(PATH, limits.requests_per_second_per_tool, limits.burst_per_tool, "_per_tool");
    for (tool, own) in &limits.tools {
        rate(&join(&join(PATH, "tools"), tool), own.requests_per_second, own.burst, "");
    }
    for (name, count) in
        [("calls_in_flight", limits.calls_in_flight), ("calls_queued", limits.calls_queued)]
    {
        if let Some(count) = count {
            check_count(&join(PATH, name), count as u64, 1, COUNT_MAX, faults);
        }
    }
    if limits.tools.len() > TOOLS_MAX {
        faults.push(FieldError::new(
            "limits.tools",
            "has too many entries",
            format!("at most {TOOLS_MAX}"),
        ));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::config::validation::{parse_backend_spec, parse_tenant_spec};

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
            (json!({"tools": {"a": {"rate": 0}}}), "limits.tools.a.rate: is no known key"),
            (json!({"tools": 5}), "limits.tools: is no map"),
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
