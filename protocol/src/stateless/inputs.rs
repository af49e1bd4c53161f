//! Requests that need input of the client first (MCP 2026-07-28, Multi Round-Trip Requests).
//!
//! A server answers with the inputs it needs, under keys of its own, and with a state that the
//! client sends back unchanged. The client sends the same request again, with the answers under the
//! same keys.

use bytes::Bytes;

use crate::envelope::{Message, check_body};
use crate::error::{ErrorKind, Refusal};
use crate::ids::RequestId;
use crate::json::{Document, Limits, ValueKind, quote, quote_into};
use crate::method::Method;
use crate::stateless::request::capability_required;

/// One input that a server needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputRequest {
    /// The server's name for it.
    pub key: String,
    /// `elicitation/create`, `sampling/createMessage` or `roots/list`.
    pub method: Method,
    /// Its params object, when it has one.
    pub params: Option<Bytes>,
}

impl InputRequest {
    /// Returns the request as a message, for checks. Its id has no meaning.
    pub fn to_message(&self) -> Option<Message> {
        let object = self.to_json();
        let text = [br#"{"jsonrpc":"2.0","id":0,"#, object.get(1..)?].concat();
        let limits = Limits::with_bytes_max(text.len());
        Message::decode(text.into(), &limits).ok()
    }

    /// Returns the object of the request, without id.
    pub fn to_json(&self) -> Vec<u8> {
        let mut out = format!("{{\"method\":{}", quote(self.method.name())).into_bytes();
        if let Some(params) = &self.params {
            out.extend_from_slice(b",\"params\":");
            out.extend_from_slice(params);
        }
        out.push(b'}');
        out
    }
}

const AMBIGUOUS: &str = "an input request has a member twice, or in another letter case";

/// An `input_required` result, which is not the final answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InputRequired {
    /// Inputs that are needed; may be empty if there is a state.
    pub requests: Vec<InputRequest>,
    /// State that the client sends back unchanged.
    pub state: Option<String>,
}

impl InputRequired {
    /// Reads a result object whose type is `input_required`.
    pub fn parse(result: &[u8]) -> Result<Self, &'static str> {
        let limits = Limits::with_bytes_max(result.len());
        let document =
            Document::parse(result, &limits).map_err(|_| "the result is not valid JSON")?;
        let root = document.root();
        let state = root.get("requestState");
        if state.is_some_and(|state| state.kind() != ValueKind::String) {
            return Err("requestState must be a string");
        }
        let state = state.and_then(|state| state.as_str()).map(|state| state.into_owned());
        let mut requests: Vec<InputRequest> = Vec::new();
        match root.get("inputRequests") {
            None if state.is_none() => {
                return Err("the result has neither inputRequests nor requestState");
            }
            None => {}
            Some(all) if all.kind() != ValueKind::Object => {
                return Err("inputRequests must be an object");
            }
            Some(all) => {
                for member in all.members() {
                    let named = member.value.unambiguous("method").map_err(|_| AMBIGUOUS)?;
                    let method = named
                        .and_then(|method| method.as_str())
                        .map(|method| Method::parse(&method));
                    let method = method
                        .filter(|method| is_input(*method))
                        .ok_or("an input request has no method that asks for input")?;
                    if requests.len() == INPUTS_MAX {
                        return Err("there are too many input requests");
                    }
                    if member.key.len() > INPUT_KEY_BYTES_MAX {
                        return Err("the key of an input request is too long");
                    }
                    if requests.iter().any(|request| request.key == member.key) {
                        return Err("two input requests have the same key");
                    }
                    let params = member.value.unambiguous("params").map_err(|_| AMBIGUOUS)?;
                    params
                        .map_or(Ok(()), |params| check_body(params.raw(), &limits))
                        .map_err(|_| AMBIGUOUS)?;
                    let params = params.map(|params| Bytes::copy_from_slice(params.raw()));
                    requests.push(InputRequest { key: member.key.into_owned(), method, params });
                }
            }
        }
        Ok(Self { requests, state })
    }

    /// Returns the whole response.
    pub fn to_response(&self, id: &RequestId, server_info: &[u8]) -> Bytes {
        let mut out = Vec::with_capacity(512);
        out.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
        out.extend_from_slice(id.raw());
        out.extend_from_slice(b",\"result\":{\"resultType\":\"input_required\"");
        if !self.requests.is_empty() {
            out.extend_from_slice(b",\"inputRequests\":");
            out.extend_from_slice(&requests_json(&self.requests));
        }
        if let Some(state) = &self.state {
            out.extend_from_slice(b",\"requestState\":");
            quote_into(&mut out, state);
        }
        out.extend_from_slice(
            format!(",\"_meta\":{{{}:", quote(super::META_SERVER_INFO)).as_bytes(),
        );
        out.extend_from_slice(server_info);
        out.extend_from_slice(b"}}}");
        out.into()
    }
}

