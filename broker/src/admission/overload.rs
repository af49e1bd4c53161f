//! Overload protection: refuses new requests at once, so that accepted requests can end.
//!
//! A process is overloaded for one of three reasons:
//!
//! - Little memory is left.
//! - Ready work waits too long for a processor.
//! - Too many requests wait for an answer.
//!
//! A separate thread samples the process, so that it notices a busy runtime. A request only reads
//! one number. Pings, answers, notifications, session ends, health checks and the admin API are
//! always admitted.

use std::{
    fs, io,
    sync::{
        Arc, Weak,
        atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use protocol::error::{ErrorKind, Refusal};
use rules::limits::{
    OUTBOX_BYTES_TOTAL_DEFAULT, OVERLOAD_RETRY, OVERLOAD_SAMPLE_INTERVAL,
    OVERLOAD_SAMPLES_IN_A_ROW, RELAYED_UNREAD_BYTES_MAX, RETAINED_EVENTS_BYTES_MAX,
    UNFINISHED_TENANT_BYTES_MAX,
};

use crate::metrics::{Metrics, process};

/// Percent of the limit by which the used memory must fall below the mark before the broker admits
/// requests again.
const RELIEF_PERCENT: u64 = 5;

/// Pause before another attempt to start the sampling thread.
const START_RETRY: Duration = Duration::from_secs(1);

const MEMORY: u8 = 1;
const QUEUE: u8 = 2;

#[derive(Debug)]
pub struct OverloadManager {
    /// Bits of the current reasons: [`MEMORY`] and [`QUEUE`].
    reasons: AtomicU8,
    pending: AtomicUsize,
    pending_max: usize,
    /// Time at which the current probe was queued in the runtime, in nanoseconds since `started`. 0
    /// without a probe.
    probe_sent_ns: AtomicU64,
    /// Time that the last probe waited.
    probe_waited_ns: AtomicU64,
    started: Instant,
    metrics: Arc<Metrics>,
}

impl OverloadManager {
    pub fn new(settings: &config::OverloadConfig, metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self {
            reasons: AtomicU8::new(0),
            pending: AtomicUsize::new(0),
            pending_max: settings.requests_pending,
            probe_sent_ns: AtomicU64::new(0),
            probe_waited_ns: AtomicU64::new(0),
            started: Instant::now(),
            metrics,
        })
    }

    /// Starts the sampling thread, unless there is nothing to sample. Must be called inside the
    /// runtime.
    pub fn watch(self: &Arc<Self>, settings: &config::OverloadConfig) {
        self.watch_on(settings, |sampling| {
            let thread = std::thread::Builder::new().name("overload".to_owned());
            thread.spawn(sampling).map(drop)
        });
    }

    /// Samples on a thread that `start` starts. Tries again later if that fails, for example for
    /// lack of memory or at a limit of threads.
    fn watch_on(
        self: &Arc<Self>,
        settings: &config::OverloadConfig,
        start: impl Fn(Sampling) -> io::Result<()> + Send + 'static,
    ) {
        let memory = MemoryLimit::find(settings);
        if memory.is_none() && settings.queue_delay.is_zero() {
            return;
        }
        let (overload, runtime, queue_delay) =
            (Arc::downgrade(self), tokio::runtime::Handle::current(), settings.queue_delay);
        let (present, spawner) = (overload.clone(), runtime.clone());
        let try_start = move || {
            let (overload, runtime, memory) = (overload.clone(), runtime.clone(), memory.clone());
            start(Box::new(move || watch(&overload, &runtime, memory, queue_delay)))
        };
        let Err(error) = try_start() else { return };
        tracing::error!(%error, "the overload check of memory and queue delay is off until its thread can start");
        spawner.spawn(async move {
            while present.strong_count() > 0 {
                tokio::time::sleep(START_RETRY).await;
                if try_start().is_ok() {
                    return tracing::info!("the overload check of memory and queue delay is on");
                }
            }
        });
    }

    /// Returns an error if a new request must be refused, and counts the refusal.
    pub fn admits(&self) -> Result<(), Refusal> {
        let Some((reason, text)) = self.excess() else { return Ok(()) };
        self.metrics.limits.shed(reason);
        Err(Refusal::new(ErrorKind::Overloaded, text)
            .with("reason", reason)
            .retry_after(OVERLOAD_RETRY))
    }

    /// Returns whether a new request would be refused.
    pub fn is_over(&self) -> bool {
        self.excess().is_some()
    }

    fn excess(&self) -> Option<(&'static str, &'static str)> {
        match self.reasons.load(Ordering::Relaxed) {
            0 if self.pending.load(Ordering::Relaxed) < self.pending_max => None,
            0 => Some(("pending", "too many requests wait for an answer")),
            reasons if reasons & MEMORY != 0 => {
                Some(("memory", "the broker is near its memory limit"))
            }
            _ => Some(("queue", "the broker has more work than its processors can handle")),
        }
    }

    /// Counts a request that begins or ends.
    pub fn count_pending(&self, is_start: bool) {
        if is_start {
            self.pending.fetch_add(1, Ordering::Relaxed);
        } else {
            self.pending.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Sets or clears a reason. Logs and counts a change.
    fn set(&self, reason: u8, name: &'static str, holds: bool, why: &str) {
        let before = match holds {
            true => self.reasons.fetch_or(reason, Ordering::Relaxed),
            false => self.reasons.fetch_and(!reason, Ordering::Relaxed),
        };
        if (before & reason != 0) == holds {
            return;
        }
        self.metrics.limits.overloaded(name, holds);
        if holds {
            tracing::warn!(reason = name, why, "overloaded: new requests are refused");
        } else {
            tracing::info!(reason = name, why, "an overload condition has ended");
        }
    }

    fn since_start_ns(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX).max(1)
    }

    /// Returns the current delay of ready work, and sends the next probe.
    fn queue_delay(self: &Arc<Self>, runtime: &tokio::runtime::Handle) -> Duration {
        let now = self.since_start_ns();
        let waiting = match self.probe_sent_ns.load(Ordering::Acquire) {
            0 => self.probe_waited_ns.load(Ordering::Relaxed),
            sent => now.saturating_sub(sent),
        };
        if self.probe_sent_ns.compare_exchange(0, now, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            let overload = self.clone();
            // Spawned from outside the runtime, so that it enters the queue that all worker threads
            // share.
            runtime.spawn(async move {
                let sent = overload.probe_sent_ns.load(Ordering::Acquire);
                overload
                    .probe_waited_ns
                    .store(overload.since_start_ns().saturating_sub(sent), Ordering::Relaxed);
                overload.probe_sent_ns.store(0, Ordering::Release);
            });
        }
        Duration::from_nanos(waiting)
    }
}

/// The work of the sampling thread.
type Sampling = Box<dyn FnOnce() + Send>;

fn watch(
    overload: &Weak<OverloadManager>,
    runtime: &tokio::runtime::Handle,
    mut memory: Option<MemoryLimit>,
    queue_delay: Duration,
) {
    let mut late = 0;
    loop {
        std::thread::sleep(OVERLOAD_SAMPLE_INTERVAL);
        let Some(overload) = overload.upgrade() else { return };
        if let Some(limit) = &mut memory {
            limit.refresh();
            // A reading that fails, for lack of descriptors for example, changes nothing.
            if let Some(used) = limit.used() {
                let sheds = overload.reasons.load(Ordering::Relaxed) & MEMORY != 0;
                let why = format!("{used} of {} bytes are used", limit.bytes);
                overload.set(MEMORY, "memory", limit.is_exceeded(used, sheds), &why);
            }
        }
        if !queue_delay.is_zero() {
            let waited = overload.queue_delay(runtime);
            overload.metrics.limits.queue_delay(waited);
            // One late sample may be the machine's fault. Several in a row show an overload.
            late = if waited >= queue_delay {
                (late + 1).min(OVERLOAD_SAMPLES_IN_A_ROW)
            } else {
                late.saturating_sub(1)
            };
            let sheds = overload.reasons.load(Ordering::Relaxed) & QUEUE != 0;
            let holds = late >= OVERLOAD_SAMPLES_IN_A_ROW || (sheds && late > 0);
            overload.set(
                QUEUE,
                "queue",
                holds,
                &format!("ready tasks waited {waited:?} for a processor"),
            );
        }
    }
}

/// The memory limit of the process, with the source of the used bytes.
#[derive(Debug, Clone)]
struct MemoryLimit {
    bytes: u64,
    percent: u64,
    /// The cgroup that sets the limit. Its other processes count too.
    cgroup: Option<Cgroup>,
}

impl MemoryLimit {
    fn find(settings: &config::OverloadConfig) -> Option<Self> {
        let percent = u64::from(settings.memory_percent);
        if let Some(bytes) = settings.memory_bytes {
            return Some(Self { bytes: bytes as u64, percent, cgroup: None });
        }
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let (cgroup, bytes) = Cgroup::find(&own)?;
        Some(Self { bytes, percent, cgroup: Some(cgroup) })
    }

    /// Reads the limit of the cgroup again: that of a running container can change. A limit that
    /// cannot be read stays.
    fn refresh(&mut self) {
        let limits = self.cgroup.iter().flat_map(|cgroup| &cgroup.max);
        if let Some(bytes) = limits.filter_map(|file| limit_in(file)).min() {
            self.bytes = bytes;
        }
    }

    /// Returns the number of used bytes from which new requests are refused.
    fn mark(&self) -> u64 {
        self.bytes / 100 * self.percent
    }

    /// Returns the used bytes, or `None` if they cannot be read now.
    fn used(&self) -> Option<u64> {
        let resident = process::resident_bytes();
        match self.cgroup.as_ref().map(Cgroup::used) {
            Some(Ok(used)) => Some(used.max(resident.unwrap_or(0))),
            // The process is in another cgroup now.
            Some(Err(error)) if error.kind() == io::ErrorKind::NotFound => resident,
            Some(Err(_)) => None,
            None => resident,
        }
    }

    fn is_exceeded(&self, used: u64, already: bool) -> bool {
        let percent =
            if already { self.percent.saturating_sub(RELIEF_PERCENT) } else { self.percent };
        used / 100 * 100 >= self.bytes / 100 * percent
    }
}

/// The files of a memory controller (cgroup v2 or v1).
#[derive(Debug, Clone)]
struct Cgroup {
    /// Files with the limits of the group and of the groups around it: a higher limit of the group
    /// does not exceed theirs.
    max: Vec<String>,
    current: String,
    stat: String,
    /// Prefix of the names in `stat`.
    prefix: &'static str,
}

/// Value from which a limit means that there is none. v1 uses a very large number for that.
const NO_LIMIT: u64 = 1 << 60;

impl Cgroup {
    /// Returns the tightest limit between the process's own group and the root. `own` is the text
    /// of `/proc/self/cgroup`.
    fn find(own: &str) -> Option<(Self, u64)> {
        let (root, path, max, current, prefix) = own.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            if controllers.is_empty() {
                return Some(("/sys/fs/cgroup", path, "memory.max", "memory.current", ""));
            }
            let v1 = controllers.split(',').any(|name| name == "memory");
            v1.then_some((
                "/sys/fs/cgroup/memory",
                path,
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
                "total_",
            ))
        })?;
        let mut tightest: Option<(Self, u64)> = None;
        let mut path = path.trim_end_matches('/');
        loop {
            let folder = format!("{root}{path}");
            let max = format!("{folder}/{max}");
            if let Some(limit) = limit_in(&max)
                && tightest.as_ref().is_none_or(|(_, known)| limit < *known)
            {
                let cgroup = Self {
                    max: vec![max],
                    current: format!("{folder}/{current}"),
                    stat: format!("{folder}/memory.stat"),
                    prefix,
                };
                tightest = Some((cgroup, limit));
            } else if let Some((cgroup, _)) = &mut tightest {
                cgroup.max.push(max);
            }
            match path.rsplit_once('/') {
                Some((parent, _)) => path = parent,
                None => return tightest,
            }
        }
    }

    fn used(&self) -> io::Result<u64> {
        let current = fs::read_to_string(&self.current)?;
        let current: u64 = current.trim().parse().map_err(io::Error::other)?;
        let stat = match fs::read_to_string(&self.stat) {
            // Some systems, such as gVisor, do not have this file.
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            read => read?,
        };
        Ok(current.saturating_sub(reclaimable(&stat, self.prefix)))
    }
}

