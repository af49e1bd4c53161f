//! Writes the lines of the log to standard error from a thread of its own. Logging code waits
//! neither for a disk nor for a reader.
//!
//! Invariant: waiting lines are bounded in number and in bytes. A line without capacity is dropped
//! and counted. When no line waits any more, the log reports the number of dropped lines.

use std::{
    io::{self, Write},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel},
    },
    time::{Duration, Instant},
};

use rules::limits::{LOG_FLUSH_WAIT, LOG_LINES_BYTES_MAX, LOG_LINES_MAX};
use tracing_subscriber::fmt::MakeWriter;

use crate::metrics::process;

/// Queue of lines for the writer thread.
#[derive(Debug, Clone)]
pub(super) struct LogWriter {
    queue: SyncSender<WriterCommand>,
    /// Number of bytes in the waiting lines.
    waiting: Arc<AtomicUsize>,
}

#[derive(Debug)]
enum WriterCommand {
    Line(Vec<u8>),
    /// Answered when everything before it is written.
    Written(SyncSender<()>),
}

impl LogWriter {
    /// Starts the writer thread.
    pub(super) fn to(out: impl Write + Send + 'static) -> io::Result<Self> {
        let (queue, steps) = sync_channel(LOG_LINES_MAX);
        let waiting = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&waiting);
        std::thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || write(&steps, out, &counted))?;
        Ok(Self { queue, waiting })
    }

    fn put(&self, line: &[u8]) {
        let bytes = line.len();
        // A line that does not fit takes no capacity, not even during the check.
        let with_it =
            |waiting: usize| waiting.checked_add(bytes).filter(|all| *all <= LOG_LINES_BYTES_MAX);
        if self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, with_it).is_err() {
            return process::log_line_dropped();
        }
        if self.queue.try_send(WriterCommand::Line(line.to_vec())).is_err() {
            self.waiting.fetch_sub(bytes, Ordering::Relaxed);
            process::log_line_dropped();
        }
    }

    /// Waits until the lines so far are written, within a time limit.
    fn flush(&self) {
        let until = Instant::now() + LOG_FLUSH_WAIT;
        let (written_tx, written) = sync_channel(1);
        let mut step = WriterCommand::Written(written_tx);
        while let Err(TrySendError::Full(full)) = self.queue.try_send(step) {
            if Instant::now() >= until {
                return;
            }
            step = full;
            std::thread::sleep(Duration::from_millis(1));
        }
        let _in_time = written.recv_timeout(until.saturating_duration_since(Instant::now()));
    }
}

/// Writes lines. Ends with the last [`LogWriter`], or with the process.
fn write(steps: &Receiver<WriterCommand>, mut out: impl Write, waiting: &AtomicUsize) {
    let (mut reported, mut is_taken) = (process::log_lines_dropped(), true);
    loop {
        let step = match steps.try_recv() {
            Ok(step) => Ok(step),
            Err(TryRecvError::Disconnected) => return,
            Err(TryRecvError::Empty) => {
                // The queue has capacity for it now.
                let dropped = process::log_lines_dropped();
                if is_taken && dropped > reported {
                    tracing::warn!(
                        lines = dropped - reported,
                        "lines of the log are missing: the reader did not take them in time"
                    );
                    // This line may itself have been dropped. It is then repeated.
                    if process::log_lines_dropped() == dropped {
                        reported = dropped;
                    }
                }
                steps.recv()
            }
        };
        let Ok(step) = step else { return };
        match step {
            WriterCommand::Line(line) => {
                // A failed write cannot be reported now. It is reported after the next successful
                // one.
                is_taken = out.write_all(&line).is_ok();
                if !is_taken {
                    process::log_line_dropped();
                }
                waiting.fetch_sub(line.len(), Ordering::Relaxed);
            }
            WriterCommand::Written(written_tx) => drop(written_tx),
        }
    }
}

impl<'a> MakeWriter<'a> for LogWriter {
    type Writer = LogLine<'a>;

    fn make_writer(&'a self) -> LogLine<'a> {
        LogLine(self)
    }
}

/// Writer for one line, which arrives in one piece.
pub(super) struct LogLine<'a>(&'a LogWriter);

