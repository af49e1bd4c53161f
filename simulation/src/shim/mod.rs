//! Functions of libc that this program replaces for its simulated thread: clocks, sleep,
//! randomness, the wait for events, and sockets.
//!
//! The linker takes these definitions before those of the C library. On every other thread, and
//! before [`enter`], they pass the call on to the kernel. So the real broker, the standard library
//! and tokio run unchanged in virtual time.
//!
//! Invariant: nothing here reads a real clock or real randomness for the simulated thread.

#![allow(unsafe_code, reason = "functions of libc have raw pointers in their signatures")]

mod sockets;
mod wait;

use std::{
    cell::Cell,
    ffi::{c_int, c_long, c_uint, c_void},
    time::Duration,
};

pub(crate) use self::{
    sockets::{close_sockets_of, set_owner},
    wait::{WaitOutcome, arm, end_wait, has_events, start_wait},
};
use crate::choices::Choices;

/// Seconds since 1970 at which every run begins.
const WALL_CLOCK_START: u64 = 1_800_000_000;
/// Seconds of the monotonic clock at which every run begins. The real one is far behind, so a timer
/// that another thread waits for is never due.
const MONOTONIC_START: u64 = 1_000_000_000;

thread_local! {
    static SIMULATED: Cell<bool> = const { Cell::new(false) };
    /// Nanoseconds since the begin of the run.
    static NOW: Cell<u64> = const { Cell::new(0) };
    static RANDOM: Cell<u64> = const { Cell::new(0) };
}

/// Makes this thread the simulated one. All its randomness comes from the seed from now on.
pub(crate) fn enter(seed: u64) {
    RANDOM.set(seed ^ 0x5_eed0_fa11);
    NOW.set(0);
    SIMULATED.set(true);
}

fn is_simulated() -> bool {
    SIMULATED.get()
}

/// Returns the virtual time since the begin of the run.
pub(crate) fn now() -> Duration {
    Duration::from_nanos(NOW.get())
}

/// Sets the virtual time, which never goes back.
pub(crate) fn advance_to(time: Duration) {
    let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    NOW.set(NOW.get().max(time));
}

unsafe fn write_time(out: *mut libc::timespec, base: u64) {
    let now = NOW.get();
    // SAFETY: the caller passes a valid pointer, as for the C function.
    unsafe {
        (*out).tv_sec = (base + now / 1_000_000_000).cast_signed();
        (*out).tv_nsec = (now % 1_000_000_000).cast_signed();
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(clock: c_int, out: *mut libc::timespec) -> c_int {
    let base = match clock {
        libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE => Some(WALL_CLOCK_START),
        libc::CLOCK_MONOTONIC
        | libc::CLOCK_MONOTONIC_COARSE
        | libc::CLOCK_MONOTONIC_RAW
        | libc::CLOCK_BOOTTIME => Some(MONOTONIC_START),
        // Processor time is real.
        _ => None,
    };
    match base.filter(|_| is_simulated()) {
        Some(base) => {
            // SAFETY: as of the C function.
            unsafe { write_time(out, base) };
            0
        }
        // SAFETY: the same arguments for the same function of the kernel.
        None => unsafe { libc::syscall(libc::SYS_clock_gettime, clock, out) as c_int },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn gettimeofday(out: *mut libc::timeval, zone: *mut c_void) -> c_int {
    if !is_simulated() {
        // SAFETY: the same arguments for the same function of the kernel.
        return unsafe { libc::syscall(libc::SYS_gettimeofday, out, zone) as c_int };
    }
    let now = NOW.get();
    // SAFETY: the caller passes a valid pointer, as for the C function.
    unsafe {
        (*out).tv_sec = (WALL_CLOCK_START + now / 1_000_000_000).cast_signed();
        (*out).tv_usec = (now % 1_000_000_000 / 1_000).cast_signed();
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn time(out: *mut libc::time_t) -> libc::time_t {
    let mut read = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid pointer to a local value.
    unsafe { clock_gettime(libc::CLOCK_REALTIME, &raw mut read) };
    if !out.is_null() {
        // SAFETY: the caller passes a valid pointer or null, as for the C function.
        unsafe { *out = read.tv_sec };
    }
    read.tv_sec
}

/// Sleeps by moving the virtual time.
#[unsafe(no_mangle)]
unsafe extern "C" fn clock_nanosleep(
    clock: c_int,
    flags: c_int,
    wanted: *const libc::timespec,
    remaining: *mut libc::timespec,
) -> c_int {
    if !is_simulated() {
        // SAFETY: the same arguments for the same function of the kernel.
        let result =
            unsafe { libc::syscall(libc::SYS_clock_nanosleep, clock, flags, wanted, remaining) };
        // SAFETY: reads the error of this thread. The C function returns it.
        return if result == 0 { 0 } else { unsafe { *libc::__errno_location() } };
    }
    // SAFETY: the caller passes a valid pointer, as for the C function.
    let (seconds, nanos) = unsafe { ((*wanted).tv_sec, (*wanted).tv_nsec) };
    let wanted = seconds.cast_unsigned() * 1_000_000_000 + nanos.cast_unsigned();
    if flags & libc::TIMER_ABSTIME == 0 {
        NOW.set(NOW.get() + wanted);
    } else {
        NOW.set(NOW.get().max(wanted.saturating_sub(MONOTONIC_START * 1_000_000_000)));
    }
    0
}

/// Fills from the seed.
#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(out: *mut c_void, length: usize, flags: c_uint) -> isize {
    if !is_simulated() {
        // SAFETY: the same arguments for the same function of the kernel.
        let read: c_long = unsafe { libc::syscall(libc::SYS_getrandom, out, length, flags) };
        return read as isize;
    }
    let mut source = Choices::new(RANDOM.get());
    for at in 0..length {
        // SAFETY: the caller passes space for so many bytes, as for the C function.
        unsafe { out.cast::<u8>().add(at).write((source.next() >> 32) as u8) };
    }
    RANDOM.set(source.state());
    length.cast_signed()
}
