//! Limits that are no settings: each with a name, a unit, and the neighbour it has to agree with. Limits an operator may
//! want to move are in [`crate::config::Limits`], those of the wire format in `protocol`.
//!
//! Invariant: relations between limits are checked by the compiler, in [`relations`].

pub mod arguments;
mod audit;
mod relations;
pub mod sign_ins;
pub mod tokens;

use std::time::Duration;

pub use self::audit::{
    AUDIT_ARGUMENTS_BYTES_MAX, AUDIT_BATCH_BYTES_MAX, AUDIT_BATCH_MAX, AUDIT_CHAINS_AT_ONCE,
    AUDIT_CHECKPOINT_ROWS, AUDIT_FLUSH_WAIT, AUDIT_PAGE_ROWS, AUDIT_QUEUE_BYTES_MAX,
    AUDIT_QUEUE_MAX, AUDIT_RETENTION_DELAY, AUDIT_TARGET_CHARS_MAX,
};

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

/// A call that failed is sent again this often at most, where that does no harm.
pub const RETRIES_MAX: u32 = 2;
/// Ceiling of the wait before the first retry; it doubles.
pub const RETRY_PAUSE_FIRST: Duration = Duration::from_millis(50);
/// The highest ceiling.
pub const RETRY_PAUSE_MAX: Duration = Duration::from_secs(1);
/// Retries a backend's calls can save up.
pub const RETRIES_SAVED_MAX: u64 = 10;
/// The share of one departure in the pace of a queue is one in this many, or in as many as there is room for behind it,
pub const PACE_WEIGHT: u32 = 16;
/// up to these.
pub const PACE_WEIGHT_MAX: u32 = 1_024;
/// A gap between two departures counts as this many of the usual gaps of a place where one call is in at a time, at most; times
/// the room there is, and twice that where the one before was as long, and so on.
pub const PACE_OUTLIER: u32 = 8;
/// A usual gap counts as this long at least there.
pub const PACE_GAP_USUAL: Duration = Duration::from_millis(1);
/// Of `limits.calls_in_flight`, one in this many is kept for tenants that hold less than their share of that part,
pub const ROOM_KEPT_PART: usize = 8;
/// where there are so many places at least, and more than one tenant;
pub const ROOM_KEPT_FROM: usize = 64;
/// or, where there are fewer, if so many of them are the share of each tenant at least.
pub const ROOM_KEPT_FROM_SHARE: usize = 4;
/// A probe of a backend whose breaker is open that is not answered by then has failed.
pub const PROBE_ANSWER_MAX: Duration = Duration::from_millis(1_500);
/// A call that was with its backend for so long, without a sign of life of it, and is cancelled then makes the broker look
/// whether the backend is there.
pub const SILENCE_SUSPECTED: Duration = Duration::from_millis(250);
/// Wait between two such looks at a backend that is there.
pub const SUSPICION_INTERVAL: Duration = Duration::from_secs(1);
/// Calls a backend gets at the same time at least, however slow it seems.
pub const CONCURRENCY_MIN: usize = 2;
/// How often the calls a backend gets at the same time are thought over.
pub const CONCURRENCY_ROUND: Duration = Duration::from_millis(250);
/// Many times its best latency, and
pub const CONCURRENCY_TOLERANCE: f64 = 2.0;
/// this much more, a backend may take before it counts as slow.
pub const CONCURRENCY_SLACK: Duration = Duration::from_millis(5);
/// What a slow backend's limit is multiplied with.
pub const CONCURRENCY_BACKS_OFF_TO: f64 = 0.8;

// What requests are held to.
/// A child process that is to end when it is unused is looked at this often.
pub const CHILD_IDLE_CHECK_INTERVAL: Duration = Duration::from_millis(250);

// Requests that stand alone (2026-07-28).

