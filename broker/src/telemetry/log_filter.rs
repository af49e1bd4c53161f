//! The filter of the log: that of the configuration, or one that an operator set for a time.
//!
//! Used by [`crate::serve`] at a reload and by [`crate::control`] for operators. Invariant: the filter
//! of an operator ends at its time, at a reload with another `telemetry.log`, or with the process.

use std::{sync::Arc, time::Duration};

use config::log_filter::parse_log_filter;
use parking_lot::Mutex;
use tokio::{task::AbortHandle, time::Instant};
use tracing_subscriber::{EnvFilter, Registry, reload};

use super::TelemetryError;

/// Handle for changes of the filter. Clones change the same one.
#[derive(Clone)]
pub struct LogFilterHandle(Arc<Mutex<FilterState>>);

struct FilterState {
    layer: reload::Handle<EnvFilter, Registry>,
    configured: String,
    temporary: Option<TemporaryFilter>,
}

/// Filter of an operator.
struct TemporaryFilter {
    text: String,
    ends_at: Instant,
    end: AbortHandle,
}

/// The filter in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogFilterStatus {
    pub filter: String,
    pub configured: String,
    /// Time until the configured filter is in force again. `None`: it is in force.
    pub remaining: Option<Duration>,
}

impl LogFilterHandle {
    /// `configured` is the filter that the layer has.
    pub(super) fn new(layer: reload::Handle<EnvFilter, Registry>, configured: &str) -> Self {
        let configured = configured.to_owned();
        Self(Arc::new(Mutex::new(FilterState { layer, configured, temporary: None })))
    }

    pub fn status(&self) -> LogFilterStatus {
        let state = self.0.lock();
        let remaining = |temporary: &TemporaryFilter| {
            temporary.ends_at.saturating_duration_since(Instant::now())
        };
        LogFilterStatus {
            filter: state.in_force().to_owned(),
            configured: state.configured.clone(),
            remaining: state.temporary.as_ref().map(remaining),
        }
    }

    /// Applies the filter of the configuration. If it is another one, a filter of an operator ends.
    pub fn configure(&self, text: &str) -> Result<(), TelemetryError> {
        let mut state = self.0.lock();
        if state.configured == text {
            return Ok(());
        }
        state.apply(text)?;
        text.clone_into(&mut state.configured);
        state.forget_temporary();
        Ok(())
    }

    /// Applies the filter of an operator, in place of an earlier one. Must be called inside the
    /// runtime.
    pub fn set_for(&self, text: &str, time: Duration) -> Result<(), TelemetryError> {
        let mut state = self.0.lock();
        state.apply(text)?;
        state.forget_temporary();
        let (ends_at, shared) = (Instant::now() + time, Arc::clone(&self.0));
        let end = tokio::spawn(async move {
            tokio::time::sleep_until(ends_at).await;
            let mut state = shared.lock();
            // Another filter may have replaced this one meanwhile.
            if state.temporary.as_ref().is_some_and(|temporary| temporary.ends_at == ends_at) {
                state.end_temporary();
            }
        });
        let end = end.abort_handle();
        state.temporary = Some(TemporaryFilter { text: text.to_owned(), ends_at, end });
        Ok(())
    }

    /// Ends the filter of an operator before its time.
    pub fn reset(&self) {
        self.0.lock().end_temporary();
    }
}

impl FilterState {
    fn in_force(&self) -> &str {
        self.temporary.as_ref().map_or(&self.configured, |temporary| &temporary.text)
    }

    fn apply(&self, text: &str) -> Result<(), TelemetryError> {
        let filter = parse_log_filter(text).map_err(TelemetryError::Filter)?;
        self.layer.reload(filter).map_err(|_| TelemetryError::Gone)
    }

    fn end_temporary(&mut self) {
        if self.temporary.is_none() {
            return;
        }
        self.forget_temporary();
        match self.apply(&self.configured) {
            Ok(()) => tracing::info!(
                filter = self.configured,
                "the configured log filter is in force again"
            ),
            Err(error) => {
                tracing::error!(%error, "the broker cannot return to the configured log filter")
            }
        }
    }

    fn forget_temporary(&mut self) {
        if let Some(temporary) = self.temporary.take() {
            temporary.end.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the handle, and the layer that it changes.
    fn handle() -> (LogFilterHandle, reload::Layer<EnvFilter, Registry>) {
        let (layer, changes) = reload::Layer::new(parse_log_filter("info").unwrap());
        (LogFilterHandle::new(changes, "info"), layer)
    }

    fn filter_of(handle: &LogFilterHandle) -> String {
        let state = handle.0.lock();
        state.layer.with_current(ToString::to_string).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_filter_of_an_operator_ends_at_its_time() {
        let (handle, _layer) = handle();
        handle.set_for("debug", Duration::from_secs(60)).unwrap();
        handle.set_for("warn", Duration::from_secs(600)).unwrap();
        assert_eq!(filter_of(&handle), "warn");
        tokio::time::sleep(Duration::from_secs(61)).await;
        let status = handle.status();
        assert_eq!(status.filter, "warn", "the end of the first one does not end the second one");
        assert_eq!(status.remaining, Some(Duration::from_secs(539)));
        tokio::time::sleep(Duration::from_secs(540)).await;
        assert_eq!((filter_of(&handle).as_str(), handle.status().remaining), ("info", None));
    }

    #[tokio::test(start_paused = true)]
    async fn another_configured_filter_ends_that_of_an_operator() {
        let (handle, _layer) = handle();
        handle.set_for("debug", Duration::from_secs(60)).unwrap();
        handle.configure("info").unwrap();
        assert_eq!(filter_of(&handle), "debug", "the configuration has not changed");
        handle.configure("warn").unwrap();
        let status = handle.status();
        assert_eq!((status.filter.as_str(), status.remaining), ("warn", None));
        tokio::time::sleep(Duration::from_secs(61)).await;
        assert_eq!(filter_of(&handle), "warn");
    }

    #[tokio::test]
    async fn an_invalid_filter_changes_nothing() {
        let (handle, _layer) = handle();
        handle.set_for("debug", Duration::from_secs(60)).unwrap();
        assert!(handle.set_for("loud", Duration::from_secs(60)).is_err());
        assert_eq!((filter_of(&handle), handle.status().filter), ("debug".into(), "debug".into()));
        handle.reset();
        assert_eq!(filter_of(&handle), "info");
    }
}
