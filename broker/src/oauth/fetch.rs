//! Requests to authorization servers and for metadata. They are bounded in size and time, obey the
//! egress policy of backends, and follow no redirects. Servers on other machines need TLS.

use bytes::Bytes;
use config::private_url::{is_loopback, is_private};
use http::{HeaderValue, Request, StatusCode, Uri, header::ACCEPT};
use http_body_util::Full;
use protocol::json::{Limits, Tape};
use rules::limits::oauth::{OAUTH_ANSWER_BYTES_MAX, OAUTH_REQUEST_MAX, OAUTH_URL_BYTES_MAX};
use serde_json::{Map, Value};
use transport::{HttpClient, HttpResponse, ResponseBody, parse_http_url};

use crate::auth::has_one_reading;

/// Characters of an unusable URL that an error shows.
const URL_CHARS_SHOWN: usize = 200;

/// Reason why the broker has no token. The texts are for operators.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OauthError {
    /// A server cannot be reached, or gives no usable answer. A later attempt may succeed.
    #[error("{0}")]
    Unavailable(String),
    /// The database of the broker does not answer. A later attempt may succeed.
    #[error("{0}")]
    StoreUnavailable(String),
    /// The authorization server refuses, or its metadata does not permit the request.
    #[error("{0}")]
    Refused(String),
    /// The person, or the server for the person, said no to an authorization request (RFC 6749,
    /// 4.1.2.1).
    #[error("the authorization request was declined: access_denied")]
    Declined,
    /// The server does not accept the refresh token or the code any more.
    #[error("{0}")]
    InvalidGrant(String),
    /// The server does not know the client, or does not accept its credential.
    #[error("{0}")]
    InvalidClient(String),
    /// The principal has no grant that can be used, and must connect an account.
    #[error("no account of the user is connected: {0}")]
    Unconnected(ConnectReason),
    /// No caller of the principal brought a token that can be exchanged.
    #[error("the broker has no access token of the principal that it may exchange")]
    NoCallerToken,
}

impl OauthError {
    /// Returns whether a later attempt may succeed without a change of anything.
    pub(super) fn is_temporary(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::StoreUnavailable(_))
    }
}

/// Reason why a principal must connect an account.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConnectReason {
    #[error("none was connected yet")]
    New,
    #[error("the connection has ended")]
    Ended,
    #[error("the backend needs further permissions")]
    Scopes,
}

/// Client of authorization servers.
#[derive(Debug, Clone)]
pub(super) struct OauthFetcher {
    http: HttpClient,
    /// True if the backend is on this machine. Only then may its servers be here too.
    is_local: bool,
}

impl OauthFetcher {
    /// Creates the client for the servers of one backend. `http` applies the egress policy.
    pub(super) fn new(http: HttpClient, backend: &str) -> Self {
        let is_local = parse_http_url(backend).is_ok_and(|uri| is_loopback(&uri));
        Self { http, is_local }
    }

    /// Returns the URL if the broker may send a request there. Peers name it, and errors repeat it.
    pub(super) fn permitted(&self, url: &str) -> Option<Uri> {
        let uri = parse_http_url(url).ok().filter(|_| url.len() <= OAUTH_URL_BYTES_MAX)?;
        (is_private(&uri) && (self.is_local || !is_loopback(&uri))).then_some(uri)
    }

    /// Sends a request, and reads the answer whatever its status.
    pub(super) async fn send(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<(StatusCode, Bytes), OauthError> {
        let url = request.uri().clone();
        let lost = |why: String| OauthError::Unavailable(format!("{url} did not answer: {why}"));
        let exchange = async {
            let response = self.response(request).await.map_err(&lost)?;
            let status = response.status();
            let body = response.into_body().read_whole(OAUTH_ANSWER_BYTES_MAX).await;
            Ok((status, body.map_err(|error| lost(error.to_string()))?))
        };
        tokio::time::timeout(OAUTH_REQUEST_MAX, exchange)
            .await
            .unwrap_or_else(|_| Err(lost("the request timed out".to_owned())))
    }

    /// Sends a request and returns the head of its answer within the time limit.
    pub(super) async fn head(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Option<HttpResponse<ResponseBody>> {
        tokio::time::timeout(OAUTH_REQUEST_MAX, self.response(request)).await.ok()?.ok()
    }

    async fn response(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<HttpResponse<ResponseBody>, String> {
        self.http.send(request).await.map_err(|error| error.to_string())
    }

    /// Fetches a document. Returns `None` if there is none at this URL.
    pub(super) async fn document(
        &self,
        url: &str,
    ) -> Result<Option<Map<String, Value>>, OauthError> {
        let Some(uri) = self.permitted(url) else {
            let shown: String = url.chars().take(URL_CHARS_SHOWN).collect();
            let text = format!(
                "the broker may not ask {shown:?}: TLS is required, and {OAUTH_URL_BYTES_MAX} bytes at most"
            );
            return Err(OauthError::Refused(text));
        };
        let mut request = Request::new(Full::default());
        *request.uri_mut() = uri;
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static("application/json"));
        let (status, body) = self.send(request).await?;
        if status.is_server_error() {
            return Err(OauthError::Unavailable(format!("{url} answers {status}")));
        }
        Ok((status == StatusCode::OK).then(|| object(&body)).flatten())
    }
}

/// Reads a JSON object with one reading: no member occurs twice.
pub(super) fn object(text: &[u8]) -> Option<Map<String, Value>> {
    Tape::parse(text, &Limits::default()).ok().filter(|_| has_one_reading(text))?;
    serde_json::from_slice(text).ok()
}
