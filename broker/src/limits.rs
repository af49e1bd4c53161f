//! Limits that are no settings: each with a name, a unit, and the neighbour it has to agree with. Limits an operator may
//! want to move are in [`crate::config::Limits`], those of the wire format in `protocol`.
//!
//! Invariant: relations between limits are checked by the compiler, below.

use std::time::Duration;

// Lists and names.

/// Entries on one page of a list the broker answers.
pub const PAGE_ENTRIES: usize = 100;
/// Pages fetched of one list of one backend; a backend whose cursors never end is cut off here.
pub const LIST_PAGES_MAX: usize = 1_000;
/// Entries kept of one list of one backend.
pub const LIST_ENTRIES_MAX: usize = 10_000;
/// Bytes kept of one list of one backend.
pub const LIST_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Entries left out of a list that are named in the log; the rest is only counted.
pub const LEFT_OUT_LOGGED_MAX: usize = 5;
/// A resource's URI.
pub const URI_BYTES_MAX: usize = 8 * 1024;
/// Wait after a `list_changed` for the next one, so that a burst causes one refresh.
pub const REFRESH_DEBOUNCE: Duration = Duration::from_millis(50);
/// A backend's lists are not fetched more often than this, however often it says they changed.
pub const REFRESH_INTERVAL_MIN: Duration = Duration::from_millis(500);

// Calls.

/// End of every call, however often progress renewed its deadline.
pub const CALL_TOTAL_MAX: Duration = Duration::from_secs(3_600);
/// `tasks/result` blocks until the task is over (MCP 2025-11-25, Tasks); whoever still waits then asks again.
pub const TASK_RESULT_WAIT_MAX: Duration = Duration::from_secs(3_600);

// Sessions.

/// Random bytes of a session id.
pub const SESSION_ID_BYTES: usize = 24;
/// How long a new session waits for backends that have not been reached once yet.
pub const FIRST_CATALOG_WAIT: Duration = Duration::from_secs(2);
/// How often idle sessions, unanswered questions and unused links are looked for.
pub const REAPER_INTERVAL: Duration = Duration::from_secs(1);

/// Event streams of one session that are open or kept to be resumed.
pub const STREAMS_KEPT_MAX: usize = 128;
/// How often one subscribe asks again because others for the same URI failed around it.
pub const SUBSCRIBE_ATTEMPTS_MAX: usize = 3;
/// Resources one session may be subscribed to.
pub const SUBSCRIPTIONS_PER_SESSION_MAX: usize = 1_000;
/// Requests of backends (sampling, elicitation, roots) that wait for one session's client.
pub const QUESTIONS_MAX: usize = 100;
/// What a client may say about itself: capabilities, and its name and version together.
pub const CLIENT_TEXT_BYTES_MAX: usize = 64 * 1024;
/// A backend's instructions, as far as clients get them.
pub const INSTRUCTIONS_BYTES_MAX: usize = 64 * 1024;
/// A name or version in logs and views; the rest is cut.
pub const DISPLAY_CHARS_MAX: usize = 100;
/// Tasks asked about at once for one `tasks/list`.
pub const TASKS_ASKED_AT_ONCE: usize = 16;
/// Tasks one client works on for backends whose status is passed on.
pub const CLIENT_TASKS_MAX: usize = 1_000;
/// An elicitation's or client task's id; a longer one is not remembered.
pub const ELICITATION_ID_BYTES_MAX: usize = 1_024;
/// URL elicitations of one session whose completion is passed on.
pub const ELICITATIONS_MAX: usize = 1_000;
/// Values of one completion (MCP 2025-11-25, Completion).
pub const COMPLETION_VALUES_MAX: usize = 100;
/// Tasks remembered for one tenant; the oldest that is over makes room.
pub const TASKS_PER_TENANT_MAX: usize = 10_000;

// Links to backends.

/// Frames waiting to be written to a child process; a call that finds no room is refused.
pub const LINK_QUEUE_FRAMES: usize = 1_024;
/// Frames written by one system call.
pub const WRITE_BATCH_FRAMES: usize = 64;
/// Notifications and answers waiting for their POST to one HTTP backend; what finds no room is dropped.
pub const ONE_WAY_QUEUE_FRAMES: usize = 256;
/// A backend's event id; a longer one is not remembered, so its stream can not be resumed there.
pub const EVENT_ID_BYTES_MAX: usize = 1_024;
/// How long the goodbye to an HTTP backend's session may take.
pub const SESSION_DELETE_WAIT: Duration = Duration::from_secs(2);
/// Lines in a row of a child's standard output that are not MCP before its link is closed.
pub const NOISE_LINES_MAX: u32 = 1_000;
/// First wait before a backend is tried again; it doubles with each failure.
pub const BACKOFF_FIRST: Duration = Duration::from_millis(100);
/// Longest wait between two attempts, so that a backend that is well again is used within seconds.
pub const BACKOFF_MAX: Duration = Duration::from_secs(4);
/// A call waits this long for a backend that is about to be tried again; a longer wait is refused at once.
pub const BACKOFF_WAIT_MAX: Duration = Duration::from_secs(1);
/// A connection that lived this long wipes out earlier failures.
pub const STABLE_AFTER: Duration = Duration::from_secs(10);
/// A link nobody used for this long is closed.
pub const LINK_IDLE_MAX: Duration = Duration::from_secs(600);
/// An answer's share in a backend's mean latency is one in this many.
pub const LATENCY_WEIGHT: u64 = 8;

// HTTP, towards backends.

