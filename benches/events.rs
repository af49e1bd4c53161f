//! Measures the cost of an event, with the event log off, in memory, on SQLite, on PostgreSQL and
//! in Redis.
//!
//! - CPU time of the task that pushes it into an `EventStream`
//! - CPU time of the rest of the process
//! - rate from the push to the reader and the log
//!
//! The pusher is a thread of its own, so that its CPU time is known. Readers and the writer of the
//! log share a runtime, as in the product. *In a row*: many events, so that the log always has
//! work. *One by one*: each event finds everything idle, so that the push pays for waking the
//! others.

use std::{
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use benches::{Samples, Scale, Table, digits, median, shown};
use broker::{
    auth::Keys,
    metrics::Metrics,
    persistence::{EventWriter, Persistence, Stores},
    sessions::stream::{EventStream, StreamItem},
};
use bytes::Bytes;
use records::{NodeName, SessionKey};
use rules::event_log::{EventKind, LogLimits};
use rustix::time::{ClockId, clock_gettime};
use storage::{
    EventStore, MemoryHotStore, PostgresOptions, PostgresStore, RedisOptions, RedisStore,
    SqliteOptions, SqliteStore,
};
use testkit::{PostgresServer, RedisServer};
use tokio::{runtime::Handle, task::JoinSet};

/// The defaults of `events.stream_events` and `events.stream_bytes`.
const LIMITS: LogLimits = LogLimits { events: 1_000, bytes: 8 * 1024 * 1024 };
/// The default of `events.retain`.
const RETAIN: Duration = Duration::from_secs(300);
/// Interval at which streams drop old events, as in the product.
const EXPIRES_EVERY: Duration = Duration::from_secs(1);
/// Sessions with one stream each.
const STREAMS: u64 = 16;
/// Events between two reads of the clock, which is a system call.
const BURST: u64 = 64;
/// Events in a row before the pusher waits for the others, so that nothing is lost on the way.
const WINDOW: u64 = 4_096;
const _: () = assert!(WINDOW.is_multiple_of(BURST) && WINDOW / STREAMS < LIMITS.events as u64);

fn main() -> ExitCode {
    benches::main("events", bench)
}

/// Store of events.
struct EventStorage {
    name: &'static str,
    retain: Duration,
    store: Option<Arc<dyn EventStore>>,
}

async fn bench(scale: Scale) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let (postgres, redis) = (PostgresServer::start().await, RedisServer::start().await);
    let sqlite =
        SqliteStore::open(&SqliteOptions { path: folder.path().join("state.db"), migrate: true })
            .await?;
    let options = PostgresOptions {
        url: postgres.database().await,
        url_file: None,
        migrate: true,
        connect_timeout: Duration::from_secs(5),
    };
    let of_postgres = PostgresStore::open(&options).await?;
    let options =
        RedisOptions { url: redis.url(), url_file: None, key: [7; 32], event_retention: RETAIN };
    let of_redis = RedisStore::open(&options).await?;
    let stored = |name, store: Arc<dyn EventStore>| EventStorage {
        name,
        retain: RETAIN,
        store: Some(store),
    };
    let storages = [
        EventStorage { name: "off", retain: Duration::ZERO, store: None },
        EventStorage { name: "memory", retain: RETAIN, store: None },
        stored("SQLite", Arc::new(sqlite)),
        stored("PostgreSQL", Arc::new(of_postgres)),
        stored("Redis", Arc::new(of_redis)),
    ];
    for bytes in [256, 4_096] {
        in_a_row(scale, &storages, bytes).await?;
        one_by_one(scale, &storages, bytes).await?;
    }
    Ok(())
}

