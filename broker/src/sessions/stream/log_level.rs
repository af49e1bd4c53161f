//! The log level of a stateless request, which belongs to the stream of its answer.

use rules::log_level::LogLevel;

use super::EventStream;

impl EventStream {
    /// Sets the lowest level of the log messages about the stream's request.
    pub fn set_log_level(&self, level: Option<LogLevel>) {
        *self.log_level.lock() = level;
    }

    /// Returns the lowest level of the log messages about the stream's request. `None`: the request
    /// has no level of its own.
    pub fn log_level(&self) -> Option<LogLevel> {
        *self.log_level.lock()
    }
}