/// Returns the limit in a file of a cgroup, or `None` without one.
fn limit_in(file: &str) -> Option<u64> {
    let limit: u64 = fs::read_to_string(file).ok()?.trim().parse().ok()?;
    (limit < NO_LIMIT).then_some(limit)
}

/// Returns the bytes that the kernel can reclaim when memory is needed: clean pages of files, and
/// caches of names and inodes, which v1 does not report. Pages of files in memory (tmpfs) do not
/// count.
fn reclaimable(stat: &str, prefix: &str) -> u64 {
    // v1 and v2 use different names for pages that are being written.
    let of = |name: &str| {
        stat.lines().find_map(|line| {
            line.strip_prefix(prefix)?.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok()
        })
    };
    let sum =
        |names: &[&str]| names.iter().filter_map(|name| of(name)).fold(0_u64, u64::saturating_add);
    let unwritten = sum(&["dirty", "writeback", "file_dirty", "file_writeback"]);
    let clean = sum(&["inactive_file", "active_file"]).saturating_sub(unwritten);
    clean.saturating_add(sum(&["slab_reclaimable"]))
}

/// Returns the limit of the bytes that wait for all clients. Logs a warning if the configured value
/// does not fit below the memory limit.
///
/// Without a configured value, the limit is [`OUTBOX_BYTES_TOTAL_DEFAULT`], or a quarter of the
/// memory mark if that is less. Above the mark, new requests are refused.
pub fn outbox_bytes_total(config: &config::Config) -> usize {
    let allowed = MemoryLimit::find(&config.overload).map(|limit| limit.mark());
    let (total, fits) = outbox_total_of(config.limits.outbox_bytes_total, allowed);
    if let (false, Some(allowed)) = (fits, allowed) {
        tracing::warn!(
            outbox_bytes_total = total,
            allowed,
            "limits.outbox_bytes_total does not fit below the memory limit: clients that do not read may use up all memory"
        );
    }
    total
}

