//! Runs one load: opens the sessions, keeps up the load for the time in the profile, and reports.
//!
//! In an open loop a separate thread lets calls begin when they are due. A free caller takes the
//! next call and counts its latency from the time it *should* have begun. So the latencies of a
//! target that stalls include the time of all waiting calls.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::ensure;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use tokio::{
    sync::{Semaphore, watch},
    task::JoinSet,
};

use crate::{
    findings::FindingKind,
    operation::{self, CallOutcome, TargetState},
    process::{self, Usage},
    profile::{LoopModel, Profile},
    recorder::Recorder,
    report::{Report, RunOutcome, Sample},
    target::Wire,
    wire::{LoadTarget, RequestSlot, Session},
};

/// Sessions opened at the same time.
const OPENING_MAX: usize = 64;
/// Accuracy of an open loop's schedule. Latencies count from the schedule in any case.
const PACE: Duration = Duration::from_micros(200);
/// Pause of a caller after a wrong or missing answer.
const AFTER_WRONG: Duration = Duration::from_millis(10);
/// A call number beyond every schedule.
const NEVER: u64 = u64::MAX / 2;

/// A target and the load for it.
#[derive(Debug, Clone)]
pub struct Load {
    pub site: Arc<LoadTarget>,
    pub profile: Profile,
    /// API keys, which the sessions take in turns. Empty for callers without a key.
    pub keys: Vec<String>,
    /// Processes whose use of processor and memory is part of the report. They have to run until the
    /// end of the load.
    pub pids: Vec<u32>,
}

impl Load {
    /// Returns the greatest number of connections at the same time. Over HTTP, sessions open and
    /// close on connections of their own.
    pub fn connections_max(&self) -> usize {
        let Profile { sessions, listen, .. } = self.profile;
        match self.site.target.wire {
            Wire::Http => {
                let streams = if listen { sessions } else { 0 };
                self.profile.callers() + streams + OPENING_MAX.min(sessions)
            }
            Wire::Tcp | Wire::WebSocket | Wire::Quic => sessions,
        }
    }
}

/// Progress of a load.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    pub at: Duration,
    pub of: Duration,
    pub calls: u64,
    pub wrong: u64,
}

/// Shared state of the callers of one load.
struct RunState {
    profile: Profile,
    record: Recorder,
    known: TargetState,
    started: Instant,
    stopping: AtomicBool,
    /// Time of a stop before the end of the schedule, in microseconds. Calls that are due later do
    /// not begin.
    stopped_at_us: AtomicU64,
    /// Calls that are due and have not begun.
    due: Semaphore,
    /// Number of the next call.
    next: AtomicU64,
    ended: AtomicU64,
    callers: AtomicUsize,
    /// Callers whose connection ended.
    disconnected: AtomicUsize,
}

impl RunState {
    fn stop_at(&self, at: Duration) {
        self.stopped_at_us.store(at.as_micros() as u64, Ordering::Relaxed);
    }

    /// Returns whether a call that is due at this time begins.
    fn begins(&self, intended: Duration) -> bool {
        intended <= Duration::from_micros(self.stopped_at_us.load(Ordering::Relaxed))
    }
}

/// Runs a load to its end. Calls `on_progress` with the progress about once a second.
pub async fn run(load: &Load, on_progress: impl Fn(Progress)) -> anyhow::Result<Report> {
    let (_never, stop) = watch::channel(false);
    run_until(load, stop, on_progress).await
}

