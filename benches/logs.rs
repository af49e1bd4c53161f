//! Measures the cost of a log line for the thread that logs it, and the bytes that wait while the
//! log is not read.
//!
//! The broker's writer (`telemetry::log_writer`) is compared with the one of tracing-appender. Both
//! pass lines to a thread that writes them, and drop lines that do not fit.

use std::{
    fs::File,
    io::{self, Write},
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::ensure;
use benches::{Scale, Table, median, shown};
use tracing_appender::non_blocking::NonBlockingBuilder;
use tracing_subscriber::fmt::MakeWriter;

use rules::limits::LOG_LINES_MAX;

// The module is included by its source, with what it takes from its crate: building the whole
// broker takes minutes.
#[allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    reason = "a part of it is measured, and none of its tests"
)]
#[path = "../broker/src/telemetry/log_writer.rs"]
mod log_writer;

mod metrics {
    pub(crate) mod process {
        use std::sync::atomic::{AtomicU64, Ordering};

        static DROPPED: AtomicU64 = AtomicU64::new(0);

        pub(crate) fn log_line_dropped() {
            DROPPED.fetch_add(1, Ordering::Relaxed);
        }

        pub(crate) fn log_lines_dropped() -> u64 {
            DROPPED.load(Ordering::Relaxed)
        }
    }
}

/// Lines that one thread logs before it waits for the writer; few enough that all fit.
const BURST_LINES: usize = 1_000;
const LINE_BYTES: usize = 200;
/// A line with a long field, such as an error of a backend.
const LONG_LINE_BYTES: usize = 16 * 1024;
/// Longest wait for a writer.
const DEADLINE: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    benches::main("logs", bench)
}

async fn bench(scale: Scale) -> anyhow::Result<()> {
    let mut table =
        Table::new(["threads", "writer", "a line, for the thread that logs", "of ours"]);
    for threads in [1, 4] {
        let mut times = [Vec::new(), Vec::new()];
        let (ours, theirs) = (Output::new(false)?, Output::new(false)?);
        let lines = log_writer::LogWriter::to(ours.clone())?;
        let (appender, _guard) = NonBlockingBuilder::default()
            .buffered_lines_limit(LOG_LINES_MAX)
            .finish(theirs.clone());
        for _ in 0..scale.of(100, 2) {
            times[0].push(burst(threads, &lines, &ours)?);
            times[1].push(burst(threads, &appender, &theirs)?);
        }
        let times = times.map(median);
        for (name, time) in ["ours", "tracing-appender"].iter().zip(times) {
            let ratio = format!("{:.2}", time / times[0]);
            table.row([
                threads.to_string(),
                (*name).to_owned(),
                shown(Duration::from_secs_f64(time)),
                ratio,
            ]);
        }
    }
    table
        .print(&format!("Lines of {LINE_BYTES} bytes, in bursts of {BURST_LINES} for each thread"));
    unread(scale)
}

/// Logs a burst on each of so many threads; returns seconds for each line.
fn burst<W: for<'a> MakeWriter<'a> + Sync>(
    threads: usize,
    log: &W,
    output: &Output,
) -> anyhow::Result<f64> {
    let (line, before) = (vec![b'x'; LINE_BYTES], output.bytes.load(Ordering::Relaxed));
    let time: Duration = std::thread::scope(|scope| {
        let logging = || {
            let started = Instant::now();
            for _ in 0..BURST_LINES {
                log.make_writer().write_all(&line).expect("a log takes every line");
            }
            started.elapsed()
        };
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(logging)).collect();
        all.into_iter().map(|thread| thread.join().expect("no thread fails")).sum()
    });
    let started = Instant::now();
    while output.bytes.load(Ordering::Relaxed) < before + threads * BURST_LINES * LINE_BYTES {
        ensure!(started.elapsed() < DEADLINE, "lines are missing");
        std::thread::yield_now();
    }
    Ok(time.as_secs_f64() / (threads * BURST_LINES) as f64)
}

/// Measures how much each writer keeps for a reader that takes nothing.
fn unread(scale: Scale) -> anyhow::Result<()> {
    let (line, count) = (vec![b'x'; LONG_LINE_BYTES], scale.of(2 * LOG_LINES_MAX, 16));
    let (ours, theirs) = (Output::new(true)?, Output::new(true)?);
    let lines = log_writer::LogWriter::to(ours.clone())?;
    let dropped = metrics::process::log_lines_dropped();
    (0..count).try_for_each(|_| lines.make_writer().write_all(&line))?;
    let dropped_of_ours = metrics::process::log_lines_dropped() - dropped;
    let (mut appender, _guard) =
        NonBlockingBuilder::default().buffered_lines_limit(LOG_LINES_MAX).finish(theirs.clone());
    (0..count).try_for_each(|_| appender.write_all(&line))?;
    let mut table = Table::new(["writer", "lines logged", "lines that wait", "bytes that wait"]);
    for (name, dropped) in [
        ("ours", dropped_of_ours),
        ("tracing-appender", appender.error_counter().dropped_lines() as u64),
    ] {
        let waiting = count - usize::try_from(dropped)?;
        let bytes = format!("{:.1} MiB", (waiting * LONG_LINE_BYTES) as f64 / 1024.0 / 1024.0);
        table.row([name.to_owned(), count.to_string(), waiting.to_string(), bytes]);
    }
    table.print(&format!("Lines of {} KiB while the log is not read", LONG_LINE_BYTES / 1024));
    ours.is_stuck.store(false, Ordering::Relaxed);
    theirs.is_stuck.store(false, Ordering::Relaxed);
    Ok(())
}

/// Destination of lines.
#[derive(Debug, Clone)]
struct Output {
    file: Arc<File>,
    bytes: Arc<AtomicUsize>,
    is_stuck: Arc<AtomicBool>,
}

impl Output {
    /// Creates a file, as standard error often is. `is_stuck`: it takes nothing for now.
    fn new(is_stuck: bool) -> io::Result<Self> {
        Ok(Self {
            file: Arc::new(tempfile::tempfile()?),
            bytes: Arc::default(),
            is_stuck: Arc::new(AtomicBool::new(is_stuck)),
        })
    }
}

impl Write for Output {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        while self.is_stuck.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let written = (&*self.file).write(line)?;
        self.bytes.fetch_add(written, Ordering::Relaxed);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