/// Returns the limit of incomplete messages of one tenant's clients, in bytes.
pub fn unfinished_tenant_bytes(config: &config::Config) -> usize {
    part_of_memory(config, UNFINISHED_TENANT_BYTES_MAX, 16)
}

/// Returns the limit of delivered events that clients may request again, in bytes.
pub fn retained_events_bytes(config: &config::Config) -> usize {
    part_of_memory(config, RETAINED_EVENTS_BYTES_MAX, 8)
}

/// Returns the limit of unread bytes of answers and tunnels of other replicas.
pub fn relayed_unread_bytes(config: &config::Config) -> usize {
    part_of_memory(config, RELAYED_UNREAD_BYTES_MAX, 8)
}

/// Returns `most`, or the memory mark divided by `divisor` if that is less.
fn part_of_memory(config: &config::Config, most: usize, divisor: u64) -> usize {
    let mark = MemoryLimit::find(&config.overload).map(|limit| limit.mark() / divisor);
    mark.and_then(|part| usize::try_from(part).ok()).map_or(most, |part| part.min(most))
}

fn outbox_total_of(configured: Option<usize>, allowed: Option<u64>) -> (usize, bool) {
    let allowed = allowed.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
    match configured {
        Some(total) => (total, allowed.is_none_or(|allowed| total < allowed)),
        None => (
            allowed.map_or(OUTBOX_BYTES_TOTAL_DEFAULT, |allowed| {
                OUTBOX_BYTES_TOTAL_DEFAULT.min(allowed / 4)
            }),
            true,
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> config::OverloadConfig {
        config::load_from(&format!("overload: {text}"), []).unwrap().overload
    }

    fn overload(text: &str) -> Arc<OverloadManager> {
        OverloadManager::new(&settings(text), Arc::new(Metrics::new(false)))
    }

    #[test]
    fn a_request_is_refused_if_too_many_are_pending() {
        let overload = overload("{requests_pending: 2}");
        for _ in 0..2 {
            overload.admits().unwrap();
            overload.count_pending(true);
        }
        let refusal = overload.admits().unwrap_err();
        assert_eq!(
            (refusal.kind.code(), refusal.kind.http_status(), refusal.retry_after),
            (1004, 503, Some(OVERLOAD_RETRY))
        );
        overload.count_pending(false);
        overload.admits().unwrap();
        assert!(
            overload.metrics.render().contains(r#"mcp_overload_refused_total{reason="pending"} 1"#)
        );
    }

    #[test]
    fn the_memory_limit_is_exceeded_until_usage_is_well_below_it() {
        let limit = MemoryLimit { bytes: 1_000_000, percent: 90, cgroup: None };
        assert!(!limit.is_exceeded(899_000, false) && limit.is_exceeded(900_000, false));
        assert!(limit.is_exceeded(850_000, true) && !limit.is_exceeded(849_000, true));
        assert!(
            MemoryLimit::find(&settings("{memory_bytes: 64MiB}")).unwrap().used() > Some(1_000_000)
        );
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn r15_a_busy_runtime_refuses_requests_until_it_recovers() {
        let settings = settings("{queue_delay: 50ms, memory_bytes: 1024GiB}");
        let overload = OverloadManager::new(&settings, Arc::new(Metrics::new(false)));
        overload.watch(&settings);
        assert!(overload.admits().is_ok());
        let deadline = Instant::now() + Duration::from_secs(20);
        // Blocks the only thread of the runtime.
        let (busy, watched) = (overload.clone(), overload.clone());
        tokio::spawn(async move {
            while busy.admits().is_ok() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
        })
        .await
        .unwrap();
        let refusal = watched.admits().unwrap_err();
        assert_eq!(refusal.data, [("reason", "queue".into())]);
        while watched.admits().is_err() {
            assert!(Instant::now() < deadline, "it does not get over it");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(watched.metrics.render().contains(r#"mcp_overloaded{reason="queue"} 0"#));
    }

    #[tokio::test(start_paused = true)]
    async fn a_thread_that_cannot_start_is_tried_again() {
        let settings = settings("{queue_delay: 50ms}");
        let overload = OverloadManager::new(&settings, Arc::new(Metrics::new(false)));
        let (attempts, mut tries) = tokio::sync::mpsc::channel(9);
        let failures = AtomicUsize::new(2);
        overload.watch_on(&settings, move |sampling| {
            let fails = failures.load(Ordering::Relaxed) > 0;
            attempts.try_send(!fails).unwrap();
            if fails {
                failures.fetch_sub(1, Ordering::Relaxed);
                return Err(io::ErrorKind::WouldBlock.into());
            }
            drop(sampling);
            Ok(())
        });
        for is_started in [false, false, true] {
            assert_eq!(tries.recv().await, Some(is_started));
        }
        assert_eq!(tries.recv().await, None, "it is started once");
    }

    #[test]
    fn r19_memory_that_the_kernel_can_reclaim_is_not_counted_as_used() {
        let v2 = "anon 5000\nfile 9000\nshmem 700\nfile_dirty 200\nfile_writeback 100\ninactive_file 3000\nactive_file 4000\nslab_reclaimable 600\nslab_unreclaimable 50\nslab 650\n";
        assert_eq!(reclaimable(v2, ""), 7_300);
        let v1 = "cache 1\ninactive_file 1\nactive_file 1\ntotal_cache 9000\ntotal_dirty 200\ntotal_writeback 0\ntotal_inactive_file 3000\ntotal_active_file 4000\n";
        assert_eq!(reclaimable(v1, "total_"), 6_800);
        assert_eq!(
            (reclaimable("", ""), reclaimable("inactive_file 5\nfile_dirty 9\n", "")),
            (0, 0)
        );
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            path.to_string_lossy().into_owned()
        };
        let group = Cgroup {
            max: vec![file("memory.max", "20000\n")],
            current: file("memory.current", "16000\n"),
            stat: file("memory.stat", v2),
            prefix: "",
        };
        assert_eq!(group.used().unwrap(), 8_700);
        let without_stat = Cgroup { stat: "/no/such/file".to_owned(), ..group };
        assert_eq!(without_stat.used().unwrap(), 16_000);
    }

    #[test]
    fn a_reading_that_fails_does_not_look_like_free_memory() {
        let used_by = |current: &str| {
            let (current, stat) = (current.to_owned(), String::new());
            let cgroup = Some(Cgroup { max: Vec::new(), current, stat, prefix: "" });
            MemoryLimit { bytes: 1_000_000, percent: 90, cgroup }.used()
        };
        assert_eq!(used_by("/"), None, "a folder cannot be read");
        assert!(used_by("/no/such/file").is_some(), "the process has left the cgroup");
    }

    #[test]
    fn a_changed_limit_of_the_cgroup_is_in_force() {
        let folder = tempfile::tempdir().unwrap();
        let [max, outer] = ["memory.max", "outer"].map(|name| folder.path().join(name));
        let cgroup = Cgroup {
            max: [&max, &outer].map(|file| file.to_string_lossy().into_owned()).to_vec(),
            current: String::new(),
            stat: String::new(),
            prefix: "",
        };
        let mut limit = MemoryLimit { bytes: 2_000_000, percent: 90, cgroup: Some(cgroup) };
        let mut exceeds = |text: &str, used: u64| {
            fs::write(&max, text).unwrap();
            limit.refresh();
            limit.is_exceeded(used, false)
        };
        assert!(!exceeds("2000000\n", 950_000));
        assert!(exceeds("1000000\n", 950_000));
        assert!(!exceeds("4000000\n", 3_000_000));
        assert!(exceeds("max\n", 3_700_000), "without a limit, the last one stays");
        fs::write(&outer, "3000000\n").unwrap();
        assert!(exceeds("4000000\n", 2_800_000), "the limit of the group around it is lower");
        assert!(!exceeds("4000000\n", 2_600_000));
    }

    #[test]
    fn r19_the_outbox_budget_fits_into_the_memory_limit() {
        let mib = |count: usize| count << 20;
        assert_eq!(outbox_total_of(None, None), (OUTBOX_BYTES_TOTAL_DEFAULT, true));
        assert_eq!(outbox_total_of(None, Some(mib(400) as u64)), (mib(100), true));
        assert_eq!(
            outbox_total_of(None, Some(mib(40_000) as u64)),
            (OUTBOX_BYTES_TOTAL_DEFAULT, true)
        );
        assert_eq!(outbox_total_of(Some(mib(300)), Some(mib(400) as u64)), (mib(300), true));
        assert_eq!(outbox_total_of(Some(mib(400)), Some(mib(400) as u64)), (mib(400), false));
    }

    #[test]
    fn a_cgroup_without_a_limit_returns_no_limit() {
        assert!(
            Cgroup::find("").is_none()
                && Cgroup::find("0::/no/such/group\n").is_none_or(|(_, limit)| limit > 0)
        );
    }
}
