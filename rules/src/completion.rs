//! Limit of a forwarded completion: at most 100 values (MCP 2025-11-25, Completion).

use protocol::{
    envelope::Message,
    json::{Document, Limits, Span},
    splice::Splice,
};

use crate::limits::COMPLETION_VALUES_MAX;

/// Removes excess values from an answer and sets `hasMore`.
pub fn limit_values(answer: &Message, splice: &mut Splice<'_>) {
    let Some(span) = answer.result else { return };
    let result = span.of(&answer.frame);
    let Ok(document) = Document::parse(result, &Limits::with_bytes_max(result.len())) else {
        return;
    };
    let Some(completion) = document.root().get("completion") else { return };
    let Some(values) = completion.get("values") else { return };
    let Some(last) = values.elements().nth(COMPLETION_VALUES_MAX - 1) else { return };
    if values.elements().nth(COMPLETION_VALUES_MAX).is_none() {
        return;
    }
    let rest =
        Span { start: span.start + last.span().end, end: span.start + values.span().end - 1 };
    splice.remove(rest);
    let has_more = completion.get("hasMore").map(|value| value.span().shifted(span.start));
    splice.set_member(completion.span().shifted(span.start), has_more, "hasMore", b"true");
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use protocol::json::MESSAGE_BYTES_MAX;

    use super::*;

    fn limited(values: usize, tail: &str) -> serde_json::Value {
        let values: Vec<String> = (0..values).map(|n| format!("\"v{n}\"")).collect();
        let text = format!(
            r#"{{"jsonrpc":"2.0","id":1,"result":{{"completion":{{"values":[{}]{tail}}}}}}}"#,
            values.join(",")
        );
        let limits = Limits::with_bytes_max(text.len());
        let message = Message::decode(Bytes::from(text), &limits).unwrap();
        let mut splice = Splice::new(&message.frame);
        limit_values(&message, &mut splice);
        serde_json::from_slice(&splice.finish()).unwrap()
    }

    #[test]
    fn comp_01_more_than_a_hundred_values_are_cut() {
        for tail in ["", r#","hasMore":false,"total":150"#] {
            let completion = &limited(150, tail)["result"]["completion"];
            assert_eq!(completion["values"].as_array().unwrap().len(), 100);
            assert_eq!(completion["values"][99], "v99");
            assert_eq!(completion["hasMore"], true);
        }
    }

    #[test]
    fn values_of_an_answer_above_the_usual_size_are_cut() {
        let tail = format!(r#","note":"{}""#, "x".repeat(MESSAGE_BYTES_MAX));
        let completion = &limited(101, &tail)["result"]["completion"];
        assert_eq!(completion["values"].as_array().unwrap().len(), 100);
    }

    #[test]
    fn a_hundred_values_are_not_cut() {
        assert_eq!(limited(100, r#","hasMore":false"#)["result"]["completion"]["hasMore"], false);
    }
}