/// Returns the object `inputRequests`.
pub fn requests_json(requests: &[InputRequest]) -> Vec<u8> {
    let mut out = b"{".to_vec();
    for request in requests {
        if out.len() > 1 {
            out.push(b',');
        }
        quote_into(&mut out, &request.key);
        out.push(b':');
        out.extend_from_slice(&request.to_json());
    }
    out.push(b'}');
    out
}

/// Returns whether this is one of the three requests a server may need answered.
pub const fn is_input(method: Method) -> bool {
    matches!(method, Method::ElicitationCreate | Method::SamplingCreateMessage | Method::RootsList)
}

/// Most inputs of one request, required and answered.
pub const INPUTS_MAX: usize = 256;

/// Most bytes of the key of an input. The broker holds the keys for as long as a call or task runs.
pub const INPUT_KEY_BYTES_MAX: usize = 1_024;

/// Answers and state that a client sends back with a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InputResponses {
    /// Key and result object, as sent.
    pub answers: Vec<(String, Bytes)>,
    /// `requestState`
    pub state: Option<String>,
}

impl InputResponses {
    /// Reads `inputResponses` and `requestState` of a request.
    pub fn parse(message: &Message) -> Result<Self, Refusal> {
        let state = message.text(message.fields.request_state).map(|state| state.into_owned());
        if message.fields.request_state.is_some() && state.is_none() {
            return Err(Refusal::new(
                ErrorKind::InvalidParams,
                "params.requestState must be a string",
            ));
        }
        let Some(text) = message.bytes(message.fields.input_responses) else {
            return Ok(Self { answers: Vec::new(), state });
        };
        let bad = || {
            Refusal::new(
                ErrorKind::InvalidParams,
                "params.inputResponses must be an object of at most 256 result objects, each key once",
            )
        };
        let limits = Limits::with_bytes_max(text.len());
        let document = Document::parse(text, &limits).map_err(|_| bad())?;
        let root = document.root();
        if root.kind() != ValueKind::Object {
            return Err(bad());
        }
        let mut answers: Vec<(String, Bytes)> = Vec::new();
        for member in root.members() {
            let is_object = member.value.kind() == ValueKind::Object;
            let is_one_too_many = answers.len() == INPUTS_MAX;
            if !is_object || is_one_too_many || answers.iter().any(|(key, _)| *key == member.key) {
                return Err(bad());
            }
            check_body(member.value.raw(), &limits).map_err(|rejected| rejected.refusal)?;
            answers.push((member.key.into_owned(), Bytes::copy_from_slice(member.value.raw())));
        }
        Ok(Self { answers, state })
    }
}

/// Returns the refusal of a question to a stateless client. If the client lacks a capability, the
/// refusal names it, because each request declares its own (MCP 2026-07-28, Basic: Error Codes).
pub fn name_missing_capability(refusal: Refusal, question: &Message) -> Refusal {
    let is_undeclared =
        matches!(refusal.kind, ErrorKind::CapabilityMissing | ErrorKind::InvalidParams);
    match required_capability(question).filter(|_| is_undeclared) {
        Some(required) => capability_required(required, refusal.message),
        None => refusal,
    }
}

