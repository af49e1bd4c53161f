//! One load: opens the sessions, keeps the load up for as long as the profile says, and reports.
//!
//! In an open loop a thread of its own lets calls begin when they are due; a caller that is free takes the next one and counts
//! its latency from when it *should* have begun. So a target that stands still is charged for everybody it kept waiting.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::ensure;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use tokio::{sync::Semaphore, task::JoinSet};

use crate::{
    findings::FindingKind,
    operation::{self, CallOutcome, TargetState},
    process::{self, Usage},
    profile::{LoopModel, Profile},
    recorder::Recorder,
    report::{Report, Sample},
    wire::{LoadTarget, RequestSlot, Session},
};

/// Sessions opened at the same time.
const OPENING_MAX: usize = 64;
/// How exactly an open loop keeps to its schedule. Latencies are counted from the schedule in any case.
const PACE: Duration = Duration::from_micros(200);
/// How long a caller pauses that got a wrong answer, or none.
const AFTER_WRONG: Duration = Duration::from_millis(10);
/// A number beyond every schedule.
const NEVER: u64 = u64::MAX / 2;

/// What is to be loaded, and how.
#[derive(Debug, Clone)]
pub struct Load {
    pub site: Arc<LoadTarget>,
    pub profile: Profile,
    /// API keys, which the sessions take in turns; none for callers without a key.
    pub keys: Vec<String>,
    /// Processes whose use of processor and memory is part of the report.
    pub pids: Vec<u32>,
}

/// How far a load is.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    pub at: Duration,
    pub of: Duration,
    pub calls: u64,
    pub wrong: u64,
}

/// What the callers of one load share.
struct RunState {
    profile: Profile,
    record: Recorder,
    known: TargetState,
    begun: Instant,
    stopping: AtomicBool,
    /// Calls that are due and not begun.
    due: Semaphore,
    /// The number of the next call.
    next: AtomicU64,
    ended: AtomicU64,
    callers: AtomicUsize,
}

/// Runs it to its end. `told` hears how far it is, about once a second.
pub async fn run(load: &Load, told: impl Fn(Progress)) -> anyhow::Result<Report> {
    let load = &Load { site: load.site.renewed(), ..load.clone() };
    let sessions = open_sessions(load).await?;
    let Load { site, profile, pids, .. } = load;
    let mut samples = UsageSampler::begin(pids, profile.warm_up)?;
    let shared = Arc::new(RunState {
        record: Recorder::new(profile.schedule.time(), profile.warm_up),
        profile: profile.clone(),
        known: TargetState::default(),
        begun: Instant::now(),
        stopping: AtomicBool::new(false),
        due: Semaphore::new(0),
        next: AtomicU64::new(0),
        ended: AtomicU64::new(0),
        callers: AtomicUsize::new(profile.callers()),
    });
    let mut callers = JoinSet::new();
    let lanes = sessions.iter().flat_map(|session| (0..profile.in_flight).map(|_| session.lane()));
    for (number, lane) in lanes.enumerate() {
        callers.spawn(call(shared.clone(), number, lane));
    }
    let pacing = (profile.kind == LoopModel::Open).then(|| {
        let shared = shared.clone();
        std::thread::spawn(move || pace(&shared))
    });

    let (time, window) = (profile.schedule.time(), shared.record.window());
    while let Some(left) = time.checked_sub(shared.begun.elapsed()).filter(|left| !left.is_zero()) {
        // A sample where the warm-up ends, so that processor time counts from there.
        let warming = profile.warm_up.saturating_sub(shared.begun.elapsed());
        tokio::time::sleep(if warming.is_zero() { left.min(window) } else { warming }).await;
        let at = shared.begun.elapsed();
        samples.take(at, profile.warm_up)?;
        told(Progress {
            at: at.min(time),
            of: time,
            calls: shared.ended.load(Ordering::Relaxed),
            wrong: site.findings.total(),
        });
        if shared.callers.load(Ordering::Relaxed) == 0 {
            break; // every connection is gone
        }
    }
    shared.stopping.store(true, Ordering::Relaxed);
    finish(&shared, callers, site).await;
    let measured =
        shared.begun.elapsed().saturating_sub(profile.warm_up).min(time - profile.warm_up);
    if let Some(pacing) = pacing {
        ensure!(pacing.join().is_ok(), "the schedule failed");
    }
    stream::iter(&sessions).for_each_concurrent(OPENING_MAX, |session| session.close()).await;
    Ok(Report::new(site, profile, &shared.record, measured, samples.taken))
}

