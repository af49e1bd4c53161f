//! Entries of backends' lists that two readers would read differently.

use protocol::json::{NameIndex, TapeValue};

/// The members of an entry that clients decide by, and the broker.
static ENTRY: NameIndex = NameIndex::new(&[
    "name",
    "title",
    "description",
    "uri",
    "uriTemplate",
    "mimeType",
    "size",
    "icons",
    "arguments",
    "annotations",
    "execution",
    "inputSchema",
    "outputSchema",
    "_meta",
]);
/// And those inside of `annotations` and `execution`.
static ANNOTATIONS: NameIndex = NameIndex::new(&[
    "title",
    "readOnlyHint",
    "destructiveHint",
    "idempotentHint",
    "openWorldHint",
    "audience",
    "priority",
]);
static EXECUTION: NameIndex = NameIndex::new(&["taskSupport"]);

/// True when every reader finds the same members in an entry. A client would otherwise show its user another tool than the one
/// whose hints and schema the broker goes by. Schemas are left to their backend: they restrain the calls that it gets.
pub(super) fn is_read_alike(entry: TapeValue<'_>) -> bool {
    let inside = |name: &str, known: &NameIndex| {
        entry.get(name).is_none_or(|value| value.check_names(known).is_ok())
    };
    entry.check_names(&ENTRY).is_ok()
        && inside("annotations", &ANNOTATIONS)
        && inside("execution", &EXECUTION)
}

#[cfg(test)]
mod tests {
    use protocol::json::{Limits, Tape};

    use super::*;

    fn is_alike(entry: &str) -> bool {
        is_read_alike(Tape::parse(entry.as_bytes(), &Limits::default()).unwrap().root())
    }

    #[test]
    fn s01_an_entry_that_readers_read_differently_is_found() {
        let kelvin = '\u{212a}';
        for entry in [
            r#"{"name":"a","inputSchema":{},"InputSchema":{"x":1}}"#,
            r#"{"name":"a","inputSchema":{},"inputSchema":{"x":1}}"#,
            r#"{"name":"a","description":"good","Description":"evil"}"#,
            r#"{"name":"a","description":"good","\u0064escription":"evil"}"#,
            r#"{"name":"a","Annotations":{"readOnlyHint":true}}"#,
            r#"{"name":"a","annotations":{"readOnlyHint":true,"readonlyhint":false}}"#,
            r#"{"name":"a","annotations":{"readOnlyHint":true,"readOnlyHint":false}}"#,
            r#"{"name":"a","execution":{"taskSupport":"required","TaskSupport":"forbidden"}}"#,
            &format!(r#"{{"name":"a","execution":{{"tas{kelvin}Support":"forbidden"}}}}"#),
            r#"{"name":"a","_meta":{},"_Meta":{}}"#,
        ] {
            assert!(!is_alike(entry), "{entry}");
        }
    }

    /// What is inside of schemas is their backend's, and so are members of its own.
    #[test]
    fn s01_entries_that_readers_read_alike_stay() {
        for entry in [
            r#"{"name":"a","title":"A","inputSchema":{"properties":{"Name":{},"name":{}}},"x-vendor":1,"X-Vendor":2}"#,
            r#"{"name":"a","annotations":{"readOnlyHint":true,"vendor":1,"Vendor":2},"execution":{"taskSupport":"optional"}}"#,
            r#"{"name":"a","annotations":7,"execution":[]}"#,
        ] {
            assert!(is_alike(entry), "{entry}");
        }
    }
}
