//! Client of a running broker's admin API. Used by the command line only, so it connects to any
//! address that the operator names.

use std::{env, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, StatusCode, header};
use http_body_util::Full;
use protocol::ids::DEFAULT_TENANT;
use serde_json::{Value, json};
use transport::{BodyError, EgressPolicy, HttpClient, HttpClientConfig, SendError, read_body};

const URL: &str = "MCP_BROKER_ADMIN_URL";
const TOKEN: &str = "MCP_BROKER_ADMIN_TOKEN";
const URL_DEFAULT: &str = "http://127.0.0.1:9090";
/// Registration of a backend waits for its handshake, which takes half a minute by default.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Time limit and size limit of a document of a registry.
const FETCH_TIMEOUT: Duration = Duration::from_secs(30);
const DOCUMENT_BYTES_MAX: usize = 1024 * 1024;

#[derive(Debug, thiserror::Error)]
pub(super) enum ClientError {
    #[error("{0}")]
    Usage(String),
    /// Faults of what the caller gave, one on each line.
    #[error("{}", .0.join("\n"))]
    Faults(Vec<String>),
    #[error("no broker answers at {url}: {reason}; start one, or set {URL} to its admin listener")]
    Unreachable { url: String, reason: String },
    #[error(
        "{url}: {reason}; if your own authority signed its certificate, set SSL_CERT_FILE to the file of the authority"
    )]
    Certificate { url: String, reason: String },
    #[error(
        "{url}: the server does not speak TLS; if this is the admin listener, set {URL} to http://…"
    )]
    NoTls { url: String },
    #[error(
        "the broker at {url} did not answer within {seconds} s; it may still apply the change, so check before you repeat the command"
    )]
    TimedOut { url: String, seconds: u64 },
    #[error(
        "{url} answered {status}, but not like a broker's admin API; set {URL} to its admin listener"
    )]
    Foreign { url: String, status: u16 },
    #[error(
        "the answer of the broker at {url} has more than the {max} bytes that this command reads; name one tenant with --tenant, or read the list in pages through the admin API"
    )]
    TooLarge { url: String, max: usize },
    /// Another server than the broker cannot be used now.
    #[error("{0}")]
    Unavailable(String),
    /// The entry to create is there already.
    #[error("there is such an entry already")]
    Exists,
    /// Detail of the broker's answer, or what keeps a command from success, one on each line.
    #[error("{}", .0.join("\n"))]
    Refused(Vec<String>),
    /// One of several requests failed.
    #[error("{cause}\n{done}")]
    Partial { cause: Box<Self>, done: String },
    #[error("{0}")]
    Internal(String),
}

impl ClientError {
    pub(super) fn refused(detail: impl Into<String>) -> Self {
        Self::Refused(vec![detail.into()])
    }

    /// Returns `detail` as the reason, if the entry to create is there already.
    pub(super) fn or_exists(self, detail: impl FnOnce() -> String) -> Self {
        match self {
            Self::Exists => Self::refused(detail()),
            other => other,
        }
    }
}

pub(super) struct AdminClient {
    base: String,
    authorization: Option<HeaderValue>,
    http: HttpClient,
}

impl AdminClient {
    /// Returns the error for an answer that no broker gives.
    pub(super) fn foreign(&self, status: u16) -> ClientError {
        ClientError::Foreign { url: self.base.clone(), status }
    }

    pub(super) fn from_environment() -> Result<Self, ClientError> {
        Self::new(
            // Empty is absent, as for the token.
            env::var(URL).ok().as_deref().filter(|url| !url.is_empty()).unwrap_or(URL_DEFAULT),
            env::var(TOKEN).ok().as_deref(),
        )
    }

