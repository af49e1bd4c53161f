//! Requests of the broker itself to a stateless backend, given in the form of earlier revisions.

use std::sync::Arc;

use bytes::Bytes;
use protocol::{
    envelope::Message,
    json::{self, Document},
    method::Method,
};
use rules::tasks::decoded;

use super::{feed_streams, requests};
use crate::backends::link::{Link, connection::Connection, failure::Failure};

/// Sends a request of the broker, given in the form of earlier revisions.
pub(in crate::backends::link) async fn control_request(
    connection: &Arc<Connection>,
    link: &Arc<Link>,
    method: Method,
    params: Option<&[u8]>,
) -> Result<Message, Failure> {
    let Some(stateless) = connection.stateless() else {
        return Err(Failure::NotSent("the connection does not use MCP 2026-07-28".to_owned()));
    };
    match method {
        // This revision has no ping. The broker sends a request that each server answers.
        Method::Ping => {
            requests::send_of_broker(connection, link, Method::ServerDiscover, None, None).await
        }
        Method::ResourcesSubscribe | Method::ResourcesUnsubscribe => {
            let uri = params.and_then(uri_of).unwrap_or_default();
            if method == Method::ResourcesUnsubscribe {
                stateless.listening.unsubscribe(&uri);
                return done(true);
            }
            done(feed_streams::subscribe(&stateless.listening, connection, link, &uri).await?)
        }
        Method::ToolsList
        | Method::PromptsList
        | Method::ResourcesList
        | Method::ResourcesTemplatesList => {
            stateless.listening.first().lock().has_read_lists = true;
            requests::send_of_broker(connection, link, method, params, None).await
        }
        _ => requests::send_of_broker(connection, link, method, params, None).await,
    }
}

fn uri_of(params: &[u8]) -> Option<String> {
    let document = Document::parse(params, &json::Limits::with_bytes_max(params.len())).ok()?;
    Some(document.root().get("uri")?.as_str()?.into_owned())
}

/// Creates an answer of the connection itself.
fn done(agreed: bool) -> Result<Message, Failure> {
    let frame: &'static [u8] = match agreed {
        true => br#"{"jsonrpc":"2.0","id":0,"result":{}}"#,
        false => br#"{"jsonrpc":"2.0","id":0,"error":{"code":-32002,"message":"the backend does not send updates of this resource"}}"#,
    };
    decoded(Bytes::from_static(frame))
        .ok_or_else(|| Failure::Protocol("the broker built an unreadable answer".to_owned()))
}