/// Returns the capability that a client must declare to be sent `question`, as a JSON object.
fn required_capability(question: &Message) -> Option<&'static str> {
    let params = question.bytes(question.params).unwrap_or_default();
    let has = |member: &str| {
        let document = Document::parse(params, &Limits::with_bytes_max(params.len()));
        document.is_ok_and(|document| document.root().get(member).is_some())
    };
    Some(match question.method {
        Method::RootsList => r#"{"roots":{}}"#,
        Method::SamplingCreateMessage if has("tools") || has("toolChoice") => {
            r#"{"sampling":{"tools":{}}}"#
        }
        Method::SamplingCreateMessage => r#"{"sampling":{}}"#,
        Method::ElicitationCreate
            if question.text(question.fields.mode).as_deref() == Some("url") =>
        {
            r#"{"elicitation":{"url":{}}}"#
        }
        Method::ElicitationCreate => r#"{"elicitation":{"form":{}}}"#,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(params: &str) -> Message {
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}"#);
        Message::decode(Bytes::from(text), &Limits::default()).unwrap()
    }

    #[test]
    fn s01_ambiguous_members_are_refused_inside_of_inputs_too() {
        for request in [
            r#"{"method":"roots/list","Method":"sampling/createMessage"}"#,
            r#"{"method":"roots/list","method":"sampling/createMessage"}"#,
            r#"{"method":"elicitation/create","params":{"mode":"form","Mode":"url"}}"#,
            r#"{"method":"elicitation/create","params":{},"Params":{}}"#,
        ] {
            let result =
                format!(r#"{{"resultType":"input_required","inputRequests":{{"a":{request}}}}}"#);
            assert_eq!(InputRequired::parse(result.as_bytes()), Err(AMBIGUOUS), "{request}");
        }
        for answer in [
            r#"{"action":"accept","_META":{}}"#,
            r#"{"_meta":{"progressToken":1,"progressToken":2}}"#,
        ] {
            let refusal = InputResponses::parse(&request(&format!(
                r#"{{"name":"t","inputResponses":{{"a":{answer}}}}}"#
            )))
            .unwrap_err();
            assert_eq!(refusal.kind, ErrorKind::InvalidRequest, "{answer}");
        }
    }

    #[test]
    fn n_mrtr_02_input_requests_are_read_as_they_were_written() {
        let required = InputRequired {
            requests: vec![
                InputRequest {
                    key: "a\"b".into(),
                    method: Method::ElicitationCreate,
                    params: Some(Bytes::from_static(br#"{"message":"m"}"#)),
                },
                InputRequest { key: "r".into(), method: Method::RootsList, params: None },
            ],
            state: Some("s\n".into()),
        };
        let frame = required.to_response(&RequestId::from_u64(3), br#"{"name":"b"}"#);
        let message = Message::decode(frame, &Limits::default()).unwrap();
        assert_eq!(
            super::super::results::ResultType::of(&message),
            super::super::results::ResultType::InputRequired
        );
        assert_eq!(InputRequired::parse(message.bytes(message.result).unwrap()).unwrap(), required);
        let text = String::from_utf8_lossy(&message.frame).into_owned();
        assert_eq!(text.matches("\"id\"").count(), 1, "what is asked has no id: {text}");
    }

    #[test]
    fn n_mrtr_02_the_key_of_an_input_has_a_limit() {
        let result = |bytes: usize| {
            let key = "k".repeat(bytes);
            format!(r#"{{"inputRequests":{{"{key}":{{"method":"roots/list"}}}}}}"#)
        };
        assert!(InputRequired::parse(result(INPUT_KEY_BYTES_MAX).as_bytes()).is_ok());
        let fault = InputRequired::parse(result(INPUT_KEY_BYTES_MAX + 1).as_bytes()).unwrap_err();
        assert_eq!(fault, "the key of an input request is too long");
    }

    #[test]
    fn n_mrtr_02_an_input_result_without_inputs_and_state_is_invalid() {
        for bad in [
            "{}",
            r#"{"inputRequests":[]}"#,
            r#"{"inputRequests":{"a":{"method":"tools/call"}}}"#,
            r#"{"inputRequests":{"a":{}}}"#,
            r#"{"requestState":7}"#,
        ] {
            assert!(InputRequired::parse(bad.as_bytes()).is_err(), "{bad}");
        }
        assert_eq!(InputRequired::parse(br#"{"requestState":"s"}"#).unwrap().requests, []);
    }

    #[test]
    fn n_mrtr_04_answers_are_accepted_or_refused() {
        let read = InputResponses::parse(&request(
            r#"{"requestState":"s","inputResponses":{"a":{"action":"accept"},"b":{}}}"#,
        ))
        .unwrap();
        assert_eq!((read.answers.len(), read.state.as_deref()), (2, Some("s")));
        assert_eq!(InputResponses::parse(&request("{}")).unwrap(), InputResponses::default());
        for bad in [
            r#"{"requestState":1}"#,
            r#"{"inputResponses":[]}"#,
            r#"{"inputResponses":{"a":1}}"#,
            r#"{"inputResponses":{"a":{},"a":{}}}"#,
        ] {
            assert_eq!(
                InputResponses::parse(&request(bad)).unwrap_err().kind,
                ErrorKind::InvalidParams,
                "{bad}"
            );
        }
    }
}
