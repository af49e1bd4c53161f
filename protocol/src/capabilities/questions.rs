//! The parts of a server's request that decide whether a client can be sent it.

use super::parse_object;
use crate::error::{ErrorKind, Refusal};
use crate::json::{AmbiguousMember, Value};

/// Returns the content of each message of a sampling request.
pub(super) fn contents<'a>(params: Value<'a>) -> Result<Vec<Value<'a>>, AmbiguousMember> {
    let messages = params.get("messages").into_iter().flat_map(|messages| messages.elements());
    messages.filter_map(|one| one.unambiguous("content").transpose()).collect()
}

pub(super) fn ambiguous(member: AmbiguousMember) -> Refusal {
    Refusal::new(ErrorKind::InvalidParams, member.to_string())
}

/// Returns whether a form has a property of type `array`, which permits several choices.
pub(super) fn has_array_property(params: &[u8]) -> bool {
    let Ok(document) = parse_object(params) else { return false };
    let properties = document.root().path(&["requestedSchema", "properties"]);
    let is_array = |property: Value<'_>| {
        property.get("type").and_then(|kind| kind.as_str()).as_deref() == Some("array")
    };
    properties.is_some_and(|properties| properties.members().any(|member| is_array(member.value)))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use crate::capabilities::ClientCapabilities;
    use crate::envelope::Message;
    use crate::json::Limits;
    use crate::version::Version;

    #[test]
    fn s01_a_question_with_ambiguous_content_is_refused() {
        let client = ClientCapabilities::parse(br#"{"sampling":{}}"#).unwrap();
        let check = |message: &str| {
            let text = format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"sampling/createMessage","params":{{"maxTokens":9,"messages":[{message}]}}}}"#
            );
            let question = Message::decode(Bytes::from(text), &Limits::default()).unwrap();
            client.permits(&question, Version::V2024_11_05)
        };
        assert_eq!(
            check(r#"{"role":"user","content":{"type":"text","text":"t","Vendor":1,"vendor":2}}"#),
            Ok(())
        );
        for hidden in [
            r#"{"role":"user","content":{"type":"text","text":"t"},"Content":{"type":"audio"}}"#,
            r#"{"role":"user","content":{"type":"text","text":"t"},"content":{"type":"audio"}}"#,
            r#"{"role":"user","content":{"type":"text","text":"t","Type":"audio"}}"#,
        ] {
            assert!(check(hidden).is_err(), "{hidden}");
        }
    }
}
