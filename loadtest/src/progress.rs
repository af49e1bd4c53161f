//! Display of a running load: a bar on a terminal, a line now and then elsewhere.

use std::{
    io::{IsTerminal as _, Write as _},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::run::Progress;

/// Interval between lines when standard error is not a terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);
const BAR: usize = 30;

/// Writes to standard error, because standard output is for results.
#[derive(Debug)]
pub struct ProgressDisplay {
    is_terminal: bool,
    last: Mutex<Option<Instant>>,
}

impl Default for ProgressDisplay {
    fn default() -> Self {
        Self { is_terminal: std::io::stderr().is_terminal(), last: Mutex::default() }
    }
}

impl ProgressDisplay {
    pub fn show(&self, progress: Progress) {
        let mut out = std::io::stderr();
        // An error of standard error does not affect the load.
        if self.is_terminal {
            let _unseen = write!(out, "\r\x1b[2K{}", bar(progress)).and_then(|()| out.flush());
        } else if self.line_is_due() {
            let _unseen = writeln!(out, "{}", line(progress));
        }
    }

    /// Removes the bar after the last update.
    pub fn done(&self) {
        if self.is_terminal {
            let _unseen = std::io::stderr().write_all(b"\r\x1b[2K");
        }
    }

    fn line_is_due(&self) -> bool {
        let mut last = self.last.lock();
        let due = last.is_none_or(|last| last.elapsed() >= LINE_EVERY);
        if due {
            *last = Some(Instant::now());
        }
        due
    }
}

fn bar(progress: Progress) -> String {
    let done =
        (progress.at.as_secs_f64() / progress.of.as_secs_f64().max(f64::MIN_POSITIVE)).min(1.0);
    let filled = (done * BAR as f64) as usize;
    format!(
        "[{}{}] {:3.0} % {}",
        "#".repeat(filled),
        ".".repeat(BAR - filled),
        done * 100.0,
        line(progress)
    )
}

fn line(Progress { at, of, calls, wrong }: Progress) -> String {
    let alarm = if wrong > 0 { format!(", {wrong} WRONG") } else { String::new() };
    format!("{:.0} of {:.0} s, {calls} calls{alarm}", at.as_secs_f64(), of.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_progress_bar_shows_the_elapsed_part() {
        let progress = Progress {
            at: Duration::from_secs(5),
            of: Duration::from_secs(10),
            calls: 7,
            wrong: 0,
        };
        assert_eq!(bar(progress), "[###############...............]  50 % 5 of 10 s, 7 calls");
        assert!(line(Progress { wrong: 2, ..progress }).ends_with("2 WRONG"));
    }
}
