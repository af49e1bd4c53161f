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
use testkit::TestBroker;
use tokio::task::JoinSet;

use crate::testbed::{TestBed, behind};

const TOOLS: usize = 500;
const CONNECTIONS: usize = 16;
const LIST: &[u8] = br#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}"#;

/// A request that is sent again and again.
#[derive(Clone)]
pub(crate) struct ListRequest {
    address: String,
    head: String,
    answer_bytes: usize,
    pid: u32,
}

impl ListRequest {
    /// Returns the request for the first page of a backend's tools, and the answer's body.
    pub(crate) async fn to_broker(
        broker: &TestBroker,
        key: &str,
        backend: &str,
    ) -> anyhow::Result<(Self, Vec<u8>)> {
        let target: Target = format!("http://{}/mcp/{backend}", broker.http_address()).parse()?;
        let session = session(&target, key).await?;
        let head = post_head(&target, Some(key), Some(&session));
        let mut stream = HttpStream::connect(&target.address).await?;
        let answer = stream.post(&head, LIST).await?;
        ensure!(answer.status == 200, "tools/list got status {}", answer.status);
        let body = answer.body.to_vec();
        Ok((
            Self { address: target.address, head, answer_bytes: body.len(), pid: broker.pid() },
            body,
        ))
    }
}

/// Rate, median duration in seconds, and processor time of one list in microseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ListFigures {
    pub(crate) rate: f64,
    pub(crate) p50: f64,
    pub(crate) cpu: f64,
}

pub(crate) async fn table(ground: &TestBed, scale: Scale) -> anyhow::Result<String> {
    let many = Backend::http(
        "127.0.0.1:0",
        &BackendOptions { tools: TOOLS - 1, ..BackendOptions::default() },
    )
    .await?;
    ground.broker.admin().put_ready_backend("default", "many", &behind(&many)).await;
    let (of_broker, body) = ListRequest::to_broker(&ground.broker, &ground.key, "many").await?;
    ground.nginx.serve_list(&body)?;
    let file: Target = format!("http://{}/list", ground.nginx.address).parse()?;
    let answer_bytes = body.len();
    let of_file = ListRequest {
        address: file.address.clone(),
        head: post_head(&file, None, None),
        answer_bytes,
        pid: ground.nginx.pid(),
    };
    let [nginx, broker] = in_turns(&[of_file, of_broker], scale).await?;
    let mut table =
        Table::new(["way", "lists/s", "of nginx", "p50", "of nginx", "CPU a list", "of nginx"]);
    for (name, of) in [("nginx, a file", nginx), ("broker", broker)] {
        table.row([
            name.to_owned(),
            digits(of.rate),
            format!("{:.2}", of.rate / nginx.rate),
            shown(Duration::from_secs_f64(of.p50)),
            format!("{:.2}", of.p50 / nginx.p50),
            format!("{:.1} µs", of.cpu),
            format!("{:.2}", of.cpu / nginx.cpu),
        ]);
    }
    let text = format!(
        "The first page of `tools/list` with {TOOLS} tools, {answer_bytes} bytes, over {CONNECTIONS} connections."
    );
    Ok(format!("### Lists compared with a file\n\n{text}\n\n{}\n", table.markdown()))
}

/// Sends both requests in turns, for some rounds, and returns the median of each figure.
pub(crate) async fn in_turns(
    requests: &[ListRequest; 2],
    scale: Scale,
) -> anyhow::Result<[ListFigures; 2]> {
    let time = scale.of(Duration::from_millis(1500), Duration::from_millis(50));
    let mut rounds = [const { (Vec::new(), Vec::new(), Vec::new()) }; 2];
    for _ in 0..scale.of(3, 1) {
        for (request, (rates, p50s, cpus)) in requests.iter().zip(&mut rounds) {
            let before = process::usage(request.pid)?.cpu;
            let (rate, p50) = measure(request, time).await?;
            let cpu = process::usage(request.pid)?.cpu - before;
            rates.push(rate);
            p50s.push(p50.as_secs_f64());
            cpus.push(cpu.as_secs_f64() * 1e6 / (rate * time.as_secs_f64()));
        }
    }
    Ok(rounds.map(|(rates, p50s, cpus)| ListFigures {
        rate: median(rates),
        p50: median(p50s),
        cpu: median(cpus),
    }))
}

/// Returns the lists per second, and the median time of one.
async fn measure(request: &ListRequest, time: Duration) -> anyhow::Result<(f64, Duration)> {
    let mut callers = JoinSet::new();
    let started = Instant::now();
    for _ in 0..CONNECTIONS {
        let request = request.clone();
        callers.spawn(async move {
            let mut stream = HttpStream::connect(&request.address).await?;
            let mut samples = Samples::default();
            while started.elapsed() < time {
                let sent = Instant::now();
                let answer = stream.post(&request.head, LIST).await?;
                ensure!(
                    answer.status == 200 && answer.body.len() == request.answer_bytes,
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
    Ok((all.len() as f64 / started.elapsed().as_secs_f64(), all.median()))
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
