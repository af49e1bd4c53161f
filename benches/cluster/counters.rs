//! What the servers themselves count: statements, rows and log of PostgreSQL, commands and bytes of
//! Redis.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context as _;
use testkit::{TestCluster, servers::RedisReply};

/// Bytes with which the bench asks Redis for its counters.
const INFO_REQUEST: u64 = b"*2\r\n$4\r\nINFO\r\n$3\r\nall\r\n".len() as u64;
/// Statements of the replicas, by the counters that every database of the server shows.
const STATEMENTS: &str = "
    SELECT queryid, calls, rows, regexp_replace(query, '[|\\s]+', ' ', 'g')
    FROM pg_stat_statements JOIN pg_database ON oid = dbid WHERE datname LIKE 'test%'
    AND query NOT LIKE '%/* bench */%'";
const WAL: &str = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')";

/// Makes the server count statements. Must run once, after it started.
pub(crate) async fn count_statements(cluster: &TestCluster) {
    let postgres = cluster.postgres();
    postgres.sql(&postgres.url(), "CREATE EXTENSION IF NOT EXISTS pg_stat_statements").await;
}

#[derive(Debug, Clone)]
struct Statement {
    calls: f64,
    rows: f64,
    text: String,
}

/// The counters at one moment.
#[derive(Debug, Clone)]
pub(crate) struct Counters {
    statements: BTreeMap<i64, Statement>,
    wal_bytes: f64,
    commands: BTreeMap<String, f64>,
    redis_bytes: f64,
    /// Bytes of the answer with these counters, which the next one includes.
    own_bytes: f64,
    pub(crate) redis_memory: f64,
    pub(crate) redis_clients: f64,
}

impl Counters {
    pub(crate) async fn read(cluster: &TestCluster) -> anyhow::Result<Self> {
        let postgres = cluster.postgres();
        let mut statements = BTreeMap::new();
        for line in postgres.sql(&postgres.url(), STATEMENTS).await.lines() {
            let mut fields = line.splitn(4, '|');
            let mut next = || fields.next().context("a column of pg_stat_statements");
            let (id, calls, rows) = (next()?.parse()?, next()?.parse()?, next()?.parse()?);
            statements.insert(id, Statement { calls, rows, text: next()?.trim().to_owned() });
        }
        let wal_bytes = postgres.sql(&postgres.url(), WAL).await.parse()?;
        let RedisReply::Text(info) = cluster.redis().command(&["INFO", "all"]).await else {
            anyhow::bail!("Redis has no counters");
        };
        let value = |name: &str| -> anyhow::Result<f64> {
            let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            Ok(line.with_context(|| format!("Redis does not count {name}"))?.trim().parse()?)
        };
        let framing = format!("${}\r\n\r\n", info.len()).len();
        Ok(Self {
            statements,
            wal_bytes,
            commands: commands(&info),
            redis_bytes: value("total_net_input_bytes")? + value("total_net_output_bytes")?,
            own_bytes: (info.len() + framing) as f64 + INFO_REQUEST as f64,
            redis_memory: value("used_memory")?,
            redis_clients: value("connected_clients")? - 1.0, // this one
        })
    }

    /// Returns what was counted since `before`.
    pub(crate) fn since(&self, before: &Self) -> Cost {
        let mut cost = Cost {
            wal_bytes: self.wal_bytes - before.wal_bytes,
            redis_bytes: self.redis_bytes - before.redis_bytes - before.own_bytes,
            ..Cost::default()
        };
        for (id, now) in &self.statements {
            let (calls, rows) =
                before.statements.get(id).map_or((0.0, 0.0), |then| (then.calls, then.rows));
            if now.calls > calls {
                let kind = StatementKind { id: *id, text: now.text.clone() };
                cost.statements.insert(kind, (now.calls - calls, now.rows - rows));
            }
        }
        for (name, count) in &self.commands {
            let added = count - before.commands.get(name).unwrap_or(&0.0);
            if added > 0.0 {
                cost.commands.insert(name.clone(), added);
            }
        }
        cost
    }
}

/// Returns how often each command ran, those inside scripts included, those of the bench not.
fn commands(info: &str) -> BTreeMap<String, f64> {
    info.lines()
        .filter_map(|line| {
            let (name, counts) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            Some((name.to_owned(), counts.split(',').next()?.parse().ok()?))
        })
        .filter(|(name, _)| name != "info")
        .collect()
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StatementKind {
    id: i64,
    pub(crate) text: String,
}

/// What was counted between two moments, or a part of it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cost {
    /// Calls and rows of each statement.
    pub(crate) statements: BTreeMap<StatementKind, (f64, f64)>,
    pub(crate) wal_bytes: f64,
    pub(crate) commands: BTreeMap<String, f64>,
    pub(crate) redis_bytes: f64,
}

impl Cost {
    pub(crate) fn statements(&self) -> f64 {
        self.statements.values().fold(0.0, |sum, (calls, _)| sum + calls)
    }

    pub(crate) fn rows(&self) -> f64 {
        self.statements.values().fold(0.0, |sum, (_, rows)| sum + rows)
    }

    pub(crate) fn commands(&self) -> f64 {
        self.commands.values().fold(0.0, |sum, calls| sum + calls)
    }

    /// Returns the cost of one of so many.
    pub(crate) fn each(mut self, count: f64) -> Self {
        for (calls, rows) in self.statements.values_mut() {
            *calls /= count;
            *rows /= count;
        }
        self.commands.values_mut().for_each(|calls| *calls /= count);
        self.wal_bytes /= count;
        self.redis_bytes /= count;
        self
    }

    /// Returns the cost without what the replicas do anyway in so many seconds. A statement that
    /// they send at rest is left out altogether: its moments are random.
    pub(crate) fn beyond(mut self, rest: &RestCost, seconds: f64) -> Self {
        self.statements.retain(|kind, _| !rest.kinds.contains(&kind.id));
        for (name, calls) in &mut self.commands {
            let usual = rest.second.commands.get(name).unwrap_or(&0.0);
            *calls = (*calls - usual * seconds).max(0.0);
        }
        self.wal_bytes = (self.wal_bytes - rest.second.wal_bytes * seconds).max(0.0);
        self.redis_bytes = (self.redis_bytes - rest.second.redis_bytes * seconds).max(0.0);
        self
    }
}

/// What all replicas together cost while nothing happens.
#[derive(Debug, Clone)]
pub(crate) struct RestCost {
    kinds: BTreeSet<i64>,
    pub(crate) second: Cost,
}

impl RestCost {
    pub(crate) fn new(cost: Cost, seconds: f64) -> Self {
        let kinds = cost.statements.keys().map(|kind| kind.id).collect();
        Self { kinds, second: cost.each(seconds) }
    }
}
