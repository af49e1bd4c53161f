//! Order of locks.
//!
//! The locks are those of parking_lot, which do not poison. A change under a guard is one step, so
//! a panic leaves the state consistent. Guards exist in small functions and never across an await.
//! A holder of one of these locks takes only locks further down in the list:
//!
//! 0. a connection's calls, taken only by its own task, which polls the calls under the lock
//! 1. a tenant's publishing
//! 2. a tenant's sessions
//! 3. a session's state
//! 4. a tenant's backends
//! 5. a backend's health, then its links, or the lists of its principals
//! 6. a link's users, or the tasks that it follows
//! 7. a stream's log
//! 8. a link's subscriptions
//! 9. a connection's maps and the queue to its wire
//!
//! The event log's queue never blocks. A stream adds to it under the lock of its log, so that both
//! have the same order. Requests to publish a tenant's catalog wait for an asynchronous lock, which
//! is taken before its publishing. A session's `persisted` is an asynchronous lock: it is taken
//! before the session's state and held over a write. The table of tasks is taken before a task's
//! run, the tasks that a link follows and a connection's maps. The cells of a call are locked alone.
//! A value that is dropped under a guard may lock in its own `Drop`, such as a question that leaves
//! its connection's map. The maps are therefore last.
