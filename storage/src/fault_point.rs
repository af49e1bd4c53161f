//! Named steps at which tests end the process. `MCP_BROKER_FAULT=NAME:N` kills it (SIGKILL) when
//! it passes the step called NAME for the Nth time. Release builds contain no such steps.
//!
//! Every step of a durable write and of a hand-over has one, so that tests can crash at each step
//! and not only at random. [`hit`] lists the names that a run passed when `MCP_BROKER_FAULT_LOG`
//! names a file.

#[cfg(debug_assertions)]
mod armed {
    use std::{
        collections::BTreeSet,
        io::Write as _,
        path::PathBuf,
        process,
        sync::{
            OnceLock,
            atomic::{AtomicU64, Ordering},
        },
    };

    use parking_lot::Mutex;

    struct Plan {
        name: String,
        at: u64,
        seen: AtomicU64,
    }

    fn plan() -> Option<&'static Plan> {
        static PLAN: OnceLock<Option<Plan>> = OnceLock::new();
        let read = || {
            let text = std::env::var("MCP_BROKER_FAULT").ok()?;
            let (name, at) = text.rsplit_once(':').unwrap_or((&text, "1"));
            Some(Plan { name: name.to_owned(), at: at.parse().ok()?, seen: AtomicU64::new(0) })
        };
        PLAN.get_or_init(read).as_ref()
    }

    fn record(name: &'static str) {
        static PATH: OnceLock<Option<PathBuf>> = OnceLock::new();
        static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
        let Some(path) =
            PATH.get_or_init(|| std::env::var_os("MCP_BROKER_FAULT_LOG").map(PathBuf::from))
        else {
            return;
        };
        if NAMES.lock().insert(name) {
            let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
            let _unwritten = file.and_then(|mut file| writeln!(file, "{name}"));
        }
    }

    pub(super) fn pass(name: &'static str) {
        record(name);
        let Some(plan) = plan().filter(|plan| plan.name == name) else { return };
        if plan.seen.fetch_add(1, Ordering::SeqCst) + 1 == plan.at {
            let own = rustix::process::getpid();
            let _ends_here = rustix::process::kill_process(own, rustix::process::Signal::KILL);
            process::abort();
        }
    }
}

/// Passes the step called `name`. Does nothing unless a test requested the end of the process
/// here.
#[inline]
pub fn hit(name: &'static str) {
    #[cfg(debug_assertions)]
    armed::pass(name);
    #[cfg(not(debug_assertions))]
    let _ = name;
}
