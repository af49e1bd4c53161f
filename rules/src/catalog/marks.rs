//! Marks by which brokers find a catalog that contains itself, as proxies find a loop of requests
//! (compare RFC 9110, section 7.6.3, and RFC 8586).
//!
//! A tenant's catalog contains itself if a backend leads back to the tenant's endpoint, directly or
//! through other brokers. Without a bound, each read of such a list would add the names of the last
//! one again. Two marks prevent that:
//!
//! - The mark of a backend is in each request that opens a connection to it. A broker refuses the
//!   request if one of the tenant's own backends has that mark.
//! - The mark of a catalog is in the lists that a broker gets from another one, with the marks of all
//!   catalogs behind these lists. The reader does not use a list with its own mark.
//!
//! Each request for a list has the mark of the backend too, so that no other client gets marks. All
//! replicas of an installation have the same marks. Marks reveal nothing, prove nothing, and are the
//! same for no two tenants or backends.

use std::collections::BTreeSet;

use aws_lc_rs::hmac;
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use protocol::{
    envelope::Message,
    handshake,
    ids::{BackendId, RequestId, TenantId},
    json::{self, Document, ValueKind},
    splice::Splice,
};

use crate::limits::CATALOG_MARKS_MAX;

/// Member of `_meta` with an array of marks.
pub const VIA: &str = "dev.mcp-broker/via";

/// Bytes of the signature that a mark consists of.
const MARK_BYTES: usize = 12;
/// Characters of a mark, in base64.
const MARK_CHARS: usize = MARK_BYTES / 3 * 4;

/// Derives the marks of an installation.
#[derive(Debug, Clone)]
pub struct MarkKey(hmac::Key);

/// The mark of a catalog or of a backend.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct CatalogMark(String);

/// Marks of a message, or of the catalogs behind a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CatalogMarks(BTreeSet<CatalogMark>);

impl MarkKey {
    pub fn new(key: hmac::Key) -> Self {
        Self(key)
    }

    /// Returns the mark of the catalog of a tenant.
    pub fn of_catalog(&self, tenant: &TenantId) -> CatalogMark {
        self.mark(&["catalog", tenant.as_str()])
    }

    /// Returns the mark that the broker sends to a backend.
    pub fn of_backend(&self, tenant: &TenantId, backend: &BackendId) -> CatalogMark {
        self.mark(&["backend", tenant.as_str(), backend.as_str()])
    }

    fn mark(&self, parts: &[&str]) -> CatalogMark {
        let mut context = hmac::Context::with_key(&self.0);
        for part in parts {
            context.update(&(part.len() as u64).to_be_bytes());
            context.update(part.as_bytes());
        }
        CatalogMark(URL_SAFE_NO_PAD.encode(&context.sign().as_ref()[..MARK_BYTES]))
    }
}

impl CatalogMark {
    fn parse(text: &str) -> Option<Self> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        (text.len() == MARK_CHARS && text.bytes().all(is_allowed)).then(|| Self(text.to_owned()))
    }

    /// Returns the member of `_meta` with this mark alone.
    pub fn member(&self) -> String {
        format!("\"{VIA}\":[\"{}\"]", self.0)
    }
}

impl CatalogMarks {
    /// Reads the marks in params or a result. `None`: the message has no such member.
    pub fn of(message: &Message) -> Option<Self> {
        let meta = message.bytes(message.fields.meta.filter(|_| message.fields.meta_has_own))?;
        let document = Document::parse(meta, &json::Limits::with_bytes_max(meta.len())).ok()?;
        let array = document.root().get(VIA).filter(|value| value.kind() == ValueKind::Array)?;
        let marks = array.elements().filter_map(|mark| CatalogMark::parse(&mark.as_str()?));
        Some(Self(marks.take(CATALOG_MARKS_MAX + 1).collect()))
    }

    /// Returns whether there are more than one list may have. Then some may be missing.
    pub fn are_too_many(&self) -> bool {
        self.0.len() > CATALOG_MARKS_MAX
    }

    pub fn contains(&self, mark: &CatalogMark) -> bool {
        self.0.contains(mark)
    }

    pub fn add(&mut self, mark: CatalogMark) {
        self.0.insert(mark);
    }

    /// Adds others, up to the first one that is too much.
    pub fn extend(&mut self, others: &Self) {
        for mark in &others.0 {
            if self.are_too_many() {
                return;
            }
            self.0.insert(mark.clone());
        }
    }