/// Pages of lists kept as such clients get them; more than this, and all are made anew.
pub const STATELESS_LISTS_CACHED_MAX: usize = 1_024;
/// Sessions that stand in for one principal at one endpoint with one set of capabilities: as many requests at once can be
/// under way to backends that can not tell on whose account they ask something back.
pub const SESSIONS_PER_POOL_MAX: usize = 32;
/// Pause before there is another one of them while others are at work: most requests are over sooner than a process starts.
pub const SESSION_POOL_GROW_INTERVAL: Duration = Duration::from_millis(200);
/// The same while the last of them is only being opened.
pub const POOLED_SESSION_OPEN_MAX: Duration = Duration::from_secs(2);
/// Wait for one of them.
pub const POOLED_SESSION_WAIT_MAX: Duration = Duration::from_secs(30);
/// Requests of one caller that wait for the input they were answered with a question for.
pub const SUSPENDED_PER_CALLER_MAX: usize = 64;
/// The same of all callers.
pub const SUSPENDED_MAX: usize = 10_000;
/// What they may hold together, in bytes: those of one caller, and those of all.
pub const SUSPENDED_BYTES_PER_CALLER_MAX: usize = 8 * 1024 * 1024;
pub const SUSPENDED_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Of them, at one endpoint, those that have a connection to themselves meanwhile.
pub const POOLED_SESSIONS_SUSPENDED_MAX: usize = 24;
/// Headers that repeat arguments, as one page asks for them at once.
pub const PREFLIGHT_PARAMS_MAX: usize = 64;
/// How often one request is answered with a question.
pub const INPUT_ROUNDS_MAX: u32 = 32;
/// Wait after a question for others, so that they are asked together.
pub const INPUT_GATHER_WAIT: Duration = Duration::from_millis(10);
/// Resources one stream of notifications is about. Each is subscribed to before the stream begins.
pub const LISTEN_URIS_MAX: usize = 100;
/// How deep the parameters of a completion are nested, where the backend has roots and its values are looked at.
pub const COMPLETION_DEPTH_MAX: usize = 16;
/// Tasks one stream of notifications is about. Each change is read from the database.
pub const LISTEN_TASKS_MAX: usize = 100;

// Tasks.

/// Random bytes of a task's id, which is all that some callers need to know to see it.
pub const TASK_ID_BYTES: usize = 24;
/// A call that is to become a task; a larger one is refused.
pub const TASK_REQUEST_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The key by which a client says that two requests are the same one.
pub const IDEMPOTENCY_KEY_BYTES_MAX: usize = 256;
/// A task is kept at least this long, so that its client can get to know of it.
pub const TASK_TTL_MIN: Duration = Duration::from_secs(1);
/// End of the run of a task that is kept for ever.
pub const TASK_RUN_MAX: Duration = Duration::from_secs(7 * 24 * 3_600);
/// Tasks carried out by one process.
pub const TASK_RUNS_MAX: usize = 10_000;
/// Wait before a call that could not become a task is tried to be made one again.
pub const PROMOTE_RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Tasks taken over at once.
pub const TASK_CLAIM_BATCH: u32 = 64;
/// Shortest wait between two questions after a backend's task, whatever the backend says.
pub const TASK_POLL_MIN: Duration = Duration::from_millis(50);
/// Longest such wait.
pub const TASK_POLL_MAX: Duration = Duration::from_secs(60);
/// How often a harmless call is sent again when its answer was lost.
pub const TASK_RESENDS_MAX: u32 = 3;
/// Requests of a backend (sampling, elicitation, roots) one task waits for.
pub const TASK_INPUTS_MAX: usize = 16;
/// Notifications of one task per second that are passed on, such as progress.
pub const TASK_NOTIFICATIONS_PER_SECOND: u32 = 20;
/// Tasks that are waited for are looked at this often, should a word be lost.
pub const TASK_POLLER_INTERVAL: Duration = Duration::from_secs(1);
/// The same while words can not reach other replicas.
pub const TASK_POLLER_INTERVAL_ALONE: Duration = Duration::from_millis(500);
/// Tasks looked at with one question to the store.
pub const TASK_POLLER_BATCH: usize = 1_000;
/// `tasks/result` blocks until the task is over (MCP 2025-11-25, Tasks); whoever still waits then asks again.
pub const TASK_RESULT_WAIT_MAX: Duration = Duration::from_secs(3_600);
/// How long a task's status is explained, in characters.
pub const STATUS_MESSAGE_CHARS_MAX: usize = 500;
/// First wait before a change that could not be stored is tried again; it doubles.
pub const STORE_RETRY_FIRST: Duration = Duration::from_millis(50);
/// Longest such wait.
pub const STORE_RETRY_MAX: Duration = Duration::from_secs(1);
/// How often the end of a task is tried whose outcome is as long, while the store takes other things.
pub const TASK_OUTCOME_TRIES: u32 = 8;
/// How often each step of giving a task away is tried: a drain waits for it.
pub const TASK_RELEASE_TRIES: u32 = 5;
pub const TASK_OUTCOME_SUSPECT_BYTES: usize = 1024 * 1024;
/// A new task that could not be stored by then is refused: its client waits.
pub const TASK_STORE_WAIT_MAX: Duration = Duration::from_millis(500);
/// A commit whose answer was lost has mostly taken effect by then, or never will. There is no limit to how long one takes.
pub const COMMIT_SETTLES_WITHIN: Duration = Duration::from_secs(6);
/// The longest pause between two looks for what such a commit may have made.
pub const COMMIT_LOOK_MAX: Duration = Duration::from_secs(60);
/// How often the tasks that are this process's own are compared with those it carries out.
pub const TASK_ORPHAN_SWEEP_INTERVAL: Duration = Duration::from_secs(3);
/// A task this process can not carry out is left to others for this long, and then looked at again; each time for twice as long.
pub const TASK_DEFER_FIRST: Duration = Duration::from_secs(10);
/// Longest such time.
pub const TASK_DEFER_MAX: Duration = Duration::from_secs(600);
/// Tasks it knows to be of that sort. While there are as many it takes over nothing.
pub const TASKS_DEFERRED_MAX: usize = 10_000;

