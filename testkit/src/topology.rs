//! What a run of the tests stands on: `MCP_BROKER_TEST_ON=sqlite|balancer|postgres|cluster`, SQLite when it is not set.
//!
//! The same tests then show that a broker on other stores, or spread over replicas, keeps the same promises. Asked by
//! [`crate::BrokerBuilder::start`] for tests that choose neither their storage nor, with [`crate::BrokerBuilder::on`], their
//! ground themselves.

use tokio::sync::OnceCell;

use crate::servers::PostgresServer;

/// Where the state of the brokers under test is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topology {
    /// One process with an embedded database.
    Sqlite,
    /// The same behind a balancer: what fails here fails for the balancer's sake.
    Balancer,
    /// One process with a new database of a PostgreSQL server, and a Redis of its own.
    Postgres,
    /// Two processes on such stores, behind a balancer that sends each request to the next of them.
    Cluster,
}

impl Topology {
    /// The same stores.
    pub(crate) fn of_one_process(self) -> Self {
        match self {
            Self::Sqlite | Self::Balancer => Self::Sqlite,
            Self::Postgres | Self::Cluster => Self::Postgres,
        }
    }
}

/// What the environment asks for.
pub fn chosen() -> Topology {
    let text = std::env::var("MCP_BROKER_TEST_ON").unwrap_or_default();
    match text.as_str() {
        "" | "sqlite" => Topology::Sqlite,
        "balancer" => Topology::Balancer,
        "postgres" => Topology::Postgres,
        "cluster" => Topology::Cluster,
        other => panic!("MCP_BROKER_TEST_ON={other}: sqlite, balancer, postgres or cluster"),
    }
}

/// One server for all tests of this process. It ends with the process.
pub(crate) async fn shared_postgres() -> &'static PostgresServer {
    static SHARED: OnceCell<PostgresServer> = OnceCell::const_new();
    SHARED.get_or_init(PostgresServer::fast).await
}