/// The sessions, in the order of their keys.
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

/// Lets calls begin when they are due. A thread: the runtime's clock is too coarse, and has other things to do.
fn pace(shared: &RunState) {
    let mut released = 0;
    while let Some(start) = shared.profile.schedule.start_of(released) {
        if shared.stopping.load(Ordering::Relaxed) {
            break;
        }
        match start.checked_sub(shared.begun.elapsed()) {
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

/// One caller: a call after the other, until there are none left.
async fn call(shared: Arc<RunState>, caller: usize, mut lane: RequestSlot) {
    while let Some((number, intended)) = next_call(&shared).await {
        let (place, operation) = shared.profile.mix.turn(number);
        let ended = operation::perform(operation, number, &mut lane, &shared.known).await;
        let at = shared.begun.elapsed();
        shared.record.add(caller, place, at, at.saturating_sub(intended), &ended);
        shared.ended.fetch_add(1, Ordering::Relaxed);
        if !lane.session().is_alive() {
            break;
        }
        if ended == CallOutcome::Wrong {
            // A target that is gone is not to be asked a million times whether it is.
            tokio::time::sleep(AFTER_WRONG).await;
        }
    }
    shared.callers.fetch_sub(1, Ordering::Relaxed);
}

/// The number of the next call, and when it should begin.
async fn next_call(shared: &RunState) -> Option<(u64, Duration)> {
    match shared.profile.kind {
        LoopModel::Closed => {
            let is_over = shared.stopping.load(Ordering::Relaxed)
                || shared.begun.elapsed() >= shared.profile.schedule.time();
            (!is_over)
                .then(|| (shared.next.fetch_add(1, Ordering::Relaxed), shared.begun.elapsed()))
        }
        LoopModel::Open => {
            // What was due before the end is still made when the permits are closed.
            match shared.due.acquire().await {
                Ok(permit) => permit.forget(),
                Err(_closed) => {}
            }
            let number = shared.next.fetch_add(1, Ordering::Relaxed);
            shared.profile.schedule.start_of(number).map(|intended| (number, intended))
        }
    }
}

/// Waits for what is in flight, and for calls that are late. What has not begun a timeout after the end, because nobody was
/// free, never does: it is lost, and its latency is how long it has waited by then.
async fn finish(shared: &Arc<RunState>, mut callers: JoinSet<()>, site: &LoadTarget) {
    let all = async { while callers.join_next().await.is_some() {} };
    let _overdue = tokio::time::timeout(shared.profile.timeout, all).await;
    let begun = shared.next.swap(NEVER, Ordering::Relaxed);
    while callers.join_next().await.is_some() {}
    if shared.profile.kind == LoopModel::Closed {
        return;
    }
    let at = shared.begun.elapsed();
    for number in begun..shared.profile.schedule.calls() {
        let Some(intended) = shared.profile.schedule.start_of(number) else { break };
        site.findings.note(
            FindingKind::Lost,
            &format!("call {number} never began, all callers were waiting"),
        );
        shared.record.add(
            0,
            shared.profile.mix.turn(number).0,
            at,
            at.saturating_sub(intended),
            &CallOutcome::Wrong,
        );
    }
}

/// What the processes used, over time.
struct UsageSampler<'a> {
    pids: &'a [u32],
    at_begin: Usage,
    /// The warm-up is over.
    has_begun: bool,
    taken: Vec<Sample>,
}

impl<'a> UsageSampler<'a> {
    fn begin(pids: &'a [u32], warm_up: Duration) -> anyhow::Result<Self> {
        let has_begun = warm_up.is_zero();
        Ok(Self { pids, at_begin: process::usage_of_all(pids)?, has_begun, taken: Vec::new() })
    }

    fn take(&mut self, at: Duration, warm_up: Duration) -> anyhow::Result<()> {
        if self.pids.is_empty() {
            return Ok(());
        }
        let usage = process::usage_of_all(self.pids)?;
        match at.checked_sub(warm_up) {
            Some(at) if self.has_begun => {
                let cpu = usage.cpu.saturating_sub(self.at_begin.cpu);
                self.taken.push(Sample {
                    at_s: at.as_secs_f64(),
                    cpu_s: cpu.as_secs_f64(),
                    resident_bytes: usage.resident_bytes,
                });
            }
            // The first sample after the warm-up is what the others are counted from.
            is_warm => (self.at_begin, self.has_begun) = (usage, is_warm.is_some()),
        }
        Ok(())
    }
}
