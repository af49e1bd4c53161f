//! Requests over HTTP, with exactly the headers they are given.

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use serde_json::Value;

use super::TestClient;
use crate::{
    deadline::within,
    http::{Http2Connection, HttpVersion, RawResponse, connect_http2, send_http1, send_http2},
    judge::{Judge, JudgedExchange, Recipient, Revision},
};

impl TestClient {
    /// Sends exactly these headers (and Host).
    pub async fn try_send(
        &self,
        method: &str,
        headers: &[(String, String)],
        body: Bytes,
    ) -> Result<RawResponse, String> {
        let mut request = Request::builder().method(method);
        match self.http {
            HttpVersion::Http1 => {
                request = request.uri(&self.path);
                if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
                    request = request.header("host", self.address.to_string());
                }
            }
            HttpVersion::Http2 => {
                request = request.uri(format!("http://{}{}", self.address, self.path))
            }
        }
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let hearing = self.judge.as_ref().map(|judge| self.hearing(judge, headers, &body));
        let request = request.body(Full::new(body)).map_err(|error| error.to_string())?;
        let response = match self.http {
            HttpVersion::Http1 => send_http1(self.address, request).await,
            HttpVersion::Http2 => send_http2(self.http2().await?, request).await,
        }?;
        Ok(match hearing {
            Some(hearing) => response.judged_by(hearing),
            None => response,
        })
    }

    /// Sends a GET for events, after the event with this id if there is one.
    pub async fn try_get_stream(&self, last_event_id: Option<&str>) -> Result<RawResponse, String> {
        let mut headers = self.headers_with(&[("accept", "text/event-stream")]);
        headers.retain(|(name, _)| name != "content-type");
        headers.extend(last_event_id.map(|id| ("last-event-id".to_owned(), id.to_owned())));
        self.try_send("GET", &headers, Bytes::new()).await
    }

    fn hearing(&self, judge: &Judge, headers: &[(String, String)], body: &[u8]) -> JudgedExchange {
        let header = |wanted: &str| {
            headers
                .iter()
                .find(|(name, _)| name.eq_ignore_ascii_case(wanted))
                .map(|(_, value)| value.as_str())
        };
        let mut hearing = JudgedExchange::new(judge, Recipient::Client);
        hearing.session = header("mcp-session-id").map(str::to_owned);
        hearing.named = header("mcp-protocol-version").and_then(Revision::of);
        hearing.content_excused = self.lock().content_excused;
        let posted: Value = serde_json::from_slice(body).unwrap_or_default();
        hearing.answers = posted
            .get("id")
            .filter(|id| posted["method"].is_string() && (id.is_string() || id.is_i64()))
            .cloned();
        judge.record_peer_message(hearing.session.as_deref(), body);
        hearing
    }

    async fn http2(&self) -> Result<Http2Connection, String> {
        if let Some((connection, _)) = &self.lock().http2 {
            return Ok(connection.clone());
        }
        let (connection, task) = connect_http2(self.address).await?;
        self.lock().http2 = Some((connection.clone(), task));
        Ok(connection)
    }

    /// Calls [`Self::try_send`] with a deadline, for anything that must be answered.
    pub async fn send(
        &self,
        method: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> RawResponse {
        let headers: Vec<_> =
            headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        within(&format!("the answer to {method}"), self.try_send(method, &headers, body.into()))
            .await
            .expect("the broker answers")
    }

    /// Sends a POST with exactly these headers.
    pub async fn post_raw(&self, headers: &[(&str, &str)], body: impl Into<Bytes>) -> RawResponse {
        self.send("POST", headers, body).await
    }
}
