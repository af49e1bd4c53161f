//! Wakeups between replicas. One task publishes those of this replica, another receives those of
//! the others.
//!
//! Publishing never waits. A wakeup is lost if the queue is full or Redis is away. The subscriber
//! pings its connection from time to time and opens another one when it fails.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::StreamExt;
use redis::{
    Client, Pipeline, RedisError, Value,
    aio::{PubSubSink, PubSubStream},
};
use tokio::{
    sync::{broadcast, mpsc, oneshot, watch},
    time::{MissedTickBehavior, timeout},
};

use super::{
    codec::{Codec, ReceivedMessage, WAKES_CHANNEL},
    connection::RedisConnection,
    server::{CONNECT_MAX, RESPONSE_MAX, Request},
};
use crate::hot::{WAKEUPS_BUFFERED_MAX, Wakeup};

/// Bytes of messages that wait to be published.
const QUEUE_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Messages published together.
const PUBLISHED_AT_ONCE: usize = 64;
/// Interval of pings on the subscriber's connection.
const PING_EVERY: Duration = Duration::from_secs(1);
/// Pings between two questions whether the server is still the right one.
const PINGS_BETWEEN_CHECKS: u32 = 3;
const BACK_OFF_MIN: Duration = Duration::from_millis(50);
const BACK_OFF_MAX: Duration = Duration::from_secs(2);

enum OutboxItem {
    Message(Vec<u8>),
    /// Answered once every earlier message was published or lost.
    Flush(oneshot::Sender<()>),
}

/// Queue of wakeups that this replica publishes.
pub(super) struct Outbox {
    queue: mpsc::Sender<OutboxItem>,
    bytes: Arc<AtomicUsize>,
}

impl Outbox {
    /// Queues a message. Returns false if the message is lost.
    pub(super) fn push(&self, message: Vec<u8>) -> bool {
        let length = message.len();
        if self.bytes.fetch_add(length, Ordering::Relaxed) + length <= QUEUE_BYTES_MAX
            && self.queue.try_send(OutboxItem::Message(message)).is_ok()
        {
            return true;
        }
        self.bytes.fetch_sub(length, Ordering::Relaxed);
        false
    }

    /// Waits until all queued messages were sent or lost.
    pub(super) async fn flush(&self) {
        let (flushed_tx, flushed) = oneshot::channel();
        if self.queue.send(OutboxItem::Flush(flushed_tx)).await.is_ok() {
            let _ = flushed.await;
        }
    }
}

/// Returns an outbox and the future that empties it.
pub(super) fn publisher(link: Arc<RedisConnection>) -> (Outbox, impl Future<Output = ()> + Send) {
    let (queue, mut messages) = mpsc::channel(WAKEUPS_BUFFERED_MAX);
    let bytes = Arc::new(AtomicUsize::new(0));
    let outbox = Outbox { queue, bytes: bytes.clone() };
    let run = async move {
        let mut some: Vec<OutboxItem> = Vec::with_capacity(PUBLISHED_AT_ONCE);
        while messages.recv_many(&mut some, PUBLISHED_AT_ONCE).await > 0 {
            let mut pipeline = Pipeline::with_capacity(some.len());
            let mut waiting = Vec::new();
            for posted in some.drain(..) {
                match posted {
                    OutboxItem::Message(message) => {
                        bytes.fetch_sub(message.len(), Ordering::Relaxed);
                        pipeline.cmd("PUBLISH").arg(WAKES_CHANNEL).arg(message).ignore();
                    }
                    OutboxItem::Flush(flushed_tx) => waiting.push(flushed_tx),
                }
            }
            if !pipeline.is_empty() {
                // A failure loses the wakeups. Their receivers also poll.
                let _ = link.execute(None, Request::Pipeline(&pipeline)).await;
            }
            for flushed_tx in waiting {
                let _ = flushed_tx.send(());
            }
        }
    };
    (outbox, run)
}

/// Receives the wakeups of other replicas.
pub(super) struct Subscriber {
    pub(super) link: Arc<RedisConnection>,
    pub(super) codec: Arc<Codec>,
    pub(super) wakeups: broadcast::Sender<Wakeup>,
    pub(super) connected: Arc<AtomicBool>,
    /// True once the first attempt has succeeded or failed.
    pub(super) tried: watch::Sender<bool>,
}

/// A connection that gets the wakeups.
struct Subscription {
    client: Client,
    sink: PubSubSink,
    stream: PubSubStream,
}

impl Subscriber {
    pub(super) async fn run(self) {
        let mut back_off = BACK_OFF_MIN;
        loop {
            match self.subscribe().await {
                Ok(subscription) => {
                    self.connected.store(true, Ordering::Relaxed);
                    self.tried.send_replace(true);
                    back_off = BACK_OFF_MIN;
                    let why = self.listen(subscription).await;
                    self.connected.store(false, Ordering::Relaxed);
                    self.link.record_errors(1, &why);
                }
                Err(why) => {
                    self.link.record_errors(1, &why);
                    self.tried.send_replace(true);
                }
            }
            // The random pause keeps replicas that lost the same Redis from reconnecting in step.
            tokio::time::sleep(back_off.mul_f64(rand::random_range(0.5..1.0))).await;
            back_off = (back_off * 2).min(BACK_OFF_MAX);
        }
    }

    async fn subscribe(&self) -> Result<Subscription, String> {
        let connect = async {
            let client = self.link.client_for_messages().await?;
            let (mut sink, stream) = client.get_async_pubsub().await?.split();
            sink.subscribe(WAKES_CHANNEL).await?;
            Ok::<_, RedisError>(Subscription { client, sink, stream })
        };
        match timeout(CONNECT_MAX, connect).await {
            Ok(Ok(subscription)) => Ok(subscription),
            Ok(Err(error)) => {
                self.link.record_refusal(&error).await;
                Err(format!("cannot subscribe to wake-ups: {error}"))
            }
            Err(_) => Err("cannot subscribe to wake-ups: no answer".into()),
        }
    }

    /// Receives until the connection is lost. Returns the reason.
    async fn listen(&self, subscription: Subscription) -> &'static str {
        let Subscription { client, mut sink, mut stream } = subscription;
        let mut ping = tokio::time::interval(PING_EVERY);
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut pings = 0;
        loop {
            // Both are cancel-safe: a stream's next item, and an interval's tick.
            tokio::select! {
                message = stream.next() => match message {
                    Some(message) => self.dispatch(message.get_payload_bytes()),
                    None => return "the connection for wake-ups ended",
                },
                _ = ping.tick() => match timeout(RESPONSE_MAX, sink.ping::<Value>()).await {
                    Ok(Ok(_)) => {
                        self.link.record_success();
                        pings += 1;
                        if pings % PINGS_BETWEEN_CHECKS == 0 && self.link.is_replaced(&client).await {
                            return "the server for wake-ups left the service";
                        }
                    }
                    Ok(Err(_)) | Err(_) => return "the connection for wake-ups is silent",
                },
            }
        }
    }

    fn dispatch(&self, message: &[u8]) {
        match self.codec.read_wake(message) {
            ReceivedMessage::Wake(wake) => {
                let _ = self.wakeups.send(wake); // without a subscriber nothing is sent
            }
            ReceivedMessage::Own | ReceivedMessage::Unknown => {}
            ReceivedMessage::Foreign => self
                .link
                .record_errors(1, &"a message on the channel of wake-ups is not from this broker"),
        }
    }
}
