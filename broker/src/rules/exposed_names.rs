//! Names and URIs on the aggregated endpoint: `{backend}__{tool}` and `{backend}+{uri}`.
//!
//! A name depends on its backend and its own text only, so adding a backend never renames another's tools. Names are
//! resolved through the catalog's map and never split; URIs are told apart by the first `+`, which no backend name holds.

use protocol::ids::BackendId;

/// Longest name shown to clients, in bytes; what most model APIs accept for a tool.
pub const EXPOSED_NAME_BYTES_MAX: usize = 64;
/// Digits of the stable hash that ends a shortened name.
const HASH_DIGITS: usize = 10;
const SEPARATOR: &str = "__";

/// The name a backend's tool or prompt has on the aggregated endpoint.
pub fn exposed_name(backend: &BackendId, original: &str) -> String {
    let plain = original.bytes().all(is_safe);
    let length = backend.as_str().len() + SEPARATOR.len() + original.len();
    if plain && length <= EXPOSED_NAME_BYTES_MAX {
        return format!("{backend}{SEPARATOR}{original}");
    }
    let room = EXPOSED_NAME_BYTES_MAX - backend.as_str().len() - SEPARATOR.len() - HASH_DIGITS - 1;
    let head: String = original
        .chars()
        .map(|c| if c.is_ascii() && is_safe(c as u8) { c } else { '_' })
        .take(room)
        .collect();
    format!("{backend}{SEPARATOR}{head}_{}", stable_hash(original))
}

/// The URI (or URI template) a backend's resource has on the aggregated endpoint.
pub fn exposed_uri(backend: &BackendId, original: &str) -> String {
    format!("{backend}+{original}")
}

/// Takes an aggregated URI apart: the backend's name and the URI it knows.
pub fn native_uri(exposed: &str) -> Option<(BackendId, &str)> {
    let (backend, original) = exposed.split_once('+')?;
    Some((BackendId::parse(backend).ok()?, original))
}

fn is_safe(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-'
}

/// FNV-1a in base 32. Stable over releases: clients keep names in their prompts and allow-lists.
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
    fn unsafe_and_long_names_are_shortened_within_the_limit_and_stay_apart() {
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
    fn the_hash_never_changes() {
        assert_eq!(
            exposed_name(&backend("b"), "files.read"),
            exposed_name(&backend("b"), "files.read")
        );
        assert_eq!(stable_hash("files.read").len(), HASH_DIGITS);
    }

    #[test]
    fn uris_round_trip_whatever_they_hold() {
        for uri in ["file:///a+b", "test://x/{id}", "urn:a+b+c"] {
            let exposed = exposed_uri(&backend("b-1"), uri);
            assert_eq!(native_uri(&exposed), Some((backend("b-1"), uri)));
        }
        assert_eq!(native_uri("file:///plain"), None);
        assert_eq!(native_uri("Bad Name+x"), None);
    }
}
