//! Several replicas of the real binary on one PostgreSQL and one Redis, behind a balancer without
//! memory.
//!
//! [`crate::BrokerBuilder::cluster`] makes it. A test kills, freezes and cuts real processes,
//! servers and connections. Clients made here use the balancer unless they choose one replica. The
//! messages they receive are judged like those of a single broker.

use std::net::SocketAddr;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{
    admin::AdminClient,
    balancer::Balancer,
    broker::{BrokerBuilder, merge},
    client::TestClient,
    deadline::eventually,
    judge::{Judge, JudgeGuard},
    proxy::{Direction, FaultProxy},
    replica::Replica,
    servers::{PgBouncer, PostgresServer, RedisServer},
};

/// Secret of every replica, so that they trust each other.
pub(crate) const SECRET: &str = "one-secret-of-all-replicas-of-a-test";

/// Returns the configuration that makes the replica of this number one of several.
pub(crate) fn replica_config(number: usize) -> Value {
    json!({"listen": {"internal": "127.0.0.1:0"}, "node": {"id": format!("r{number}"), "secret": SECRET}})
}

/// Store of the replicas' state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Store {
    /// A PostgreSQL that does not wait for the disk: enough where processes die and the machine
    /// does not.
    Postgres,
    DurablePostgres,
    /// [`Store::Postgres`] behind a PgBouncer, which pools transactions.
    PooledPostgres,
    /// An embedded database next to the only replica.
    Sqlite,
}

/// Settings of the cluster to start.
#[derive(Debug, Clone)]
pub struct ClusterBuilder {
    broker: BrokerBuilder,
    replicas: usize,
    lease: String,
    proxies: bool,
    redis: bool,
    store: Store,
    postgres_settings: Vec<(String, String)>,
    env: Vec<(usize, String, String)>,
}

impl ClusterBuilder {
    pub(crate) fn new(broker: BrokerBuilder, replicas: usize) -> Self {
        Self {
            broker,
            replicas,
            lease: "1s".to_owned(),
            proxies: false,
            redis: true,
            store: Store::Postgres,
            postgres_settings: Vec::new(),
            env: Vec::new(),
        }
    }

    /// Sets how long a silent replica keeps the sessions it owns.
    pub fn lease(mut self, lease: &str) -> Self {
        lease.clone_into(&mut self.lease);
        self
    }

    /// Puts a [`FaultProxy`] between each replica and PostgreSQL.
    pub fn behind_proxies(mut self) -> Self {
        self.proxies = true;
        self
    }

    pub fn without_redis(mut self) -> Self {
        self.redis = false;
        self
    }

    pub fn store(mut self, store: Store) -> Self {
        assert!(store != Store::Sqlite || self.replicas == 1, "SQLite serves one process");
        self.store = store;
        self
    }

