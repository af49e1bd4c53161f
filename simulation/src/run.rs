//! One run: a world of clients, replicas, stores and backends from one seed, and the verdict.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use testkit::{
    Ledger, TestClient,
    chaos::{self, ChaosPlan},
    history::{History, InjectedFault},
};
use tokio::sync::watch;

use crate::{
    choices::Choices,
    network::{Histories, Network, at},
    plan::{Fault, Plan},
    redis::SimulatedRedis,
    replica::{BACKEND_DOOR, Life, SharedServers, SimulatedReplica},
    scheduler::{Scheduler, WORLD},
    store::Engine,
    strangers::{Sessions, Stranger, forbidden_effects},
    trace,
    weather::{Conditions, Weather},
};

/// Port of the door to the replicas, through which clients come.
const CLIENT_DOOR: u16 = 9_100;
/// Principals with clients. Neither sees anything of the other.
const PRINCIPALS: [&str; 2] = ["ada", "bob"];
/// Longest run in virtual time.
const RUN_MAX: Duration = Duration::from_secs(900);
/// Longest time until a replica serves or ends, once it was asked to.
const PATIENCE: Duration = Duration::from_secs(120);

/// Verdict on a run.
#[derive(Debug, Clone, Default)]
pub(crate) struct Verdict {
    pub(crate) violations: Vec<String>,
    pub(crate) reports: Vec<String>,
}

struct World {
    plan: Plan,
    seed: u64,
    servers: SharedServers,
    replicas: Vec<SimulatedReplica>,
    histories: Histories,
}

/// Runs one seed on this thread, which must be the simulated one. Its files are in `folder`.
pub(crate) fn run(seed: u64, folder: PathBuf) -> Verdict {
    let mut choices = Choices::new(seed);
    let plan = Plan::of(seed, &mut choices);
    let weather = Weather::new(Choices::new(choices.next()));
    let mut scheduler = Scheduler::new(plan.replicas + 1, Choices::new(choices.next()));
    let servers = SharedServers {
        machine: scheduler.machine(),
        engine: Engine::start(),
        redis: SimulatedRedis::start(&weather),
        weather,
    };
    // Its own runtime cannot end inside another one.
    let _engine = Arc::clone(&servers.engine);
    tracing::info!(?plan, "the plan");
    let verdict = Arc::new(Mutex::new(None));
    let shared_verdict = Arc::clone(&verdict);
    let machine = servers.machine.clone();
    machine.start(WORLD, move || async move {
        let world = World::build(plan, seed, &folder, servers);
        let verdict = match world {
            Ok(world) => world.live().await,
            Err(error) => Err(error.to_string()),
        };
        *shared_verdict.lock() = Some(
            verdict
                .unwrap_or_else(|fault| Verdict { violations: vec![fault], ..Verdict::default() }),
        );
    });
    let ended = scheduler.run(RUN_MAX, || verdict.lock().is_some());
    let mut verdict = verdict.lock().take().unwrap_or_default();
    verdict.violations.extend(ended.err().map(|stuck| format!("the run cannot go on: {stuck:?}")));
    verdict
}

