//! Counts among the arguments, and limits that are counts. An error says which texts are allowed.

use std::str::FromStr;

use config::spec::{BackendLimits, TenantLimits};
use serde_json::Value;
use utoipa::PartialSchema;

/// Reads a count.
pub(super) fn count<Count: FromStr>(text: &str) -> Result<Count, String> {
    text.parse().map_err(|_| "must be a whole number that is not too large".to_owned())
}

/// Reads the weight of a tenant. The broker checks its range.
pub(super) fn weight(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "must be a whole number from 1 to 1000".to_owned())
}

/// Reads a limit of a backend: `NAME=COUNT`.
pub(super) fn backend_limit(text: &str) -> Result<(String, u32), String> {
    limit_of(&counted_members::<BackendLimits>(), text)
}

/// Reads a limit of a tenant: `NAME=COUNT`.
pub(super) fn tenant_limit(text: &str) -> Result<(String, u32), String> {
    limit_of(&counted_members::<TenantLimits>(), text)
}

fn limit_of(names: &[String], text: &str) -> Result<(String, u32), String> {
    let (name, written) = text.split_once('=').ok_or("must be NAME=COUNT")?;
    if !names.iter().any(|known| known == name) {
        return Err(format!(
            "{name} is not a limit that is a count; allowed: {}",
            names.join(", ")
        ));
    }
    let count = count(written).map_err(|problem| format!("the count of {name} {problem}"))?;
    Ok((name.to_owned(), count))
}

/// Returns the members of a body that are whole numbers.
fn counted_members<Body: PartialSchema>() -> Vec<String> {
    let schema = serde_json::to_value(Body::schema()).unwrap_or_default();
    let is_count = |member: &Value| match &member["type"] {
        Value::Array(kinds) => kinds.iter().any(|kind| kind == "integer"),
        kind => kind == "integer",
    };
    let members = schema["properties"].as_object().into_iter().flatten();
    members.filter(|(_, member)| is_count(member)).map(|(name, _)| name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_limits_that_are_counts_are_taken_and_named() {
        assert_eq!(backend_limit("calls_queued=5"), Ok(("calls_queued".to_owned(), 5)));
        assert_eq!(
            tenant_limit("sessions_per_tenant=0"),
            Ok(("sessions_per_tenant".to_owned(), 0))
        );
        for refused in [backend_limit("foo=1"), backend_limit("tools=1"), tenant_limit("tools=1")] {
            let refused = refused.unwrap_err();
            let (_, allowed) = refused.split_once("; allowed: ").unwrap();
            assert!(allowed.contains("requests_per_second"), "{allowed}");
            for other in ["message_profile", "tools", "adaptive_concurrency"] {
                assert!(!allowed.split(", ").any(|name| name == other), "{allowed}");
            }
        }
    }

    #[test]
    fn a_text_that_is_not_a_count_is_refused_with_what_is_allowed() {
        for text in ["abc", "", "-1", "1.5", "99999999999"] {
            assert!(count::<u32>(text).unwrap_err().contains("a whole number"), "{text}");
        }
        assert!(weight("abc").unwrap_err().contains("from 1 to 1000"));
        let refused = backend_limit("burst=abc").unwrap_err();
        assert!(refused.starts_with("the count of burst must be a whole number"), "{refused}");
        assert_eq!(backend_limit("burst").unwrap_err(), "must be NAME=COUNT");
    }
}
