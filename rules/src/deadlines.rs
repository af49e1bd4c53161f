//! Deadlines of requests. Three sources set them, from the most specific to the least: the backend,
//! the tenant, the configuration. Each sets them for a tool, a method, or all requests of a kind.
//! Every call reads them once.

use std::{collections::BTreeMap, time::Duration};

use protocol::method::Method;

/// The deadlines of one source. The next source supplies missing ones.
#[derive(Debug, Clone, Copy, Default)]
pub struct TimeoutSource<'a> {
    pub tools: Option<&'a BTreeMap<String, Duration>>,
    pub methods: Option<&'a BTreeMap<String, Duration>>,
    pub call: Option<Duration>,
    pub control: Option<Duration>,
    pub total: Option<Duration>,
}

impl TimeoutSource<'_> {
    fn idle_timeout(&self, method: Method, tool: Option<&str>) -> Option<Duration> {
        let of = |map: Option<&BTreeMap<String, Duration>>, name: &str| {
            map.and_then(|map| map.get(name)).copied()
        };
        let kind = if method.info().control { self.control } else { self.call };
        tool.and_then(|tool| of(self.tools, tool))
            .or_else(|| of(self.methods, method.name()))
            .or(kind)
    }
}

/// The deadlines of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallDeadline {
    /// Time without any message for the request.
    pub idle: Duration,
    /// Time since the start of the request.
    pub total: Duration,
}

/// Returns the deadlines of a request. `sources` are in order, from the most specific to the least.
pub fn resolve(method: Method, tool: Option<&str>, sources: &[TimeoutSource<'_>]) -> CallDeadline {
    let quiet = sources
        .iter()
        .find_map(|source| source.idle_timeout(method, tool))
        .unwrap_or(Duration::MAX);
    let total = sources.iter().find_map(|source| source.total).unwrap_or(Duration::MAX);
    // The total must not cut the time that an operator allowed a tool.
    CallDeadline { idle: quiet, total: total.max(quiet) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_most_specific_deadline_wins() {
        let tools = BTreeMap::from([("slow".to_owned(), seconds(120))]);
        let methods = BTreeMap::from([
            ("tools/call".to_owned(), seconds(7)),
            ("tools/list".to_owned(), seconds(2)),
        ]);
        let common = TimeoutSource {
            call: Some(seconds(30)),
            control: Some(seconds(5)),
            total: Some(seconds(3_600)),
            ..TimeoutSource::default()
        };
        let tenant = TimeoutSource {
            methods: Some(&methods),
            call: Some(seconds(20)),
            ..TimeoutSource::default()
        };
        let backend = TimeoutSource {
            tools: Some(&tools),
            control: Some(seconds(1)),
            total: Some(seconds(60)),
            ..TimeoutSource::default()
        };
        let quiet =
            |method, tool, sources: &[TimeoutSource<'_>]| resolve(method, tool, sources).idle;
        let all = [backend, tenant, common];
        assert_eq!(
            resolve(Method::ToolsCall, Some("slow"), &all),
            CallDeadline { idle: seconds(120), total: seconds(120) }
        );
        assert_eq!(
            quiet(Method::ToolsCall, Some("fast"), &all),
            seconds(7),
            "the tenant's word on the method"
        );
        assert_eq!(
            quiet(Method::ResourcesRead, None, &all),
            seconds(20),
            "the tenant's word on calls"
        );
        assert_eq!(
            quiet(Method::ToolsList, None, &all),
            seconds(1),
            "the backend comes before the tenant"
        );
        assert_eq!(
            resolve(Method::ToolsCall, Some("slow"), &[common]),
            CallDeadline { idle: seconds(30), total: seconds(3_600) }
        );
        assert_eq!(quiet(Method::Ping, None, &[common]), seconds(5));
    }
}
