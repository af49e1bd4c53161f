//! Measures the time from the start of the process to its `ready` line, and new sessions per
//! second.

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
use transport::tls::ClientTlsFiles;

use crate::testbed::{TestBed, broker};

const OPENERS: usize = 64;

pub(crate) async fn table(ground: &TestBed, scale: Scale) -> anyhow::Result<String> {
    let mut starts = Samples::default();
    for _ in 0..scale.of(11, 1) {
        let started = Instant::now();
        let broker = broker(json!({})).await?;
        starts.add(started.elapsed());
        drop(broker);
    }
    let sessions =
        sessions(ground, scale.of(Duration::from_secs(3), Duration::from_millis(100))).await?;
    let mut table = Table::new(["what", "figure"]);
    table.row(["start to ready, SQLite, new database (median)".to_owned(), shown(starts.median())]);
    table.row([
        "new sessions a second: initialize, initialized, one call; each stored".to_owned(),
        digits(sessions),
    ]);
    Ok(format!("### Beginnings\n\n{}\n", table.markdown()))
}

/// Returns the new sessions per second, each with its first call.
async fn sessions(ground: &TestBed, time: Duration) -> anyhow::Result<f64> {
    let [_, _, way] = ground.paths();
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
