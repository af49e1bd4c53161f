//! API keys of the principal that use a session, besides the one that opened it. A revocation of any of
//! them ends the session.

use protocol::ids::KeyId;

use super::Session;

/// Adds a key that continues a session. Returns false if the session knows it.
pub(super) fn add(session: &Session, key: &KeyId) -> bool {
    if has_used(session, key) {
        return false;
    }
    session.lock().further_keys.push(key.clone());
    true
}

/// Returns whether a key opened or continued a session.
pub fn has_used(session: &Session, key: &KeyId) -> bool {
    session.caller.key.as_ref() == Some(key) || session.lock().further_keys.contains(key)
}