    /// Returns the marks as a JSON array.
    pub fn to_json(&self) -> String {
        let marks: Vec<String> = self.0.iter().map(|mark| format!("\"{}\"", mark.0)).collect();
        format!("[{}]", marks.join(","))
    }

    /// Returns the result of a list request with these marks.
    pub fn added_to(&self, list: &[u8]) -> Option<Bytes> {
        let decoded = |frame: Bytes| {
            let limits = json::Limits::with_bytes_max(frame.len());
            Message::decode(frame, &limits).ok()
        };
        let message = decoded(handshake::success(&RequestId::from_u64(0), list))?;
        let frame =
            Splice::new(&message.frame).set_meta(&message, VIA, self.to_json().as_bytes()).finish();
        let marked = decoded(frame)?;
        Some(marked.result?.slice(&marked.frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> MarkKey {
        MarkKey::new(hmac::Key::new(hmac::HMAC_SHA256, &[byte; 32]))
    }

    fn tenant(name: &str) -> TenantId {
        TenantId::parse(name).unwrap()
    }

    fn message(result: &str) -> Message {
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#);
        Message::decode(Bytes::from(text), &json::Limits::default()).unwrap()
    }

    fn numbered(count: usize) -> CatalogMarks {
        CatalogMarks((0..count).map(|n| CatalogMark(format!("{n:016}"))).collect())
    }

    #[test]
    fn replicas_agree_on_a_mark_and_nobody_else_has_it() {
        let backend = |name: &str| BackendId::parse(name).unwrap();
        let all = [
            key(1).of_catalog(&tenant("a")),
            key(1).of_catalog(&tenant("b")),
            key(2).of_catalog(&tenant("a")),
            key(1).of_backend(&tenant("a"), &backend("b")),
            key(1).of_backend(&tenant("a"), &backend("c")),
            key(1).of_backend(&tenant("b"), &backend("b")),
            key(1).of_backend(&tenant("ab"), &backend("b")),
        ];
        assert_eq!(key(1).of_catalog(&tenant("a")), all[0]);
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
        assert!(all.iter().all(|mark| CatalogMark::parse(&mark.0).as_ref() == Some(mark)));
    }

    #[test]
    fn a_list_gets_its_marks_beside_other_members() {
        let mut marks = CatalogMarks::default();
        marks.add(key(1).of_catalog(&tenant("a")));
        marks.extend(&numbered(2));
        for list in [
            r#"{"tools":[]}"#,
            r#"{"tools":[],"nextCursor":"c","_meta":{"dev.mcp-broker/stale":["b"]}}"#,
        ] {
            assert_eq!(CatalogMarks::of(&message(list)), None, "{list}");
            let marked = marks.added_to(list.as_bytes()).unwrap();
            let marked = message(std::str::from_utf8(&marked).unwrap());
            assert_eq!(CatalogMarks::of(&marked).as_ref(), Some(&marks), "{list}");
            let shown: serde_json::Value =
                serde_json::from_slice(marked.bytes(marked.result).unwrap()).unwrap();
            let before: serde_json::Value = serde_json::from_str(list).unwrap();
            assert_eq!(shown["nextCursor"], before["nextCursor"]);
            assert_eq!(
                shown["_meta"]["dev.mcp-broker/stale"],
                before["_meta"]["dev.mcp-broker/stale"]
            );
        }
    }

    #[test]
    fn foreign_values_are_no_marks_and_too_many_marks_show() {
        let read = |value: &str| {
            let list = format!(r#"{{"tools":[],"_meta":{{"{VIA}":{value}}}}}"#);
            CatalogMarks::of(&message(&list))
        };
        for value in ["7", "{}", "\"0000000000000000\""] {
            assert_eq!(read(value), None, "{value}");
        }
        let none = r#"[7,"short","000000000000000+",["0000000000000000"]]"#;
        assert_eq!(read(none), Some(CatalogMarks::default()));
        for (count, are_too_many) in
            [(CATALOG_MARKS_MAX, false), (CATALOG_MARKS_MAX + 1, true), (5_000, true)]
        {
            let marks = read(&numbered(count).to_json()).unwrap();
            assert_eq!(marks.are_too_many(), are_too_many, "{count}");
            assert!(marks.0.len() <= CATALOG_MARKS_MAX + 1);
            let mut all = CatalogMarks::default();
            all.extend(&numbered(count));
            assert_eq!(all.are_too_many(), are_too_many, "{count}");
        }
    }
}
