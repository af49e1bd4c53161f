//! Compares the cost of a call on a broker with one of everything and on one with thousands of idle
//! ones.

use std::time::Duration;

use anyhow::ensure;
use benches::{Scale, Table, digits, shown};
use futures_util::{StreamExt as _, stream};
use loadtest::{
    backend::{Backend, BackendOptions},
    compare::{self, Figures},
    wire::{LoadTarget, Session},
};
use serde_json::json;
use transport::tls::ClientTlsFiles;

use crate::{
    repeated::CONNECTIONS,
    testbed::{ProxyPath, TestBed, behind, broker, load, of_broker},
};

/// Sessions or backends opened or registered at the same time.
const AT_ONCE: usize = 32;

pub(crate) async fn table(ground: &TestBed, scale: Scale) -> anyhow::Result<String> {
    let (sessions, tenants, backends, tools) = scale.of((10_000, 1_000, 200, 50), (20, 5, 3, 5));
    let crowded = broker(json!({})).await?;
    let admin = crowded.admin();
    let many = Backend::http(
        "127.0.0.1:0",
        &BackendOptions { tools: tools - 1, ..BackendOptions::default() },
    )
    .await?;
    stream::iter(0..tenants)
        .for_each_concurrent(AT_ONCE, |number| {
            let admin = &admin;
            async move { admin.put_tenant(&format!("tenant-{number}"), json!({})).await }
        })
        .await;
    let spec = behind(&many);
    stream::iter(0..backends)
        .for_each_concurrent(AT_ONCE, |number| {
            let (admin, spec) = (&admin, &spec);
            async move { admin.put_ready_backend("default", &format!("backend-{number}"), spec).await }
        })
        .await;
    admin.put_ready_backend("default", "fast", &behind(&ground.backend)).await;
    let key = admin.create_key("default").await;

    let ways = [
        of_broker("one of each", &ground.broker, &ground.key),
        of_broker("crowded", &crowded, &key),
    ];
    let idle = open(&ways[1], sessions).await?;
    let table = compared(&ways, scale).await?;
    drop(idle);

    let text = format!(
        "Calls of 256 B over {CONNECTIONS} connections. *Crowded*: {sessions} idle sessions, {tenants} tenants, {backends} backends with {} tools in all. `make bench WHAT=idle` measures the memory of idle sessions.",
        backends * tools
    );
    Ok(format!("### What is idle\n\n{text}\n\n{}\n", table))
}

/// Returns a table of calls of 256 B on two brokers, measured in turns.
pub(crate) async fn compared(ways: &[ProxyPath; 2], scale: Scale) -> anyhow::Result<String> {
    let time = scale.of(Duration::from_millis(1500), Duration::from_millis(50));
    let loads = ways
        .iter()
        .map(|way| load(way, CONNECTIONS, 256, time))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let rounds = compare::run_interleaved(&loads, scale.of(5, 1), |_| ()).await?;
    ensure!(rounds.faults().is_empty(), "{}", rounds.faults().join("\n"));
    let figures: Vec<Figures> = rounds.0.iter().map(|rounds| Figures::of(rounds)).collect();
    let mut table = Table::new(["broker", "calls/s", "ratio", "p50", "CPU a call", "ratio"]);
    for (way, of) in ways.iter().zip(&figures) {
        let cpu = of.cpu_us_per_call.unwrap_or_default();
        table.row([
            way.name.to_owned(),
            digits(of.rate),
            format!("{:.2}", of.rate / figures[0].rate),
            shown(Duration::from_secs_f64(of.p50 / 1000.0)),
            format!("{cpu:.1} µs"),
            format!("{:.2}", cpu / figures[0].cpu_us_per_call.unwrap_or(1.0)),
        ]);
    }
    Ok(table.markdown())
}

/// Opens sessions that stay idle.
pub(crate) async fn open(
    way: &ProxyPath,
    count: usize,
) -> anyhow::Result<Vec<std::sync::Arc<Session>>> {
    let site =
        LoadTarget::new(way.target.parse()?, &ClientTlsFiles::default(), Duration::from_secs(30))?;
    let opened: Vec<_> = stream::iter(0..count)
        .map(|_| Session::open(&site, way.key.as_deref()))
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    opened.into_iter().collect()
}
