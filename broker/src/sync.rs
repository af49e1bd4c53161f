//! Locking in one way, and the order in which locks are taken.
//!
//! Called by backends and sessions, and by all they hold. Guards live in small functions and never across an await. Whoever holds
//! one of these takes only what stands further down:
//!
//! 0. a connection's calls, by its own task alone, which goes on with them under it
//! 1. a tenant's publishing
//! 2. a tenant's sessions
//! 3. a session's state
//! 4. a tenant's backends
//! 5. a backend's status, then its links
//! 6. a link's users
//! 7. a stream's log
//! 8. a link's subscriptions
//! 9. a connection's maps and the queue to its wire
//!
//! The event log's queue never blocks and is added to under a stream's log, so that its order is the stream's.
//! A session's `persisted` is an asynchronous lock: it is taken before the session's state and held over a write.
//! The tables of tasks, a task's run and the cells of a call are locked alone. Something may be dropped under a
//! guard that locks in its own `Drop` (a question leaves its connection's map): that is why the maps come last.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks. A panic under the guard is no reason to stop serving: each change is one step, so the state is whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