impl Write for LogLine<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.put(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Waits at its drop until the lines so far are written, if the output accepts them.
#[must_use = "the last lines are lost without it"]
pub struct FlushGuard(pub(super) LogWriter);

impl Drop for FlushGuard {
    fn drop(&mut self) {
        self.0.flush();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{atomic::AtomicBool, mpsc::channel};

    use super::*;

    /// An output that accepts lines on command.
    struct Slow {
        proceed: Receiver<()>,
        read: std::sync::mpsc::Sender<Vec<u8>>,
    }

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _gone = self.proceed.recv();
            let _ = self.read.send(bytes.to_vec());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Returns a writer whose output accepts one line per message in `step`, and the accepted
    /// lines.
    fn slow() -> (LogWriter, std::sync::mpsc::Sender<()>, Receiver<Vec<u8>>) {
        let ((step, proceed), (read, lines_read)) = (channel(), channel());
        (LogWriter::to(Slow { proceed, read }).unwrap(), step, lines_read)
    }

    /// Writes lines, of which at least the given number are dropped.
    fn drops(lines: &LogWriter, at_least: usize, all: impl IntoIterator<Item = Vec<u8>>) {
        let before = process::log_lines_dropped();
        all.into_iter().for_each(|line| lines.make_writer().write_all(&line).unwrap());
        assert!(process::log_lines_dropped() >= before + at_least as u64);
    }

    /// Lets the output accept everything, and returns all lines that waited.
    fn all_that_waited(
        lines: &LogWriter,
        step: std::sync::mpsc::Sender<()>,
        read: &Receiver<Vec<u8>>,
    ) -> Vec<Vec<u8>> {
        drop(step);
        let deadline = Instant::now() + Duration::from_secs(60);
        while lines.waiting.load(Ordering::Relaxed) > 0 {
            assert!(
                Instant::now() < deadline,
                "{} bytes are never written",
                lines.waiting.load(Ordering::Relaxed)
            );
            lines.flush();
        }
        read.try_iter().collect()
    }

    #[test]
    fn logging_never_waits_for_a_slow_reader_and_waiting_bytes_are_bounded() {
        let (lines, step, read) = slow();
        let long = vec![b'x'; LOG_LINES_BYTES_MAX / 100];
        drops(&lines, 900, std::iter::repeat_n(long.clone(), 1_000));
        assert!(lines.waiting.load(Ordering::Relaxed) <= LOG_LINES_BYTES_MAX);
        assert!(all_that_waited(&lines, step, &read) == vec![long; 100]);
    }

    #[test]
    fn waiting_log_lines_are_bounded_and_keep_their_order() {
        let (lines, step, read) = slow();
        let all: Vec<Vec<u8>> =
            (0..3 * LOG_LINES_MAX).map(|n| format!("{n}\n").into_bytes()).collect();
        drops(&lines, 2 * LOG_LINES_MAX - 1, all.iter().cloned());
        let kept = all_that_waited(&lines, step, &read);
        // The output already has the first line, which then no longer waits.
        assert!((LOG_LINES_MAX..=LOG_LINES_MAX + 1).contains(&kept.len()), "{}", kept.len());
        assert_eq!(kept[..LOG_LINES_MAX], all[..LOG_LINES_MAX]);
    }

    #[test]
    fn only_a_line_that_is_too_long_is_dropped() {
        const SMALL: usize = 20_000;
        let (lines, step, read) = slow();
        drop(step); // who reads never waits
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let large = vec![b'x'; LOG_LINES_BYTES_MAX + 1];
                while !is_over.load(Ordering::Relaxed) {
                    lines.make_writer().write_all(&large).unwrap();
                }
            });
            for _ in 0..SMALL {
                lines.make_writer().write_all(b"small\n").unwrap();
                while lines.waiting.load(Ordering::Relaxed) > 1_000 {
                    std::thread::yield_now();
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
        lines.flush();
        drop(lines); // which ends what is read
        assert_eq!(read.iter().filter(|line| line == b"small\n").count(), SMALL);
    }
}
