//! A client's session over any wire, and its lanes. A lane carries one request at a time.
//!
//! On a duplex wire all lanes of a session share its connection. Over HTTP each lane has its own.
//! Every answer goes to the request with its number, or to the findings.

mod duplex;
mod get_stream;
pub mod http;
mod http1;
mod pending_requests;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::Context as _;
use bytes::Bytes;
use serde_json::json;
use transport::{
    egress::EgressPolicy,
    tls::{ClientTls, ClientTlsFiles},
};

pub use self::{duplex::Duplex, http1::HttpStream};
use crate::{
    answer,
    era::{self, Era, StatelessTemplate},
    findings::{FindingKind, Findings},
    target::{Target, Wire},
};

/// Longest message accepted.
pub const MESSAGE_BYTES_MAX: usize = 128 * 1024 * 1024;

/// Characters of a server's name and version in a report.
const SERVER_NAME_MAX: usize = 100;

/// The target and the settings that all sessions of a load share.
#[derive(Debug)]
pub struct LoadTarget {
    pub target: Target,
    pub era: Era,
    pub tls: ClientTls,
    pub egress: EgressPolicy,
    /// Time limit for an answer, and for opening a connection.
    pub timeout: Duration,
    pub findings: Findings,
    /// Messages that belong to no request: updates, log messages, progress.
    pub notifications: AtomicU64,
    /// GET streams that ended before their session.
    pub ended_streams: AtomicU64,
}

impl LoadTarget {
    pub fn new(
        target: Target,
        tls: &ClientTlsFiles,
        timeout: Duration,
    ) -> anyhow::Result<Arc<Self>> {
        let anywhere =
            ["0.0.0.0/0", "::/0"].map(|range| range.parse().context("a range of all addresses"));
        let allow = anywhere.into_iter().collect::<anyhow::Result<_>>()?;
        let egress = EgressPolicy { loopback: true, allow, ..EgressPolicy::default() };
        let (era, findings) = (Era::default(), Findings::default());
        Ok(Arc::new(Self {
            target,
            era,
            tls: ClientTls::load(tls)?,
            egress,
            timeout,
            findings,
            notifications: AtomicU64::new(0),
            ended_streams: AtomicU64::new(0),
        }))
    }

    /// Returns the same target without findings, for another run.
    pub fn reset(&self) -> Arc<Self> {
        self.with_era(self.era)
    }

    /// Returns the same target for clients of this era, without findings.
    pub fn with_era(&self, era: Era) -> Arc<Self> {
        let Self { target, tls, egress, timeout, .. } = self;
        Arc::new(Self {
            target: target.clone(),
            era,
            tls: tls.clone(),
            egress: egress.clone(),
            timeout: *timeout,
            findings: Findings::default(),
            notifications: AtomicU64::new(0),
            ended_streams: AtomicU64::new(0),
        })
    }

    pub(crate) fn count_ended_stream(&self) {
        self.ended_streams.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_notification(&self) {
        self.notifications.fetch_add(1, Ordering::Relaxed);
    }
}

/// Reason for a missing answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoAnswer {
    /// The request was sent, or may have been.
    #[error("{0}")]
    Lost(String),
    /// Refused with an HTTP status, below MCP.
    #[error("HTTP status {0}")]
    Status(u16),
    /// An answer came that cannot belong to this request. It is already among the findings.
    #[error("a wrong answer")]
    Wrong,
}

#[derive(Debug)]
enum SessionKind {
    Duplex(Duplex),
    Http(http::HttpSession),
}

/// One client.
#[derive(Debug)]
pub struct Session {
    site: Arc<LoadTarget>,
    kind: SessionKind,
    /// Shared parts of stateless requests. `None` for a session.
    stateless: Option<StatelessTemplate>,
    /// Name and version of the server, as it reported them. Empty if it did not.
    server: String,
    next_id: AtomicU64,
}

/// Checks that the first answer is valid. Returns the name and the version of the server in it.
fn opened(
    method: &str,
    answer: &[u8],
    is_right: impl Fn(&serde_json::Value) -> bool,
) -> anyhow::Result<String> {
    let read = answer::read(answer)
        .with_context(|| format!("{method}: {}", crate::findings::excerpt(answer)))?;
    let result = read.result.filter(|result| read.error.is_none() && is_right(result));
    let result = result
        .with_context(|| format!("{method} was refused: {}", crate::findings::excerpt(answer)))?;
    let server_info = |key: &str| result["serverInfo"][key].as_str().unwrap_or_default();
    // The text is a stranger's and becomes part of a report.
    let name = format!("{} {}", server_info("name"), server_info("version"));
    Ok(name.trim().chars().filter(|letter| !letter.is_control()).take(SERVER_NAME_MAX).collect())
}

impl Session {
    /// Connects and agrees on a protocol version. `key` is the API key, if the target needs one.
    pub async fn open(site: &Arc<LoadTarget>, key: Option<&str>) -> anyhow::Result<Arc<Self>> {
        let opening = Self::opened(site, key);
        let opened = tokio::time::timeout(site.timeout, opening).await;
        opened
            .map_err(|_| anyhow::anyhow!("no session within {:?}", site.timeout))?
            .with_context(|| format!("no session at {}", site.target))
    }

    async fn opened(site: &Arc<LoadTarget>, key: Option<&str>) -> anyhow::Result<Arc<Self>> {
        match site.era {
            Era::Sessions => Self::agreed(site, key).await,
            Era::Stateless => Self::discovered(site, key).await,
        }
    }