impl World {
    fn build(plan: Plan, seed: u64, folder: &Path, servers: SharedServers) -> io::Result<Self> {
        let lease = format!("{}ms", plan.lease.as_millis());
        let replicas = (1..=plan.replicas as u16)
            .map(|number| SimulatedReplica::new(number, folder, &lease, &servers))
            .collect::<io::Result<_>>()?;
        let histories = Arc::new(Mutex::new(PRINCIPALS.map(|_| History::default()).to_vec()));
        Ok(Self { plan, seed, servers, replicas, histories })
    }
    async fn live(self) -> Result<Verdict, String> {
        let ledger = Ledger::start().await;
        self.open_doors(&ledger).await.map_err(|error| format!("no network: {error}"))?;
        let mut keys = self.replicas[0].start(PRINCIPALS.map(str::to_owned).to_vec());
        for replica in &self.replicas[1..] {
            self.serves(&self.replicas[0]).await?;
            replica.start(Vec::new());
            self.serves(replica).await?;
        }
        self.serves(&self.replicas[0]).await?;
        let keys = keys.borrow_and_update().clone();
        let (over, faults_over) = watch::channel(false);
        let load = |number: usize| self.load(number, &keys[number], &ledger, faults_over.clone());
        let faults = async {
            let ended = self.execute_faults().await;
            over.send_replace(true);
            ended
        };
        let sessions = Arc::default();
        let strangers = [0, 1].map(|number| self.stranger(number, &keys[number], &sessions));
        let strangers = strangers.map(|stranger| tokio::spawn(stranger.try_everything()));
        let (ended, ..) = tokio::join!(faults, load(0), load(1));
        ended?;
        for stranger in strangers {
            stranger.abort();
            if stranger.await.is_err_and(|error| error.is_panic()) {
                return Err("a stranger panicked".to_owned());
            }
        }
        Ok(self.judge(&ledger))
    }

    async fn open_doors(&self, ledger: &Ledger) -> io::Result<()> {
        let network = Network::new(&self.servers.weather, &self.histories);
        network.open_door(BACKEND_DOOR, ledger.backend().address()).await?;
        let replicas = self.replicas.iter().map(|replica| at(replica.http_port())).collect();
        network.open_balancer(CLIENT_DOOR, replicas).await?;
        for replica in &self.replicas {
            network.open_door(replica.peer_door(), at(replica.internal_port())).await?;
        }
        Ok(())
    }

    /// Waits until a replica serves.
    async fn serves(&self, replica: &SimulatedReplica) -> Result<(), String> {
        match tokio::time::timeout(PATIENCE, replica.wait_until_not(&[Life::Starting])).await {
            Ok(Life::Serving) => Ok(()),
            other => Err(format!("replica {} does not serve: {other:?}", replica.machine_index())),
        }
    }

    /// Puts the load of one principal.
    async fn load(
        &self,
        number: usize,
        key: &str,
        ledger: &Ledger,
        mut faults_over: watch::Receiver<bool>,
    ) {
        let client = TestClient::new(at(CLIENT_DOOR), "/mcp").bearer(key);
        let plan = ChaosPlan {
            tasks: self.plan.tasks,
            calls: self.plan.calls,
            streams: self.plan.streams,
            questions: self.plan.questions,
            stateless: self.plan.stateless,
            subscriptions: self.plan.subscriptions,
            sessions: self.plan.sessions,
            duration: self.plan.duration,
            // Each key of a request begins with it.
            ..ChaosPlan::new("", self.load_seed(number))
        };
        let history = self.histories.lock()[number].clone();
        let faults = async {
            let _ended = faults_over.wait_for(|over| *over).await;
        };
        chaos::put_load(&client, ledger.backend(), &plan, &history, faults).await;
    }

    fn stranger(&self, number: usize, key: &str, sessions: &Sessions) -> Stranger {
        let histories = self.histories.lock();
        Stranger {
            principal: PRINCIPALS[number],
            client: TestClient::new(at(CLIENT_DOOR), "/mcp").bearer(key),
            own: histories[number].clone(),
            other: histories[1 - number].clone(),
            sessions: Arc::clone(sessions),
            choices: Choices::new(self.load_seed(number)),
        }
    }

    const fn load_seed(&self, number: usize) -> u64 {
        (self.seed << 4) | number as u64
    }

    async fn execute_faults(&self) -> Result<(), String> {
        let began = tokio::time::Instant::now();
        for (at, fault) in &self.plan.faults {
            tokio::time::sleep_until(began + *at).await;
            tracing::info!(?fault, "a fault");
            trace::record("fault", at.as_millis() as u64);
            self.execute(*fault).await?;
        }
        tokio::time::sleep_until(began + self.plan.duration).await;
        self.servers.weather.change(|now| *now = Conditions::default());
        for replica in &self.replicas {
            self.serves(replica).await?;
        }
        // Traces of the last fault disappear, such as a lease or a pause between looks.
        tokio::time::sleep(self.plan.slack()).await;
        Ok(())
    }