    pub(super) fn new(url: &str, token: Option<&str>) -> Result<Self, ClientError> {
        transport::parse_http_url(url)
            .map_err(|error| ClientError::Usage(format!("{URL}: {error}")))?;
        let authorization = token.filter(|token| !token.is_empty()).map(|token| {
            let value = HeaderValue::try_from(format!("Bearer {}", token.trim()));
            value.map_err(|_| {
                ClientError::Usage(format!("{TOKEN} has characters that a token must not have"))
            })
        });
        let any =
            ["0.0.0.0/0", "::/0"].into_iter().filter_map(|range| range.parse().ok()).collect();
        let http = HttpClient::new(HttpClientConfig {
            connect_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(5),
            idle_per_host: 1,
            // The operator chooses the address. The policy is for addresses from other sources.
            egress: Arc::new(EgressPolicy { allow: any, deny: Vec::new(), loopback: true }),
            ..HttpClientConfig::default()
        });
        let http = http.map_err(|error| ClientError::Internal(error.to_string()))?;
        Ok(Self {
            base: url.trim_end_matches('/').to_owned(),
            authorization: authorization.transpose()?,
            http,
        })
    }

    /// Fetches a document from another server than the broker. The operator's token is not sent.
    pub(super) async fn fetch(
        &self,
        method: Method,
        url: &str,
    ) -> Result<(StatusCode, Bytes), ClientError> {
        transport::parse_http_url(url)
            .map_err(|error| ClientError::Usage(format!("{url}: {error}")))?;
        let request = Request::builder().method(method).uri(url);
        let request = request
            .header(header::ACCEPT, "application/json")
            .body(Full::new(Bytes::new()))
            .map_err(|error| ClientError::Usage(format!("{url}: {error}")))?;
        let failed = |reason: String| ClientError::Unavailable(format!("{url}: {reason}"));
        let exchange = async {
            let response =
                self.http.send(request).await.map_err(|error| failed(error.to_string()))?;
            let status = response.status();
            let body = read_body(response.into_body(), DOCUMENT_BYTES_MAX).await;
            Ok((status, body.map_err(|error| failed(error.to_string()))?))
        };
        let timeout = |_| failed(format!("no answer within {} seconds", FETCH_TIMEOUT.as_secs()));
        tokio::time::timeout(FETCH_TIMEOUT, exchange).await.map_err(timeout)?
    }

