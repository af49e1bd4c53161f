//! How long a request may take. Said in three places, from the most specific to the least: with the backend, with the
//! tenant, in the configuration; in each of them for a tool, a method, or all requests of a kind. Asked once per call.

use std::{collections::BTreeMap, time::Duration};

use protocol::method::Method;

/// What one place says. What it does not say is left to the next.
#[derive(Debug, Clone, Copy, Default)]
pub struct TimeoutSource<'a> {
    pub tools: Option<&'a BTreeMap<String, Duration>>,
    pub methods: Option<&'a BTreeMap<String, Duration>>,
    pub call: Option<Duration>,
    pub control: Option<Duration>,
    pub total: Option<Duration>,
}

impl TimeoutSource<'_> {
    fn quiet(&self, method: Method, tool: Option<&str>) -> Option<Duration> {
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
    /// After its start, and after every sign of life.
    pub quiet: Duration,
    /// After its start, whatever happens.
    pub total: Duration,
}

/// `event_ids` are in order, the last of them says everything.
pub fn of(method: Method, tool: Option<&str>, places: &[TimeoutSource<'_>]) -> CallDeadline {
    let quiet = places.iter().find_map(|place| place.quiet(method, tool)).unwrap_or(Duration::MAX);
    let total = places.iter().find_map(|place| place.total).unwrap_or(Duration::MAX);
    // Whoever allows a tool an hour wants it to have it.
    CallDeadline { quiet, total: total.max(quiet) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_most_specific_wins() {
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
        let quiet = |method, tool, places: &[TimeoutSource<'_>]| of(method, tool, places).quiet;
        let all = [backend, tenant, common];
        assert_eq!(
            of(Method::ToolsCall, Some("slow"), &all),
            CallDeadline { quiet: seconds(120), total: seconds(120) }
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
            of(Method::ToolsCall, Some("slow"), &[common]),
            CallDeadline { quiet: seconds(30), total: seconds(3_600) }
        );
        assert_eq!(quiet(Method::Ping, None, &[common]), seconds(5));
    }
}
