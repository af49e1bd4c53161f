//! What the others pay for a replica that ends: with SIGKILL, and in good order.

use std::time::{Duration, Instant};

use anyhow::ensure;
use benches::{Samples, Scale};
use futures_util::future::join_all;
use serde_json::json;
use testkit::{AttemptOutcome, TestClient, eventually};

use crate::{
    counters::{Cost, Counters, RestCost},
    site::{Site, calls},
};

const REPLICAS: usize = 4;
/// The replica that ends.
const ENDS: usize = 0;
/// Longest time until a session answers again.
const BACK_WITHIN: Duration = Duration::from_secs(15);
const UNFINISHED: &str =
    "SELECT /* bench */ count(*) FROM tasks WHERE status IN ('working', 'input_required')";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Killed,
    Drained,
}

/// One end of a replica.
pub(crate) struct Takeover {
    pub(crate) end: End,
    pub(crate) what: &'static str,
    pub(crate) count: usize,
    /// Time of the drain, until the process was gone.
    pub(crate) drain: Option<Duration>,
    /// Times from the end of the process until each session answered, or until all tasks were over.
    pub(crate) back: Samples,
    /// Of one session or task.
    pub(crate) each: Cost,
    /// Time until the process was ready again.
    pub(crate) restart: Duration,
}

/// Ends the same replica of several again and again, with ever more sessions, then with tasks.
pub(crate) async fn measure(scale: Scale) -> anyhow::Result<Vec<Takeover>> {
    let mut site = Site::start(scale.of(REPLICAS, 2), scale).await?;
    let rest = site.rest().await?;
    let mut ends = Vec::new();
    for count in scale.of(&[50, 200, 800][..], &[4]) {
        for end in [End::Killed, End::Drained] {
            ends.push(sessions(&mut site, &rest, end, *count).await?);
        }
    }
    ends.push(tasks(&mut site, &rest, scale.of(200, 2)).await?);
    Ok(ends)
}

async fn sessions(
    site: &mut Site,
    rest: &RestCost,
    end: End,
    count: usize,
) -> anyhow::Result<Takeover> {
    let clients = opened(site, count).await;
    let (before, started) = (Counters::read(&site.cluster).await?, Instant::now());
    let drain = match end {
        End::Killed => {
            site.cluster.kill(ENDS).await;
            None
        }
        End::Drained => {
            ensure!(site.cluster.terminate(ENDS).await, "the drain ends in good order");
            Some(started.elapsed())
        }
    };
    let gone = Instant::now();
    // All clients come back at once, each to one of the others.
    let others = site.replicas() - 1;
    let answers = clients.iter().enumerate().map(|(number, client)| {
        let there = site.cluster.at(1 + number % others, client);
        async move {
            answered(&there).await;
            gone.elapsed()
        }
    });
    let mut back = Samples::default();
    join_all(answers).await.into_iter().for_each(|time| back.add(time));
    site.settle().await;
    let cost = Counters::read(&site.cluster).await?.since(&before);
    let each = cost.beyond(rest, started.elapsed().as_secs_f64()).each(count as f64);
    let restart = restarted(site).await;
    close(site, &clients).await;
    Ok(Takeover { end, what: "sessions", count, drain, back, each, restart })
}

/// Kills a replica that runs tasks whose calls may have had an effect.
async fn tasks(site: &mut Site, rest: &RestCost, count: usize) -> anyhow::Result<Takeover> {
    let clients = opened(site, 1).await;
    let params = json!({"name": "b__wait", "arguments": {}, "task": {"ttl": 600_000}});
    for _ in 0..count {
        clients[0].result("tools/call", params.clone()).await;
    }
    site.backend.wait_count("the calls of the tasks", count, |seen| seen.calls("wait")).await;
    let (before, started) = (Counters::read(&site.cluster).await?, Instant::now());
    site.cluster.kill(ENDS).await;
    let gone = Instant::now();
    eventually("the tasks to be over", || async {
        let unfinished = site.cluster.sql(UNFINISHED).await;
        if unfinished == "0" { Ok(()) } else { Err(unfinished) }
    })
    .await;
    let mut back = Samples::default();
    back.add(gone.elapsed());
    site.settle().await;
    let cost = Counters::read(&site.cluster).await?.since(&before);
    let each = cost.beyond(rest, started.elapsed().as_secs_f64()).each(count as f64);
    site.gate.open();
    let restart = restarted(site).await;
    Ok(Takeover { end: End::Killed, what: "tasks", count, drain: None, back, each, restart })
}

/// Opens so many sessions at the replica that will end, each with a session at the backend.
async fn opened(site: &Site, count: usize) -> Vec<TestClient> {
    let mut clients = Vec::with_capacity(count);
    for _ in 0..count {
        clients.push(site.client(ENDS).connected(json!({})).await);
    }
    calls(&clients).await;
    site.settle().await;
    clients
}

/// Asks until the session answers.
async fn answered(client: &TestClient) {
    eventually("a session to be taken over", || async {
        match client.attempt("ping", json!({}), BACK_WITHIN).await {
            AttemptOutcome::Result(_) => Ok(()),
            other => Err(other),
        }
    })
    .await;
}

async fn restarted(site: &mut Site) -> Duration {
    let started = Instant::now();
    site.cluster.restart(ENDS).await;
    let restart = started.elapsed();
    site.cluster.ready().await;
    restart
}

async fn close(site: &Site, clients: &[TestClient]) {
    for (number, client) in clients.iter().enumerate() {
        site.cluster.at(number % site.replicas(), client).delete_session().await;
    }
    site.settle().await;
}
