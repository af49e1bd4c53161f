//! What is kept, and for how long: the size of what a session, a task and an event leave in the
//! stores, and what a session costs while its client does nothing.

use std::time::{Duration, Instant};

use benches::Scale;
use testkit::{EventReader, TestClient};

use crate::{
    counters::{Cost, Counters},
    operations,
    site::{Site, calls},
};

/// Tables with what belongs to sessions and tasks, without the log of operators' actions.
const SIZES: &str =
    "SELECT /* bench */ coalesce(sum(pg_total_relation_size(c.oid)), 0) FROM pg_class c
    JOIN pg_namespace n ON n.oid = relnamespace
    WHERE relkind = 'r' AND nspname = 'public' AND relname NOT LIKE 'audit%'";

/// Behaviour of the clients whose sessions are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Client {
    /// No request and no connection.
    Gone,
    /// An open event stream.
    Listening,
    /// A call every ten seconds.
    Calling,
}

impl Client {
    pub(crate) const ALL: [Self; 3] = [Self::Gone, Self::Listening, Self::Calling];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Gone => "no connection",
            Self::Listening => "an open event stream",
            Self::Calling => "a call every ten seconds",
        }
    }
}

const CALLS_APART: Duration = Duration::from_secs(10);

/// What sessions of one kind cost.
pub(crate) struct KeptSessions {
    pub(crate) client: Client,
    /// Of one session in an hour.
    pub(crate) hour: Cost,
    /// Bytes of one session.
    pub(crate) in_postgres: f64,
    pub(crate) in_redis: f64,
}

/// Measures sessions of one kind on two replicas for a while.
pub(crate) async fn sessions(client: Client, scale: Scale) -> anyhow::Result<KeptSessions> {
    let (count, time) = scale.of((300, Duration::from_secs(61)), (4, Duration::from_millis(100)));
    let site = Site::start(2, scale).await?;
    let rest = site.rest().await?;
    let (size, before) = (size(&site).await?, Counters::read(&site.cluster).await?);
    let clients = site.open(count).await;
    calls(&clients).await;
    let mut readers = Vec::new();
    if client == Client::Listening {
        for client in &clients {
            readers.push(client.open_get_stream().await);
        }
    }
    let reading: Vec<_> = readers.into_iter().map(|reader| tokio::spawn(read(reader))).collect();
    site.settle().await;
    let after = Counters::read(&site.cluster).await?;
    let in_postgres = (self::size(&site).await? - size) / count as f64;
    let in_redis = (after.redis_memory - before.redis_memory) / count as f64;
    let started = Instant::now();
    let (cost, ()) = site.cost(&rest, spend(client, &clients, time)).await?;
    let hours = started.elapsed().as_secs_f64() / 3_600.0;
    reading.iter().for_each(tokio::task::JoinHandle::abort);
    Ok(KeptSessions { client, hour: cost.each(count as f64 * hours), in_postgres, in_redis })
}

async fn read(mut reader: EventReader) {
    while reader.advance().await.is_some() {}
}

async fn spend(client: Client, clients: &[TestClient], time: Duration) {
    let started = Instant::now();
    while client == Client::Calling && started.elapsed() + CALLS_APART < time {
        let round = Instant::now();
        calls(clients).await;
        tokio::time::sleep(CALLS_APART.saturating_sub(round.elapsed())).await;
    }
    tokio::time::sleep(time.saturating_sub(started.elapsed())).await;
}

async fn size(site: &Site) -> anyhow::Result<f64> {
    Ok(site.cluster.sql(SIZES).await.parse()?)
}

/// What one finished task and one logged event leave, in bytes.
pub(crate) struct KeptRecords {
    pub(crate) task: f64,
    pub(crate) event: f64,
}

pub(crate) async fn records(scale: Scale) -> anyhow::Result<KeptRecords> {
    let count = scale.of(400, 4);
    let site = Site::start(1, scale).await?;
    let clients = site.open(4).await;
    calls(&clients).await;
    site.settle().await;
    let before = size(&site).await?;
    for number in 0..count {
        operations::task(clients[number % clients.len()].clone()).await;
    }
    site.settle().await;
    let task = (size(&site).await? - before) / count as f64;
    let before = Counters::read(&site.cluster).await?.redis_memory;
    let mut events = 0;
    for number in 0..count / 4 {
        events += operations::streamed(clients[number % clients.len()].clone()).await;
    }
    site.settle().await;
    let after = Counters::read(&site.cluster).await?.redis_memory;
    Ok(KeptRecords { task, event: (after - before) / events as f64 })
}
