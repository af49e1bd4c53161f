//! A client's session over any wire, and its lanes: ways for one request at a time.
//!
//! On a duplex wire all lanes of a session share its connection; over HTTP each has one of its own. Every answer goes to the
//! request with its number, or to the findings.

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

use anyhow::{Context as _, ensure};
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

/// Longest message taken.
pub const MESSAGE_BYTES_MAX: usize = 128 * 1024 * 1024;

/// What every session of a load has in common.
#[derive(Debug)]
pub struct LoadTarget {
    pub target: Target,
    pub era: Era,
    pub tls: ClientTls,
    pub egress: EgressPolicy,
    /// For an answer, and for opening a connection.
    pub timeout: Duration,
    pub findings: Findings,
    /// Messages that belong to no request: updates, log messages, progress.
    pub notifications: AtomicU64,
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
        let (era, findings, notifications) =
            (Era::default(), Findings::default(), AtomicU64::new(0));
        Ok(Arc::new(Self {
            target,
            era,
            tls: ClientTls::load(tls)?,
            egress,
            timeout,
            findings,
            notifications,
        }))
    }

    /// The same with nothing found yet, for another run.
    pub fn renewed(&self) -> Arc<Self> {
        self.speaking(self.era)
    }

    /// The same for clients of this era, with nothing found yet.
    pub fn speaking(&self, era: Era) -> Arc<Self> {
        let Self { target, tls, egress, timeout, .. } = self;
        let (findings, notifications) = (Findings::default(), AtomicU64::new(0));
        let (target, tls, egress) = (target.clone(), tls.clone(), egress.clone());
        Arc::new(Self { target, era, tls, egress, timeout: *timeout, findings, notifications })
    }

    pub(crate) fn notified(&self) {
        self.notifications.fetch_add(1, Ordering::Relaxed);
    }
}

/// Why a request has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoAnswer {
    /// The request was sent, or may have been.
    #[error("{0}")]
    Lost(String),
    /// Refused below MCP, by a status.
    #[error("HTTP status {0}")]
    Status(u16),
    /// An answer came that cannot be this request's. It is among the findings already.
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
    /// Requests that stand alone say this.
    alone: Option<StatelessTemplate>,
    next_id: AtomicU64,
}

/// The first answer is the right one.
fn opened(
    method: &str,
    answer: &[u8],
    is_right: impl Fn(&serde_json::Value) -> bool,
) -> anyhow::Result<()> {
    let read = answer::read(answer)
        .with_context(|| format!("{method}: {}", crate::findings::excerpt(answer)))?;
    let fits = read.error.is_none() && read.result.is_some_and(|result| is_right(&result));
    ensure!(fits, "{method} was refused: {}", crate::findings::excerpt(answer));
    Ok(())
}

impl Session {
    /// Connects, and agrees on a version. `key`: the API key, where one is needed.
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
        opened("initialize", &answer, |_| true)?;
        Ok(Arc::new(Self { site: site.clone(), kind, alone: None, next_id: AtomicU64::new(1) }))
    }

    /// What stands alone needs no session, but somebody who speaks its revision.
    async fn discovered(site: &Arc<LoadTarget>, key: Option<&str>) -> anyhow::Result<Arc<Self>> {
        const METHOD: &str = "server/discover";
        let alone = StatelessTemplate::new(&site.target, key);
        let discover = Bytes::from(alone.request(0, METHOD, "{}"));
        let (kind, answer) = match site.target.wire {
            Wire::Http => {
                let (session, answer) =
                    http::HttpSession::alone(site, &alone.head(METHOD, None), &discover).await?;
                (SessionKind::Http(session), answer)
            }
            _ => {
                let (connection, answer) = Duplex::open(site, key, discover, None).await?;
                (SessionKind::Duplex(connection), answer)
            }
        };
        let version = json!(Era::Stateless.version());
        opened(METHOD, &answer, |result| {
            result["supportedVersions"]
                .as_array()
                .is_some_and(|versions| versions.contains(&version))
        })?;
        Ok(Arc::new(Self {
            site: site.clone(),
            kind,
            alone: Some(alone),
            next_id: AtomicU64::new(1),
        }))
    }

    pub fn lane(self: &Arc<Self>) -> RequestSlot {
        RequestSlot { session: self.clone(), stream: None }
    }

    /// Opens a GET stream and keeps it; of a wire without one nothing is needed.
    pub async fn listen(&self) -> anyhow::Result<()> {
        match &self.kind {
            SessionKind::Duplex(_) => Ok(()),
            SessionKind::Http(http) => http.listen(&self.site).await,
        }
    }

    /// Ends it in the wire's own way. Whatever is in flight is lost.
    pub async fn close(&self) {
        match &self.kind {
            SessionKind::Duplex(connection) => connection.close().await,
            SessionKind::Http(http) => http.close(&self.site).await,
        }
    }

    /// Whether further requests make sense.
    pub fn is_alive(&self) -> bool {
        match &self.kind {
            SessionKind::Duplex(connection) => connection.is_alive(),
            SessionKind::Http(_) => true,
        }
    }
}

/// A way for one request at a time.
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

    /// A number no other request of the session has.
    pub fn next_id(&self) -> u64 {
        self.session.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Asks in the words of the era. `name`: of what the method is about; `params`: an object without `_meta`.
    pub async fn ask(
        &mut self,
        id: u64,
        method: &str,
        name: Option<&str>,
        params: &str,
    ) -> Result<Bytes, NoAnswer> {
        match &self.session.alone {
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

    /// Sends a request and waits for its answer, no longer than the site's timeout.
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
                        // What still comes on it belongs to nobody.
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

    /// Notes that something was wrong with the answer to a request.
    pub fn note(&self, wrong: FindingKind, detail: &str) {
        self.session.site.findings.note(wrong, detail);
    }
}
