//! Input that a backend needs before it answers, requested from the client. Each input is a request
//! of its own, as a backend of earlier revisions would send it. It goes over the stream of the call
//! or the record of the task.

use std::sync::Arc;

use futures_util::future::try_join_all;
use protocol::{
    envelope::{Kind, Message},
    ids::RequestId,
    json,
    stateless::{downgrade, inputs::InputRequest},
};
use rules::{limits::inputs::ELICITATION_ID_BYTES, tasks::decoded};

use crate::backends::{
    inbound,
    link::{
        Link,
        connection::{Connection, requester::Requester},
        failure::Failure,
    },
};

/// Open input requests. Dropping it withdraws those that are still open.
struct OpenQuestions<'a> {
    connection: &'a Arc<Connection>,
    ids: Vec<(u64, RequestId)>,
}

impl Drop for OpenQuestions<'_> {
    fn drop(&mut self) {
        for (number, id) in &self.ids {
            if let Some(stateless) = self.connection.stateless() {
                stateless.forget_input(*number);
            }
            if let Some(question) = self.connection.pending().take_question(id) {
                question.withdraw("the call does not need this answer now");
            }
        }
    }
}

/// Returns the answers as the object `inputResponses`, or the error of the first client that
/// refused. A refusal ends the call, because the protocol cannot report to a backend that an answer
/// will not come.
pub(super) async fn gather(
    connection: &Arc<Connection>,
    link: &Arc<Link>,
    requester: &Arc<dyn Requester>,
    requests: &[InputRequest],
) -> Result<Result<Vec<u8>, Box<Message>>, Failure> {
    let Some(stateless) = connection.stateless() else {
        return Err(Failure::Protocol(
            "the connection does not support input responses".to_owned(),
        ));
    };
    let mut open = OpenQuestions { connection, ids: Vec::new() };
    let mut waits = Vec::with_capacity(requests.len());
    for request in requests {
        let (number, id, answer) = stateless.expect_input(&request.key);
        open.ids.push((number, id.clone()));
        let question = decoded(downgrade::request_from_input(&id, request, &elicitation_id()));
        let question = question.ok_or_else(|| {
            Failure::Protocol(format!(
                "the broker cannot build a client request for the backend's input request {:?}",
                request.key
            ))
        })?;
        inbound::need_input(link, connection, &question, requester);
        waits.push(async move {
            match answer.await {
                Ok(answer) if answer.kind == Kind::Error => Err(answer),
                Ok(answer) => Ok((request.key.as_str(), answer)),
                Err(_) => std::future::pending().await, // withdrawn with its connection, whose end is noticed below
            }
        });
    }
    let answered = tokio::select! {
        biased;
        answered = try_join_all(waits) => answered,
        () = connection.closed() => return Err(Failure::Lost("the connection ended while the broker waited for the client's answer".to_owned())),
    };
    Ok(answered.map(|answers| responses(&answers)).map_err(Box::new))
}

fn responses(answers: &[(&str, Message)]) -> Vec<u8> {
    let mut out = b"{".to_vec();
    for (key, answer) in answers {
        if out.len() > 1 {
            out.push(b',');
        }
        out.extend_from_slice(json::quote(key).as_bytes());
        out.push(b':');
        out.extend_from_slice(answer.bytes(answer.result).unwrap_or(b"{}"));
    }
    out.push(b'}');
    out
}

/// MCP 2025-11-25, Elicitation: an elicitation that opens a URL has an id. The one of 2026-07-28
/// has none.
fn elicitation_id() -> String {
    use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
    URL_SAFE_NO_PAD.encode(rand::random::<[u8; ELICITATION_ID_BYTES]>())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn nb_mrtr_02_each_answer_is_sent_under_its_key() {
        let answer = |result: &str| {
            decoded(Bytes::from(format!(r#"{{"jsonrpc":"2.0","id":"x","result":{result}}}"#)))
                .unwrap()
        };
        let object = responses(&[
            ("a\"b", answer(r#"{"action":"accept"}"#)),
            ("r", answer(r#"{"roots":[]}"#)),
        ]);
        assert_eq!(object, br#"{"a\"b":{"action":"accept"},"r":{"roots":[]}}"#);
        assert_ne!(elicitation_id(), elicitation_id());
    }
}