// Listeners.

/// How long a listener that shares its port takes connections whose handshake had begun, once it asks for no others.
pub const HANDSHAKES_END_WITHIN: Duration = Duration::from_millis(500);

// Sessions.

/// Random bytes of a session id.
pub const SESSION_ID_BYTES: usize = 24;
/// How long a new session waits for backends that have not been reached once yet.
pub const FIRST_CATALOG_WAIT: Duration = Duration::from_secs(2);
/// How often idle sessions, unanswered questions and unused links are looked for.
pub const REAPER_INTERVAL: Duration = Duration::from_secs(1);

/// Bytes on their way in one direction of a WebSocket that is passed on to another replica.
pub const TUNNEL_BYTES: usize = 64 * 1024;
/// Sessions on other replicas whose owners are remembered.
pub const OWNERS_REMEMBERED_MAX: usize = 10_000;
/// Sessions remembered as absent.
pub const ABSENT_REMEMBERED_MAX: usize = 10_000;
/// How long a session the record does not know is not asked for again.
pub const ABSENT_REMEMBERED_FOR: Duration = Duration::from_secs(1);
/// Shortest wait before the record is asked again for a session whose owner did not serve it.
pub const OWNER_RETRY_MIN: Duration = Duration::from_millis(50);
/// How often that wait doubles.
pub const OWNER_RETRY_DOUBLINGS: u32 = 4;
/// Most that is added by chance to such a wait: many requests may wait for the same lease.
pub const OWNER_RETRY_JITTER: Duration = Duration::from_millis(100);
/// A session's owner is looked for during two leases and this.
pub const OWNER_SEARCH_EXTRA: Duration = Duration::from_secs(1);

/// A request's id, as long as it is named in event ids; a longer one is not.
pub const NAMED_REQUEST_BYTES_MAX: usize = 64;
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
/// Tasks one client works on for backends whose status is passed on.
pub const CLIENT_TASKS_MAX: usize = 1_000;
/// An elicitation's or client task's id; a longer one is not remembered.
pub const ELICITATION_ID_BYTES_MAX: usize = 1_024;
/// URL elicitations of one session whose completion is passed on.
pub const ELICITATIONS_MAX: usize = 1_000;
/// Values of one completion (MCP 2025-11-25, Completion).
pub const COMPLETION_VALUES_MAX: usize = 100;

// Links to backends.

/// Frames waiting to be written to a child process; a call that finds no room is refused.
pub const LINK_QUEUE_FRAMES: usize = 1_024;
/// Frames written by one system call.
pub const WRITE_BATCH_FRAMES: usize = 64;
/// A backend on a socket that takes nothing of what is sent to it for this long loses its connection.
pub const BACKEND_WRITE_STALL_MAX: Duration = Duration::from_secs(30);
/// Notifications and answers waiting for their POST to one HTTP backend; what finds no room is dropped.
pub const ONE_WAY_QUEUE_FRAMES: usize = 256;
/// A backend's event id; a longer one is not remembered, so its stream can not be resumed there.
pub const EVENT_ID_BYTES_MAX: usize = 1_024;
/// How long the goodbye to an HTTP backend's session may take.
pub const SESSION_DELETE_WAIT: Duration = Duration::from_secs(2);
/// Lines in a row of a child's standard output that are not MCP before its link is closed.
pub const NOISE_LINES_MAX: u32 = 1_000;
/// A backend that says nothing for this long to the question which era of MCP it lives in is asked to `initialize` too.
pub const ERA_SILENCE_MAX: Duration = Duration::from_secs(2);
/// How often a backend may ask for more before it answers a call.
pub const BACKEND_INPUT_ROUNDS_MAX: u32 = 16;
/// Random bytes of an elicitation's id that the broker gives.
pub const ELICITATION_ID_BYTES: usize = 16;
/// Capabilities of different clients that one connection remembers in the words of 2026-07-28.
pub const CAPABILITIES_REMEMBERED_MAX: usize = 64;
/// How long a stream of notifications is heard beside the one that replaces it.
pub const LISTEN_OVERLAP: Duration = Duration::from_millis(200);
/// Lists of a backend that says nothing of changes are fetched again this often at most, however short they may be kept.
pub const LIST_TTL_MIN: Duration = Duration::from_secs(10);

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

