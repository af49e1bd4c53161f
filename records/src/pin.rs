//! Pins of catalog objects: the definitions that backends showed, and what operators decided about
//! them.

use protocol::ids::{BackendId, TenantId};

use crate::named::named;

/// Characters of a stored hash: the version, a colon and a SHA-256 in hexadecimal.
pub const PIN_HASH_CHARS: usize = 67;
/// Number of approved hashes that a pin keeps, the newest first.
pub const PIN_APPROVED_MAX: usize = 8;

named! {
    /// Kind of a pinned object.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum PinKind {
        Tool = "tool",
        Prompt = "prompt",
        Resource = "resource",
        Template = "template",
        /// The instructions of the server.
        Instructions = "instructions",
        /// The program of a stdio backend.
        Command = "command",
        /// The contents of a user interface that a tool links (MCP Apps).
        App = "app",
    }
}

/// Key of a pin at its backend.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PinKey {
    pub kind: PinKind,
    /// The backend's own name, URI or URI template.
    pub name: String,
}

/// A definition as a backend shows it now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinSighting {
    pub key: PinKey,
    pub hash: String,
    /// JSON text.
    pub definition: String,
    /// JSON text: what the scanner found in it.
    pub findings: String,
}

/// A pin as it is stored, without its definitions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredPin {
    pub key: PinKey,
    /// Hash of the first definition that any replica saw.
    pub first_hash: String,
    /// Hash of the definition that was seen last.
    pub seen_hash: String,
    /// False if the backend does not list the object any more.
    pub is_listed: bool,
    /// Hashes that operators approved, the newest first.
    pub approved: Vec<String>,
    pub is_blocked: bool,
    /// Number of operators' decisions about this pin.
    pub decisions: i64,
    pub findings: String,
    pub decided_by: Option<String>,
    pub decided_at_us: Option<i64>,
    pub first_seen_at_us: i64,
    pub seen_at_us: i64,
}

/// The definitions of one pin, as JSON text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinDefinitions {
    /// The definition that was approved last, or else the first one.
    pub accepted: String,
    pub seen: String,
}

/// The approval of definitions by their hashes. It is carried out as a whole or not at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinApproval {
    pub tenant: TenantId,
    pub backend: BackendId,
    /// Each pin with the hash that the operator looked at.
    pub items: Vec<(PinKey, String)>,
    /// True to remove pins that are not listed, and about which no operator decided anything.
    pub forgets_gone: bool,
    pub by: String,
    pub at_us: i64,
}

/// The block of objects, whatever their definitions. It is carried out as a whole or not at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinBlock {
    pub tenant: TenantId,
    pub backend: BackendId,
    pub keys: Vec<PinKey>,
    pub by: String,
    pub at_us: i64,
}

/// Splits the stored text of approved hashes.
pub fn approved_hashes(text: &str) -> Vec<String> {
    text.split_ascii_whitespace().map(str::to_owned).collect()
}
