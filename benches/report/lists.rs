//! `tools/list` from the catalog, compared with nginx that serves the very same bytes from a file.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use benches::{Samples, Scale, Table, digits, median, shown};
use loadtest::{
    backend::{Backend, BackendOptions},
    process,
    target::Target,
    wire::{HttpStream, http::post_head},
};
use tokio::task::JoinSet;

use crate::testbed::{TestBed, behind};

const TOOLS: usize = 500;
const CONNECTIONS: usize = 16;
const LIST: &[u8] = br#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}"#;

/// A request that is sent again and again.
#[derive(Clone)]
struct ListRequest {
    address: String,
    head: String,
    answer_bytes: usize,
}

pub(crate) async fn table(ground: &TestBed, scale: Scale) -> anyhow::Result<String> {
    let many = Backend::http(
        "127.0.0.1:0",
        &BackendOptions { tools: TOOLS - 1, ..BackendOptions::default() },
    )
    .await?;
    ground.broker.admin().put_ready_backend("default", "many", &behind(&many)).await;
    let target: Target = format!("http://{}/mcp/many", ground.broker.http_address()).parse()?;
    let session = session(&target, &ground.key).await?;
    let head = post_head(&target, Some(&ground.key), Some(&session));
    let mut stream = HttpStream::connect(&target.address).await?;
    let answer = stream.post(&head, LIST).await?;
    ensure!(answer.status == 200, "tools/list got status {}", answer.status);
    ground.nginx.serve_list(&answer.body)?;

    let file: Target = format!("http://{}/list", ground.nginx.address).parse()?;
    let answer_bytes = answer.body.len();
    let askings = [
        ListRequest {
            address: file.address.clone(),
            head: post_head(&file, None, None),
            answer_bytes,
        },
        ListRequest { address: target.address.clone(), head, answer_bytes },
    ];
    let pids = [ground.nginx.pid(), ground.broker.pid()];
    let time = scale.of(Duration::from_millis(1500), Duration::from_millis(50));
    let mut rounds = [const { (Vec::new(), Vec::new(), Vec::new()) }; 2];
    for _ in 0..scale.of(3, 1) {
        for (way, asking) in askings.iter().enumerate() {
            let before = process::usage(pids[way])?.cpu;
            let (rate, p50) = ask(asking, time).await?;
            let cpu = process::usage(pids[way])?.cpu - before;
            rounds[way].0.push(rate);
            rounds[way].1.push(p50.as_secs_f64());
            rounds[way].2.push(cpu.as_secs_f64() * 1e6 / (rate * time.as_secs_f64()));
        }
    }
    let [nginx, broker] =
        rounds.map(|(rates, p50s, cpus)| (median(rates), median(p50s), median(cpus)));
    let mut table =
        Table::new(["way", "lists/s", "of nginx", "p50", "of nginx", "CPU a list", "of nginx"]);
    for (name, (rate, p50, cpu)) in [("nginx, a file", nginx), ("broker", broker)] {
        table.row([
            name.to_owned(),
            digits(rate),
            format!("{:.2}", rate / nginx.0),
            shown(Duration::from_secs_f64(p50)),
            format!("{:.2}", p50 / nginx.1),
            format!("{cpu:.1} µs"),
            format!("{:.2}", cpu / nginx.2),
        ]);
    }
    let text = format!(
        "The first page of `tools/list` with {TOOLS} tools, {answer_bytes} bytes, over {CONNECTIONS} connections."
    );
    Ok(format!("### Lists compared with a file\n\n{text}\n\n{}\n", table.markdown()))
}

/// Returns the lists per second, and the median time of one.
async fn ask(asking: &ListRequest, time: Duration) -> anyhow::Result<(f64, Duration)> {
    let mut callers = JoinSet::new();
    let begun = Instant::now();
    for _ in 0..CONNECTIONS {
        let asking = asking.clone();
        callers.spawn(async move {
            let mut stream = HttpStream::connect(&asking.address).await?;
            let mut samples = Samples::default();
            while begun.elapsed() < time {
                let sent = Instant::now();
                let answer = stream.post(&asking.head, LIST).await?;
                ensure!(
                    answer.status == 200 && answer.body.len() == asking.answer_bytes,
                    "another answer: status {}",
                    answer.status
                );
                samples.add(sent.elapsed());
            }
            anyhow::Ok(samples)
        });
    }
    let mut all = Samples::default();
    while let Some(samples) = callers.join_next().await {
        all.extend(samples??);
    }
    Ok((all.len() as f64 / begun.elapsed().as_secs_f64(), all.median()))
}

/// Opens a session by hand, because its id is needed.
async fn session(target: &Target, key: &str) -> anyhow::Result<String> {
    let params = r#"{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}"#;
    let initialize =
        format!(r#"{{"jsonrpc":"2.0","id":0,"method":"initialize","params":{params}}}"#);
    let mut stream = HttpStream::connect(&target.address).await?;
    let opened = stream.post(&post_head(target, Some(key), None), initialize.as_bytes()).await?;
    let id = opened.session_id.context("the broker gives sessions ids")?;
    let initialized = br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
    stream.post(&post_head(target, Some(key), Some(&id)), initialized).await?;
    Ok(id)
}
