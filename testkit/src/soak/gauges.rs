//! Measures of a cluster: what its processes hold, what they report, and what lies in the stores.

use std::collections::BTreeMap;

use super::trend::Unit;
use crate::cluster::TestCluster;

/// Gauges of a replica: the metric, its name here, its unit.
const GAUGES: [(&str, &str, Unit); 9] = [
    ("process_resident_memory_bytes", "memory", Unit::Bytes),
    ("process_open_fds", "descriptors", Unit::Count),
    ("process_threads", "threads", Unit::Count),
    ("mcp_sessions", "sessions", Unit::Count),
    ("mcp_subscriptions", "subscriptions", Unit::Count),
    ("mcp_requests_pending", "requests in flight", Unit::Count),
    ("mcp_links", "links to backends", Unit::Count),
    ("mcp_queue_depth", "queued messages", Unit::Count),
    ("mcp_outbox_bytes", "bytes for slow clients", Unit::Bytes),
];
/// Number of time series of `/metrics`.
const TIME_SERIES: &str = "time series";

/// Counts the rows of every table, one line for each: name and count.
const ROWS: &str = "select table_name || ' ' || (xpath('/row/c/text()', query_to_xml(format('select count(*) as c from %I', table_name), false, true, '')))[1]::text \
     from information_schema.tables where table_schema = 'public' order by 1";

/// What was measured: the chart that shows it, and the line in that chart.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Measure {
    pub chart: String,
    /// The replica; empty for the only line.
    pub line: String,
}

impl Measure {
    pub(super) fn new(chart: &str, line: impl Into<String>) -> Self {
        Self { chart: chart.to_owned(), line: line.into() }
    }

    pub(super) fn name(&self) -> String {
        format!("{} {}", self.chart, self.line).trim_end().to_owned()
    }

    pub(super) fn unit(&self) -> Unit {
        let is_bytes =
            |(_, name, unit): &(&str, &str, Unit)| *name == self.chart && *unit == Unit::Bytes;
        if GAUGES.iter().any(is_bytes) || ["database", "Redis memory"].contains(&&*self.chart) {
            Unit::Bytes
        } else {
            Unit::Count
        }
    }
}

/// The values of one moment.
pub type Sample = BTreeMap<Measure, f64>;

/// Measures everything once.
pub(super) async fn sample(cluster: &TestCluster) -> Sample {
    let mut sample = Sample::new();
    for replica in 0..cluster.replicas().len() {
        let line = format!("replica {}", replica + 1);
        let text = cluster.admin(replica).metrics().await;
        let sums = sums(&text);
        for (metric, name, _) in GAUGES {
            let value = sums.get(metric).copied().unwrap_or(0.0);
            sample.insert(Measure::new(name, &*line), value);
        }
        let series = text.lines().filter(|line| !line.starts_with('#')).count();
        sample.insert(Measure::new(TIME_SERIES, line), series as f64);
    }
    for row in rows(cluster).await {
        sample.insert(Measure::new(&format!("rows of {}", row.0), ""), row.1);
    }
    let size = cluster.sql("select pg_database_size(current_database())").await;
    sample.insert(Measure::new("database", ""), number(&size));
    let keys = cluster.redis().try_command(&["DBSIZE"]).await.number() as f64;
    sample.insert(Measure::new("Redis keys", ""), keys);
    let about = cluster.redis().try_command(&["INFO", "memory"]).await;
    let used = about.text().lines().find_map(|line| line.strip_prefix("used_memory:"));
    sample.insert(Measure::new("Redis memory", ""), number(used.unwrap_or_default()));
    sample
}

/// Returns each table with its number of rows.
pub(super) async fn rows(cluster: &TestCluster) -> Vec<(String, f64)> {
    let text = cluster.sql(ROWS).await;
    let pairs = text.lines().filter_map(|line| line.split_once(' '));
    pairs.map(|(table, count)| (table.to_owned(), number(count))).collect()
}

/// Returns the sum over all labels of each metric.
fn sums(text: &str) -> BTreeMap<&str, f64> {
    let mut sums = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some((series, value)) = line.rsplit_once(' ') else { continue };
        let name = series.split('{').next().unwrap_or(series);
        *sums.entry(name).or_default() += value.parse().unwrap_or(0.0);
    }
    sums
}

fn number(text: &str) -> f64 {
    text.trim().parse().unwrap_or_else(|_| panic!("{text:?} is not a number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_summed_over_its_labels() {
        let text = "# HELP a b\na{x=\"1\"} 2\na{x=\"y z\"} 3\nab 7\n";
        assert_eq!(sums(text), BTreeMap::from([("a", 5.0), ("ab", 7.0)]));
    }

    #[test]
    fn measures_of_bytes_have_the_unit_bytes() {
        for (chart, unit) in
            [("memory", Unit::Bytes), ("database", Unit::Bytes), ("rows of tasks", Unit::Count)]
        {
            assert_eq!(Measure::new(chart, "x").unit(), unit, "{chart}");
        }
        assert_eq!(Measure::new("database", "").name(), "database");
    }
}