/// Connections that wait in the kernel to be accepted, as far as `net.core.somaxconn` lets them: all clients of a broker that
/// began anew may come at once.
pub const ACCEPT_QUEUE: u32 = 4_096;
/// A request's line and headers.
pub const REQUEST_HEAD_BYTES_MAX: usize = 64 * 1024;
/// A client that takes nothing of what is sent to it for this long loses its connection.
pub const CLIENT_WRITE_STALL_MAX: Duration = Duration::from_secs(30);
/// Headers of one request.
pub const HTTP_HEADERS_MAX: usize = 100;
/// An answer is handed to an HTTP/2 connection in pieces of this size.
pub const HTTP2_PIECE_BYTES: usize = 16 * 1024;
/// An answer of another replica up to this size is read whole before it is passed on, so that it comes whole or not at all.
pub const RELAYED_WHOLE_BYTES_MAX: u64 = 1024 * 1024;
/// Requests in flight on one HTTP/2 connection.
pub const HTTP2_STREAMS_MAX: u32 = 256;

// Connections that are sessions.

/// A message before there is a session: what a client says about itself, and room around it.
pub const FIRST_MESSAGE_BYTES_MAX: usize = 2 * CLIENT_TEXT_BYTES_MAX;
/// Connections of nobody yet, of all listeners, that are in the middle of a message of more than a few kilobytes.
pub const LONG_FIRST_MESSAGES_MAX: usize = 512;
/// Frames that may wait for one client; the calls of a session and what it is told about fit in many times over.
pub const OUTBOX_FRAMES_MAX: usize = 65_536;
/// Frames written to a client at once.
pub const OUTBOX_BATCH_FRAMES: usize = 256;
/// No further frame is added to a batch that holds this much.
pub const OUTBOX_BATCH_BYTES: usize = 256 * 1024;
/// Frames of one client that are taken in a row before others have their turn.
pub const FRAMES_IN_A_ROW: u32 = 64;
/// A request that finds its session full waits this long for one in flight to end.
pub const PIPELINE_WAIT_MAX: Duration = Duration::from_secs(1);
/// A client that has said all it has to say gets the answers that come within this time.
pub const HALF_CLOSED_MAX: Duration = Duration::from_secs(10);
/// Requests of a QUIC client that have streams of their own at the same time.
pub const QUIC_REQUEST_STREAMS_MAX: u32 = 100;
/// QUIC handshakes at the same time at all; beyond it newcomers are refused.
pub const QUIC_HANDSHAKES_MAX: usize = 1_024;
/// Bytes of the requests of one QUIC client that are not whole yet, or of what was POSTed for one stream of 2024-11-05 and waits
/// for its turn; room for two of the largest messages there is always.
pub const UNFINISHED_REQUESTS_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Messages that were POSTed for one stream of 2024-11-05 and wait for their turn; further ones wait with their request.
pub const HTTP_SSE_QUEUE_FRAMES: usize = 64;
/// Random bytes in the address those are POSTed to.
pub const HTTP_SSE_NAME_BYTES: usize = 24;
/// The last messages to a client whose session is over are written within this time.
pub const LAST_FRAMES_WAIT: Duration = Duration::from_secs(5);

// Stores.

