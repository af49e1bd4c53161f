//! The server's answers, on every wire.

use std::{borrow::Cow, time::Duration};

use bytes::Bytes;
use memchr::{memchr2, memmem};
use serde::Deserialize;
use serde_json::{json, value::RawValue};

use super::BackendOptions;

/// Prepared answers, complete except for the id.
#[derive(Debug)]
pub(super) struct Responder {
    tools: Box<str>,
    resources: Box<str>,
    delay: Duration,
}

#[derive(Debug, Deserialize)]
struct Request<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
}

#[derive(Debug, Default, Deserialize)]
struct Params<'a> {
    #[serde(borrow)]
    arguments: Option<Arguments<'a>>,
    #[serde(borrow)]
    uri: Option<Cow<'a, str>>,
    #[serde(borrow, rename = "protocolVersion")]
    version: Option<&'a RawValue>,
}

#[derive(Debug, Deserialize)]
struct Arguments<'a> {
    #[serde(borrow)]
    text: Option<&'a RawValue>,
}

/// Reply to one message.
#[derive(Debug, Default)]
pub(super) struct Reply {
    pub(super) answer: Option<Bytes>,
    /// Update of a subscribed resource, sent after the answer.
    pub(super) update: Option<Bytes>,
    /// True if the answer is one of those that are delayed.
    pub(super) is_call: bool,
}

const CALL_HEAD: &[u8] = br#"{"jsonrpc":"2.0","id":"#;
const CALL_METHOD: &[u8] =
    br#","method":"tools/call","params":{"name":"echo","arguments":{"text":""#;

impl Responder {
    pub(super) fn new(offer: &BackendOptions) -> Self {
        let schema = json!({"type": "object", "properties": {"text": {"type": "string"}}});
        let echo =
            json!({"name": "echo", "description": "Gives back its text.", "inputSchema": schema});
        let others = (0..offer.tools).map(|number| {
            let text = "One of many tools that no client calls; it only makes the lists longer.";
            json!({"name": format!("tool_{number}"), "description": text, "inputSchema": schema})
        });
        let tools: Vec<_> = std::iter::once(echo).chain(others).collect();
        let resources =
            (0..offer.resources).map(|number| json!({"uri": format!("load://text/{number}"), "name": format!("text {number}")}));
        let resources: Vec<_> = resources.collect();
        Self {
            tools: json!({"tools": tools}).to_string().into(),
            resources: json!({"resources": resources}).to_string().into(),
            delay: offer.delay,
        }
    }

    pub(super) fn delay(&self) -> Duration {
        self.delay
    }

