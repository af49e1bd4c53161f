//! Names and URIs on the aggregated endpoint: `{backend}__{tool}`, `{backend}+{uri}`, and
//! `ui://{backend}+{rest}` for the user interfaces of apps.
//!
//! A name depends only on its backend and its own text, so a new backend never renames tools of
//! others. The map of the catalog resolves names, which are never split. URIs are split at the
//! first `+`, which no backend name contains. If the name of the backend begins with a digit, the
//! URI begins with `b.`.

use std::borrow::Cow;

use protocol::ids::BackendId;

/// Bytes of an exposed name. Most model APIs accept this length for a tool.
pub const EXPOSED_NAME_BYTES_MAX: usize = 64;
/// Digits of the stable hash at the end of a shortened name.
const HASH_DIGITS: usize = 10;
const SEPARATOR: &str = "__";
/// Start of the URIs of a backend whose name begins with a digit. The scheme of a URI begins with a
/// letter (RFC 3986, 3.1), and some clients refuse a whole list for one URI without a scheme. No
/// backend name contains the dot.
const LETTER_FIRST: &str = "b.";
/// Start of the URI of a user interface (MCP Apps). Hosts refuse a link in any other form.
const UI_SCHEME: &str = "ui://";

/// Returns the name of a backend's tool or prompt on the aggregated endpoint.
pub fn exposed_name(backend: &BackendId, original: &str) -> String {
    let plain = original.bytes().all(is_safe);
    let length = backend.as_str().len() + SEPARATOR.len() + original.len();
    if plain && length <= EXPOSED_NAME_BYTES_MAX {
        return format!("{backend}{SEPARATOR}{original}");
    }
    let bytes_max =
        EXPOSED_NAME_BYTES_MAX - backend.as_str().len() - SEPARATOR.len() - HASH_DIGITS - 1;
    let head: String = original
        .chars()
        .map(|c| if c.is_ascii() && is_safe(c as u8) { c } else { '_' })
        .take(bytes_max)
        .collect();
    format!("{backend}{SEPARATOR}{head}_{}", stable_hash(original))
}

/// Returns the URI (or URI template) of a backend's resource on the aggregated endpoint.
pub fn exposed_uri(backend: &BackendId, original: &str) -> String {
    match original.strip_prefix(UI_SCHEME) {
        Some(rest) => format!("{UI_SCHEME}{backend}+{rest}"),
        None if begins_with_digit(backend.as_str()) => {
            format!("{LETTER_FIRST}{backend}+{original}")
        }
        None => format!("{backend}+{original}"),
    }
}

/// Splits an aggregated URI into the backend's name and the backend's URI.
///
/// Also accepts `{backend}+ui://…`, which an expanded template can be, and the name of a backend
/// without the letter before its digit. [`exposed_uri`] alone writes the form of the broker.
pub fn native_uri(exposed: &str) -> Option<(BackendId, Cow<'_, str>)> {
    let backend = |name: &str| BackendId::parse(name).ok();
    if let Some((name, rest)) = exposed.strip_prefix(UI_SCHEME).and_then(|ui| ui.split_once('+')) {
        return Some((backend(name)?, format!("{UI_SCHEME}{rest}").into()));
    }
    let (name, original) = exposed.split_once('+')?;
    let lettered = name.strip_prefix(LETTER_FIRST).filter(|name| begins_with_digit(name));
    Some((backend(lettered.unwrap_or(name))?, original.into()))
}

/// Returns the form of an aggregated URI in builds that wrote no letter before the digit. `None`: the
/// form is the same.
pub fn earlier_uri(exposed: &str) -> Option<&str> {
    let earlier = exposed.strip_prefix(LETTER_FIRST)?;
    begins_with_digit(earlier.split_once('+')?.0).then_some(earlier)
}

fn begins_with_digit(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_digit())
}

/// Returns whether the name of a tool or prompt on the aggregated endpoint can be one of `backend`.
pub fn can_be_name_of(backend: &BackendId, exposed: &str) -> bool {
    exposed.strip_prefix(backend.as_str()).is_some_and(|rest| rest.starts_with(SEPARATOR))
}

fn is_safe(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-'
}

