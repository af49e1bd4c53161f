//! Tests of a client that has closed its sending half and reads its answers slowly, and of the limit
//! of requests.

use std::time::Duration;

use rules::limits::LAST_FRAMES_WAIT;
use tokio::{sync::Semaphore, task::JoinHandle};
use transport::frame::{ReadError, WriteError};

use super::*;
use crate::{auth::RemotePeer, persistence::Stores};

/// A source of a client that closes its half once it is told to.
struct ClosingSource {
    told: Arc<Notify>,
    closed: Arc<Notify>,
}

impl FrameSource for ClosingSource {
    async fn next(&mut self) -> Result<Option<Bytes>, ReadError> {
        self.told.notified().await;
        self.closed.notify_one();
        Ok(None)
    }

    fn set_message_limit(
        &mut self,
        _message_bytes_max: usize,
        _byte_budget: Option<&Arc<Semaphore>>,
    ) {
    }

    async fn drain(&mut self) {}
}

/// A sink of a client that reads once it is told to.
struct SlowSink {
    has_begun: Arc<Notify>,
    told: Arc<Notify>,
    read: Arc<Mutex<Vec<Bytes>>>,
}

impl FrameSink for SlowSink {
    async fn send_all(&mut self, frames: &mut Vec<Bytes>) -> Result<(), WriteError> {
        self.has_begun.notify_one();
        self.told.notified().await;
        self.read.lock().append(frames);
        Ok(())
    }

    async fn close(&mut self, _close_reason: CloseReason) {}
}

/// A connection of a client over TCP, whose request has an answer.
struct AnsweredClient {
    dispatcher: Arc<RequestDispatcher>,
    running: JoinHandle<Option<CloseReason>>,
    close: Arc<Notify>,
    closed: Arc<Notify>,
    reads: Arc<Notify>,
    read: Arc<Mutex<Vec<Bytes>>>,
}

impl AnsweredClient {
    async fn start() -> Self {
        let broker = Broker::over(Stores::in_memory().await);
        let incoming = IncomingConnection {
            transport: Transport::Tcp,
            certified: None,
            remote: RemotePeer::default(),
            known: None,
        };
        let dispatcher = RequestDispatcher::new(broker, incoming, CancellationToken::new());
        let meta = testkit::request_meta("c", &serde_json::json!({}));
        let request = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{{"_meta":{meta}}}}}"#
        );
        let first = Message::decode(request.into(), &json::Limits::default()).unwrap();
        let [close, closed, has_begun, reads] = [(); 4].map(|()| Arc::<Notify>::default());
        let read = Arc::<Mutex<Vec<Bytes>>>::default();
        let mut source = ClosingSource { told: close.clone(), closed: closed.clone() };
        let mut sink =
            SlowSink { has_begun: has_begun.clone(), told: reads.clone(), read: read.clone() };
        let served = dispatcher.clone();
        let running = tokio::spawn(async move { served.run(first, &mut source, &mut sink).await });
        testkit::within("the answer", has_begun.notified()).await;
        Self { dispatcher, running, close, closed, reads, read }
    }

    async fn close_half(&self) {
        self.close.notify_one();
        testkit::within("the end of the client's half", self.closed.notified()).await;
    }

    /// Returns what the client read before the connection ended.
    async fn finish(self) -> Vec<String> {
        assert_eq!(self.running.await.unwrap(), Some(CloseReason::Done));
        let read = std::mem::take(&mut *self.read.lock());
        read.iter().map(|frame| String::from_utf8_lossy(frame).into_owned()).collect()
    }
}

#[tokio::test]
async fn a_client_that_closed_its_half_reads_its_answers_at_its_own_pace() {
    let client = AnsweredClient::start().await;
    client.close_half().await;
    tokio::time::pause();
    tokio::time::advance(HALF_CLOSED_MAX + Duration::from_secs(1)).await;
    client.reads.notify_one();
    let read = client.finish().await;
    assert_eq!(read.len(), 1, "{read:?}");
    assert!(read[0].contains("\"result\""), "{read:?}");
}

#[tokio::test]
async fn a_drain_leaves_the_requests_of_a_client_that_closed_its_half_their_time() {
    const AFTER_THE_LAST_FRAMES: Duration = LAST_FRAMES_WAIT.saturating_add(Duration::from_secs(1));
    assert!(AFTER_THE_LAST_FRAMES < HALF_CLOSED_MAX);
    let client = AnsweredClient::start().await;
    let request = client.dispatcher.running.token();
    client.reads.notify_one();
    client.dispatcher.shared().shutdown.draining.cancel();
    client.close_half().await;
    tokio::time::pause();
    tokio::time::advance(AFTER_THE_LAST_FRAMES).await;
    client.dispatcher.enqueue(EventKind::Answer, Bytes::from_static(b"a late answer"));
    drop(request);
    client.reads.notify_one();
    let read = client.finish().await;
    assert_eq!(read.last().map(String::as_str), Some("a late answer"), "{read:?}");
}

#[tokio::test]
async fn a_request_beyond_the_limit_of_the_connection_is_counted() {
    let client = AnsweredClient::start().await;
    let (dispatcher, life) = (&client.dispatcher, CancellationToken::new());
    let register =
        |number| dispatcher.register_request(&RequestId::from_u64(number), &life.child_token());
    let max = dispatcher.shared().config.limits.calls_in_flight_per_session as u64;
    assert!((0..max).all(|number| register(100 + number).is_ok()));
    assert_eq!(register(1).unwrap_err().kind, ErrorKind::TooManyCalls);
    let line = r#"mcp_rate_limited_total{scope="calls_in_flight_per_session"} 1"#;
    assert!(dispatcher.shared().metrics.render().contains(line));
}
