//! A second server that follows a first one and replaces it when that is gone.

use std::{
    net::SocketAddr,
    process::Stdio,
    sync::atomic::{AtomicU32, Ordering},
};

use super::{CHANGES_WITHIN, INSTALLATION, PostgresServer, free_port, kept_folder};
use crate::deadline::eventually_within;

/// Application name of the standby.
const STANDBY: &str = "standby";

impl PostgresServer {
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    /// Starts a copy of this server that follows its writes over `feed`: this server's address, or
    /// a proxy before it. Commits do not wait for it, see [`PostgresServer::commit_with_standby`].
    pub async fn standby(&self, feed: SocketAddr) -> Self {
        let (folder, keeper) = kept_folder(self.folder.parent().expect("it was made in a folder"));
        let source =
            format!("host=127.0.0.1 port={} user=postgres application_name={STANDBY}", feed.port());
        let mut copy = INSTALLATION.command("pg_basebackup");
        copy.args(["-R", "-X", "stream", "-c", "fast", "-d", &source, "-D"])
            .arg(folder.join("data"))
            .stdout(Stdio::null());
        let copied = tokio::process::Command::from(copy)
            .kill_on_drop(true)
            .output()
            .await
            .expect("pg_basebackup runs");
        assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
        let databases = AtomicU32::new(self.databases.load(Ordering::Relaxed));
        let mut standby = Self {
            folder,
            port: free_port(),
            settings: self.settings.clone(),
            running: None,
            keeper,
            databases,
            original: tokio::sync::OnceCell::new(),
        };
        standby.start_again().await;
        self.until(
            "the standby to follow",
            &format!(
                "SELECT count(*) FROM pg_stat_replication WHERE application_name = '{STANDBY}'"
            ),
            "1",
        )
        .await;
        standby
    }

    /// Makes commits wait from now on until the standby has them on disk.
    pub async fn commit_with_standby(&self) {
        self.sql(&self.url(), &format!("ALTER SYSTEM SET synchronous_standby_names = '{STANDBY}'"))
            .await;
        self.sql(&self.url(), "SELECT pg_reload_conf()").await;
        self.until(
            "the standby to be waited for",
            "SELECT sync_state FROM pg_stat_replication",
            "sync",
        )
        .await;
    }

    /// Waits until a standby shows all that `primary` has committed so far.
    pub async fn has_all_of(&self, primary: &Self) {
        let position = primary.sql(&primary.url(), "SELECT pg_current_wal_flush_lsn()").await;
        self.until(
            "the standby to have it all",
            &format!("SELECT pg_last_wal_replay_lsn() >= '{position}'"),
            "t",
        )
        .await;
    }

    /// Turns a standby into a server that takes writes.
    pub async fn promote(&self) {
        assert_eq!(self.sql(&self.url(), "SELECT pg_promote()").await, "t", "{}", self.log_tail());
    }

    async fn until(&self, what: &str, question: &str, wanted: &str) {
        eventually_within(CHANGES_WITHIN, what, || async {
            match self.sql(&self.url(), question).await {
                answer if answer == wanted => Ok(()),
                answer => Err(answer),
            }
        })
        .await;
    }
}