async fn in_a_row(scale: Scale, storages: &[EventStorage], bytes: usize) -> anyhow::Result<()> {
    let mut all: Vec<(Samples, Vec<f64>, Vec<f64>)> =
        storages.iter().map(|_| Default::default()).collect();
    for _ in 0..scale.of(5, 1) {
        for (storage, (push, others, rate)) in storages.iter().zip(&mut all) {
            let mut rig = StreamRig::start(storage, bytes, None).await?;
            let run = move || {
                rig.run(Duration::ZERO, STREAMS * scale.of(LIMITS.events as u64, 0))?; // until the streams are full
                let row = rig.run(scale.of(Duration::from_secs(1), Duration::ZERO), WINDOW)?;
                anyhow::Ok((rig, row))
            };
            let (rig, row) = tokio::task::spawn_blocking(run).await??;
            rig.end(storage).await?;
            push.extend(row.push);
            others.push(row.others_ns);
            rate.push(row.per_second);
        }
    }
    let mut table = Table::new([
        "log",
        "push: CPU p50",
        "p99",
        "ratio",
        "rest: CPU",
        "ratio",
        "events/s",
        "ratio",
    ]);
    let off = (all[0].0.median().as_secs_f64(), median(all[0].1.clone()), median(all[0].2.clone()));
    for (storage, (push, others, rate)) in storages.iter().zip(all) {
        let (others, rate) = (median(others), median(rate));
        table.row([
            storage.name.to_owned(),
            shown(push.median()),
            shown(push.p99()),
            format!("{:.1}", push.median().as_secs_f64() / off.0),
            shown(Duration::from_nanos(others as u64)),
            format!("{:.1}", others / off.1),
            digits(rate),
            format!("{:.2}", rate / off.2),
        ]);
    }
    table.print(&format!("Events of {bytes} bytes in a row, each"));
    Ok(())
}

async fn one_by_one(scale: Scale, storages: &[EventStorage], bytes: usize) -> anyhow::Result<()> {
    let mut table = Table::new([
        "log",
        "push: CPU p50",
        "p99",
        "ratio",
        "to the reader p50",
        "p99",
        "to the log p50",
        "p99",
    ]);
    let mut off = None;
    for storage in storages {
        let (arrived, arrivals) = sync_channel(1);
        let mut rig = StreamRig::start(storage, bytes, Some(arrived)).await?;
        let run = move || {
            rig.one_by_one(scale.of(300, 0), &arrivals)?; // to warm up
            let alone = rig.one_by_one(scale.of(1_500, 3), &arrivals)?;
            anyhow::Ok((rig, alone))
        };
        let (rig, alone) = tokio::task::spawn_blocking(run).await??;
        rig.end(storage).await?;
        let off = *off.get_or_insert(alone.push.median().as_secs_f64());
        let to_log = |time| if storage.store.is_some() { shown(time) } else { "-".to_owned() };
        table.row([
            storage.name.to_owned(),
            shown(alone.push.median()),
            shown(alone.push.p99()),
            format!("{:.1}", alone.push.median().as_secs_f64() / off),
            shown(alone.to_reader.median()),
            shown(alone.to_reader.p99()),
            to_log(alone.to_log.median()),
            to_log(alone.to_log.p99()),
        ]);
    }
    table.print(&format!("Events of {bytes} bytes one by one, each"));
    Ok(())
}

/// Streams with a reader each.
struct StreamRig {
    streams: Vec<(SessionKey, Arc<EventStream>)>,
    writer: Option<EventWriter>,
    metrics: Arc<Metrics>,
    retain: Duration,
    expired_at: Instant,
    frame: Bytes,
    pushed: u64,
    read: Arc<AtomicU64>,
    readers: JoinSet<()>,
    runtime: Handle,
}

/// Costs of many events in a row.
struct BatchCosts {
    /// CPU time of the pusher, for each event.
    push: Samples,
    /// CPU time of all other threads, for each event, in nanoseconds.
    others_ns: f64,
    per_second: f64,
}

/// Costs of single events.
#[derive(Default)]
struct SingleEventCosts {
    push: Samples,
    to_reader: Samples,
    to_log: Samples,
}

impl StreamRig {
    /// Starts the streams. Readers report each event to `arrived`.
    async fn start(
        storage: &EventStorage,
        bytes: usize,
        arrived: Option<SyncSender<Instant>>,
    ) -> anyhow::Result<Self> {
        let metrics = Arc::new(Metrics::new(false));
        let stores = Stores {
            durable: Arc::new(SqliteStore::in_memory().await?),
            events: storage.store.clone(),
            hot: Arc::new(MemoryHotStore::new()),
        };
        let persistence = Persistence::new(
            stores,
            NodeName::new("bench"),
            Keys::from_root(b"bench").seal,
            metrics.clone(),
        );
        let writer = persistence.event_log.clone();
        let (mut streams, mut readers) = (Vec::new(), JoinSet::new());
        let read = Arc::new(AtomicU64::new(0));
        for number in 1..=STREAMS {
            let (session, stream) =
                (SessionKey::new(rand::random()), EventStream::general(number, LIMITS));
            if let Some(writer) = &writer {
                stream.start_logging(writer, session);
            }
            let mut reader = stream.read_from(0).ok().context("a new stream can be read")?;
            let (read, arrived) = (read.clone(), arrived.clone());
            readers.spawn(async move {
                while let StreamItem::Event(_) = reader.next().await {
                    read.fetch_add(1, Ordering::Release);
                    if let Some(arrived) = &arrived {
                        let _pusher_is_gone = arrived.try_send(Instant::now());
                    }
                }
            });
            streams.push((session, stream));
        }
        let frame = Bytes::from(vec![b'x'; bytes]);
        let (retain, expired_at, runtime) = (storage.retain, Instant::now(), Handle::current());
        Ok(Self {
            streams,
            writer,
            metrics,
            retain,
            expired_at,
            frame,
            pushed: 0,
            read,
            readers,
            runtime,
        })
    }