    pub(super) fn respond(&self, frame: &[u8]) -> Reply {
        if let Some(answer) = quick_echo(frame) {
            return Reply { answer: Some(answer), is_call: true, ..Reply::default() };
        }
        let Ok(request) = serde_json::from_slice::<Request<'_>>(frame) else {
            let answer = Bytes::from_static(
                br#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"not a message"}}"#,
            );
            return Reply { answer: Some(answer), ..Reply::default() };
        };
        let (Some(id), Some(method)) = (request.id, request.method.as_deref()) else {
            return Reply::default();
        };
        let params = request
            .params
            .and_then(|params| serde_json::from_str::<Params<'_>>(params.get()).ok())
            .unwrap_or_default();
        let result: Result<Cow<'_, str>, &str> = match method {
            "initialize" => Ok(initialized(params.version).into()),
            "ping" | "resources/subscribe" | "resources/unsubscribe" | "logging/setLevel" => {
                Ok("{}".into())
            }
            "tools/list" => Ok(Cow::Borrowed(&*self.tools)),
            "resources/list" => Ok(Cow::Borrowed(&*self.resources)),
            "resources/templates/list" => Ok(r#"{"resourceTemplates":[]}"#.into()),
            "resources/read" => {
                let uri = params.uri.as_deref().unwrap_or_default();
                Ok(json!({"contents": [{"uri": uri, "mimeType": "text/plain", "text": "a text"}]})
                    .to_string()
                    .into())
            }
            "tools/call" => {
                let text = params
                    .arguments
                    .and_then(|arguments| arguments.text)
                    .map_or(r#""""#, RawValue::get);
                Ok(format!(r#"{{"content":[{{"type":"text","text":{text}}}]}}"#).into())
            }
            _ => Err("this server has no such method"),
        };
        let answer = match result {
            Ok(result) => format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#),
            Err(message) => format!(
                r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32601,"message":"{message}"}}}}"#
            ),
        };
        let update = (method == "resources/subscribe").then(|| {
            let params = json!({"uri": params.uri.as_deref().unwrap_or_default()});
            Bytes::from(format!(r#"{{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{params}}}"#))
        });
        Reply { answer: Some(answer.into()), update, is_call: method == "tools/call" }
    }
}

fn initialized(version: Option<&RawValue>) -> String {
    let version = version.map_or(r#""2025-11-25""#, RawValue::get);
    let capabilities = r#"{"tools":{},"resources":{"subscribe":true}}"#;
    format!(
        r#"{{"protocolVersion":{version},"capabilities":{capabilities},"serverInfo":{{"name":"mcp-loadtest","version":"1"}}}}"#
    )
}

/// Answers the usual call without parsing it as JSON. Its text must not contain a character that
/// ends a string early.
fn quick_echo(frame: &[u8]) -> Option<Bytes> {
    let rest = frame.strip_prefix(CALL_HEAD)?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (id, rest) = rest.split_at(digits);
    let rest = rest.strip_prefix(CALL_METHOD)?;
    let end = memchr2(b'"', b'\\', rest)?;
    let (text, tail) = rest.split_at(end);
    // The rest may be metadata, which is ignored.
    if id.is_empty() || !tail.starts_with(br#""}"#) || memmem::find(tail, b"\n").is_some() {
        return None;
    }
    let mut answer = Vec::with_capacity(text.len() + 96);
    for part in
        [CALL_HEAD, id, br#","result":{"content":[{"type":"text","text":""#, text, br#""}]}}"#]
    {
        answer.extend_from_slice(part);
    }
    Some(answer.into())
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn answered(frame: &str) -> Value {
        serde_json::from_slice(
            &Responder::new(&BackendOptions::default()).respond(frame.as_bytes()).answer.unwrap(),
        )
        .unwrap()
    }

    #[test]
    fn the_fast_and_the_general_path_return_the_same_answer() {
        let quick = r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo","arguments":{"text":"abc"},"_meta":{"a":1}}}"#;
        assert!(quick_echo(quick.as_bytes()).is_some());
        let long = r#"{"id":7,"jsonrpc":"2.0","method":"tools/call","params":{"name":"echo","arguments":{"text":"abc"}}}"#;
        assert!(quick_echo(long.as_bytes()).is_none());
        assert_eq!(answered(quick), answered(long));
        let escaped = quick.replace("abc", r#"a\"b"#);
        assert_eq!(answered(&escaped)["result"]["content"][0]["text"], "a\"b");
    }

    #[test]
    fn every_request_is_answered_and_nothing_else() {
        let answers = Responder::new(&BackendOptions { tools: 3, ..BackendOptions::default() });
        assert!(
            answers
                .respond(br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#)
                .answer
                .is_none()
        );
        let listed: Value = serde_json::from_slice(
            &answers.respond(br#"{"id":"x","method":"tools/list"}"#).answer.unwrap(),
        )
        .unwrap();
        assert_eq!(
            (listed["id"].as_str(), listed["result"]["tools"].as_array().unwrap().len()),
            (Some("x"), 4)
        );
        assert_eq!(answered(r#"{"id":1,"method":"nothing"}"#)["error"]["code"], -32601);
        assert_eq!(answered("{")["error"]["code"], -32700);
        assert_eq!(
            answered(r#"{"id":1,"method":"initialize","params":{"protocolVersion":"x"}}"#)["result"]
                ["protocolVersion"],
            "x"
        );
        let response = answers.respond(
            br#"{"id":1,"method":"resources/subscribe","params":{"uri":"load://text/1"}}"#,
        );
        assert!(String::from_utf8_lossy(&response.update.unwrap()).contains("load://text/1"));
    }
}
