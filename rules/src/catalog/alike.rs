//! Detection of list entries that two readers would understand differently.

use protocol::json::{NameIndex, TapeValue};

/// Members of an entry that clients and the broker use for decisions.
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
/// Members of `annotations` and `execution` with the same role.
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

/// Returns whether every reader finds the same members in an entry. Otherwise a client could show
/// its user another tool than the one whose hints and schema the broker uses. Schemas are not
/// checked: they only restrict the calls to their backend.
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

    /// The inside of schemas belongs to the backend, and so do members that the broker does not
    /// know.
    #[test]
    fn s01_entries_that_readers_read_equally_are_kept() {
        for entry in [
            r#"{"name":"a","title":"A","inputSchema":{"properties":{"Name":{},"name":{}}},"x-vendor":1,"X-Vendor":2}"#,
            r#"{"name":"a","annotations":{"readOnlyHint":true,"vendor":1,"Vendor":2},"execution":{"taskSupport":"optional"}}"#,
            r#"{"name":"a","annotations":7,"execution":[]}"#,
        ] {
            assert!(is_alike(entry), "{entry}");
        }
    }
}