    async fn agreed(site: &Arc<LoadTarget>, key: Option<&str>) -> anyhow::Result<Arc<Self>> {
        let params = json!({
            "protocolVersion": Era::Sessions.version(), "capabilities": {}, "clientInfo": era::client_info(),
            "_meta": era::own_meta(&site.target, key),
        });
        let initialize = Bytes::from(format!(
            r#"{{"jsonrpc":"2.0","id":0,"method":"initialize","params":{params}}}"#
        ));
        let initialized =
            Bytes::from_static(br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
        let (kind, answer) = match site.target.wire {
            Wire::Http => {
                let (session, answer) =
                    http::HttpSession::open(site, key, initialize, initialized).await?;
                (SessionKind::Http(session), answer)
            }
            _ => {
                let (connection, answer) =
                    Duplex::open(site, key, initialize, Some(initialized)).await?;
                (SessionKind::Duplex(connection), answer)
            }
        };
        let server = opened("initialize", &answer, |_| true)?;
        let next_id = AtomicU64::new(1);
        Ok(Arc::new(Self { site: site.clone(), kind, stateless: None, server, next_id }))
    }

    /// Opens a client of stateless requests. It has no session, so this only checks that the server
    /// supports the revision.
    async fn discovered(site: &Arc<LoadTarget>, key: Option<&str>) -> anyhow::Result<Arc<Self>> {
        const METHOD: &str = "server/discover";
        let alone = StatelessTemplate::new(&site.target, key);
        let discover = Bytes::from(alone.request(0, METHOD, "{}"));
        let (kind, answer) = match site.target.wire {
            Wire::Http => {
                let (session, answer) =
                    http::HttpSession::stateless(site, &alone.head(METHOD, None), &discover)
                        .await?;
                (SessionKind::Http(session), answer)
            }
            _ => {
                let (connection, answer) = Duplex::open(site, key, discover, None).await?;
                (SessionKind::Duplex(connection), answer)
            }
        };
        let version = json!(Era::Stateless.version());
        let server = opened(METHOD, &answer, |result| {
            result["supportedVersions"]
                .as_array()
                .is_some_and(|versions| versions.contains(&version))
        })?;
        Ok(Arc::new(Self {
            site: site.clone(),
            kind,
            stateless: Some(alone),
            server,
            next_id: AtomicU64::new(1),
        }))
    }

    /// Returns the name and the version that the server reported.
    pub fn server(&self) -> &str {
        &self.server
    }

    pub fn request_slot(self: &Arc<Self>) -> RequestSlot {
        RequestSlot { session: self.clone(), stream: None }
    }

    /// Opens a GET stream and keeps it open. Does nothing on a wire without GET streams.
    pub async fn listen(&self) -> anyhow::Result<()> {
        match &self.kind {
            SessionKind::Duplex(_) => Ok(()),
            SessionKind::Http(http) => http.listen(&self.site).await,
        }
    }

    /// Ends the session in the wire's own way. Requests in flight are lost.
    pub async fn close(&self) {
        match &self.kind {
            SessionKind::Duplex(connection) => connection.close().await,
            SessionKind::Http(http) => http.close(&self.site).await,
        }
    }

    /// Returns whether further requests can succeed.
    pub fn is_alive(&self) -> bool {
        match &self.kind {
            SessionKind::Duplex(connection) => connection.is_alive(),
            SessionKind::Http(_) => true,
        }
    }
}

/// A lane, which carries one request at a time.
#[derive(Debug)]
pub struct RequestSlot {
    session: Arc<Session>,
    /// HTTP: the connection, between requests.
    stream: Option<HttpStream>,
}

impl RequestSlot {
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }

    pub fn site(&self) -> &Arc<LoadTarget> {
        &self.session.site
    }

    /// Returns a number that no other request of the session has.
    pub fn next_id(&self) -> u64 {
        self.session.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Sends a request in the form of the era. `name` is the subject of the method, and `params` an
    /// object without `_meta`.
    pub async fn request(
        &mut self,
        id: u64,
        method: &str,
        name: Option<&str>,
        params: &str,
    ) -> Result<Bytes, NoAnswer> {
        match &self.session.stateless {
            None => {
                let request = format!(
                    r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#
                );
                self.call(id, Bytes::from(request)).await
            }
            Some(alone) => {
                let (head, request) = (alone.head(method, name), alone.request(id, method, params));
                self.send(id, Some(&head), Bytes::from(request)).await
            }
        }
    }

    /// Sends a request and waits for its answer, up to the target's timeout.
    pub async fn call(&mut self, id: u64, request: Bytes) -> Result<Bytes, NoAnswer> {
        self.send(id, None, request).await
    }

    async fn send(
        &mut self,
        id: u64,
        head: Option<&str>,
        request: Bytes,
    ) -> Result<Bytes, NoAnswer> {
        let (session, stream) = (&self.session, &mut self.stream);
        match &session.kind {
            SessionKind::Duplex(connection) => connection.call(&session.site, id, request).await,
            SessionKind::Http(http) => {
                let exchange = http.call(&session.site, stream, id, head, request);
                match tokio::time::timeout(session.site.timeout, exchange).await {
                    Ok(answered) => answered,
                    Err(_) => {
                        // Later answers on this connection have no waiting request.
                        *stream = None;
                        Err(NoAnswer::Lost(format!(
                            "request {id} has no answer after {:?}",
                            session.site.timeout
                        )))
                    }
                }
            }
        }
    }

    /// Records a finding about the answer to a request.
    pub fn record(&self, wrong: FindingKind, detail: &str) {
        self.session.site.findings.record(wrong, detail);
    }
}