/// Runs a load as [`run`] does, until `stop` is true. After a stop the calls in flight still end,
/// the sessions are closed, and the report has the stop as a fault.
pub async fn run_until(
    load: &Load,
    mut stop: watch::Receiver<bool>,
    on_progress: impl Fn(Progress),
) -> anyhow::Result<Report> {
    let load = &Load { site: load.site.reset(), ..load.clone() };
    let sessions = open_sessions(load).await?;
    let Load { site, profile, pids, .. } = load;
    let known = match sessions.first() {
        Some(session) => TargetState::learn(&profile.mix, &mut session.request_slot()).await,
        None => TargetState::default(),
    };
    let mut samples = UsageSampler::start(pids, profile.warm_up)?;
    let shared = Arc::new(RunState {
        record: Recorder::new(profile.schedule.time(), profile.warm_up),
        profile: profile.clone(),
        known,
        started: Instant::now(),
        stopping: AtomicBool::new(false),
        stopped_at_us: AtomicU64::new(u64::MAX),
        due: Semaphore::new(0),
        next: AtomicU64::new(0),
        ended: AtomicU64::new(0),
        callers: AtomicUsize::new(profile.callers()),
        disconnected: AtomicUsize::new(0),
    });
    let mut callers = JoinSet::new();
    let lanes =
        sessions.iter().flat_map(|session| (0..profile.in_flight).map(|_| session.request_slot()));
    for (number, lane) in lanes.enumerate() {
        callers.spawn(call(shared.clone(), number, lane));
    }
    let pacing = (profile.kind == LoopModel::Open).then(|| {
        let shared = shared.clone();
        std::thread::spawn(move || pace(&shared))
    });

    let (time, window) = (profile.schedule.time(), shared.record.window());
    let mut interruption = None;
    while let Some(remaining) =
        time.checked_sub(shared.started.elapsed()).filter(|remaining| !remaining.is_zero())
    {
        // One sample is taken at the end of the warm-up, so that processor time counts from there.
        let warming = profile.warm_up.saturating_sub(shared.started.elapsed());
        let pause = if warming.is_zero() { remaining.min(window) } else { warming };
        let is_stopped = tokio::select! {
            () = requested(&mut stop) => true,
            () = tokio::time::sleep(pause) => false,
        };
        let at = shared.started.elapsed();
        samples.take(at, profile.warm_up);
        on_progress(Progress {
            at: at.min(time),
            of: time,
            calls: shared.ended.load(Ordering::Relaxed),
            wrong: site.findings.total(),
        });
        if is_stopped {
            shared.stop_at(at);
            interruption = Some(format!("the load was stopped after {:.1} s", at.as_secs_f64()));
        }
        if is_stopped || shared.callers.load(Ordering::Relaxed) == 0 {
            break;
        }
    }
    shared.stopping.store(true, Ordering::Relaxed);
    let measured = shared.started.elapsed().min(time).saturating_sub(profile.warm_up);
    let mut connection_faults = connection_faults(&shared, site);
    finish(&shared, callers, site).await;
    if let Some(pacing) = pacing {
        ensure!(pacing.join().is_ok(), "the schedule failed");
    }
    stream::iter(&sessions).for_each_concurrent(OPENING_MAX, |session| session.close()).await;
    let server = sessions.first().map(|session| session.server().to_owned()).unwrap_or_default();
    let (mut faults, cpu) = (samples.faults(), samples.cpu());
    faults.append(&mut connection_faults);
    faults.extend(interruption);
    let hint = shared.known.unlisted_tool();
    let outcome = RunOutcome { measured, usage: samples.taken, cpu, server, faults, hint };
    Ok(Report::new(site, profile, &shared.record, outcome))
}

/// Waits until a stop is requested.
async fn requested(stop: &mut watch::Receiver<bool>) {
    if stop.wait_for(|is_requested| *is_requested).await.is_err() {
        // Nothing can request it any more.
        std::future::pending::<()>().await;
    }
}

/// Returns the connections that ended during the load, as faults. The rest of the load is smaller
/// than the profile demands.
fn connection_faults(shared: &RunState, site: &LoadTarget) -> Vec<String> {
    let (callers, streams) =
        (shared.disconnected.load(Ordering::Relaxed), site.ended_streams.load(Ordering::Relaxed));
    let of = shared.profile.callers();
    let of_callers = match callers {
        0 => None,
        all if all == of => Some("every connection ended".to_owned()),
        some => Some(format!("{some} of {of} callers lost their connection")),
    };
    let of_streams = (streams > 0).then(|| format!("{streams} GET streams ended"));
    of_callers.into_iter().chain(of_streams).collect()
}

/// Opens the sessions, in the order of their keys.
async fn open_sessions(load: &Load) -> anyhow::Result<Vec<Arc<Session>>> {
    let keys = load
        .keys
        .iter()
        .map(|key| Some(key.as_str()))
        .chain(load.keys.is_empty().then_some(None))
        .cycle();
    let opening = keys.take(load.profile.sessions).map(|key| async move {
        let session = Session::open(&load.site, key).await?;
        if load.profile.listen {
            session.listen().await?;
        }
        anyhow::Ok(session)
    });
    stream::iter(opening).buffered(OPENING_MAX).try_collect().await
}

/// Lets calls begin when they are due. Runs on its own thread, because the runtime's clock is too
/// coarse and its tasks would delay it.
fn pace(shared: &RunState) {
    let mut released = 0;
    while let Some(start) = shared.profile.schedule.start_of(released) {
        if shared.stopping.load(Ordering::Relaxed) {
            break;
        }
        match start.checked_sub(shared.started.elapsed()) {
            Some(early) if early > PACE => {
                std::thread::sleep(early.min(Duration::from_millis(100)))
            }
            _ => {
                shared.due.add_permits(1);
                released += 1;
            }
        }
    }
    shared.due.close();
}

/// Runs one caller: one call after another, until none is left.
async fn call(shared: Arc<RunState>, caller: usize, mut lane: RequestSlot) {
    while let Some((number, intended)) = next_call(&shared).await {
        let (index, operation) = shared.profile.mix.operation_at(number);
        // The schedule releases a call a little early. That time is not a part of its latency.
        let due = intended.min(shared.started.elapsed());
        let ended = operation::perform(operation, number, &mut lane, &shared.known).await;
        let at = shared.started.elapsed();
        shared.record.add(caller, index, at, at.saturating_sub(due), &ended);
        shared.ended.fetch_add(1, Ordering::Relaxed);
        if !lane.session().is_alive() {
            shared.disconnected.fetch_add(1, Ordering::Relaxed);
            break;
        }
        if ended == CallOutcome::Wrong {
            // The pause avoids millions of calls to a target that is gone.
            tokio::time::sleep(AFTER_WRONG).await;
        }
    }
    shared.callers.fetch_sub(1, Ordering::Relaxed);
}

