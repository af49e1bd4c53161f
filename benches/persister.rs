//! Measures the effect of group commit: writes per second and the time of one write through
//! `Persistence::write`, against one transaction for each write. 1 to 256 writers run at once, on
//! SQLite and on PostgreSQL, both on a real disk.
//!
//! Both ways take turns on the same database, so that other load on the machine affects both.

use std::{
    fs::File,
    io::Write as _,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use benches::{Samples, Scale, Table, digits, median, shown};
use broker::{
    auth::Keys,
    metrics::Metrics,
    persistence::{Persistence, Stores},
};
use protocol::{
    error::ErrorKind,
    ids::{BackendId, PrincipalId, TaskId, TenantId},
};
use records::{
    NodeName, SessionIdentity, SessionKey, SessionRecord, TaskLimits, TaskRecord, WriteOp,
    WriteOutcome,
};
use storage::{
    DurableStore, MemoryHotStore, PostgresOptions, PostgresStore, SqliteOptions, SqliteStore,
    StoreError,
};
use testkit::PostgresServer;
use tokio::task::JoinSet;

const WRITERS: [usize; 4] = [1, 16, 64, 256];
/// As many writers as a slow disk serves within the stores' deadline, one after the other.
const WRITERS_QUICK: usize = 16;
const NODE: &str = "bench/00000001";
const NO_LIMITS: TaskLimits = TaskLimits { running: u64::MAX, stored: u64::MAX, bytes: u64::MAX };

fn main() -> ExitCode {
    benches::main("persister", bench)
}

async fn bench(scale: Scale) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    println!(
        "\nA write of 4 KiB to a file and its fdatasync on this disk: {}",
        shown(sync_time(folder.path(), scale)?)
    );
    let server = PostgresServer::start().await;
    for what in [Workload::Session, Workload::Task { tenants: 1 }, Workload::Task { tenants: 64 }] {
        for engine in ["sqlite", "postgres"] {
            let store: Arc<dyn DurableStore> = match engine {
                "sqlite" => {
                    let path = tempfile::tempdir_in(folder.path())?.keep().join("state.db");
                    Arc::new(SqliteStore::open(&SqliteOptions { path, migrate: true }).await?)
                }
                _ => {
                    let (url, connect_timeout) = (server.database().await, Duration::from_secs(5));
                    Arc::new(
                        PostgresStore::open(&PostgresOptions {
                            url,
                            url_file: None,
                            migrate: true,
                            connect_timeout,
                        })
                        .await?,
                    )
                }
            };
            compare(scale, what, &store)
                .await
                .with_context(|| format!("{} on {engine}", what.name()))?;
            store.close().await;
        }
    }
    Ok(())
}

/// Returns the time of one sync of the disk: no single write can be faster.
fn sync_time(folder: &std::path::Path, scale: Scale) -> anyhow::Result<Duration> {
    let mut file = File::create(folder.join("synced"))?;
    let mut samples = Samples::default();
    for _ in 0..scale.of(500, 5) {
        let started = Instant::now();
        file.write_all(&[7; 4096])?;
        file.sync_data()?;
        samples.add(started.elapsed());
    }
    Ok(samples.median())
}

/// Kind of rows that are written.
#[derive(Debug, Clone, Copy)]
enum Workload {
    Session,
    Task { tenants: usize },
}

impl Workload {
    fn name(self) -> &'static str {
        match self {
            Self::Session => "OpenSession",
            Self::Task { tenants: 1 } => "CreateTask, one tenant",
            Self::Task { .. } => "CreateTask, 64 tenants",
        }
    }

    /// Returns a new write each time, of about the size of real ones.
    fn write(self) -> anyhow::Result<WriteOp> {
        let (key, owner) = (SessionKey::new(rand::random()), NodeName::new(NODE));
        let principal = PrincipalId::new("ada");
        Ok(match self {
            Self::Session => {
                let seat =
                    SessionIdentity { tenant: TenantId::parse("acme")?, principal, endpoint: None };
                let (agreement, state, links) = (vec![b'a'; 400], vec![b's'; 200], vec![b'l'; 150]);
                let (transport, version) = ("streamable_http".into(), "2025-11-25".into());
                let record = SessionRecord {
                    key,
                    identity: seat,
                    api_key: None,
                    transport,
                    version,
                    agreement,
                    state,
                    links,
                };
                WriteOp::OpenSession { record: Box::new(record), owner }
            }
            Self::Task { tenants } => {
                let record = TaskRecord {
                    task: TaskId::new(format!("{:032x}", rand::random::<u128>())),
                    tenant: TenantId::parse(&format!("tenant{}", rand::random_range(0..tenants)))?,
                    principal,
                    session: key,
                    private: false,
                    backend: BackendId::parse("files")?,
                    request: vec![b'r'; 300],
                    details: vec![b'd'; 200],
                    idempotency: None,
                    ttl: Some(Duration::from_secs(3_600)),
                };
                WriteOp::CreateTask { record: Box::new(record), owner, limits: NO_LIMITS }
            }
        })
    }
}

