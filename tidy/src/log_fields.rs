//! Fields of log lines. Tenants use the same names for backends, so a line with the field `backend`
//! also has the field `tenant`.

use crate::repository::{Source, crates, product};

const LEVELS: [&str; 5] = ["trace", "debug", "info", "warn", "error"];

/// Returns the arguments of a macro, each without the spaces around it. `text` begins after the
/// opening parenthesis.
fn arguments(text: &str) -> Vec<&str> {
    let (mut found, mut start, mut depth) = (Vec::new(), 0, 0);
    let (mut is_in_string, mut is_escaped) = (false, false);
    for (at, letter) in text.char_indices() {
        if is_in_string {
            is_in_string = is_escaped || letter != '"';
            is_escaped = !is_escaped && letter == '\\';
            continue;
        }
        match letter {
            '"' => is_in_string = true,
            '(' | '[' | '{' => depth += 1,
            ')' if depth == 0 => {
                found.push(text[start..at].trim());
                break;
            }
            ')' | ']' | '}' => depth -= 1,
            ',' if depth == 0 => {
                found.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    found
}

/// Returns the name of a field. A message, which is a string, has none.
fn field(argument: &str) -> Option<&str> {
    let name = argument.split('=').next()?.trim().trim_start_matches(['%', '?']);
    (!name.starts_with('"')).then_some(name)
}

/// Returns the events of a file that name a backend and no tenant.
fn faults(source: &Source) -> Vec<String> {
    let text = source.product();
    let mut found = Vec::new();
    for level in LEVELS {
        let opening = format!("tracing::{level}!(");
        for (at, _) in text.match_indices(&opening) {
            let arguments = arguments(&text[at + opening.len()..]);
            let has = |name| arguments.iter().any(|one| field(one) == Some(name));
            if has("backend") && !has("tenant") {
                let line = text[..at].lines().count().max(1);
                found.push(format!("{}:{line}", source.path));
            }
        }
    }
    found
}

#[test]
fn a_log_line_about_a_backend_names_its_tenant() {
    let sources = crates().into_iter().flat_map(|krate| product(&krate));
    let faults: Vec<String> = sources.flat_map(|source| faults(&source)).collect();
    assert!(
        faults.is_empty(),
        "these log lines have the field `backend` without the field `tenant`:\n{}",
        faults.join("\n")
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_without_a_tenant_is_found() {
        let text = r#"
            tracing::warn!(backend = %link.backend.id, why = f(1, "tenant, a)"), "a \" tenant, b");
            tracing::info!(
                %backend, "two"
            );
            tracing::error!(tenant = %key.0, backend = %key.1, "fine");
            tracing::debug!(%tenant, %backend, "fine");
            tracing::debug!(backends = 2, "fine");
            tracing::trace!("a backend, tenant");
        "#;
        let mut found = faults(&Source::new("a.rs", text));
        found.sort();
        assert_eq!(found, ["a.rs:2", "a.rs:3"]);
    }
}
