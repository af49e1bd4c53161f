//! Kills a replica at each named step of its writes (`MCP_BROKER_FAULT=NAME:N`), and at random
//! times.
//!
//! The names are recorded, not written down: a first run under load notes every step it passes. The
//! last replica dies again and again, on the same data. The others, if there are any, run on.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::json;

use super::{
    ChaosVerdict, LEASE, SLACK, builder, client_of, faults::start_again, load, load::Load,
    seed::Seed,
};
use crate::{
    cluster::{Store, TestCluster},
    history::{History, InjectedFault, Report},
    ledger::Ledger,
};

/// Steps to kill a replica at, and number of rounds.
#[derive(Debug, Clone)]
pub struct KillPointPlan {
    pub binary: PathBuf,
    pub seed: u64,
    pub store: Store,
    pub replicas: usize,
    /// Rounds that end at a named step. Each name has its turn before any name comes again.
    pub named: usize,
    /// Rounds that end at a random time.
    pub random: usize,
    /// Prefixes of the names to use; empty means all names.
    pub only: Vec<String>,
    /// Tasks requested in each round.
    pub tasks: usize,
}

impl KillPointPlan {
    pub fn new(binary: impl Into<PathBuf>, seed: u64) -> Self {
        Self {
            binary: binary.into(),
            seed,
            store: Store::Postgres,
            replicas: 2,
            named: 8,
            random: 2,
            only: Vec::new(),
            tasks: 4,
        }
    }
}

/// Point at which a round ends its replica.
#[derive(Debug, Clone, PartialEq, Eq)]
enum KillTrigger {
    At { name: String, pass: u64 },
    After(Duration),
}

const NOTES: &str = "MCP_BROKER_FAULT_LOG";
/// Time at which the first of several replicas dies too, so that the victim has something to take
/// over.
const FIRST_DIES_AFTER: Duration = Duration::from_millis(250);
/// Share of rounds in which the first replica dies too, in percent.
const FIRST_DIES_IN: u64 = 33;
/// Steps that only the first life of a database passes: operators change nothing later on.
const FIRST_LIFE: [&str; 2] = ["migration.", "change."];
/// Sessions of each round.
const SESSIONS: usize = 2;
/// Interval at which the test checks for a death.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Pass of a step at which the replica dies. Rare steps are not passed often in one round.
const PASSES: std::ops::Range<u64> = 1..4;

/// Runs a round for each kill point. It checks after each, so that the verdict can name the point
/// that broke a promise.
pub async fn kill_at_points(points: KillPointPlan) -> ChaosVerdict {
    let began = Instant::now();
    let mut seed = Seed::new(points.seed);
    let notes = tempfile::NamedTempFile::new().expect("a temporary file");
    let ledger = Ledger::start().await;
    ledger.backend().list("resources", vec![json!({"uri": "test://one", "name": "one"})]);
    let victim = points.replicas - 1;
    let log = notes.path().display().to_string();
    let mut cluster =
        builder(&points.binary, &ledger).cluster(points.replicas).store(points.store).lease(LEASE);
    for replica in 0..points.replicas {
        cluster = cluster.env_of(replica, NOTES, &log);
    }
    let cluster = cluster.start().await;
    let key = cluster.operator().create_key("default").await;
    let history = History::default();
    let mut run = KillPointRun { cluster, ledger, history, key, log, victim, tasks: points.tasks };
    let mut reached = 0;
    run.round("recording", None, &mut seed).await;
    // Some steps are passed only by a replica that takes over from a dead one.
    run.round("recording-a-death", Some(KillTrigger::After(Duration::from_millis(100))), &mut seed)
        .await;
    let (once, names): (Vec<String>, Vec<String>) = names(notes.path(), &points.only)
        .into_iter()
        .partition(|name| FIRST_LIFE.iter().any(|first| name.starts_with(first)));
    let broken = first_lives(&points, &once).await;
    let ends = ends(&points, &names, &mut seed);
    let (rounds, mut report) = (ends.len(), run.report());
    report.violations.extend(broken);
    for (number, end) in ends.into_iter().enumerate() {
        if !report.violations.is_empty() {
            break;
        }
        let label = format!("{:x}-{number}-{}", points.seed, end.name());
        reached += usize::from(run.round(&label, Some(end), &mut seed).await);
        report = run.report();
        if !report.violations.is_empty() {
            report.violations.insert(0, format!("in round {label}:"));
        }
    }
    if names.is_empty() {
        report.violations.push("the broker passed no named step: is it a debug build?".to_owned());
    }
    let how = format!(
        "{:?}, {} replicas, {} names and {} of first lives, {rounds} rounds, {reached} kills",
        points.store,
        points.replicas,
        names.len(),
        once.len()
    );
    ChaosVerdict { what: "kill points", seed: points.seed, how, took: began.elapsed(), report }
}

