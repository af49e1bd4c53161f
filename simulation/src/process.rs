//! Processes: one for each seed, all with the same addresses of memory.

#![allow(unsafe_code, reason = "fork, alarm and personality are unsafe or not in the safe crates")]

use std::{
    fs,
    io::{Read as _, Write as _, pipe},
    os::unix::process::CommandExt as _,
    path::Path,
    process::Command,
    thread,
};

use parking_lot::Mutex;

use crate::{Arguments, run, shim, trace};

/// Set in the environment of a program that was started again.
const STARTED_AGAIN: &str = "MCP_BROKER_SIMULATION_STARTED_AGAIN";
/// Real time after which a seed counts as hanging.
const SECONDS_MAX: u32 = 300;
const STACK_BYTES: usize = 64 * 1024 * 1024;
/// Violations that are printed.
const SHOWN_MAX: usize = 8;

/// Messages of panics, each of which is a violation.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// The end of a seed.
pub(crate) struct SeedEnd {
    pub(crate) passed: bool,
    /// Virtual time.
    pub(crate) seconds: f64,
}

/// Starts the program again without random addresses, because the order of some tables depends on
/// them. Where the system refuses that, a seed repeats in most cases only.
pub(crate) fn fix_addresses() {
    if std::env::var_os(STARTED_AGAIN).is_some() {
        return;
    }
    // SAFETY: changes a flag of this process.
    let changed = unsafe {
        let before = libc::personality(0xffff_ffff);
        before >= 0 && libc::personality((before | libc::ADDR_NO_RANDOMIZE) as libc::c_ulong) >= 0
    };
    if let (true, Ok(program)) = (changed, std::env::current_exe()) {
        let mut again = Command::new(program);
        again.args(std::env::args_os().skip(1)).env(STARTED_AGAIN, "1");
        // Reading the authorities of the system at each start of a replica would take the most time.
        again.env("SSL_CERT_FILE", "/dev/null").env_remove("SSL_CERT_DIR");
        let error = again.exec();
        eprintln!("the program could not be started again: {error}");
    }
    eprintln!("addresses are random here, so a seed may not repeat exactly");
}

/// Runs a seed in a process of its own, and prints its verdict.
pub(crate) fn run_seed(seed: u64, arguments: &Arguments) -> SeedEnd {
    let (mut result, mut sender) = pipe().expect("a pipe");
    // The simulated thread has the same random names in each process, which other runs may have.
    let folder = tempfile::tempdir().expect("a temporary folder");
    // SAFETY: this process has one thread.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "no process could be made");
    if child == 0 {
        drop(result);
        // SAFETY: the default action of the signal ends this process.
        unsafe { libc::alarm(SECONDS_MAX) };
        stay_on_this_processor();
        let (passed, seconds, text) = simulate(seed, folder.path(), arguments);
        let _unread = write!(sender, "{passed} {seconds}\n{text}");
        drop(sender);
        // SAFETY: ends this process. Nothing of a run is worth an orderly end.
        unsafe { libc::_exit(0) };
    }
    drop(sender);
    let mut text = String::new();
    let _ended = result.read_to_string(&mut text);
    let mut status = 0;
    // SAFETY: a child of this process, and a valid pointer.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    let (head, verdict) = text.split_once('\n').unwrap_or(("", ""));
    let mut fields = head.split(' ');
    let passed = fields.next() == Some("true") && status == 0;
    let seconds = fields.next().and_then(|field| field.parse().ok()).unwrap_or(0.0);
    match text.is_empty() {
        true => println!("BROKEN seed {seed}: its process ended with status {status}"),
        false => println!("{verdict}"),
    }
    SeedEnd { passed, seconds }
}

/// Keeps this process and its threads on the processor that runs it. The simulated thread and that
/// of the database never run at the same time, and a turn to another processor takes longer.
fn stay_on_this_processor() {
    // SAFETY: plain values, and pointers to them with their sizes. Without success the seed is slower.
    unsafe {
        let mut only: libc::cpu_set_t = std::mem::zeroed();
        if let Ok(processor) = usize::try_from(libc::sched_getcpu()) {
            libc::CPU_SET(processor, &mut only);
            libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const only);
        }
    }
}

fn simulate(seed: u64, folder: &Path, arguments: &Arguments) -> (bool, f64, String) {
    std::panic::set_hook(Box::new(|fault| PANICS.lock().push(fault.to_string())));
    if let Some(filter) = &arguments.log {
        let lines = tracing_subscriber::fmt().with_env_filter(filter.as_str());
        lines.with_ansi(false).with_writer(std::io::stderr).init();
    }
    let (arguments, has_reports) = (arguments.clone(), arguments.reports);
    let folder = folder.to_owned();
    // A thread without any state of the one before.
    let simulated = thread::Builder::new().stack_size(STACK_BYTES).spawn(move || {
        shim::enter(seed);
        if arguments.trace.is_some() {
            trace::keep_lines();
        }
        let verdict = run::run(seed, folder);
        let (hash, steps) = trace::summary();
        if let (Some(file), Some(lines)) = (&arguments.trace, trace::lines()) {
            let _unwritten = fs::write(file, lines);
        }
        (verdict, shim::now().as_secs_f64(), hash, steps)
    });
    let ended = simulated.map(thread::JoinHandle::join);
    let panics = PANICS.lock().clone();
    let Ok(Ok((verdict, seconds, hash, steps))) = ended else {
        return (false, 0.0, format!("BROKEN seed {seed}: the simulation failed: {panics:?}"));
    };
    let violations: Vec<String> = verdict.violations.into_iter().chain(panics).collect();
    let label = if violations.is_empty() { "KEPT" } else { "BROKEN" };
    let mut text = format!(
        "{label} seed {seed}: {} violations, {seconds:.0} s, {steps} steps, trace {hash:016x}",
        violations.len()
    );
    for line in violations.iter().take(SHOWN_MAX) {
        text += &format!("\n  {line}");
    }
    if !violations.is_empty() || has_reports {
        for report in &verdict.reports {
            text += &format!("\n  {}", report.lines().next().unwrap_or_default());
        }
    }
    (violations.is_empty(), seconds, text)
}
