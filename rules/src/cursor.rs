//! Signed cursors of the broker's lists (MCP 2025-11-25, Pagination: opaque to clients).
//!
//! A cursor names the last entry of a page, so it stays valid while the list changes around it. Its
//! signature covers the tenant, the endpoint and the list. A cursor of another tenant or list is
//! refused like noise.

use aws_lc_rs::hmac;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};

/// Bytes of the signature in a cursor.
const TAG_BYTES: usize = 16;

/// The scope of a cursor.
#[derive(Debug, Clone, Copy)]
pub struct CursorScope<'a> {
    pub tenant: &'a str,
    /// Name of the backend or toolset, or empty on the aggregated endpoint.
    pub endpoint: &'a str,
    pub list: &'a str,
}

/// Creates the cursor that continues after `last`.
pub fn seal(key: &hmac::Key, scope: CursorScope<'_>, last: &str) -> String {
    let mut bytes = tag(key, scope, last.as_bytes());
    bytes.extend_from_slice(last.as_bytes());
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Returns the entry that a cursor continues after. `None` if the cursor is invalid in this scope.
pub fn open(key: &hmac::Key, scope: CursorScope<'_>, cursor: &str) -> Option<String> {
    let bytes = URL_SAFE_NO_PAD.decode(cursor).ok()?;
    let (given, last) = bytes.split_at_checked(TAG_BYTES)?;
    aws_lc_rs::constant_time::verify_slices_are_equal(given, &tag(key, scope, last)).ok()?;
    String::from_utf8(last.to_vec()).ok()
}

fn tag(key: &hmac::Key, scope: CursorScope<'_>, last: &[u8]) -> Vec<u8> {
    let mut context = hmac::Context::with_key(key);
    for part in [scope.tenant.as_bytes(), scope.endpoint.as_bytes(), scope.list.as_bytes(), last] {
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part);
    }
    context.sign().as_ref()[..TAG_BYTES].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCOPE: CursorScope<'_> = CursorScope { tenant: "acme", endpoint: "", list: "tools" };

    fn key() -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &[7; 32])
    }

    #[test]
    fn a_sealed_cursor_opens_and_is_deterministic() {
        let cursor = seal(&key(), SCOPE, "weather__forecast");
        assert_eq!(open(&key(), SCOPE, &cursor).as_deref(), Some("weather__forecast"));
        assert_eq!(seal(&key(), SCOPE, "weather__forecast"), cursor);
    }

    #[test]
    fn page_01_a_foreign_or_altered_cursor_is_refused() {
        let cursor = seal(&key(), SCOPE, "x");
        assert_eq!(open(&key(), CursorScope { tenant: "other", ..SCOPE }, &cursor), None);
        assert_eq!(open(&key(), CursorScope { endpoint: "b", ..SCOPE }, &cursor), None);
        assert_eq!(open(&key(), CursorScope { list: "prompts", ..SCOPE }, &cursor), None);
        for bad in ["", "abc", "!!!", &cursor[1..], &format!("{cursor}A")] {
            assert_eq!(open(&key(), SCOPE, bad), None, "{bad}");
        }
    }
}
