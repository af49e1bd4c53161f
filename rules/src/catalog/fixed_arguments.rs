//! Arguments that an operator fixes for a tool. The broker sets them in every call, whatever the
//! client sends.

use std::collections::BTreeMap;

use bytes::Bytes;
use protocol::{
    error::{ErrorKind, Refusal},
    json::{self, Tape, ValueKind},
};

/// Values of arguments by name, as JSON. `None`: no call has the argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FixedArguments(BTreeMap<String, Option<String>>);

impl FixedArguments {
    /// Takes the values. `None`: there are none.
    pub fn of(values: BTreeMap<String, Option<String>>) -> Option<Self> {
        (!values.is_empty()).then_some(Self(values))
    }

    /// Returns the arguments of a call with these values in place.
    ///
    /// A client that sends one of them in a form in which readers differ is refused. Its value
    /// could reach a backend that reads the other one.
    pub fn apply(&self, arguments: Option<&[u8]>) -> Result<Bytes, Refusal> {
        let text = arguments.unwrap_or(b"{}");
        let refuse = |text: String| Refusal::new(ErrorKind::InvalidParams, text);
        let limits = json::Limits::with_bytes_max(text.len());
        let tape = Tape::parse(text, &limits)
            .map_err(|_| refuse("params.arguments cannot be read".to_owned()))?;
        let root = tape.root();
        if root.kind() != ValueKind::Object {
            return Err(refuse("params.arguments must be an object".to_owned()));
        }
        for name in self.0.keys() {
            root.unambiguous(name).map_err(|_| {
                refuse("params.arguments has a member twice, or in another letter case".to_owned())
            })?;
        }
        let mut out = b"{".to_vec();
        let free = root.members().filter(|member| !self.0.contains_key(&*member.key));
        let free = free.map(|member| (member.key, member.value.raw()));
        let fixed = self
            .0
            .iter()
            .filter_map(|(name, value)| Some((name.as_str().into(), value.as_ref()?.as_bytes())));
        for (name, value) in free.chain(fixed) {
            if out.len() > 1 {
                out.push(b',');
            }
            json::quote_into(&mut out, &name);
            out.push(b':');
            out.extend_from_slice(value);
        }
        out.push(b'}');
        Ok(out.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fixed() -> FixedArguments {
        let values = [("gone", None), ("mode", Some("\"ro\"")), ("repo", Some("\"x\""))];
        let owned = values.map(|(name, value)| (name.to_owned(), value.map(str::to_owned)));
        FixedArguments::of(owned.into()).unwrap()
    }

    fn applied(arguments: Option<&str>) -> Result<serde_json::Value, ErrorKind> {
        let text = fixed().apply(arguments.map(str::as_bytes)).map_err(|refusal| refusal.kind)?;
        Ok(serde_json::from_slice(&text).unwrap())
    }

    #[test]
    fn the_operators_values_replace_those_of_the_client() {
        let both = serde_json::json!({"mode": "ro", "repo": "x"});
        let more = serde_json::json!({"mode": "ro", "repo": "x", "path": "/"});
        for (sent, expected) in [
            (None, &both),
            (Some("{}"), &both),
            (Some(" { } "), &both),
            (Some(r#"{"repo":"evil"}"#), &both),
            (Some(r#"{"\u0072epo":{"deep":[1]},"mode":null}"#), &both),
            (Some(r#"{"path":"/","repo":"evil"}"#), &more),
            (Some(r#"{"gone":1}"#), &both),
        ] {
            assert_eq!(applied(sent).as_ref(), Ok(expected), "{sent:?}");
        }
    }

    #[test]
    fn an_ambiguous_argument_is_refused() {
        for sent in [
            r#"{"repo":"a","repo":"b"}"#,
            r#"{"Repo":"evil"}"#,
            r#"{"GONE":"evil"}"#,
            r#"{"repo":"a","REPO":"evil"}"#,
            "[]",
            "null",
            "{",
        ] {
            assert_eq!(applied(Some(sent)), Err(ErrorKind::InvalidParams), "{sent}");
        }
    }
}
