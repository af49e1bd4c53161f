//! The id of an answer that is malformed, for example by a lone surrogate or a number out of range.
//!
//! Connections use it to fail the call at once instead of at its deadline. It must never fail
//! another call. Therefore an id counts only at the positions where libraries put it: as the first
//! member, after `jsonrpc`, or last.

use protocol::ids::RequestId;

/// Returns the id of a malformed answer, if it is unambiguous.
pub(super) fn answer_id(text: &[u8]) -> Option<RequestId> {
    // The backend's own requests have ids of their own.
    if memchr::memmem::find(text, b"\"method\"").is_some() {
        return None;
    }
    at_start(text).or_else(|| at_end(text)).map(RequestId::from_u64)
}

/// Finds `{"id":7,` or `{"jsonrpc":"2.0","id":7,`.
fn at_start(text: &[u8]) -> Option<u64> {
    let first = after(text, &[b"{"])?;
    let rest = after(first, &[b"\"jsonrpc\"", b":", b"\"2.0\"", b","]).unwrap_or(first);
    let rest = after(rest, &[b"\"id\"", b":"])?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    after(&rest[digits..], &[b","])?;
    number(&rest[..digits])
}

/// Finds `,"id":7}` at the end.
fn at_end(text: &[u8]) -> Option<u64> {
    let rest = before(text, &[b"}"])?;
    let digits = rest.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let (rest, digits) = rest.split_at(rest.len() - digits);
    before(rest, &[b",", b"\"id\"", b":"])?;
    after(text, &[b"{"])?;
    number(digits)
}

/// Returns the text after these tokens, which white space may separate.
fn after<'a>(text: &'a [u8], tokens: &[&[u8]]) -> Option<&'a [u8]> {
    tokens.iter().try_fold(text.trim_ascii_start(), |rest, token| {
        rest.strip_prefix(*token).map(<[u8]>::trim_ascii_start)
    })
}

/// Returns the text before these tokens, which white space may separate.
fn before<'a>(text: &'a [u8], tokens: &[&[u8]]) -> Option<&'a [u8]> {
    tokens.iter().rev().try_fold(text.trim_ascii_end(), |rest, token| {
        rest.strip_suffix(*token).map(<[u8]>::trim_ascii_end)
    })
}

fn number(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_is_found_at_the_usual_positions_of_a_malformed_answer() {
        for (text, id) in [
            (r#"{"jsonrpc":"2.0","id":7,"result":{"text":"\ud800"}}"#, 7),
            (r#"{"id":7,"jsonrpc":"2.0","result":{"text":"\ud800"}}"#, 7),
            (r#"{"result":{"text":"\ud800"},"jsonrpc":"2.0","id":8}"#, 8),
            (" { \"jsonrpc\" : \"2.0\" , \"id\" : 9 , \"error\":{\"code\":1e999}}", 9),
            ("{\"error\":{\"code\":1e999}, \"id\" : 9 }\r\n", 9),
        ] {
            assert_eq!(answer_id(text.as_bytes()), Some(RequestId::from_u64(id)), "{text}");
        }
    }

    #[test]
    fn an_id_at_any_other_position_is_ignored() {
        for text in [
            r#"{"jsonrpc":"2.0","id":7,"method":"roots/list","params":"\ud800"}"#,
            r#"server says "id":7, hello"#,
            r#"server says {"a":1,"id":7}"#,
            r#"{"jsonrpc":"2.0","id":"7","result":"\ud800"}"#,
            r#"{"jsonrpc":"2.0","id":7.5,"result":"\ud800"}"#,
            r#"{"result":{"id":7,"text":"\ud800"},"jsonrpc":"2.0"}"#,
            r#"{"result":{"text":"\ud800","id":7}}"#,
            r#"{"result":{"items":["\ud800",{"id":7}"#,
            r#"{"result":"\ud800 and \"id\":7}"#,
            r#"{"jsonrpc":"2.0","id":99999999999999999999999,"result":"\ud800"}"#,
            r#"{"jsonrpc":"2.0","id":,"result":"\ud800"}"#,
            "{",
            "",
        ] {
            assert_eq!(answer_id(text.as_bytes()), None, "{text}");
        }
    }
}
