//! What holds for every fault of settings: it is one line, it says what is wrong
//! and what is allowed, and it shows no secret. Used by the targets of settings.

use std::mem::take;

use config::FieldError;
use serde_json::Value;

/// Marks the values of secrets in the inputs, so that no other text contains one by accident.
const SECRET_MARK: &str = "hush";
/// Members that hold secrets, at any depth.
const SECRETS: [&str; 7] = [
    "admin_token",
    "bearer",
    "client_key",
    "client_secret",
    "redis_url",
    "secret",
    "secret_previous",
];
/// Maps whose values are secrets.
const SECRET_MAPS: [&str; 2] = ["env", "headers"];

/// What the fault of a policy has, if it does not name what is allowed.
const POLICY_REMEDIES: [&str; 3] = ["must ", "; ", "the policy decides"];

/// Checks every fault of a refusal, and returns what tells them apart.
pub(super) fn check_faults(faults: &[FieldError], body: &Value) -> Vec<String> {
    assert!(!faults.is_empty(), "a refusal names a fault: {body}");
    let secrets = secrets_of(body);
    for fault in faults {
        let line = fault.to_string();
        assert!(!fault.problem.is_empty(), "a fault says what is wrong: {fault:?}");
        assert!(!line.chars().any(char::is_control), "a fault is one line: {line:?}");
        let is_allowed_named = !fault.allowed.is_empty() || fault.problem.contains("allowed");
        // The faults of policies say both in one sentence: what must be, or what to do.
        let is_of_policy = fault.path.contains(".policy.")
            && POLICY_REMEDIES.iter().any(|words| fault.problem.contains(words));
        // A text that is not YAML has no field, and the reason has its line.
        let has_no_shape = fault.path.is_empty() && fault.problem.starts_with("is not YAML");
        assert!(
            is_allowed_named || is_of_policy || has_no_shape,
            "a fault says what is allowed: {fault:?}"
        );
        assert!(!fault.problem.starts_with("is not accepted: "), "the shape has a gap: {fault:?}");
        for secret in &secrets {
            assert!(!line.contains(secret), "a fault shows a secret: {line}");
        }
    }
    // The number of an entry, and a text of the input in front, would differ for nearly every input.
    let kind = |fault: &FieldError| fault.allowed.chars().take(48).collect();
    let mut kinds: Vec<String> = faults.iter().map(kind).collect();
    kinds.sort();
    kinds.dedup();
    kinds.truncate(3);
    kinds
}

/// Returns the marked secrets of settings, except those that stand elsewhere in them too.
pub(super) fn secrets_of(settings: &Value) -> Vec<String> {
    let (mut rest, mut secrets) = (settings.clone(), Vec::new());
    take_secrets(&mut rest, &mut secrets);
    let rest = shown(&rest);
    secrets.retain(|secret| !rest.contains(secret.as_str()));
    secrets
}

/// Returns all texts of a value, names too.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => format!("{text}\n"),
        Value::Array(elements) => elements.iter().map(shown).collect(),
        Value::Object(members) => {
            members.iter().map(|(name, value)| format!("{name}\n{}", shown(value))).collect()
        }
        _ => String::new(),
    }
}

/// Takes the secrets out of settings.
fn take_secrets(settings: &mut Value, taken: &mut Vec<String>) {
    match settings {
        Value::Object(members) => {
            for (name, value) in members {
                if SECRETS.contains(&name.as_str()) {
                    take_secret(value, taken);
                } else if SECRET_MAPS.contains(&name.as_str()) {
                    let entries = value.as_object_mut().into_iter().flatten();
                    entries.for_each(|(_, entry)| take_secret(entry, taken));
                } else {
                    take_secrets(value, taken);
                }
            }
        }
        Value::Array(elements) => {
            elements.iter_mut().for_each(|element| take_secrets(element, taken));
        }
        _ => {}
    }
}

fn take_secret(value: &mut Value, taken: &mut Vec<String>) {
    match value {
        Value::String(text) if text.contains(SECRET_MARK) => taken.push(take(text)),
        _ => {}
    }
}