    /// Sets a parameter of PostgreSQL.
    pub fn postgres_setting(mut self, name: &str, value: &str) -> Self {
        self.postgres_settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets a variable for the first life of one replica. If that life ends before the replica is
    /// ready, the next one starts without it.
    pub fn env_of(mut self, replica: usize, name: &str, value: &str) -> Self {
        self.env.push((replica, name.to_owned(), value.to_owned()));
        self
    }

    /// Starts everything and registers what the builder names; panics if anything fails.
    pub async fn start(self) -> TestCluster {
        let settings = self.postgres_settings.iter();
        let settings: Vec<_> =
            settings.map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let postgres = match self.store {
            Store::Postgres | Store::PooledPostgres => {
                Some(PostgresServer::fast_with(&settings).await)
            }
            Store::DurablePostgres => Some(PostgresServer::start_with(&settings).await),
            Store::Sqlite => None,
        };
        let redis =
            if self.redis && postgres.is_some() { Some(RedisServer::start().await) } else { None };
        let database = match &postgres {
            Some(postgres) => postgres.database().await,
            None => String::new(),
        };
        let pooler = match &postgres {
            Some(server) if self.store == Store::PooledPostgres => {
                Some(PgBouncer::start(server, "").await)
            }
            _ => None,
        };
        let (mut replicas, mut proxies) = (Vec::new(), Vec::new());
        for number in 0..self.replicas {
            let mut config = json!({});
            if let Some(postgres) = &postgres {
                let mut url = match &pooler {
                    Some(pooler) => pooler.url(&database),
                    None => database.clone(),
                };
                if self.proxies {
                    let proxy =
                        FaultProxy::start(SocketAddr::from(([127, 0, 0, 1], postgres.port())))
                            .await;
                    url = url.replace(
                        &format!(":{}/", postgres.port()),
                        &format!(":{}/", proxy.address().port()),
                    );
                    proxies.push(proxy);
                }
                config = replica_config(number + 1);
                merge(
                    &mut config,
                    json!({"storage": {"url": url}, "session": {"lease": self.lease}}),
                );
            }
            if let Some(redis) = &redis {
                merge(&mut config, json!({"storage": {"redis_url": redis.url()}}));
            }
            merge(&mut config, self.broker.configuration().clone());
            let env: Vec<_> = self
                .env
                .iter()
                .filter(|(of, ..)| *of == number)
                .map(|(_, name, value)| (name.clone(), value.clone()))
                .collect();
            replicas.push(Replica::start(&self.broker.launch(), &config, &env).await);
        }
        let balancer = Balancer::start(replicas.iter().map(Replica::http_address).collect()).await;
        let cluster = TestCluster {
            broker: self.broker,
            up: vec![true; replicas.len()],
            replicas,
            balancer,
            proxies,
            postgres,
            _pooler: pooler,
            redis,
            database,
            verdict: JudgeGuard(Judge::default()),
        };
        cluster.broker.register(&cluster.operator()).await;
        cluster
    }
}

/// Running replicas and the servers they need.
pub struct TestCluster {
    broker: BrokerBuilder,
    replicas: Vec<Replica>,
    up: Vec<bool>,
    balancer: Balancer,
    proxies: Vec<FaultProxy>,
    postgres: Option<PostgresServer>,
    _pooler: Option<PgBouncer>,
    redis: Option<RedisServer>,
    database: String,
    verdict: JudgeGuard,
}

impl TestCluster {
    pub fn replicas(&self) -> &[Replica] {
        &self.replicas
    }

    pub fn balancer(&self) -> &Balancer {
        &self.balancer
    }

    pub fn postgres(&self) -> &PostgresServer {
        self.postgres.as_ref().expect("the cluster is on PostgreSQL")
    }

    /// Returns the server, to be stopped or started.
    pub fn postgres_mut(&mut self) -> &mut PostgresServer {
        self.postgres.as_mut().expect("the cluster is on PostgreSQL")
    }

    pub fn redis(&self) -> &RedisServer {
        self.redis.as_ref().expect("the cluster has a Redis")
    }

    /// Runs SQL on the replicas' database, past every proxy; returns rows as text.
    pub async fn sql(&self, statements: &str) -> String {
        self.postgres().sql(&self.database, statements).await
    }

    /// Returns the proxy between a replica and PostgreSQL.
    pub fn proxy(&self, replica: usize) -> &FaultProxy {
        self.proxies.get(replica).expect("the cluster was started behind proxies")
    }

    /// Returns a client through the balancer, without a session yet.
    pub fn client(&self, path: &str) -> TestClient {
        TestClient::new(self.balancer.address(), path).judged_by(&self.verdict.0)
    }

    /// Returns a client of one replica.
    pub fn client_of(&self, replica: usize, path: &str) -> TestClient {
        TestClient::new(self.replicas[replica].http_address(), path).judged_by(&self.verdict.0)
    }

    /// Returns a client of the same session at one replica.
    pub fn at(&self, replica: usize, client: &TestClient) -> TestClient {
        client.to(self.replicas[replica].http_address())
    }

    /// Returns a client of the aggregated endpoint with a session of the newest version.
    pub async fn connected(&self, capabilities: Value) -> TestClient {
        self.client("/mcp").connected(capabilities).await
    }

    pub fn admin(&self, replica: usize) -> AdminClient {
        self.broker.admin_of(&[&self.replicas[replica]])
    }

    /// Returns the operator of the first living replica. Its changes count once all living replicas
    /// know them.
    pub fn operator(&self) -> AdminClient {
        let living: Vec<&Replica> = self
            .replicas
            .iter()
            .zip(&self.up)
            .filter(|(_, up)| **up)
            .map(|(replica, _)| replica)
            .collect();
        self.broker.admin_of(&living)
    }

    /// Gives the balancer the addresses of the living replicas.
    fn rebalance(&self) {
        let living = self
            .replicas
            .iter()
            .zip(&self.up)
            .filter(|(_, up)| **up)
            .map(|(replica, _)| replica.http_address());
        self.balancer.set_replicas(living.collect());
    }

