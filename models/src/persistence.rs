//! The event log as streams see it: entries in an order.

use std::sync::Arc;

use parking_lot::Mutex;
use records::LogEntry;

/// Keeps the entries that streams write.
#[derive(Debug, Clone, Default)]
pub struct EventWriter(Arc<Mutex<Vec<LogEntry>>>);

impl EventWriter {
    /// The log takes every event: its bytes have no limit here.
    pub fn admits(&self, _bytes: usize) -> bool {
        true
    }

    /// Adds an entry.
    pub fn log(&self, entry: LogEntry) {
        self.0.lock().push(entry);
    }

    /// Returns the entries so far.
    pub fn entries(&self) -> Vec<LogEntry> {
        self.0.lock().clone()
    }
}