/// A replica that could not renew its lease for this long after it ran out is not ready.
pub const LEASE_LOST_READY: Duration = Duration::from_millis(2_500);
/// Names a replica may have had whose sessions and tasks it could not reclaim yet.
pub const PAST_NAMES_MAX: usize = 64;
/// How often a store that is away is tried.
pub const STORE_PROBE_EVERY: Duration = Duration::from_millis(250);
/// The longest pause before a renewal that failed is tried again.
pub const RENEWAL_RETRY_MAX: Duration = Duration::from_millis(500);
/// How often every replica looks for what has expired, give or take a half of it.
pub const SWEEP_INTERVAL: Duration = Duration::from_secs(4);
/// Expired sessions or tasks removed by one statement.
pub const SWEEP_ROWS: u32 = 200;
/// Expired events removed by one statement.
pub const SWEEP_EVENTS: u32 = 2_000;
/// Statements of one kind in one sweep; what is left waits for the next.
pub const SWEEP_ROUNDS_MAX: usize = 10;
/// Changes of other replicas are read at most this often.
pub const CONFIG_READ_INTERVAL_MIN: Duration = Duration::from_millis(200);
/// Rows read at once for a list of the admin API.
pub const ADMIN_PAGE_ROWS: u32 = 500;
/// Entries of one list of the admin API.
pub const ADMIN_LIST_MAX: usize = 20_000;
/// Writes that share a transaction.
pub const PERSIST_BATCH_MAX: usize = 256;
/// What is long of them, together. One that is longer goes alone.
pub const PERSIST_BATCH_BYTES_MAX: usize = 8 * 1024 * 1024;
/// A write that is as long may be what the store is busy with.
pub const PERSIST_SUSPECT_BYTES: usize = 64 * 1024;
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
/// How long new requests are held back so that a session that is never at rest can be given away.
pub const CLOSING_UP_MAX: Duration = Duration::from_millis(500);
/// How long requests that only wait may take to leave with their session.
pub const MOVE_ON_MAX: Duration = Duration::from_secs(1);
/// How long a write that was fenced off waits to hear that its row was taken back after a lapse of the lease.
pub const OWNER_NEWS_WAIT: Duration = Duration::from_secs(5);
/// How long after the event log failed a session's lists are stored again, at the earliest.
pub const LISTS_RETRY: Duration = Duration::from_secs(10);
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

// What is too much.

/// How often Redis is asked about rates that were used. What is used meanwhile is at most this replica's share of the rate.
pub const BUDGET_ASK_INTERVAL: Duration = Duration::from_millis(20);
/// Rates it is asked about at once.
pub const BUDGET_ASKS_AT_ONCE: usize = 256;
/// How often replicas are counted, to know a replica's share.
pub const REPLICAS_COUNT_INTERVAL: Duration = Duration::from_secs(1);
/// Principals of one tenant whose rates are counted apart; further ones that come at the same time share one rate.
pub const PRINCIPALS_METERED_MAX: usize = 10_000;
/// Tools of one backend, likewise.
pub const TOOLS_METERED_MAX: usize = 2_000;
/// Addresses of one listener, likewise.
pub const ADDRESSES_METERED_MAX: usize = 20_000;
/// When a client that finds too many sessions or connections is told to come back: nobody knows when one ends.
pub const ROOM_RETRY: Duration = Duration::from_secs(1);
/// When a client is told to come back that was refused because the process has too much to do.
pub const OVERLOAD_RETRY: Duration = Duration::from_secs(1);
/// How often memory and the runtime's queue are looked at.
pub const OVERLOAD_SAMPLE_INTERVAL: Duration = Duration::from_millis(50);
/// So many looks in a row that find the queue too slow are an overload.
pub const OVERLOAD_SAMPLES_IN_A_ROW: u32 = 4;
/// A body up to this size is read although the process has too much to do, to see whether it is a new request.
pub const OVERLOAD_BODY_BYTES_MAX: usize = 64 * 1024;
/// What may wait for all clients together, where neither the configuration nor the memory there is says otherwise.
pub const OUTBOX_BYTES_TOTAL_DEFAULT: usize = 1024 * 1024 * 1024;
/// What waits for one client counts in steps of this size among what waits for all.
pub const OUTBOX_STEP_BYTES: usize = 256 * 1024;

// Traces and the log.

/// A certificate that is valid for less is told of with an error in the log; Prometheus alerts at the same time.
pub const CERTIFICATE_ENDS_SOON: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Spans kept of one request until it is over; further ones are dropped and counted.
pub const SPANS_PER_REQUEST_MAX: usize = 64;
/// Spans sent to the collector at once.
pub const SPAN_BATCH_MAX: usize = 512;
/// How long a span may wait for company.
pub const SPAN_BATCH_WAIT: Duration = Duration::from_secs(1);
/// How long the collector may take for one batch; then it is dropped.
pub const SPAN_EXPORT_WAIT: Duration = Duration::from_secs(5);
/// How long the end of the process waits for spans to leave.
pub const SPAN_FLUSH_WAIT: Duration = Duration::from_secs(2);
/// Lines of the log that wait for whoever reads it; what finds no room is dropped and counted.
pub const LOG_LINES_MAX: usize = 8_192;
/// Bytes of those.
pub const LOG_LINES_BYTES_MAX: usize = 8 * 1024 * 1024;
/// How long the end of the process waits for its last lines to be taken.
pub const LOG_FLUSH_WAIT: Duration = Duration::from_secs(1);

// The whole process.

/// Once the drain's grace is over, everything still open gets this long to close before the process ends.
pub const CLOSE_WAIT: Duration = Duration::from_secs(5);