    fn push(&mut self) -> anyhow::Result<()> {
        let (_, stream) = &self.streams[(self.pushed % STREAMS) as usize];
        self.pushed += 1;
        stream
            .push(Instant::now(), EventKind::Message, self.frame.clone())
            .ok()
            .context("a stream was cut")
    }

    /// Pushes at least so many events, and for at least this long.
    fn run(&mut self, time: Duration, at_least: u64) -> anyhow::Result<BatchCosts> {
        let mut push = Samples::default();
        let (started, first) = (Instant::now(), self.pushed);
        let (mine, all) = (cpu_time(ClockId::ThreadCPUTime), cpu_time(ClockId::ProcessCPUTime));
        while started.elapsed() < time || self.pushed - first < at_least {
            let before = cpu_time(ClockId::ThreadCPUTime);
            for _ in 0..BURST {
                self.push()?;
            }
            push.add((cpu_time(ClockId::ThreadCPUTime) - before) / BURST as u32);
            if (self.pushed - first).is_multiple_of(WINDOW) {
                self.catch_up()?;
            }
        }
        self.catch_up()?;
        let events = (self.pushed - first) as f64;
        let (mine, all) =
            (cpu_time(ClockId::ThreadCPUTime) - mine, cpu_time(ClockId::ProcessCPUTime) - all);
        let others_ns = all.saturating_sub(mine).as_nanos() as f64 / events;
        Ok(BatchCosts { push, others_ns, per_second: events / started.elapsed().as_secs_f64() })
    }

    fn one_by_one(
        &mut self,
        events: usize,
        arrivals: &Receiver<Instant>,
    ) -> anyhow::Result<SingleEventCosts> {
        let mut alone = SingleEventCosts::default();
        for _ in 0..events {
            let (started, before) = (Instant::now(), cpu_time(ClockId::ThreadCPUTime));
            self.push()?;
            alone.push.add(cpu_time(ClockId::ThreadCPUTime) - before);
            alone.to_reader.add(arrivals.recv()?.duration_since(started));
            self.catch_up()?;
            alone.to_log.add(started.elapsed());
        }
        Ok(alone)
    }

    /// Waits until every event was read and logged, and expires events once a second.
    fn catch_up(&mut self) -> anyhow::Result<()> {
        if let Some(writer) = &self.writer {
            ensure!(
                self.runtime.block_on(writer.flushed(self.streams[0].0)),
                "events were not logged"
            );
        }
        while self.read.load(Ordering::Acquire) < self.pushed {
            std::thread::yield_now(); // its CPU time is the pusher's, and not counted
        }
        let now = Instant::now();
        if now.duration_since(self.expired_at) >= EXPIRES_EVERY {
            self.expired_at = now;
            self.streams.iter().for_each(|(_, stream)| stream.expire(now, self.retain));
        }
        Ok(())
    }

    /// Checks that all pushed events are in the log, or were trimmed from it.
    async fn end(mut self, storage: &EventStorage) -> anyhow::Result<()> {
        ensure!(self.metrics.render().contains("mcp_events_lost_total 0"), "events were lost");
        for (number, (session, stream)) in self.streams.iter().enumerate() {
            stream.close();
            if let (Some(store), Some(writer)) = (&storage.store, &self.writer) {
                let stored = store
                    .stream(session, stream.number, 0)
                    .await?
                    .context("a stream is not in the log")?;
                let expected = (self.pushed + STREAMS - 1 - number as u64) / STREAMS;
                ensure!(
                    stored.last_sequence == expected,
                    "{} of {expected} events are in the log",
                    stored.last_sequence
                );
                writer.forget(*session);
            }
        }
        while let Some(reader) = self.readers.join_next().await {
            reader?;
        }
        if let Some(writer) = &self.writer {
            writer.flushed(self.streams[0].0).await;
        }
        Ok(())
    }
}

fn cpu_time(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}