/// Computes FNV-1a in base 32. It is stable over releases, because clients store names in prompts
/// and allow-lists.
fn stable_hash(text: &str) -> String {
    const DIGITS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let mut hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    (0..HASH_DIGITS)
        .map(|_| {
            let digit = DIGITS[(hash & 31) as usize];
            hash >>= 5;
            digit as char
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backend(name: &str) -> BackendId {
        BackendId::parse(name).unwrap()
    }

    #[test]
    fn a_plain_name_is_prefixed() {
        assert_eq!(exposed_name(&backend("weather"), "get_forecast"), "weather__get_forecast");
    }

    #[test]
    fn unsafe_and_long_names_are_shortened_and_stay_unique() {
        let long = "x".repeat(200);
        let longer = "x".repeat(201);
        for name in ["a.b", "größe", "", &long, &longer, "a b"] {
            let exposed = exposed_name(
                &backend("a-backend-with-a-rather-long-name"[..32].trim_end_matches('-')),
                name,
            );
            assert!(
                exposed.len() <= EXPOSED_NAME_BYTES_MAX && exposed.bytes().all(is_safe)
                    || name.is_empty(),
                "{exposed}"
            );
        }
        assert_ne!(exposed_name(&backend("b"), &long), exposed_name(&backend("b"), &longer));
        assert_ne!(exposed_name(&backend("b"), "a.b"), exposed_name(&backend("b"), "a b"));
    }

    #[test]
    fn the_hash_of_exposed_names_is_stable() {
        assert_eq!(exposed_name(&backend("b"), "files.read"), "b__files_read_ct2odi7dc2");
    }

    #[test]
    fn a_name_is_shortened_from_the_first_byte_above_the_limit() {
        let fits = "x".repeat(EXPOSED_NAME_BYTES_MAX - "abc__".len());
        assert_eq!(exposed_name(&backend("abc"), &fits), format!("abc__{fits}"));
        let longer = exposed_name(&backend("abc"), &format!("{fits}x"));
        assert_eq!(longer.len(), EXPOSED_NAME_BYTES_MAX);
        assert_eq!(longer, format!("abc__{}_{}", &fits[11..], stable_hash(&format!("{fits}x"))));
        assert_eq!(exposed_name(&backend("abc"), "A-z_09"), "abc__A-z_09");
    }

    #[test]
    fn each_exposed_name_belongs_to_one_backend() {
        let long = "x".repeat(200);
        for name in ["echo", "a.b", "größe", "__", &long] {
            let exposed = exposed_name(&backend("ab"), name);
            assert!(can_be_name_of(&backend("ab"), &exposed), "{exposed}");
            assert!(!can_be_name_of(&backend("a"), &exposed), "{exposed}");
            assert!(!can_be_name_of(&backend("ab-c"), &exposed), "{exposed}");
        }
    }

    #[test]
    fn uris_with_any_characters_are_exposed_and_restored() {
        for uri in ["file:///a+b", "test://x/{id}", "urn:a+b+c"] {
            let exposed = exposed_uri(&backend("b-1"), uri);
            assert_eq!(native_uri(&exposed), Some((backend("b-1"), uri.into())));
        }
        assert_eq!(native_uri("file:///plain"), None);
        assert_eq!(native_uri("Bad Name+x"), None);
    }

    #[test]
    fn every_exposed_uri_begins_with_a_scheme() {
        for (name, uri, exposed) in [
            ("1password", "op://vault/x", "b.1password+op://vault/x"),
            ("3d", "urn:{id}", "b.3d+urn:{id}"),
            ("b", "op://vault/x", "b+op://vault/x"),
            ("1password", "ui://view", "ui://1password+view"),
        ] {
            assert_eq!(exposed_uri(&backend(name), uri), exposed);
            assert!(exposed.starts_with(|first: char| first.is_ascii_alphabetic()), "{exposed}");
            assert_eq!(native_uri(exposed), Some((backend(name), uri.into())));
        }
        let plain = native_uri("1password+op://vault/x");
        assert_eq!(plain, Some((backend("1password"), "op://vault/x".into())));
        assert_eq!(native_uri("b.notes+op://vault/x"), None);
        assert_eq!(earlier_uri("b.1password+op://vault/x"), Some("1password+op://vault/x"));
        for unchanged in ["1password+op://vault/x", "b+op://vault/x", "ui://1password+view"] {
            assert_eq!(earlier_uri(unchanged), None, "{unchanged}");
        }
    }

    #[test]
    fn user_interfaces_keep_their_scheme() {
        for (uri, exposed) in [
            ("ui://monitor/app.html", "ui://b-1+monitor/app.html"),
            ("ui://other+monitor/app.html", "ui://b-1+other+monitor/app.html"),
            ("ui://{app}/view", "ui://b-1+{app}/view"),
            ("ui://", "ui://b-1+"),
            ("UI://app", "b-1+UI://app"),
            ("ui:app", "b-1+ui:app"),
        ] {
            assert_eq!(exposed_uri(&backend("b-1"), uri), exposed);
            assert_eq!(native_uri(exposed), Some((backend("b-1"), uri.into())));
        }
        // A template that is all variable expands to this.
        assert_eq!(native_uri("b-1+ui://app"), Some((backend("b-1"), "ui://app".into())));
        for no_backend in ["ui://app", "ui://Bad Name+x", "ui://a/b+x", "ui://"] {
            assert_eq!(native_uri(no_backend), None, "{no_backend}");
        }
    }
}
