//! Words between replicas: one task publishes what this one says, another hears what the others say.
//!
//! Saying never waits; words that find the queue full are lost, like those said while Redis is away. The hearer asks its
//! connection from time to time whether it is still one, and opens another when it is not.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::StreamExt;
use redis::{
    Pipeline, Value,
    aio::{PubSubSink, PubSubStream},
};
use tokio::{
    sync::{broadcast, mpsc, oneshot, watch},
    time::timeout,
};

use super::{
    codec::{Codec, ReceivedMessage, WAKES_CHANNEL},
    connection::{CONNECT_MAX, RESPONSE_MAX, RedisConnection, Request},
};
use crate::hot::{WAKEUPS_BUFFERED_MAX, Wakeup};

/// Messages that wait to be published.
const QUEUE_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Published in one go.
const PUBLISHED_AT_ONCE: usize = 64;
/// How often the hearer looks whether its connection works.
const PING_EVERY: Duration = Duration::from_secs(1);
const BACK_OFF_MIN: Duration = Duration::from_millis(50);
const BACK_OFF_MAX: Duration = Duration::from_secs(2);

enum OutboxItem {
    Message(Vec<u8>),
    /// Everything before this was published, or is lost.
    Flush(oneshot::Sender<()>),
}

/// Where words of this replica go to be published.
pub(super) struct Outbox {
    queue: mpsc::Sender<OutboxItem>,
    bytes: Arc<AtomicUsize>,
}

impl Outbox {
    /// False: the word is lost.
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

    /// Waits until what was pushed so far is on its way.
    pub(super) async fn emptied(&self) {
        let (tell, told) = oneshot::channel();
        if self.queue.send(OutboxItem::Flush(tell)).await.is_ok() {
            let _ = told.await;
        }
    }
}

/// An outbox, and what empties it for as long as it runs.
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
                    OutboxItem::Flush(tell) => waiting.push(tell),
                }
            }
            if !pipeline.is_empty() {
                // Lost, if it fails: who waits for the word looks by itself too.
                let _ = link.ask(Request::Pipeline(&pipeline)).await;
            }
            for tell in waiting {
                let _ = tell.send(());
            }
        }
    };
    (outbox, run)
}

/// What hears the words of other replicas.
pub(super) struct Subscriber {
    pub(super) link: Arc<RedisConnection>,
    pub(super) codec: Arc<Codec>,
    pub(super) words: broadcast::Sender<Wakeup>,
    pub(super) connected: Arc<AtomicBool>,
    /// True once the first try is over, however it ended.
    pub(super) tried: watch::Sender<bool>,
}

impl Subscriber {
    pub(super) async fn run(self) {
        let mut back_off = BACK_OFF_MIN;
        loop {
            match self.subscribe().await {
                Ok((sink, stream)) => {
                    self.connected.store(true, Ordering::Relaxed);
                    self.tried.send_replace(true);
                    back_off = BACK_OFF_MIN;
                    let why = self.hear(sink, stream).await;
                    self.connected.store(false, Ordering::Relaxed);
                    self.link.count(1, &why);
                }
                Err(why) => {
                    self.link.count(1, &why);
                    self.tried.send_replace(true);
                }
            }
            // Replicas that lost the same Redis do not come back in step.
            tokio::time::sleep(back_off.mul_f64(rand::random_range(0.5..1.0))).await;
            back_off = (back_off * 2).min(BACK_OFF_MAX);
        }
    }

    async fn subscribe(&self) -> Result<(PubSubSink, PubSubStream), String> {
        let connect = async {
            let (mut sink, stream) = self.link.client().get_async_pubsub().await?.split();
            sink.subscribe(WAKES_CHANNEL).await?;
            Ok((sink, stream))
        };
        match timeout(CONNECT_MAX, connect).await {
            Ok(subscribed) => subscribed.map_err(|error: redis::RedisError| {
                format!("cannot subscribe to wake-ups: {error}")
            }),
            Err(_) => Err("cannot subscribe to wake-ups: no answer".into()),
        }
    }

    /// Until the connection is gone. Returns why.
    async fn hear(&self, mut sink: PubSubSink, mut stream: PubSubStream) -> &'static str {
        let mut ping = tokio::time::interval(PING_EVERY);
        loop {
            // Both are cancel-safe: a stream's next item, and an interval's tick.
            tokio::select! {
                message = stream.next() => match message {
                    Some(message) => self.take(message.get_payload_bytes()),
                    None => return "the connection for wake-ups ended",
                },
                _ = ping.tick() => match timeout(RESPONSE_MAX, sink.ping::<Value>()).await {
                    Ok(Ok(_)) => self.link.went_well(),
                    Ok(Err(_)) | Err(_) => return "the connection for wake-ups is silent",
                },
            }
        }
    }

    fn take(&self, message: &[u8]) {
        match self.codec.read_wake(message) {
            ReceivedMessage::Wake(wake) => {
                let _ = self.words.send(wake); // nobody listens: nobody misses it
            }
            ReceivedMessage::Own | ReceivedMessage::Unknown => {}
            ReceivedMessage::Foreign => {
                self.link.count(1, &"a message that is not ours on the channel of wake-ups")
            }
        }
    }
}