/// Checks that a replica that dies while it makes its database can be started again.
async fn first_lives(points: &KillPointPlan, names: &[String]) -> Vec<String> {
    let mut broken = Vec::new();
    for name in names {
        let (points, fault) = (points.clone(), format!("{name}:1"));
        let life = tokio::spawn(async move {
            let ledger = Ledger::start().await;
            let one = builder(&points.binary, &ledger).cluster(1).store(points.store).env_of(
                0,
                "MCP_BROKER_FAULT",
                &fault,
            );
            one.start().await.ready().await;
        });
        if let Err(error) = life.await {
            broken.push(format!(
                "killed at {name}:1 of its first life, it does not start again: {error}"
            ));
        }
    }
    broken
}

fn names(file: &Path, only: &[String]) -> Vec<String> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let wanted =
        |name: &&str| only.is_empty() || only.iter().any(|prefix| name.starts_with(prefix));
    let once: BTreeSet<&str> = text.lines().filter(wanted).collect();
    once.into_iter().map(str::to_owned).collect()
}

fn ends(points: &KillPointPlan, names: &[String], seed: &mut Seed) -> Vec<KillTrigger> {
    let mut order: Vec<&String> = names.iter().collect();
    seed.shuffle(&mut order);
    // A name's first turn uses its first pass: that one is certain to come.
    let named =
        order.iter().cycle().take(if order.is_empty() { 0 } else { points.named }).enumerate();
    let mut ends: Vec<KillTrigger> = named
        .map(|(number, name)| KillTrigger::At {
            name: (*name).clone(),
            pass: if number < names.len() { 1 } else { seed.below(PASSES) },
        })
        .collect();
    ends.extend((0..points.random).map(|_| KillTrigger::After(seed.millis(5..900))));
    ends
}

impl KillTrigger {
    fn name(&self) -> String {
        match self {
            Self::At { name, pass } => format!("{name}:{pass}"),
            Self::After(time) => format!("{} ms", time.as_millis()),
        }
    }

    fn env(&self) -> Vec<(String, String)> {
        match self {
            Self::At { .. } => vec![("MCP_BROKER_FAULT".to_owned(), self.name())],
            Self::After(_) => Vec::new(),
        }
    }
}

struct KillPointRun {
    cluster: TestCluster,
    ledger: Ledger,
    history: History,
    key: String,
    /// File in which replicas note the steps they pass.
    log: String,
    victim: usize,
    tasks: usize,
}

impl KillPointRun {
    fn report(&self) -> Report {
        self.history.check(&self.ledger.effects(), SLACK)
    }

