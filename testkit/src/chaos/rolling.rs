//! Sessions and calls while every replica stops once and comes back. After an orderly stop no call
//! may fail. After a kill only the calls in flight there may fail.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::task::JoinSet;

use super::{
    ChaosVerdict, LEASE, SLACK, builder, client_of, faults::start_again, load, load::Load,
    seed::Seed,
};
use crate::{
    client::TestClient,
    cluster::Store,
    history::{History, InjectedFault, Observation},
    ledger::Ledger,
};

/// Interval at which a stream without events is checked.
const QUIET: Duration = Duration::from_millis(200);
/// Time between two tries to reconnect.
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug, Clone)]
pub struct RollingPlan {
    pub binary: PathBuf,
    pub seed: u64,
    pub replicas: usize,
    /// Sessions, each of which reads its general stream.
    pub sessions: usize,
    pub calls_per_second: usize,
    /// Time of load before, between and after the restarts.
    pub pause: Duration,
    /// Set for SIGKILL instead of SIGTERM.
    pub kill: bool,
    /// After a kill: longest time until no call fails any more.
    pub recovered_within: Duration,
}

impl RollingPlan {
    pub fn new(binary: impl Into<PathBuf>, seed: u64) -> Self {
        Self {
            binary: binary.into(),
            seed,
            replicas: 2,
            sessions: 20,
            calls_per_second: 20,
            pause: Duration::from_secs(1),
            kill: false,
            recovered_within: Duration::from_secs(3),
        }
    }
}

/// Runs the plan and checks the observations of the clients.
pub async fn rolling_restart(plan: RollingPlan) -> ChaosVerdict {
    let began = Instant::now();
    let mut seed = Seed::new(plan.seed);
    let ledger = Ledger::start().await;
    let mut cluster = builder(&plan.binary, &ledger)
        .cluster(plan.replicas)
        .store(Store::Postgres)
        .lease(LEASE)
        .start()
        .await;
    let history = History::default();
    let key = cluster.operator().create_key("default").await;
    let load = Load::open(&client_of(&cluster, &key), plan.sessions, &history).await;
    let (over, reopened) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let readers = read_streams(&load, plan.sessions, &history, &over, &reopened);
    let going_on = Arc::new(AtomicBool::new(true));
    let calls = call_on(&load, &plan, &mut seed, &going_on);
    let mut slowest = Duration::ZERO;
    for replica in 0..plan.replicas {
        tokio::time::sleep(plan.pause).await;
        let from = Instant::now();
        if plan.kill {
            cluster.kill(replica).await;
            history.record_fault(InjectedFault::Kill, from);
            tokio::time::sleep(plan.pause).await;
        } else if !cluster.terminate(replica).await {
            history.record(
                from,
                Observation::Wrong { what: format!("replica {replica} did not end cleanly") },
            );
        }
        slowest = slowest.max(from.elapsed());
        start_again(&mut cluster, replica, &history).await;
        cluster.ready().await;
    }
    tokio::time::sleep(plan.pause).await;
    going_on.store(false, Ordering::Relaxed);
    load::finish(calls.await.expect("the calls were begun"), &history).await;
    load.sessions_live().await;
    over.store(true, Ordering::Relaxed);
    load::finish(readers, &history).await;
    let mut report =
        history.check(&ledger.effects(), if plan.kill { plan.recovered_within } else { SLACK });
    if report.calls_refused > 0 || (!plan.kill && report.calls_unanswered > 0) {
        let failed = history.failed_calls();
        report.violations.push(format!(
            "{} calls refused, {} unanswered: {failed:?}",
            report.calls_refused, report.calls_unanswered
        ));
    }
    if !plan.kill && report.gaps > 0 {
        report
            .violations
            .push(format!("events were lost on {} streams by restarts in good order", report.gaps));
    }
    let how = format!(
        "{} replicas {} in turn, {} sessions, {} calls/s, {} streams opened again, slowest end {:.1} s",
        plan.replicas,
        if plan.kill { "killed" } else { "restarted" },
        plan.sessions,
        plan.calls_per_second,
        reopened.load(Ordering::Relaxed),
        slowest.as_secs_f64()
    );
    ChaosVerdict { what: "rolling restart", seed: plan.seed, how, took: began.elapsed(), report }
}

