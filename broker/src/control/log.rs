//! The log filter of this replica, as operators see and change it.

use std::time::Duration;

use config::{
    FieldError,
    log_filter::{LOG_FILTER_ALLOWED, parse_log_filter},
    serde_units::optional_duration,
    units::{DurationText, format_duration},
};
use rules::limits::log::{
    LOG_FILTER_BYTES_MAX, LOG_FILTER_TIME_DEFAULT, LOG_FILTER_TIME_MAX, LOG_FILTER_TIME_MIN,
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use super::{Author, Control, ControlError};
use crate::telemetry::{LogFilterHandle, LogFilterStatus};

/// The log filter of the replica that answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LogFilterView {
    /// The filter in force.
    pub filter: String,
    /// The filter of the configuration (`telemetry.log`).
    pub configured: String,
    /// Seconds until the configured filter is in force again; absent: it is in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining_seconds: Option<u64>,
    /// The replica that answers.
    pub node: String,
}

/// A log filter, as an operator asks for it.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewLogFilter {
    /// A level (`error`, `warn`, `info`, `debug`, `trace`, `off`), or directives such as
    /// `info,broker::backends=debug`.
    pub filter: String,
    /// Time until the configured filter is in force again, from `1s` to `24h`. By default `10m`.
    #[serde(default, rename = "for", with = "optional_duration")]
    #[schema(value_type = DurationText)]
    pub time: Option<Duration>,
}

impl Control {
    pub fn log_filter(&self) -> Result<LogFilterView, ControlError> {
        Ok(self.log_filter_view(self.log_handle()?.status()))
    }

    /// Applies a log filter for a time.
    pub fn set_log_filter(
        &self,
        wanted: NewLogFilter,
        author: &Author,
    ) -> Result<LogFilterView, ControlError> {
        let NewLogFilter { filter, time } = wanted;
        let time = time.unwrap_or(LOG_FILTER_TIME_DEFAULT);
        check(&filter, time).map_err(ControlError::Invalid)?;
        let log = self.log_handle()?;
        let after = json!({"filter": filter, "for": format_duration(time)});
        author.record_values(Some(&recorded(&log.status())), Some(&after.to_string()));
        let ends_in = format_duration(time);
        tracing::info!(filter, ends_in, by = author.name(), "an operator sets the log filter");
        log.set_for(&filter, time).map_err(|error| {
            tracing::error!(%error, "the broker could not change the log filter and keeps the old one");
            ControlError::Internal
        })?;
        self.log_filter()
    }

    /// Returns to the log filter of the configuration.
    pub fn reset_log_filter(&self, author: &Author) -> Result<LogFilterView, ControlError> {
        let log = self.log_handle()?;
        let before = recorded(&log.status());
        log.reset();
        author.record_values(Some(&before), Some(&recorded(&log.status())));
        self.log_filter()
    }

    /// Applies the log filter of a reloaded configuration. The filter was checked with the file.
    pub fn configure_log(&self, filter: &str) {
        if let Some(Err(error)) = self.log.as_ref().map(|log| log.configure(filter)) {
            tracing::error!(%error, "the broker could not change the log filter and keeps the old one");
        }
    }

    fn log_handle(&self) -> Result<&LogFilterHandle, ControlError> {
        self.log.as_ref().ok_or(ControlError::NoLog)
    }

    fn log_filter_view(&self, status: LogFilterStatus) -> LogFilterView {
        LogFilterView {
            filter: status.filter,
            configured: status.configured,
            remaining_seconds: status.remaining.map(|remaining| remaining.as_secs()),
            node: self.persistence().node().to_string(),
        }
    }
}

fn recorded(status: &LogFilterStatus) -> String {
    json!({"filter": status.filter}).to_string()
}

fn check(filter: &str, time: Duration) -> Result<(), FieldError> {
    let wrong = |wrong: String| FieldError::new("filter", wrong, LOG_FILTER_ALLOWED);
    if filter.trim().is_empty() {
        return Err(wrong("is empty".to_owned()));
    }
    if filter.len() > LOG_FILTER_BYTES_MAX {
        let long = format!("has {} bytes", filter.len());
        return Err(FieldError::new("filter", long, format!("at most {LOG_FILTER_BYTES_MAX}")));
    }
    parse_log_filter(filter).map_err(wrong)?;
    if !(LOG_FILTER_TIME_MIN..=LOG_FILTER_TIME_MAX).contains(&time) {
        let [given, min, max] =
            [time, LOG_FILTER_TIME_MIN, LOG_FILTER_TIME_MAX].map(format_duration);
        let allowed = format!("a duration from {min} to {max}");
        return Err(FieldError::new("for", format!("is {given}"), allowed));
    }
    Ok(())
}