    /// Runs one life of the victim under load; returns whether it ended at the chosen point.
    async fn round(&mut self, label: &str, end: Option<KillTrigger>, seed: &mut Seed) -> bool {
        let mut reached = false;
        if let Some(end) = &end {
            let from = Instant::now();
            self.cluster.kill(self.victim).await;
            self.history.record_fault(InjectedFault::Kill, from);
            let mut env = end.env();
            env.push((NOTES.to_owned(), self.log.clone()));
            if self.cluster.try_restart(self.victim, &env).await.is_err() {
                reached = true;
                start_again(&mut self.cluster, self.victim, &self.history).await;
                self.history.record_fault(InjectedFault::Kill, from);
            }
        }
        let known = self.history.acknowledged().len();
        let (mut opening, history) = (
            Load::opener(&client_of(&self.cluster, &self.key), SESSIONS, &self.history),
            self.history.clone(),
        );
        let (label, tasks, mut of_load) = (label.to_owned(), self.tasks, seed.clone());
        seed.millis(0..2);
        // The load runs on a task of its own. Killed replicas are restarted meanwhile, or it could
        // not end.
        let working = tokio::spawn(async move {
            let load = Arc::new(opening.open().await);
            let work = load.tasks_now(&label, tasks, &mut of_load);
            load.use_session().await;
            load::finish(work, &history).await;
            load
        });
        let first_dies = self.victim > 0 && seed.chance(FIRST_DIES_IN);
        reached |= self
            .watch(end.as_ref().filter(|_| !reached), first_dies, || working.is_finished())
            .await;
        let load = working
            .await
            .expect("the load panics only where its clients do, and those are waited for");
        let acknowledged = self.history.acknowledged();
        load::read_all(&client_of(&self.cluster, &self.key), &self.history, &acknowledged[known..])
            .await;
        load.sessions_live().await;
        reached
    }

    /// Runs until the work is done. Ends the victim at its time, and starts it again when it has
    /// ended. Does the same with the first replica, if that is to die.
    async fn watch(
        &mut self,
        end: Option<&KillTrigger>,
        mut first_dies: bool,
        is_done: impl Fn() -> bool,
    ) -> bool {
        let began = Instant::now();
        let mut alive = began;
        let mut reached = false;
        while !is_done() {
            if let Some(KillTrigger::After(time)) = end
                && !reached
                && began.elapsed() >= *time
            {
                self.cluster.kill(self.victim).await;
            }
            if first_dies && began.elapsed() >= FIRST_DIES_AFTER {
                first_dies = false;
                let from = Instant::now();
                self.cluster.kill(0).await;
                start_again(&mut self.cluster, 0, &self.history).await;
                self.history.record_fault(InjectedFault::Kill, from);
            }
            if self.cluster.has_ended(self.victim) {
                reached = true;
                start_again(&mut self.cluster, self.victim, &self.history).await;
                self.history.record_fault(InjectedFault::Kill, alive);
            }
            alive = Instant::now();
            tokio::time::sleep(LOOK_EVERY).await;
        }
        if let (Some(KillTrigger::At { .. }), false) = (end, reached) {
            // The step was not passed often enough. The replica must not end later, when no code
            // watches it.
            self.cluster.kill(self.victim).await;
            start_again(&mut self.cluster, self.victim, &self.history).await;
            self.history.record_fault(InjectedFault::Kill, alive);
        }
        reached
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kill_point_is_used_once_before_one_is_repeated() {
        let names: Vec<String> = ["a.1", "a.2", "b.1"].map(str::to_owned).to_vec();
        let points = KillPointPlan { named: 7, random: 2, ..KillPointPlan::new("x", 5) };
        let ends = ends(&points, &names, &mut Seed::new(5));
        let first: BTreeSet<String> = ends[..3].iter().map(KillTrigger::name).collect();
        assert_eq!(first, ["a.1:1", "a.2:1", "b.1:1"].map(str::to_owned).into());
        assert_eq!(
            (ends.len(), ends.iter().filter(|end| matches!(end, KillTrigger::After(_))).count()),
            (9, 2)
        );
        assert_eq!(ends[0].env(), [("MCP_BROKER_FAULT".to_owned(), ends[0].name())]);
        assert_eq!(super::ends(&points, &[], &mut Seed::new(5)).len(), 2);
    }
}