/// Starts calls second by second until it is stopped; returns the calls that are not over.
fn call_on(
    load: &Arc<Load>,
    plan: &RollingPlan,
    seed: &mut Seed,
    going_on: &Arc<AtomicBool>,
) -> tokio::task::JoinHandle<JoinSet<()>> {
    let (load, going_on, mut seed) = (load.clone(), going_on.clone(), seed.clone());
    let (rate, label) = (plan.calls_per_second, plan.seed);
    tokio::spawn(async move {
        let mut all = JoinSet::new();
        let mut second = 0;
        let mut every = tokio::time::interval(Duration::from_secs(1));
        while going_on.load(Ordering::Relaxed) {
            every.tick().await;
            let mut batch = load.calls_for(
                &format!("{label:x}-{second}"),
                rate,
                Duration::from_secs(1),
                &mut seed,
            );
            all.spawn(async move { while batch.join_next().await.is_some() {} });
            second += 1;
        }
        all
    })
}

/// Reads the general stream of each session, over as many connections as it takes.
fn read_streams(
    load: &Arc<Load>,
    sessions: usize,
    history: &History,
    over: &Arc<AtomicBool>,
    reopened: &Arc<AtomicU64>,
) -> JoinSet<()> {
    let mut readers = JoinSet::new();
    for number in 0..sessions {
        let (client, history) = (load.session(number).clone(), history.clone());
        let (over, reopened) = (over.clone(), reopened.clone());
        readers
            .spawn(async move { read_stream(&client, number, &history, &over, &reopened).await });
    }
    readers
}

async fn read_stream(
    client: &TestClient,
    number: usize,
    history: &History,
    over: &AtomicBool,
    reopened: &AtomicU64,
) {
    let mut last: Option<String> = None;
    let name = format!("general stream {number}");
    let mut times = 0;
    while !over.load(Ordering::Relaxed) {
        let began = Instant::now();
        let response = match client.try_get_stream(last.as_deref()).await {
            Ok(response) if response.is_event_stream() => response,
            Ok(response) if response.status == 404 => {
                history.record(
                    began,
                    Observation::SessionLost { session: client.session().unwrap_or_default() },
                );
                return;
            }
            _ => {
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        times += 1;
        if times > 1 {
            reopened.fetch_add(1, Ordering::Relaxed);
        }
        let mut events = response.events();
        while !over.load(Ordering::Relaxed) {
            let began = Instant::now();
            match events.next_event(QUIET).await {
                Ok(Some(event)) if event.is_priming() => {
                    record_beginning(
                        &name,
                        events.gaps() > 0,
                        last.as_deref(),
                        event.id.as_deref(),
                        history,
                    );
                    last = event.id;
                }
                Ok(Some(event)) => {
                    if let Some(id) = event.id {
                        history.record(
                            began,
                            Observation::Event {
                                stream: name.clone(),
                                id: id.clone(),
                                number: None,
                            },
                        );
                        last = Some(id);
                    }
                }
                Ok(None) => break,
                Err(()) => {}
            }
        }
    }
}

/// Notes the first event of a connection. The stream continues where its client left it, or is
/// another one and reports that events are missing.
fn record_beginning(
    stream: &str,
    gap: bool,
    last: Option<&str>,
    id: Option<&str>,
    history: &History,
) {
    let now = Instant::now();
    if gap {
        history.record(now, Observation::Gap { stream: stream.to_owned() });
    } else if last.is_some() && last != id {
        history.record(
            now,
            Observation::Wrong {
                what: format!("{stream} was left at {last:?}, and goes on at {id:?}"),
            },
        );
    }
}
