//! Measures the time from the start of the process to its `ready` line, with stored sessions and
//! without, and new sessions per second.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use anyhow::ensure;
use benches::{Samples, Scale, Table, digits, shown};
use futures_util::future::try_join_all;
use loadtest::{
    mix::Operation,
    operation::{self, CallOutcome, TargetState},
    tool_call::ToolCall,
    wire::{LoadTarget, Session},
};
use serde_json::json;
use testkit::{TestBroker, servers::PostgresServer};
use transport::tls::ClientTlsFiles;

use crate::{
    crowd,
    testbed::{self, ProxyPath, TestBed, behind, broker, of_broker},
};

const OPENERS: usize = 64;

pub(crate) async fn table(ground: &TestBed, scale: Scale) -> anyhow::Result<String> {
    let mut starts = Samples::default();
    for _ in 0..scale.of(11, 1) {
        let started = Instant::now();
        let broker = broker(json!({})).await?;
        starts.add(started.elapsed());
        drop(broker);
    }
    let (stored, restarts) = restarts(ground, scale).await?;
    let time = scale.of(Duration::from_secs(3), Duration::from_millis(100));
    let [_, _, on_sqlite] = ground.paths()?;
    let on_sqlite = sessions(&on_sqlite, time).await?;
    let server = PostgresServer::start().await;
    let broker = testbed::start(testbed::builder()?.on_postgres(&server).await).await;
    let on_postgres = sessions(&serving(&broker, ground).await, time).await?;

    let mut table = Table::new(["what", "figure"]);
    let text = "A new session is `initialize`, `notifications/initialized` and one call. The broker stores it before it answers. PostgreSQL waits for the disk, and shares the processor of the load.";
    for (what, figure) in [
        ("start to ready, SQLite, new database (median)".to_owned(), shown(starts.median())),
        (
            format!("start to ready, SQLite, {stored} stored sessions (median)"),
            shown(restarts.median()),
        ),
        ("new sessions a second, SQLite".to_owned(), digits(on_sqlite)),
        ("new sessions a second, PostgreSQL".to_owned(), digits(on_postgres)),
    ] {
        table.row([what, figure]);
    }
    Ok(format!("### Beginnings\n\n{text}\n\n{}\n", table.markdown()))
}

/// Starts a killed broker several times. Returns the number of its stored sessions, and the times
/// until it was ready.
async fn restarts(ground: &TestBed, scale: Scale) -> anyhow::Result<(usize, Samples)> {
    let stored = scale.of(10_000, 20);
    let mut broker = broker(json!({})).await?;
    drop(crowd::open(&serving(&broker, ground).await, stored).await?);
    let mut restarts = Samples::default();
    for _ in 0..scale.of(11, 1) {
        broker.kill().await;
        let started = Instant::now();
        testbed::restart(&mut broker).await;
        restarts.add(started.elapsed());
    }
    Ok((stored, restarts))
}

/// Adds the fast backend and a key to a broker. Returns the path through it.
async fn serving(broker: &TestBroker, ground: &TestBed) -> ProxyPath {
    let admin = broker.admin();
    admin.put_ready_backend("default", "fast", &behind(&ground.backend)).await;
    of_broker("broker", broker, &admin.create_key("default").await)
}

/// Returns the new sessions per second, each with its first call.
async fn sessions(way: &ProxyPath, time: Duration) -> anyhow::Result<f64> {
    let site =
        LoadTarget::new(way.target.parse()?, &ClientTlsFiles::default(), Duration::from_secs(30))?;
    let call = Operation::Call(ToolCall::echo(vec![256]));
    let (opened, known, started) = (AtomicU64::new(0), TargetState::default(), Instant::now());
    let openers = (0..OPENERS).map(|_| async {
        while started.elapsed() < time {
            let session = Session::open(&site, way.key.as_deref()).await?;
            let number = opened.fetch_add(1, Ordering::Relaxed);
            let ended =
                operation::perform(&call, number, &mut session.request_slot(), &known).await;
            ensure!(
                ended == CallOutcome::Succeeded,
                "the first call ended with {ended:?}: {:?}",
                site.findings.witnesses()
            );
        }
        Ok(())
    });
    try_join_all(openers).await?;
    ensure!(site.findings.total() == 0, "{:?}", site.findings.witnesses());
    Ok(opened.load(Ordering::Relaxed) as f64 / started.elapsed().as_secs_f64())
}
