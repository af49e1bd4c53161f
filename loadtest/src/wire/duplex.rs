//! A session that is a connection: TCP, WebSocket, QUIC. One task reads and one writes. Callers
//! pass their requests to the writer.

use std::sync::Arc;

use anyhow::Context as _;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, header::AUTHORIZATION};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use transport::{
    frame::{CloseReason, FrameSink, FrameSource},
    quic, tcp, websocket,
};

use super::{LoadTarget, MESSAGE_BYTES_MAX, NoAnswer, pending_requests::PendingRequests};
use crate::{
    answer::{self, Incoming},
    findings::{FindingKind, excerpt},
    target::Wire,
};

/// Frames that wait for the writer. A caller waits while the queue is full, so that the load does
/// not exceed the connection.
const QUEUE: usize = 1024;

#[derive(Debug)]
enum WriterCommand {
    Frame(Bytes),
    Close(oneshot::Sender<()>),
}

#[derive(Debug)]
pub struct Duplex {
    writer: mpsc::Sender<WriterCommand>,
    ledger: Arc<Mutex<PendingRequests>>,
}

impl Duplex {
    /// Connects and returns the answer to `initialize`, whose id is 0.
    pub(super) async fn open(
        site: &Arc<LoadTarget>,
        key: Option<&str>,
        first: Bytes,
        then: Option<Bytes>,
    ) -> anyhow::Result<(Self, Bytes)> {
        let LoadTarget { target, tls, egress, timeout, .. } = &**site;
        let (writer, orders) = mpsc::channel(QUEUE);
        let connection = Self { writer, ledger: Arc::default() };
        match target.wire {
            Wire::Tcp => {
                let stream = tcp::connect(
                    &target.address,
                    egress,
                    target.encrypted.then_some(tls),
                    *timeout,
                )
                .await?;
                let (source, sink) = stream.into_lines(MESSAGE_BYTES_MAX, *timeout);
                connection.start(site, source, sink, orders, ());
            }
            Wire::WebSocket => {
                let mut headers = HeaderMap::new();
                if let Some(key) = key {
                    headers.insert(AUTHORIZATION, HeaderValue::from_str(&format!("Bearer {key}"))?);
                }
                let limits = websocket::Limits {
                    message_bytes_max: MESSAGE_BYTES_MAX,
                    ..websocket::Limits::default()
                };
                let url = target.to_string().parse().context("a URL")?;
                let options = websocket::ConnectOptions {
                    url: &url,
                    headers,
                    egress,
                    tls,
                    limits: &limits,
                    timeout: *timeout,
                };
                let (source, sink) = websocket::connect(options).await?;
                connection.start(site, source, sink, orders, ());
            }
            _ => {
                let limits = quic::Limits {
                    message_bytes_max: MESSAGE_BYTES_MAX,
                    ..quic::Limits::default()
                };
                let options = quic::ConnectOptions {
                    address: &target.address,
                    egress,
                    tls,
                    limits: &limits,
                    timeout: *timeout,
                };
                let (client, source, sink) = quic::connect(options).await?;
                // The connection lives while `client` is held.
                connection.start(site, source, sink, orders, client);
            }
        }
        let answer = connection.call(site, 0, first).await?;
        if let Some(then) = then {
            connection.send(then).await.context("the connection ended")?;
        }
        Ok((connection, answer))
    }

    fn start<Kept: Send + 'static>(
        &self,
        site: &Arc<LoadTarget>,
        source: impl FrameSource + 'static,
        sink: impl FrameSink + 'static,
        orders: mpsc::Receiver<WriterCommand>,
        kept: Kept,
    ) {
        tokio::spawn(write(sink, orders));
        let (site, ledger, writer) = (site.clone(), self.ledger.clone(), self.writer.downgrade());
        tokio::spawn(async move {
            let _kept = kept;
            read(&site, source, &ledger, &writer).await;
            ledger.lock().end();
        });
    }

    async fn send(&self, frame: Bytes) -> Option<()> {
        self.writer.send(WriterCommand::Frame(frame)).await.ok()
    }

    pub(super) async fn call(
        &self,
        site: &LoadTarget,
        id: u64,
        request: Bytes,
    ) -> Result<Bytes, NoAnswer> {
        let ended =
            || NoAnswer::Lost(format!("the connection ended before request {id} had its answer"));
        let answer = self.ledger.lock().expect(id).ok_or_else(ended)?;
        let answered = tokio::time::timeout(site.timeout, async {
            self.send(request).await.ok_or_else(ended)?;
            answer.await.map_err(|_| ended())
        });
        answered.await.unwrap_or_else(|_| {
            self.ledger.lock().give_up(id);
            Err(NoAnswer::Lost(format!("request {id} has no answer after {:?}", site.timeout)))
        })
    }

    pub(super) async fn close(&self) {
        let (closed, done) = oneshot::channel();
        if self.writer.send(WriterCommand::Close(closed)).await.is_ok() {
            let _gone_already = done.await;
        }
    }

    pub(super) fn is_alive(&self) -> bool {
        !self.ledger.lock().has_ended()
    }
}

async fn write(mut sink: impl FrameSink, mut orders: mpsc::Receiver<WriterCommand>) {
    let (mut waiting, mut frames) = (Vec::new(), Vec::new());
    // All waiting frames go out with one system call.
    while orders.recv_many(&mut waiting, QUEUE).await > 0 {
        let mut goodbye = None;
        for order in waiting.drain(..) {
            match order {
                WriterCommand::Frame(frame) => frames.push(frame),
                WriterCommand::Close(closed) => goodbye = Some(closed),
            }
        }
        if sink.send_all(&mut frames).await.is_err() {
            return;
        }
        if let Some(closed) = goodbye {
            sink.close(CloseReason::Done).await;
            let _nobody_waits = closed.send(());
            return;
        }
    }
}

async fn read(
    site: &LoadTarget,
    mut source: impl FrameSource,
    ledger: &Mutex<PendingRequests>,
    writer: &mpsc::WeakSender<WriterCommand>,
) {
    while let Ok(Some(frame)) = source.next().await {
        match answer::incoming(&frame) {
            Incoming::Answer(id) => {
                let settled = ledger.lock().settle(id, frame.clone());
                if let Err(wrong) = settled {
                    site.findings.record(wrong, &format!("request {id}: {}", excerpt(&frame)));
                }
            }
            Incoming::Request { id, method } => {
                let answer = if method == "ping" {
                    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#)
                } else {
                    format!(
                        r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32601,"message":"not spoken here"}}}}"#
                    )
                };
                // Answers to the peer's requests must not wait behind our own. A full queue drops
                // the answer.
                if let Some(writer) = writer.upgrade() {
                    let _full = writer.try_send(WriterCommand::Frame(answer.into()));
                }
            }
            Incoming::Notification(_) => site.count_notification(),
            Incoming::Unreadable => {
                site.findings.record(FindingKind::Unsolicited, &excerpt(&frame))
            }
        }
    }
}