/// Way in which the rows are written.
#[derive(Clone)]
enum WriteMode {
    Grouped(Arc<Persistence>),
    Single(Arc<dyn DurableStore>),
}

impl WriteMode {
    /// Writes once. False: the store was too busy.
    async fn write(&self, write: WriteOp) -> anyhow::Result<bool> {
        let written = match self {
            Self::Grouped(persistence) => match persistence.write(write).await {
                Ok(written) => Some(written),
                Err(refusal) if refusal.kind == ErrorKind::StoreBusy => return Ok(false),
                Err(refusal) => bail!("{refusal:?}"),
            },
            Self::Single(store) => match store.write(std::slice::from_ref(&write)).await {
                Ok(mut outcomes) => outcomes.pop(),
                Err(StoreError::Busy { .. }) => return Ok(false),
                Err(error) => return Err(error.into()),
            },
        };
        match written {
            Some(WriteOutcome::Done | WriteOutcome::Created { .. }) => Ok(true),
            other => bail!("{other:?}"),
        }
    }
}

/// Results of one way over all its turns.
#[derive(Default)]
struct Throughput {
    per_second: Vec<f64>,
    latency: Samples,
    /// Writes that the store refused because it was too busy.
    refused: usize,
}

impl Throughput {
    fn rate(&self) -> f64 {
        median(self.per_second.clone())
    }

    fn cells(&self) -> [String; 3] {
        let refused =
            if self.refused > 0 { format!(" ({} refused)", self.refused) } else { String::new() };
        [digits(self.rate()) + &refused, shown(self.latency.median()), shown(self.latency.p99())]
    }
}

async fn compare(
    scale: Scale,
    what: Workload,
    store: &Arc<dyn DurableStore>,
) -> anyhow::Result<()> {
    let stores =
        Stores { durable: store.clone(), events: None, hot: Arc::new(MemoryHotStore::new()) };
    let keys = Keys::from_root(b"a secret of this bench alone");
    let persistence = Persistence::new(
        stores,
        NodeName::new(NODE),
        keys.seal.clone(),
        Arc::new(Metrics::new(false)),
    );
    let ways = [WriteMode::Grouped(persistence), WriteMode::Single(store.clone())];
    let mut table = Table::new([
        "writers",
        "grouped/s",
        "p50",
        "p99",
        "alone/s",
        "p50",
        "p99",
        "grouped : alone",
    ]);
    for writers in
        WRITERS.into_iter().filter(|writers| *writers <= scale.of(usize::MAX, WRITERS_QUICK))
    {
        let mut gave = [Throughput::default(), Throughput::default()];
        for way in &ways {
            drive(
                way,
                what,
                writers,
                scale.of(Duration::from_millis(300), Duration::ZERO),
                &mut Throughput::default(),
            )
            .await?;
        }
        for _ in 0..scale.of(5, 1) {
            for (way, gave) in ways.iter().zip(&mut gave) {
                drive(way, what, writers, scale.of(Duration::from_secs(1), Duration::ZERO), gave)
                    .await?;
            }
        }
        let [grouped, alone] = gave;
        let ([rate, p50, p99], [alone_rate, alone_p50, alone_p99]) =
            (grouped.cells(), alone.cells());
        let ratio = format!("{:.1}", grouped.rate() / alone.rate());
        table.row([writers.to_string(), rate, p50, p99, alone_rate, alone_p50, alone_p99, ratio]);
    }
    table.print(&format!("{} on {}", what.name(), DurableStore::engine(&**store)));
    Ok(())
}

/// Runs all writers, each with one write after the other, for this long and at least once.
async fn drive(
    way: &WriteMode,
    what: Workload,
    writers: usize,
    time: Duration,
    gave: &mut Throughput,
) -> anyhow::Result<()> {
    let started = Instant::now();
    let mut running = JoinSet::new();
    for _ in 0..writers {
        let way = way.clone();
        running.spawn(async move {
            let (mut latency, mut refused) = (Samples::default(), 0);
            loop {
                let write = what.write()?;
                let asked = Instant::now();
                match way.write(write).await? {
                    true => latency.add(asked.elapsed()),
                    false => refused += 1,
                }
                if started.elapsed() >= time {
                    return anyhow::Ok((latency, refused));
                }
            }
        });
    }
    let mut written = 0;
    while let Some(ended) = running.join_next().await {
        let (latency, refused) = ended.context("a writer panicked")??;
        written += latency.len();
        gave.latency.extend(latency);
        gave.refused += refused;
    }
    gave.per_second.push(written as f64 / started.elapsed().as_secs_f64());
    Ok(())
}
