//! Real MCP peers against the real binary: the official conformance suite in both roles, and SDK
//! clients in front of `server-everything`, over HTTP and over stdio.
//!
//! Each test runs on every topology: SQLite, PostgreSQL with Redis, and two replicas behind a
//! balancer that sends each request to the next of them. The peers do not know the topology. The
//! last is part of `make test`, the others of `make test-grounds`.
//!
//! The peers are pinned in `/peers` and installed by `scripts/install-peers.sh` (`make test` does
//! it). A missing peer is a failure with the command to run, never a skipped test. The scripts also
//! run without a broker, which shows whether a failure is ours: start the server, then `node
//! peers/clients/typescript.mjs URL`.

/// Makes three tests of each function: it is called once with every topology.
macro_rules! on_every_ground {
    ($($(#[$about:meta])* async fn $name:ident($topology:ident: Topology) $body:block)*) => {$(
        $(#[$about])*
        async fn $name($topology: Topology) $body

        mod $name {
            use testkit::Topology;

            /// Each process of the cluster does the same as this one, and all other tests use this
            /// topology.
            #[tokio::test]
            #[ignore = "run by `make test-grounds`"]
            async fn on_sqlite() {
                super::$name(Topology::Sqlite).await;
            }

            /// The cluster has these stores too, twice.
            #[tokio::test]
            #[ignore = "run by `make test-grounds`"]
            async fn on_postgres() {
                super::$name(Topology::Postgres).await;
            }

            #[tokio::test]
            async fn on_a_cluster() {
                super::$name(Topology::Cluster).await;
            }
        }
    )*};
}

mod accounts;
mod admin_api;
mod approvals;
mod apps;
mod clients;
mod conformance;
mod conformance_accounts;
mod conformance_tasks;
mod console;
mod eras;
mod generated;
mod go_server;
mod install;
mod issuers;
mod logins;
pub(crate) mod moves;
mod oidc;
mod pinned;
mod process;
mod sandboxed;
mod wires;