/// Attempts to resume an event stream before what was asked on it counts as lost.
pub const RESUME_ATTEMPTS_MAX: u32 = 5;
/// Wait before a stream is resumed when the backend names none.
pub const RETRY_DEFAULT: Duration = Duration::from_secs(1);
/// Shortest wait a backend can ask for, so that its streams can not keep the broker busy.
pub const RETRY_MIN: Duration = Duration::from_millis(100);
/// The longest wait a backend may ask for.
pub const RETRY_MAX: Duration = Duration::from_secs(30);
/// The body of an error answer is read this far, to use the connection again.
pub const ERROR_BODY_BYTES_MAX: usize = 64 * 1024;
/// The end of an event stream is waited for this long, for the same reason.
pub const STREAM_DRAIN: Duration = Duration::from_millis(250);

// HTTP, towards clients.

/// A request's line and headers.
pub const REQUEST_HEAD_BYTES_MAX: usize = 64 * 1024;
/// A body that is too large is read on for this much, so that its sender gets to see the refusal.
pub const DISCARDED_BYTES_MAX: usize = 64 * 1024 * 1024;
/// How long it may take to read it.
pub const DISCARD_WAIT: Duration = Duration::from_secs(5);
/// A client that takes nothing of what is sent to it for this long loses its connection.
pub const CLIENT_WRITE_STALL_MAX: Duration = Duration::from_secs(30);
/// Headers of one request.
pub const HTTP_HEADERS_MAX: usize = 100;
/// An answer is handed to an HTTP/2 connection in pieces of this size.
pub const HTTP2_PIECE_BYTES: usize = 16 * 1024;
/// Requests in flight on one HTTP/2 connection.
pub const HTTP2_STREAMS_MAX: u32 = 256;

// Stores.

/// Writes that share a transaction.
pub const PERSIST_BATCH_MAX: usize = 256;
/// Writes waiting for their transaction in one lane; what finds no room is refused.
pub const PERSIST_QUEUE_MAX: usize = 4_096;
/// Entries of the event log that are added in one step.
pub const EVENT_BATCH_MAX: usize = 256;
/// No further entry is added to a batch that holds this much.
pub const EVENT_BATCH_BYTES_MAX: usize = 1024 * 1024;
/// Entries waiting to be logged; what finds no room is not logged, which its stream's next entry says.
pub const EVENT_QUEUE_MAX: usize = 16_384;
/// Bytes waiting to be logged.
pub const EVENT_QUEUE_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Streams with a gap in the log that are remembered until the log says so.
pub const LOST_STREAMS_MAX: usize = 100_000;
/// Events trimmed from a stream before the log hears of it: that it holds a little more does no harm.
pub const TRIM_LOGGED_EVERY: u64 = 64;
/// The log is told that a stream is still there, though quiet, at most this often.
pub const QUIET_LOGGED_EVERY_MIN: Duration = Duration::from_secs(10);
/// Expired sessions taken out of the store in one go, before one of them could be adopted.
pub const SWEPT_AT_ONCE: u32 = 1_000;
/// How often expired sessions are looked for before an adoption, at most; with short idle times more often.
pub const SWEEP_BEFORE_ADOPTION_MAX: Duration = Duration::from_secs(30);
/// Sessions whose changes are written behind at once.
pub const FLUSHED_AT_ONCE: usize = 256;
/// A session's sign of life is stored at most this often.
pub const SEEN_STORED_EVERY_MAX: Duration = Duration::from_secs(60);
/// How long the event log may hold up the hand-over of a session.
pub const EVENTS_FLUSH_WAIT: Duration = Duration::from_secs(2);
/// Sessions given away at once while the broker drains.
pub const RELEASED_AT_ONCE: usize = 64;
/// How long the end of a session is tried again when the store does not take it.
pub const END_RETRY_MAX: Duration = Duration::from_secs(60);

// The whole process.

/// Once the drain's grace is over, everything still open gets this long to close before the process ends.
pub const CLOSE_WAIT: Duration = Duration::from_secs(5);

const fn at_most(shorter: Duration, longer: Duration) -> bool {
    shorter.as_millis() <= longer.as_millis()
}

const _: () = assert!(PAGE_ENTRIES <= LIST_ENTRIES_MAX); // a full page must be possible
const _: () = assert!(LIST_PAGES_MAX * PAGE_ENTRIES >= LIST_ENTRIES_MAX); // pages of our own size must reach the limit of entries
const _: () = assert!(at_most(BACKOFF_FIRST, BACKOFF_WAIT_MAX)); // one failure must not refuse the calls right after it
const _: () = assert!(at_most(BACKOFF_WAIT_MAX, BACKOFF_MAX));
const _: () = assert!(at_most(BACKOFF_MAX, STABLE_AFTER)); // else failures would be forgotten while they are waited for
const _: () = assert!(at_most(RETRY_DEFAULT, RETRY_MAX));
const _: () = assert!(WRITE_BATCH_FRAMES <= LINK_QUEUE_FRAMES); // a batch is taken out of the queue
const _: () = assert!(at_most(REFRESH_DEBOUNCE, REFRESH_INTERVAL_MIN)); // the debounce is part of the interval
const _: () = assert!(LATENCY_WEIGHT > 0); // it divides
const _: () = assert!(PERSIST_BATCH_MAX <= PERSIST_QUEUE_MAX); // a batch is taken out of the queue
const _: () = assert!(EVENT_BATCH_MAX <= EVENT_QUEUE_MAX && EVENT_BATCH_BYTES_MAX <= EVENT_QUEUE_BYTES_MAX);
const _: () = assert!(FLUSHED_AT_ONCE <= PERSIST_QUEUE_MAX); // else writing behind could crowd out what somebody waits for
const _: () = assert!(URI_BYTES_MAX < REQUEST_HEAD_BYTES_MAX);
