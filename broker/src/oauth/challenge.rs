//! The challenge `Bearer` of a `WWW-Authenticate` header (RFC 9110, 11.6.1; RFC 6750, 3; RFC 9728,
//! 5.1).

use http::{HeaderMap, header::WWW_AUTHENTICATE};

use super::scopes::named_scopes;

/// The demands of a backend on the token of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Challenge {
    pub resource_metadata: Option<String>,
    pub scopes: Vec<String>,
    pub error: Option<String>,
}

impl Challenge {
    /// Returns the first challenge of the scheme `Bearer`.
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        let values = headers.get_all(WWW_AUTHENTICATE).iter();
        values.filter_map(|value| value.to_str().ok()).find_map(Self::parse)
    }

    /// Returns whether the token lacks a scope.
    pub fn wants_scopes(&self) -> bool {
        self.error.as_deref() == Some("insufficient_scope") && !self.scopes.is_empty()
    }

    fn parse(text: &str) -> Option<Self> {
        let mut challenge = None;
        for (scheme, name, value) in items(text) {
            if let Some(scheme) = scheme {
                if challenge.is_some() {
                    break;
                }
                challenge = scheme.eq_ignore_ascii_case("bearer").then(Self::default);
            }
            let (Some(challenge), Some(value)) = (&mut challenge, value) else { continue };
            match name.to_ascii_lowercase().as_str() {
                "resource_metadata" => challenge.resource_metadata = Some(value),
                "error" => challenge.error = Some(value),
                "scope" => challenge.scopes = named_scopes(&value),
                _ => {}
            }
        }
        challenge
    }
}

/// Splits a header at commas outside quotes: a scheme if one begins there, then a parameter.
fn items(text: &str) -> Vec<(Option<&str>, &str, Option<String>)> {
    let (mut parts, mut from, mut quoted, mut escaped) = (Vec::new(), 0, false, false);
    for (at, letter) in text.char_indices() {
        match letter {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            ',' if !quoted => {
                parts.push(&text[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[from..]);
    parts
        .into_iter()
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .map(|part| {
            let (head, value) = match part.split_once('=') {
                Some((head, value)) => (head.trim(), Some(unquoted(value.trim()))),
                None => (part, None),
            };
            match (head.split_once(' '), value) {
                (Some((scheme, name)), value) => (Some(scheme), name.trim(), value),
                (None, Some(value)) => (None, head, Some(value)),
                (None, None) => (Some(head), "", None),
            }
        })
        .collect()
}

fn unquoted(value: &str) -> String {
    let Some(inner) = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) else {
        return value.to_owned();
    };
    let mut out = String::with_capacity(inner.len());
    let mut letters = inner.chars();
    while let Some(letter) = letters.next() {
        out.extend(if letter == '\\' { letters.next() } else { Some(letter) });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_are_read_as_servers_write_them() {
        let parse = |text: &str| Challenge::parse(text);
        let full = parse(
            r#"Bearer realm="a, b=c", resource_metadata="https://a.example/.well-known/x", error="insufficient_scope", scope="a b\"c""#,
        );
        let wanted = Challenge {
            resource_metadata: Some("https://a.example/.well-known/x".to_owned()),
            scopes: vec!["a".to_owned(), "b\"c".to_owned()],
            error: Some("insufficient_scope".to_owned()),
        };
        assert_eq!(full, Some(wanted));
        assert_eq!(parse("bearer"), Some(Challenge::default()));
        assert_eq!(parse("Basic realm=\"x\""), None);
        let second = parse("Basic realm=\"x\", Bearer scope=a").unwrap();
        assert_eq!(second.scopes, ["a"]);
        let first = parse("Bearer scope=a, Basic realm=x, scope=z").unwrap();
        assert_eq!(first.scopes, ["a"]);
        for odd in ["", ",,,", "=", "\"", "Bearer =\"", "Bearer scope=\"\\"] {
            let _no_panic = parse(odd);
        }
    }
}
