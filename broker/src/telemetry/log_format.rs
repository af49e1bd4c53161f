//! Adds ids to lines of the log that belong to a request: the request's id, and that of its trace
//! if there is one.
//!
//! The ids are added when a line is written, so that a request without lines has no cost.

use std::fmt;

use tracing::{Event, Subscriber};
use tracing_subscriber::{
    fmt::{FmtContext, FormatEvent, FormatFields, format::Writer},
    registry::LookupSpan,
};

use super::request::{self, RequestName};

/// A format, with the ids of the request added.
pub(super) struct WithRequestIds<Format>(pub(super) Format);

impl<S, N, Format> FormatEvent<S, N> for WithRequestIds<Format>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    Format: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let Some(name) = request::current_name() else {
            return self.0.format_event(context, writer, event);
        };
        let mut line = String::new();
        self.0.format_event(context, Writer::new(&mut line), event)?;
        writer.write_str(&add_request_ids(
            &line,
            name,
            request::with_current(request::RequestTelemetry::trace)
                .flatten()
                .map(|trace| trace.to_string()),
        ))
    }
}

/// Adds two members to a JSON object, or two fields at the end of another line.
fn add_request_ids(line: &str, name: RequestName, trace: Option<String>) -> String {
    let line = line.trim_end_matches('\n');
    match line.strip_suffix('}').filter(|_| line.starts_with('{')) {
        Some(object) => {
            let trace = trace.map(|trace| format!(",\"trace_id\":\"{trace}\"")).unwrap_or_default();
            format!("{object},\"request_id\":\"{name}\"{trace}}}\n")
        }
        None => {
            let trace = trace.map(|trace| format!(" trace_id={trace}")).unwrap_or_default();
            format!("{line} request_id={name}{trace}\n")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_line_contains_the_ids_of_its_request() {
        let name = RequestName(0xab);
        assert_eq!(
            add_request_ids("INFO it is so a=1\n", name, None),
            "INFO it is so a=1 request_id=00000000000000ab\n"
        );
        let line =
            add_request_ids("{\"level\":\"INFO\",\"message\":\"so\"}\n", name, Some("0af7".into()));
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(
            (&value["request_id"], &value["trace_id"]),
            (&"00000000000000ab".into(), &"0af7".into())
        );
    }
}