    /// Kills a replica with SIGKILL. Until this returns, the balancer meets a refused connection.
    pub async fn kill(&mut self, replica: usize) {
        self.replicas[replica].kill().await;
        self.up[replica] = false;
        self.rebalance();
    }

    /// Notices that a replica ended by itself.
    pub fn has_ended(&mut self, replica: usize) -> bool {
        let ended = self.replicas[replica].try_exit_status().is_some();
        if ended && self.up[replica] {
            self.up[replica] = false;
            self.rebalance();
        }
        ended
    }

    /// Stops a replica with SIGTERM, as an orderly restart does: the balancer stops sending to it
    /// once it reports that it is not ready. Returns whether the exit was clean.
    pub async fn terminate(&mut self, replica: usize) -> bool {
        let admin = self.admin(replica);
        self.replicas[replica].signal(Signal::TERM);
        eventually("the replica to say that it is not ready", || async {
            match admin.try_send("GET", "/readyz", None).await {
                Ok(answer) if answer.status == 200 => Err("ready"),
                _ => Ok(()),
            }
        })
        .await;
        self.up[replica] = false;
        self.rebalance();
        self.replicas[replica].wait_for_exit().await.success()
    }

    /// Starts a replica after [`Self::kill`] or [`Self::terminate`]; its ports change.
    pub async fn restart(&mut self, replica: usize) {
        self.try_restart(replica, &[]).await.unwrap_or_else(|died| panic!("{died}"));
    }

    /// Starts a replica with these variables for this life only. `Err`: its output, if it ended
    /// before it was ready.
    pub async fn try_restart(
        &mut self,
        replica: usize,
        env: &[(String, String)],
    ) -> Result<(), String> {
        self.replicas[replica].try_restart(env).await?;
        self.up[replica] = true;
        self.rebalance();
        Ok(())
    }

    /// Stops a replica with SIGSTOP. Connections to it stay and are not answered; the balancer
    /// sends it no new request.
    pub fn freeze(&mut self, replica: usize) {
        self.replicas[replica].freeze();
        self.up[replica] = false;
        self.rebalance();
    }

    pub fn thaw(&mut self, replica: usize) {
        self.replicas[replica].signal(Signal::CONT);
        self.up[replica] = true;
        self.rebalance();
    }

    /// Drops all bytes between this replica and PostgreSQL. No side gets an error.
    pub fn cut_from_postgres(&self, replica: usize) {
        let proxy = self.proxy(replica);
        proxy.hole(Direction::Upstream, true);
        proxy.hole(Direction::Downstream, true);
    }

    /// Undoes [`Self::cut_from_postgres`]. Dropped bytes stay lost, so earlier connections are
    /// reset.
    pub fn reconnect_to_postgres(&self, replica: usize) {
        self.proxy(replica).heal();
        self.proxy(replica).reset();
    }

    /// Kills PostgreSQL and replaces it by this standby at the same address: that of the
    /// proxies.
    pub async fn fail_over_to(&mut self, standby: PostgresServer) {
        assert!(!self.proxies.is_empty(), "the cluster was started behind proxies");
        let gone = self.postgres().port();
        self.postgres_mut().kill().await;
        standby.promote().await;
        self.proxies.iter().for_each(|proxy| proxy.set_target(standby.address()));
        self.database =
            self.database.replace(&format!(":{gone}/"), &format!(":{}/", standby.port()));
        self.postgres = Some(standby);
    }

    /// Waits until every living replica is ready and has its backends.
    pub async fn ready(&self) {
        let living = (0..self.replicas.len()).filter(|replica| self.up[*replica]);
        for admin in living.map(|replica| self.admin(replica)) {
            eventually("a replica to be ready", || async {
                let (status, body) = admin.get("/readyz").await;
                if status == 200 { Ok(()) } else { Err((status, body)) }
            })
            .await;
            for (tenant, name, _) in self.broker.backends() {
                admin.wait_backend_state(tenant, name, "ready").await;
            }
        }
    }
}

impl Drop for TestCluster {
    fn drop(&mut self) {
        for replica in &mut self.replicas {
            replica.finish();
            replica.replay_traffic(&self.verdict.0);
        }
    }
}

impl std::fmt::Debug for TestCluster {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            out,
            "TestCluster({} replicas, front {}, {})",
            self.replicas.len(),
            self.balancer.address(),
            self.database
        )
    }
}
