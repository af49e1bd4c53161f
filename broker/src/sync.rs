//! The order in which locks are taken.
//!
//! The locks are those of parking_lot, which do not poison: a change under a guard is one step, so a panic leaves the state whole.
//! Guards live in small functions and never across an await. A holder of one of these takes only what stands further down:
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
