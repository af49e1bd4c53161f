//! Logs: one line per event on standard error, as text for people or JSON for machines. Set up once by [`crate::serve`];
//! the filter can be changed while the broker runs.
//!
//! What a level promises: `error` needs somebody's attention, `warn` says something is not as configured or a peer
//! misbehaves, `info` is the life of the process and of what operators manage, `debug` is single sessions and calls.

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    io::{self, IsTerminal as _},
};

use tracing_subscriber::{
    EnvFilter, Layer as _, Registry, fmt, layer::SubscriberExt as _, reload,
    util::SubscriberInitExt as _,
};

pub mod audit;
pub mod child_span;
pub mod context;
mod export;
pub mod inbound_context;
mod log_format;
mod log_writer;
pub mod redaction;
pub mod request;
pub mod secrets;
pub mod traces;

pub use self::{
    export::{ExporterHandle, begin as begin_export},
    log_writer::FlushGuard,
};
use self::{log_format::WithRequestIds, log_writer::LogWriter};
use crate::config::{LogFormat, TelemetryConfig, log_filter::parse_log_filter};

#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    #[error("log filter {0}")]
    Filter(String),
    #[error("the log was set up already")]
    SetUpTwice,
    #[error("the log is gone")]
    Gone,
    #[error("the operating system refused a thread for the log: {0}")]
    Thread(io::Error),
}

/// The hand on the filter.
pub struct LogFilterHandle {
    filter: reload::Handle<EnvFilter, Registry>,
}

/// From here on events are logged.
pub fn init(telemetry: &TelemetryConfig) -> Result<(LogFilterHandle, FlushGuard), TelemetryError> {
    let (filter, handle) =
        reload::Layer::new(parse_log_filter(&telemetry.log).map_err(TelemetryError::Filter)?);
    let colored = io::stderr().is_terminal();
    let written = LogWriter::to(io::stderr()).map_err(TelemetryError::Thread)?;
    let lines = fmt::layer().with_writer(written.clone()).with_ansi(colored);
    let lines = match telemetry.log_format {
        LogFormat::Text => {
            lines.map_event_format(|format| WithRequestIds(format.with_ansi(colored))).boxed()
        }
        LogFormat::Json => {
            lines.json().flatten_event(true).map_event_format(WithRequestIds).boxed()
        }
    };
    // The filter stands first: its handle is typed by what is below it.
    tracing_subscriber::registry()
        .with(filter)
        .with(lines)
        .try_init()
        .map_err(|_| TelemetryError::SetUpTwice)?;
    std::panic::set_hook(Box::new(log_panic));
    Ok((LogFilterHandle { filter: handle }, FlushGuard(written)))
}

/// A fault of the broker is one line of the log like any other event, whatever its format.
fn log_panic(fault: &std::panic::PanicHookInfo<'_>) {
    let backtrace = Backtrace::capture();
    match backtrace.status() {
        BacktraceStatus::Captured => tracing::error!(%fault, %backtrace, "internal fault"),
        _ => tracing::error!(%fault, "internal fault"),
    }
}

impl LogFilterHandle {
    /// Changes what is logged from now on.
    pub fn set_filter(&self, text: &str) -> Result<(), TelemetryError> {
        let filter = parse_log_filter(text).map_err(TelemetryError::Filter)?;
        self.filter.reload(filter).map_err(|_| TelemetryError::Gone)
    }
}
