//! Stores and processes under a run of the tests:
//! `MCP_BROKER_TEST_ON=sqlite|balancer|postgres|cluster`, SQLite if it is not set.
//!
//! The same tests then show that a broker on other stores, or on several replicas, keeps the same
//! promises. [`crate::BrokerBuilder::start`] uses it for tests that choose neither their storage
//! nor, with [`crate::BrokerBuilder::on`], their topology.

use tokio::sync::OnceCell;

use crate::servers::PostgresServer;

/// Processes and stores of the brokers under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topology {
    /// One process with an embedded database.
    Sqlite,
    /// One process with an embedded database, behind a balancer. A test that fails only here fails
    /// because of the balancer.
    Balancer,
    /// One process with a new database of a PostgreSQL server, and a Redis of its own.
    Postgres,
    /// Two processes on such stores, behind a balancer that sends each request to the next of them.
    Cluster,
}

impl Topology {
    /// Returns the topology of one process with the same stores.
    pub(crate) fn single_process(self) -> Self {
        match self {
            Self::Sqlite | Self::Balancer => Self::Sqlite,
            Self::Postgres | Self::Cluster => Self::Postgres,
        }
    }
}

/// Returns the topology that the environment chooses.
pub fn topology_from_env() -> Topology {
    let text = std::env::var("MCP_BROKER_TEST_ON").unwrap_or_default();
    match text.as_str() {
        "" | "sqlite" => Topology::Sqlite,
        "balancer" => Topology::Balancer,
        "postgres" => Topology::Postgres,
        "cluster" => Topology::Cluster,
        other => panic!("MCP_BROKER_TEST_ON={other}: sqlite, balancer, postgres or cluster"),
    }
}

/// Returns the server that all tests of this process share. It ends with the process.
pub(crate) async fn shared_postgres() -> &'static PostgresServer {
    static SHARED: OnceCell<PostgresServer> = OnceCell::const_new();
    SHARED.get_or_init(PostgresServer::fast).await
}
