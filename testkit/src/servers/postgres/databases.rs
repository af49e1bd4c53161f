//! Databases of a server of tests.

use std::sync::atomic::Ordering;

use super::PostgresServer;

impl PostgresServer {
    /// Creates a new empty database of this server; returns its URL.
    pub async fn database(&self) -> String {
        self.database_from("template1").await
    }

    /// Creates a copy of a database that `fill` fills at the first call; returns its URL. `fill`
    /// gets the URL of that database and leaves no connection to it open.
    pub async fn copied_database(&self, fill: impl AsyncFnOnce(String)) -> String {
        let original = self.original.get_or_init(async || {
            let url = self.database().await;
            let name = url.rsplit('/').next().unwrap_or_default().to_owned();
            fill(url).await;
            name
        });
        self.database_from(original.await).await
    }

    async fn database_from(&self, template: &str) -> String {
        let name = format!("test_{}", self.databases.fetch_add(1, Ordering::Relaxed));
        let create = format!("CREATE DATABASE {name} TEMPLATE {template}");
        self.sql(&self.url(), &create).await;
        self.url_of(&name)
    }
}
