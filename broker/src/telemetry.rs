//! Logs: one line per event on standard error, as text for people or JSON for machines.
//! [`crate::serve`] sets it up once. The filter can be changed while the broker runs.
//!
//! Meaning of the levels:
//! - `error`: an operator must act.
//! - `warn`: a state differs from the configuration, or a peer misbehaves.
//! - `info`: the life of the process and of the entries that operators manage.
//! - `debug`: single sessions and calls.

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    io::{self, IsTerminal as _},
};

use tracing_subscriber::{
    Layer as _, fmt, layer::SubscriberExt as _, reload, util::SubscriberInitExt as _,
};

pub mod activity;
pub mod audit;
pub mod child_span;
pub mod context;
mod export;
pub mod free_refusals;
pub mod inbound_context;
mod log_filter;
mod log_format;
mod log_writer;
pub mod redaction;
pub mod request;
pub mod secrets;
pub mod traces;

use config::{LogFormat, TelemetryConfig, log_filter::parse_log_filter};

pub use self::{
    export::{ExporterHandle, start as start_export},
    log_filter::{LogFilterHandle, LogFilterStatus},
    log_writer::FlushGuard,
};
use self::{log_format::WithRequestIds, log_writer::LogWriter};

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

/// Sets up the log. Events are logged from now on.
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
    // The filter is first, because the type of its handle depends on the layers below it.
    tracing_subscriber::registry()
        .with(filter)
        .with(lines)
        .try_init()
        .map_err(|_| TelemetryError::SetUpTwice)?;
    std::panic::set_hook(Box::new(log_panic));
    Ok((LogFilterHandle::new(handle, &telemetry.log), FlushGuard(written)))
}

/// Logs a panic as one line like any other event, in every format.
fn log_panic(fault: &std::panic::PanicHookInfo<'_>) {
    let backtrace = Backtrace::capture();
    match backtrace.status() {
        BacktraceStatus::Captured => tracing::error!(%fault, %backtrace, "internal fault"),
        _ => tracing::error!(%fault, "internal fault"),
    }
}