/// Returns the number of the next call, and the time at which it should begin.
async fn next_call(shared: &RunState) -> Option<(u64, Duration)> {
    match shared.profile.kind {
        LoopModel::Closed => {
            let is_over = shared.stopping.load(Ordering::Relaxed)
                || shared.started.elapsed() >= shared.profile.schedule.time();
            (!is_over)
                .then(|| (shared.next.fetch_add(1, Ordering::Relaxed), shared.started.elapsed()))
        }
        LoopModel::Open => {
            // After the permits are closed, calls that were due before the end still begin.
            match shared.due.acquire().await {
                Ok(permit) => permit.forget(),
                Err(_closed) => {}
            }
            let number = shared.next.fetch_add(1, Ordering::Relaxed);
            let intended = shared.profile.schedule.start_of(number);
            intended.filter(|at| shared.begins(*at)).map(|intended| (number, intended))
        }
    }
}

/// Waits for calls in flight and for late calls. A call that no free caller has begun one timeout
/// after the end is lost. Its latency is its waiting time so far. After a load that ended early,
/// calls that were not due yet do not count.
async fn finish(shared: &Arc<RunState>, mut callers: JoinSet<()>, site: &LoadTarget) {
    let all = async { while callers.join_next().await.is_some() {} };
    let _overdue = tokio::time::timeout(shared.profile.timeout, all).await;
    let started = shared.next.swap(NEVER, Ordering::Relaxed);
    while callers.join_next().await.is_some() {}
    if shared.profile.kind == LoopModel::Closed {
        return;
    }
    let at = shared.started.elapsed();
    for number in started..shared.profile.schedule.calls() {
        let intended = shared.profile.schedule.start_of(number);
        let is_due = |intended: &Duration| *intended <= at && shared.begins(*intended);
        let Some(intended) = intended.filter(is_due) else { break };
        site.findings.record(
            FindingKind::Lost,
            &format!("call {number} did not start, because no caller was free"),
        );
        shared.record.add(
            0,
            shared.profile.mix.operation_at(number).0,
            at,
            at.saturating_sub(intended),
            &CallOutcome::Wrong,
        );
    }
}

/// Samples the resource use of the processes over time.
struct UsageSampler {
    processes: Vec<SampledProcess>,
    cpu_at_start: Duration,
    /// True once the warm-up is over.
    has_started: bool,
    taken: Vec<Sample>,
}

struct SampledProcess {
    pid: u32,
    last: Usage,
    has_ended: bool,
}

impl UsageSampler {
    fn start(pids: &[u32], warm_up: Duration) -> anyhow::Result<Self> {
        let sampled = |pid: &u32| {
            let last = process::usage(*pid)?;
            anyhow::Ok(SampledProcess { pid: *pid, last, has_ended: false })
        };
        let processes = pids.iter().map(sampled).collect::<anyhow::Result<Vec<_>>>()?;
        let cpu_at_start = processes.iter().map(|process| process.last.cpu).sum();
        Ok(Self { processes, cpu_at_start, has_started: warm_up.is_zero(), taken: Vec::new() })
    }

    /// Takes one sample of all processes that still run.
    fn take(&mut self, at: Duration, warm_up: Duration) {
        for process in self.processes.iter_mut().filter(|process| !process.has_ended) {
            match process::usage(process.pid) {
                Ok(usage) => process.last = usage,
                Err(_) => {
                    process.has_ended = true;
                    process.last.resident_bytes = 0;
                }
            }
        }
        if self.processes.iter().all(|process| process.has_ended) {
            return;
        }
        let cpu: Duration = self.processes.iter().map(|process| process.last.cpu).sum();
        match at.checked_sub(warm_up) {
            Some(at) if self.has_started => {
                self.taken.push(Sample {
                    at_s: at.as_secs_f64(),
                    cpu_s: cpu.saturating_sub(self.cpu_at_start).as_secs_f64(),
                    resident_bytes: self
                        .processes
                        .iter()
                        .map(|process| process.last.resident_bytes)
                        .sum(),
                });
            }
            // The first sample after the warm-up is the base for later samples.
            is_warm => (self.cpu_at_start, self.has_started) = (cpu, is_warm.is_some()),
        }
    }

    /// Returns a fault for each process that ended.
    fn faults(&self) -> Vec<String> {
        let ended = self.processes.iter().filter(|process| process.has_ended);
        ended.map(|process| format!("process {} ended during the load", process.pid)).collect()
    }

    /// Returns the processor time of all processes during the load. A process that ended took some
    /// of it with it.
    fn cpu(&self) -> Option<Duration> {
        let is_complete = self.processes.iter().all(|process| !process.has_ended);
        let last = self.taken.last().filter(|_| is_complete);
        last.map(|sample| Duration::from_secs_f64(sample.cpu_s))
    }
}
