//! One request that is sent again and again over several connections, and its figures.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use benches::{Samples, Scale, Table, digits, median, shown};
use loadtest::{
    process,
    target::Target,
    wire::{HttpStream, http::post_head},
};
use tokio::task::JoinSet;

pub(crate) const CONNECTIONS: usize = 16;

/// A request that is sent again and again.
#[derive(Clone)]
pub(crate) struct RepeatedRequest {
    pub(crate) address: String,
    /// Each connection takes the next of them. A head names its session.
    pub(crate) heads: Vec<String>,
    pub(crate) body: &'static [u8],
    pub(crate) answer_bytes: usize,
    /// Processes whose processor time is counted.
    pub(crate) pids: Vec<u32>,
}

/// Rate, median duration in seconds, and processor time of one request in microseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestFigures {
    pub(crate) rate: f64,
    pub(crate) p50: f64,
    pub(crate) cpu: f64,
}

impl RepeatedRequest {
    fn cpu(&self) -> anyhow::Result<Duration> {
        self.pids.iter().map(|pid| Ok(process::usage(*pid)?.cpu)).sum()
    }
}

/// Sends the requests in turns, for some rounds, and returns the median of each figure.
pub(crate) async fn in_turns(
    requests: &[RepeatedRequest; 2],
    scale: Scale,
) -> anyhow::Result<[RequestFigures; 2]> {
    let time = scale.of(Duration::from_millis(1500), Duration::from_millis(50));
    let mut rounds = [const { (Vec::new(), Vec::new(), Vec::new()) }; 2];
    for _ in 0..scale.of(3, 1) {
        for (request, (rates, p50s, cpus)) in requests.iter().zip(&mut rounds) {
            let before = request.cpu()?;
            let (rate, p50) = measure(request, time).await?;
            let cpu = request.cpu()? - before;
            rates.push(rate);
            p50s.push(p50.as_secs_f64());
            cpus.push(cpu.as_secs_f64() * 1e6 / (rate * time.as_secs_f64()));
        }
    }
    Ok(rounds.map(|(rates, p50s, cpus)| RequestFigures {
        rate: median(rates),
        p50: median(p50s),
        cpu: median(cpus),
    }))
}

/// Returns the requests per second, and the median time of one.
async fn measure(request: &RepeatedRequest, time: Duration) -> anyhow::Result<(f64, Duration)> {
    let mut callers = JoinSet::new();
    let started = Instant::now();
    for head in request.heads.iter().cycle().take(CONNECTIONS) {
        let (request, head) = (request.clone(), head.clone());
        callers.spawn(async move {
            let mut stream = HttpStream::connect(&request.address).await?;
            let mut samples = Samples::default();
            while started.elapsed() < time {
                let sent = Instant::now();
                let answer = stream.post(&head, request.body).await?;
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

/// Returns a table of both figures, with their ratios to the first. The titles are those of the
/// name, the rate and the processor time.
pub(crate) fn compared(
    [name, rate, cpu]: [&str; 3],
    names: [&str; 2],
    figures: &[RequestFigures; 2],
) -> String {
    let mut table = Table::new([name, rate, "ratio", "p50", cpu, "ratio"]);
    for (name, of) in names.into_iter().zip(figures) {
        table.row([
            name.to_owned(),
            digits(of.rate),
            format!("{:.2}", of.rate / figures[0].rate),
            shown(Duration::from_secs_f64(of.p50)),
            format!("{:.1} µs", of.cpu),
            format!("{:.2}", of.cpu / figures[0].cpu),
        ]);
    }
    table.markdown()
}

/// Opens a session and returns its id.
pub(crate) async fn open_session(target: &Target, key: &str) -> anyhow::Result<String> {
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