    /// Sends a request. `path` begins after `/admin/v1/`. Returns `null` for an answer without a
    /// body.
    pub(super) async fn request(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, ClientError> {
        self.send(ANSWER_TIMEOUT, method, path, body, None).await.map(|(answer, _)| answer)
    }

    /// Reads all pages of a list. `member` has the entries of a page.
    pub(super) async fn list(
        &self,
        path: &str,
        parameters: &[(&str, Option<&str>)],
        member: &str,
    ) -> Result<Value, ClientError> {
        let (mut entries, mut after) = (Vec::new(), None::<String>);
        loop {
            let wanted = [parameters, &[("after", after.as_deref())]].concat();
            let path = with_query(path, &wanted);
            let mut page = self.request(Method::GET, &path, None).await?;
            if let Some(of_page) = page.get_mut(member).and_then(Value::as_array_mut) {
                entries.append(of_page);
            }
            match page["next"].as_str() {
                Some(next) => after = Some(next.to_owned()),
                None => return Ok(json!({ member: entries })),
            }
        }
    }

    /// Stores a new entry at `path`, or with `replaces` any entry. The answer may take `limit` if that
    /// is longer than the time limit of other requests.
    pub(super) async fn add(
        &self,
        limit: Duration,
        path: &str,
        body: &Value,
        replaces: bool,
    ) -> Result<Value, ClientError> {
        let any = || (header::IF_NONE_MATCH, HeaderValue::from_static("*"));
        let condition = (!replaces).then(any);
        let limit = limit.max(ANSWER_TIMEOUT);
        let sent = self.send(limit, Method::PUT, path, Some(body), condition).await;
        sent.map(|(answer, _)| answer)
    }

    /// Reads the entry at `path`, changes it and stores it. Fails if another operator changed the
    /// entry meanwhile.
    pub(super) async fn update(
        &self,
        path: &str,
        change: impl FnOnce(Value) -> Value,
    ) -> Result<Value, ClientError> {
        let (entry, tag) = self.send(ANSWER_TIMEOUT, Method::GET, path, None, None).await?;
        let (changed, condition) = (change(entry), tag.map(|tag| (header::IF_MATCH, tag)));
        let (answer, _) =
            self.send(ANSWER_TIMEOUT, Method::PUT, path, Some(&changed), condition).await?;
        Ok(answer)
    }

    /// Sends a request, on a condition about the entry. Returns the answer and its entity tag.
    async fn send(
        &self,
        limit: Duration,
        method: Method,
        path: &str,
        body: Option<&Value>,
        condition: Option<(HeaderName, HeaderValue)>,
    ) -> Result<(Value, Option<HeaderValue>), ClientError> {
        let must_be_new =
            condition.as_ref().is_some_and(|(name, _)| *name == header::IF_NONE_MATCH);
        let request = self.build_request(method, path, body, condition)?;
        let exchange = async {
            let response = self.http.send(request).await.map_err(|error| self.unsent(&error))?;
            let status = response.status();
            let tag = response.headers().get(header::ETAG).cloned();
            let body = read_body(response.into_body(), ANSWER_BYTES_MAX).await;
            Ok((status, tag, body.map_err(|error| self.unread(&error))?))
        };
        let timed_out =
            |_| ClientError::TimedOut { url: self.base.clone(), seconds: limit.as_secs() };
        let (status, tag, body) =
            tokio::time::timeout(limit, exchange).await.map_err(timed_out)??;
        let foreign = || self.foreign(status.as_u16());
        if status.is_success() {
            if body.is_empty() {
                return Ok((Value::Null, tag));
            }
            return serde_json::from_slice(&body)
                .map(|answer| (answer, tag))
                .map_err(|_| foreign());
        }
        let problem: Value = serde_json::from_slice(&body).map_err(|_| foreign())?;
        if must_be_new && status == StatusCode::PRECONDITION_FAILED {
            return Err(ClientError::Exists);
        }
        match problem["detail"].as_str() {
            Some(detail) => Err(ClientError::Refused(self.reasons(status, detail, &problem))),
            None => Err(foreign()),
        }
    }

    fn build_request(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        condition: Option<(HeaderName, HeaderValue)>,
    ) -> Result<Request<Full<Bytes>>, ClientError> {
        let url = format!("{}/admin/v1/{path}", self.base);
        let mut request = Request::builder().method(method).uri(&url);
        if let Some(authorization) = &self.authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        if body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        if let Some((name, value)) = condition {
            request = request.header(name, value);
        }
        let body = body.map(|body| Bytes::from(body.to_string())).unwrap_or_default();
        request.body(Full::new(body)).map_err(|error| ClientError::Usage(format!("{url}: {error}")))
    }

    /// Returns the error for a request that got no response.
    fn unsent(&self, error: &SendError) -> ClientError {
        let url = self.base.clone();
        match error {
            // A server without TLS sends other bytes than a record of TLS.
            SendError::Tls { reason } if reason.contains("InvalidContentType") => {
                ClientError::NoTls { url }
            }
            SendError::Tls { .. } => ClientError::Certificate { url, reason: error.to_string() },
            _ => ClientError::Unreachable { url, reason: error.to_string() },
        }
    }

    /// Returns the error for an answer whose body was not read to its end.
    fn unread(&self, error: &BodyError) -> ClientError {
        let url = self.base.clone();
        match error {
            BodyError::TooLarge { max } => ClientError::TooLarge { url, max: *max },
            _ => ClientError::Unreachable { url, reason: error.to_string() },
        }
    }

    /// Returns the reasons of a refusal in the terms of the command line, one on each line.
    fn reasons(&self, status: StatusCode, detail: &str, problem: &Value) -> Vec<String> {
        let faults = problem["faults"].as_array().map(Vec::as_slice).unwrap_or_default();
        if !faults.is_empty() {
            return faults.iter().map(fault_line).collect();
        }
        let is_refused_token =
            matches!(status, StatusCode::UNAUTHORIZED | StatusCode::TOO_MANY_REQUESTS);
        let reason = match self.authorization {
            None if status == StatusCode::UNAUTHORIZED => format!(
                "the broker at {} requires a token; set {TOKEN} to the admin token or an operator's token",
                self.base
            ),
            Some(_) if is_refused_token => format!("{detail}; the token is that of {TOKEN}"),
            // This tenant always exists, though not for every operator.
            _ if detail == format!("tenant {DEFAULT_TENANT} does not exist") => {
                format!("{detail} for this operator; name another tenant with --tenant")
            }
            _ if detail.starts_with(&format!("tenant {DEFAULT_TENANT} always exists")) => format!(
                "tenant {DEFAULT_TENANT} always exists; `tenant set {DEFAULT_TENANT} --disabled` disables it"
            ),
            _ => detail.to_owned(),
        };
        vec![reason]
    }
}

/// Returns one of several faults of a body.
fn fault_line(fault: &Value) -> String {
    let text = |member: &str| fault[member].as_str().unwrap_or_default();
    let field = if text("field").is_empty() { "the body" } else { text("field") };
    format!("{field} {}", text("detail"))
}

/// Returns a path with the parameters that have a value.
pub(super) fn with_query(path: &str, parameters: &[(&str, Option<&str>)]) -> String {
    let given =
        parameters.iter().filter_map(|(name, value)| Some(format!("{name}={}", escape((*value)?))));
    let query = given.collect::<Vec<_>>().join("&");
    if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") }
}

/// Percent-encodes everything but unreserved characters (RFC 3986, section 2.3).
pub(super) fn escape(text: &str) -> String {
    let escaped = text.bytes().map(|byte| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
            char::from(byte).to_string()
        }
        _ => format!("%{byte:02X}"),
    });
    escaped.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reasons(token: Option<&str>, status: u16, problem: Value) -> Vec<String> {
        let client = AdminClient::new("http://127.0.0.1:9", token).unwrap();
        let detail = problem["detail"].as_str().unwrap();
        client.reasons(StatusCode::from_u16(status).unwrap(), detail, &problem)
    }

    #[test]
    fn a_refused_token_is_that_of_the_variable() {
        let refused = || json!({"detail": "this is not a token"});
        let missing = "the broker at http://127.0.0.1:9 requires a token; set MCP_BROKER_ADMIN_TOKEN to the admin token or an operator's token";
        assert_eq!(reasons(None, 401, refused()), [missing]);
        let wrong = "this is not a token; the token is that of MCP_BROKER_ADMIN_TOKEN";
        assert_eq!(reasons(Some("t"), 401, refused()), [wrong]);
        assert_eq!(reasons(Some("t"), 403, refused()), ["this is not a token"]);
    }

    #[test]
    fn an_operator_without_the_default_tenant_learns_how_to_name_another() {
        let absent = reasons(Some("t"), 404, json!({"detail": "tenant default does not exist"}));
        assert!(absent[0].ends_with("; name another tenant with --tenant"), "{absent:?}");
        let other = reasons(Some("t"), 404, json!({"detail": "tenant acme does not exist"}));
        assert_eq!(other, ["tenant acme does not exist"]);
    }

    #[test]
    fn an_answer_that_is_too_large_comes_from_a_broker() {
        let client = AdminClient::new("http://127.0.0.1:9", None).unwrap();
        let too_large = client.unread(&BodyError::TooLarge { max: 7 }).to_string();
        let expected = "the answer of the broker at http://127.0.0.1:9 has more than the 7 bytes";
        assert!(too_large.starts_with(expected), "{too_large}");
        let aborted = client.unread(&BodyError::Aborted { reason: "reset".to_owned() }).to_string();
        assert!(aborted.starts_with("no broker answers at"), "{aborted}");
    }

    #[test]
    fn each_fault_of_a_body_has_its_own_line() {
        let faults = json!({"detail": "a is empty; the body is a list", "faults": [
            {"field": "a", "detail": "is empty"}, {"field": "", "detail": "is a list"}
        ]});
        assert_eq!(reasons(None, 400, faults), ["a is empty", "the body is a list"]);
    }
}