    async fn execute(&self, fault: Fault) -> Result<(), String> {
        let from = Instant::now();
        let weather = &self.servers.weather;
        match fault {
            Fault::Kill { replica, polls, down } => {
                let replica = &self.replicas[replica];
                self.servers
                    .machine
                    .kill(replica.machine_index(), polls, Duration::from_secs(2))
                    .await;
                replica.record_killed();
                self.record(InjectedFault::Kill, from);
                tokio::time::sleep(down).await;
                replica.start(Vec::new());
                self.serves(replica).await?;
            }
            Fault::Freeze { replica, time } => {
                self.servers.machine.freeze(self.replicas[replica].machine_index(), time);
                tokio::time::sleep(time).await;
                self.record(InjectedFault::Freeze, from);
            }
            Fault::Restart { replica } => {
                let replica = &self.replicas[replica];
                replica.drain();
                let ended =
                    tokio::time::timeout(PATIENCE, replica.wait_until_not(&[Life::Serving])).await;
                match ended {
                    Ok(Life::Ended(None)) => {}
                    other => {
                        return Err(format!(
                            "replica {} does not end: {other:?}",
                            replica.machine_index()
                        ));
                    }
                }
                // The process ends with whatever it still has.
                self.servers.machine.kill(replica.machine_index(), 1, Duration::ZERO).await;
                replica.start(Vec::new());
                self.serves(replica).await?;
            }
            Fault::StoreAway { time } => {
                weather.change(|now| now.is_store_away = true);
                tokio::time::sleep(time).await;
                weather.change(|now| now.is_store_away = false);
                self.record(InjectedFault::PostgresAway, from);
            }
            Fault::StoreFlaky { time, failures } => {
                weather.change(|now| {
                    (now.failures_before, now.failures_after) = (failures, failures);
                    now.slow_operations = failures;
                });
                tokio::time::sleep(time).await;
                weather.change(|now| {
                    (now.failures_before, now.failures_after, now.slow_operations) = (0, 0, 0);
                });
                self.record(InjectedFault::PostgresAway, from);
            }
            Fault::RedisAway { time } => {
                weather.change(|now| now.is_redis_away = true);
                tokio::time::sleep(time).await;
                weather.change(|now| now.is_redis_away = false);
                self.record(InjectedFault::RedisAway, from);
            }
            Fault::RedisFlushed => {
                self.servers.redis.flush();
                self.record(InjectedFault::RedisFlushed, from);
            }
            Fault::Storm { time, cuts } => {
                weather.change(|now| (now.cuts, now.late_pieces) = (cuts, 5 * cuts));
                tokio::time::sleep(time).await;
                weather.change(|now| (now.cuts, now.late_pieces) = (0, 0));
            }
        }
        Ok(())
    }

    fn record(&self, fault: InjectedFault, from: Instant) {
        self.histories.lock().iter().for_each(|history| history.record_fault(fault, from));
    }

    fn judge(&self, ledger: &Ledger) -> Verdict {
        let mut verdict = Verdict::default();
        let effects = ledger.effects();
        for (number, history) in self.histories.lock().iter().enumerate() {
            let own = format!("{:x}-", self.load_seed(number));
            let of_own: Vec<_> =
                effects.iter().filter(|effect| effect.key.starts_with(&own)).cloned().collect();
            let report = history.check(&of_own, self.plan.slack());
            verdict.reports.push(format!("{}: {report}", PRINCIPALS[number]));
            verdict.violations.extend(report.violations);
        }
        verdict.violations.extend(forbidden_effects(&effects));
        verdict
    }
}
