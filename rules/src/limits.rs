//! Limits that are not settings. Each has a name, a unit, and the neighbour that it must agree with.
//! The configuration holds limits that operators can set, and `protocol` those of the wire format.
//!
//! Invariant: the compiler checks the relations between limits, in [`relations`].

pub mod access;
pub mod approvals;
pub mod apps;
pub mod arguments;
mod audit;
mod children;
pub mod concurrency;
pub mod console;
pub mod included;
pub mod inputs;
mod lists;
pub mod log;
mod memory;
pub mod oauth;
pub mod own_lists;
pub mod pins;
mod relations;
pub mod replicas;
pub mod results;
pub mod shutdown;
pub mod sign_ins;
pub mod streams;
pub mod tokens;
pub mod toolsets;

use std::time::Duration;

pub use self::{
    audit::{
        AUDIT_ARGUMENTS_BYTES_MAX, AUDIT_BATCH_BYTES_MAX, AUDIT_BATCH_MAX, AUDIT_CHAINS_AT_ONCE,
        AUDIT_CHECKPOINT_ROWS, AUDIT_FLUSH_WAIT, AUDIT_FREE_REFUSALS_PER_MINUTE, AUDIT_PAGE_ROWS,
        AUDIT_QUEUE_BYTES_MAX, AUDIT_QUEUE_MAX, AUDIT_REFUSED_PRINCIPALS_MAX,
        AUDIT_RETENTION_DELAY, AUDIT_TARGET_CHARS_MAX, AUDIT_VALUE_BYTES_MAX,
    },
    children::{CHILD_IDLE_CHECK_INTERVAL, CHILD_WRITE_STALL_MAX},
    lists::{
        CATALOG_BYTES_AT_ONCE_MAX, CATALOG_MARKS_MAX, CURSOR_BYTES_MAX, LIST_BYTES_MAX,
        LIST_ENTRIES_MAX, LIST_ENTRY_VALUES_MAX, LIST_PAGE_BYTES_AT_ONCE_MAX, LIST_PAGES_MAX,
        LIST_URIS_WITH_FORMS_BYTES_MAX, PAGE_BYTES_MAX, PAGE_ENTRIES, REFRESH_DEBOUNCE,
        REFRESH_INTERVAL_MIN, URI_BYTES_MAX, URI_READING_BYTES_MIN, URI_READING_FACTOR,
    },
    memory::{
        HTTP2_STREAM_WINDOW_BYTES, HTTP2_WAITING_BODIES_MAX, OUTBOX_BYTES_TOTAL_DEFAULT,
        OUTBOX_STEP_BYTES, RELAYED_CHECK_INTERVAL, RELAYED_UNREAD_BYTES_MAX,
        RETAINED_EVENTS_BYTES_MAX, UNFINISHED_TENANT_BYTES_MAX,
    },
};

// Calls.

/// Retries of a failed call that is safe to repeat.
pub const RETRIES_MAX: u32 = 2;
/// Upper bound of the wait before the first retry; it doubles.
pub const RETRY_PAUSE_FIRST: Duration = Duration::from_millis(50);
/// Highest upper bound of that wait.
pub const RETRY_PAUSE_MAX: Duration = Duration::from_secs(1);
/// Retries that the calls of a backend can save up.
pub const RETRIES_SAVED_MAX: u64 = 10;
/// Weight of a departure in the pace of a queue: one in this many. A queue with more permits than
/// this uses the number of its permits,
pub const PACE_WEIGHT: u32 = 16;
/// up to this number.
pub const PACE_WEIGHT_MAX: u32 = 1_024;
/// Number of usual gaps of one permit that a gap between two departures counts as at most. The
/// bound grows with the number of permits, and doubles while long gaps follow one another.
pub const PACE_OUTLIER: u32 = 8;
/// Shortest value of a usual gap in that bound.
pub const PACE_GAP_USUAL: Duration = Duration::from_millis(1);
/// Reserved part of `limits.calls_in_flight`: one permit in this many. The reserve is for tenants
/// that hold less than their share of it. It exists
pub const RESERVE_DIVISOR: usize = 8;
/// if the limit has at least this many permits and the broker has more than one tenant.
pub const RESERVE_LIMIT_MIN: usize = 64;
/// Permits that each tenant's share of a smaller limit must have for it to have the reserve.
pub const RESERVE_SHARE_MIN: usize = 4;
/// Deadline for the answer to a probe of a backend whose breaker is open.
pub const PROBE_ANSWER_MAX: Duration = Duration::from_millis(1_500);
/// Silence of a backend after which a cancelled call makes the broker ping the backend.
pub const SILENCE_SUSPECTED: Duration = Duration::from_millis(250);
/// Wait between two such pings of a backend that answers.
pub const SUSPICION_INTERVAL: Duration = Duration::from_secs(1);

// Stateless requests (2026-07-28).

/// Rendered list pages that are cached for stateless clients. A further page empties the cache.
pub const STATELESS_LISTS_CACHED_MAX: usize = 1_024;
/// Bytes of these pages. A page that does not fit empties the cache too.
pub const STATELESS_LISTS_CACHED_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Pooled sessions for one principal at one endpoint with one set of capabilities. Each serves
/// one request at a time to a backend that cannot say which request a question belongs to.
pub const SESSIONS_PER_POOL_MAX: usize = 32;
/// Wait for a free pooled session before the pool opens another one.
pub const SESSION_POOL_GROW_INTERVAL: Duration = Duration::from_millis(200);
/// Wait for a free pooled session while the newest pooled session is being opened.
pub const POOLED_SESSION_OPEN_MAX: Duration = Duration::from_secs(2);
/// Wait of a request for a pooled session.
pub const POOLED_SESSION_WAIT_MAX: Duration = Duration::from_secs(30);
/// Headers for mirrored arguments that one CORS preflight may ask for.
pub const PREFLIGHT_PARAMS_MAX: usize = 64;
/// Times that the broker answers one request with a question.
pub const INPUT_ROUNDS_MAX: u32 = 32;
/// Wait after a question for further ones, so that one answer carries them all.
pub const INPUT_GATHER_WAIT: Duration = Duration::from_millis(10);
/// Resources in one stream of notifications, each subscribed to before the stream begins.
pub const LISTEN_URIS_MAX: usize = 100;
/// Nesting of the parameters of a completion whose values the broker checks against roots.
pub const COMPLETION_DEPTH_MAX: usize = 16;
/// Variables of the template in a completion whose values the broker checks against rules.
pub const TEMPLATE_VARIABLES_MAX: usize = 64;
/// Tasks in one stream of notifications. The broker reads each change from the database.
pub const LISTEN_TASKS_MAX: usize = 100;

// Tasks.

/// Random bytes of a task id. For some callers the id is the only proof of access to the task.
pub const TASK_ID_BYTES: usize = 24;
/// A call that becomes a task; the broker refuses a larger one.
pub const TASK_REQUEST_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The key with which a client marks two requests as the same one.
pub const IDEMPOTENCY_KEY_BYTES_MAX: usize = 256;
/// Shortest time that the broker keeps a task, so that its client can learn of it.
pub const TASK_TTL_MIN: Duration = Duration::from_secs(1);
/// Longest run of a task without a `ttl`.
pub const TASK_RUN_MAX: Duration = Duration::from_secs(7 * 24 * 3_600);
/// Tasks that one process runs at the same time.
pub const TASK_RUNS_MAX: usize = 10_000;
/// Wait before the broker tries again to promote a call to a task.
pub const PROMOTE_RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Tasks that a replica claims at once.
pub const TASK_CLAIM_BATCH: u32 = 64;
/// Shortest interval between two polls of a backend's task, whatever its `pollInterval`.
pub const TASK_POLL_MIN: Duration = Duration::from_millis(50);
/// Longest such interval.
pub const TASK_POLL_MAX: Duration = Duration::from_secs(60);
/// Times that a task resends a harmless call whose answer was lost.
pub const TASK_RESENDS_MAX: u32 = 3;
/// First time for which the call of a task keeps its permit while the store does not note that the
/// call is sent. The call then gives its permit to other calls; the time doubles.
pub const TASK_PERMIT_HOLD_FIRST: Duration = Duration::from_millis(500);
/// Requests of a backend (sampling, elicitation, roots) that one task waits for.
pub const TASK_INPUTS_MAX: usize = 16;
/// Notifications of one task per second that the broker forwards, such as progress.
pub const TASK_NOTIFICATIONS_PER_SECOND: u32 = 20;
/// Interval at which the broker reads tasks that clients wait for, in case a wake-up is lost.
pub const TASK_POLLER_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of those reads while wake-ups cannot reach other replicas.
pub const TASK_POLLER_INTERVAL_ALONE: Duration = Duration::from_millis(500);
/// Tasks that one query of the poller reads.
pub const TASK_POLLER_BATCH: usize = 1_000;
/// Longest wait of `tasks/result` (MCP 2025-11-25, Tasks). A client that still waits then sends
/// the request again.
pub const TASK_RESULT_WAIT_MAX: Duration = Duration::from_secs(3_600);
/// The `statusMessage` of a task, in characters.
pub const STATUS_MESSAGE_CHARS_MAX: usize = 500;
/// First wait before the broker retries a change that it could not store; it doubles.
pub const STORE_RETRY_FIRST: Duration = Duration::from_millis(50);
/// Longest such wait.
pub const STORE_RETRY_MAX: Duration = Duration::from_secs(1);
/// Attempts to store the outcome of a task, if the outcome is at least as large as
/// [`TASK_OUTCOME_SUSPECT_BYTES`] and the store accepts other writes.
pub const TASK_OUTCOME_TRIES: u32 = 8;
/// Attempts at each step of handing off a task; a drain waits for them.
pub const TASK_RELEASE_TRIES: u32 = 5;
/// Size from which an outcome may itself be the reason for a failed write.
pub const TASK_OUTCOME_SUSPECT_BYTES: usize = 1024 * 1024;
/// Deadline for storing a new task; its client waits for it.
pub const TASK_STORE_WAIT_MAX: Duration = Duration::from_millis(500);
/// Time after which a commit without an answer has mostly taken effect or never will. A commit
/// itself has no deadline.
pub const COMMIT_SETTLES_WITHIN: Duration = Duration::from_secs(6);
/// Longest pause between two lookups of what such a commit may have created.
pub const COMMIT_LOOK_MAX: Duration = Duration::from_secs(60);
/// Interval at which a process compares the tasks it owns with the tasks it runs.
pub const TASK_ORPHAN_SWEEP_INTERVAL: Duration = Duration::from_secs(3);
/// First time for which a process leaves a task that it cannot run to other replicas. The time
/// doubles.
pub const TASK_DEFER_FIRST: Duration = Duration::from_secs(10);
/// Longest such time.
pub const TASK_DEFER_MAX: Duration = Duration::from_secs(600);
/// Tasks that a process has deferred. A process with this many claims no further tasks.
pub const TASKS_DEFERRED_MAX: usize = 10_000;

// Sessions.

/// Random bytes of a session id.
pub const SESSION_ID_BYTES: usize = 24;
/// Wait of a new session for backends that the broker has not reached yet.
pub const FIRST_CATALOG_WAIT: Duration = Duration::from_secs(2);
/// Interval at which the broker looks for idle sessions, unanswered questions and unused links.
pub const REAPER_INTERVAL: Duration = Duration::from_secs(1);

/// Bytes in flight in one direction of a WebSocket that the broker tunnels to another replica.
pub const TUNNEL_BYTES: usize = 64 * 1024;
/// Sessions on other replicas whose owner is cached.
pub const OWNERS_REMEMBERED_MAX: usize = 10_000;
/// Sessions in the negative cache.
pub const ABSENT_REMEMBERED_MAX: usize = 10_000;
/// Lifetime of an entry in the negative cache of sessions.
pub const ABSENT_REMEMBERED_FOR: Duration = Duration::from_secs(1);
/// Shortest wait before the broker looks up a session again whose owner did not serve it.
pub const OWNER_RETRY_MIN: Duration = Duration::from_millis(50);
/// Times that this wait doubles.
pub const OWNER_RETRY_DOUBLINGS: u32 = 4;
/// Largest random addition to this wait: many requests may wait for the same lease.
pub const OWNER_RETRY_JITTER: Duration = Duration::from_millis(100);
/// Time that the search for the owner of a session lasts, in addition to two leases.
pub const OWNER_SEARCH_EXTRA: Duration = Duration::from_secs(1);

/// A request id that event ids contain; they omit a longer one.
pub const NAMED_REQUEST_BYTES_MAX: usize = 64;
/// Event streams of one session that are open or retained for resumption.
pub const STREAMS_KEPT_MAX: usize = 128;
/// Attempts of one subscribe request while other subscribe requests for the same URI fail.
pub const SUBSCRIBE_ATTEMPTS_MAX: usize = 3;
/// Resources that one session subscribes to.
pub const SUBSCRIPTIONS_PER_SESSION_MAX: usize = 1_000;
/// URIs of the resources that one session subscribes to, together.
pub const SUBSCRIPTION_BYTES_PER_SESSION_MAX: usize = 256 * 1024;
/// Requests of backends (sampling, elicitation, roots) that wait for the client of one session.
pub const QUESTIONS_MAX: usize = 100;
/// Capabilities, name and version of a client, together.
pub const CLIENT_TEXT_BYTES_MAX: usize = 64 * 1024;
/// Instructions of a backend that the broker forwards to clients.
pub const INSTRUCTIONS_BYTES_MAX: usize = 64 * 1024;
/// A name or version in logs and views; the rest is cut.
pub const DISPLAY_CHARS_MAX: usize = 100;
/// Tasks of one client for backends whose status the broker forwards.
pub const CLIENT_TASKS_MAX: usize = 1_000;
/// The id of an elicitation or of a client's task; the broker does not remember a longer one.
pub const ELICITATION_ID_BYTES_MAX: usize = 1_024;
/// URL elicitations of one session whose completion the broker forwards.
pub const ELICITATIONS_MAX: usize = 1_000;
/// Ids of these URL elicitations, together.
pub const ELICITATION_BYTES_PER_SESSION_MAX: usize = 128 * 1024;
/// URL elicitations of one answer of a backend whose completion the broker forwards.
pub const ELICITATIONS_PER_ANSWER_MAX: usize = 32;
/// Values of one completion (MCP 2025-11-25, Completion).
pub const COMPLETION_VALUES_MAX: usize = 100;

// Links to backends.

/// Frames that wait to be written to one backend over a pipe or a socket.
pub const LINK_QUEUE_FRAMES: usize = 1_024;
/// Bytes of the frames that wait to be written to one backend. A larger frame waits alone.
pub const LINK_QUEUE_BYTES_MAX: usize = 64 << 20;
/// Frames that one system call writes.
pub const WRITE_BATCH_FRAMES: usize = 64;
/// A backend on a socket that reads nothing for this long loses its connection.
pub const BACKEND_WRITE_STALL_MAX: Duration = Duration::from_secs(30);
/// Notifications and answers that wait for their POST to one HTTP backend.
pub const ONE_WAY_QUEUE_FRAMES: usize = 256;
/// The event id of a backend. The broker does not remember a longer one, and cannot resume its
/// stream there.
pub const EVENT_ID_BYTES_MAX: usize = 1_024;
/// Deadline of the DELETE that ends a session at an HTTP backend.
pub const SESSION_DELETE_WAIT: Duration = Duration::from_secs(2);
/// Consecutive messages of a backend that are not MCP.
pub const NOISE_LINES_MAX: u32 = 1_000;
/// Time after which the broker also sends `initialize` to a backend that has not answered
/// `server/discover`. Also the deadline of HTTP+SSE at a URL that refused Streamable HTTP.
pub const ERA_SILENCE_MAX: Duration = Duration::from_secs(2);
/// Connections that the broker opens at once after one whose first request decided the era, or
/// ended the backend.
pub const ERA_RETRIES_MAX: u32 = 2;
/// Sets of client capabilities that one connection caches in their form of 2026-07-28.
pub const CAPABILITIES_REMEMBERED_MAX: usize = 64;
/// Time in which the broker still reads a notification stream after its replacement has begun.
pub const LISTEN_OVERLAP: Duration = Duration::from_millis(200);
/// Wait before the broker requests a stream again that a backend refused: a notification stream, or
/// a GET stream that ended.
pub const LISTEN_REFUSED_PAUSE: Duration = Duration::from_secs(300);
/// Notification streams of one connection to a backend. Above that, each has more resources.
pub const LISTEN_STREAMS_MAX: usize = 32;
/// Shortest lifetime of lists of a backend without change notifications, whatever its `ttlMs`.
pub const LIST_TTL_MIN: Duration = Duration::from_secs(10);

/// First wait before the broker connects to a backend again; it doubles with each failure.
pub const BACKOFF_FIRST: Duration = Duration::from_millis(100);
/// Longest such wait, so that the broker uses a recovered backend within seconds.
pub const BACKOFF_MAX: Duration = Duration::from_secs(4);
/// Longest wait of a call for the next connection attempt to its backend.
pub const BACKOFF_WAIT_MAX: Duration = Duration::from_secs(1);
/// Lifetime from which a connection clears earlier failures.
pub const STABLE_AFTER: Duration = Duration::from_secs(10);
/// The broker closes a link that is unused for this long.
pub const LINK_IDLE_MAX: Duration = Duration::from_secs(600);
/// An answer has a weight of one in this many in the mean latency of its backend.
pub const LATENCY_WEIGHT: u64 = 8;

// HTTP, towards backends.

/// Attempts to resume an event stream before its request counts as lost.
pub const RESUME_ATTEMPTS_MAX: u32 = 5;
/// Wait before the broker resumes a stream when the backend sends no `retry`.
pub const RETRY_DEFAULT: Duration = Duration::from_secs(1);
/// Shortest `retry` that a backend can set, so that its streams cannot keep the broker busy.
pub const RETRY_MIN: Duration = Duration::from_millis(100);
/// Longest `retry` that a backend can set.
pub const RETRY_MAX: Duration = Duration::from_secs(30);
/// Shortest time to wait that a backend can tell clients (`Retry-After`).
pub const RETRY_AFTER_MIN: Duration = Duration::from_secs(1);
/// Longest time to wait that a backend can tell clients (`Retry-After`).
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(60 * 60);
/// Bytes of the body of an error response that the broker reads, to reuse the connection.
pub const ERROR_BODY_BYTES_MAX: usize = 64 * 1024;
/// Wait for the end of an event stream, to reuse the connection.
pub const STREAM_DRAIN: Duration = Duration::from_millis(250);

// HTTP, towards clients.

/// Connections that wait in the kernel for `accept`, as far as `net.core.somaxconn` permits.
/// All clients may reconnect at once after a restart.
pub const ACCEPT_QUEUE: u32 = 4_096;
/// Request line and headers of one request.
pub const REQUEST_HEAD_BYTES_MAX: usize = 64 * 1024;
/// A client that reads nothing for this long loses its connection. Over HTTP/2, it loses the answer
/// that it does not read.
pub const CLIENT_WRITE_STALL_MAX: Duration = Duration::from_secs(30);
/// Headers of one request.
pub const HTTP_HEADERS_MAX: usize = 100;
/// Size of the parts in which an HTTP/2 connection gets a response body.
pub const HTTP2_PIECE_BYTES: usize = 16 * 1024;
/// Size of the parts in which a client gets an event of a stream.
pub const EVENT_PIECE_BYTES: usize = 64 * 1024;
/// Largest response of another replica that is buffered: the client gets all of it or an error.
pub const RELAYED_WHOLE_BYTES_MAX: u64 = 1024 * 1024;
/// Requests in flight on one HTTP/2 connection.
pub const HTTP2_STREAMS_MAX: u32 = 256;
/// Requests of one HTTP/2 connection that were given up before the broker accepted them.
pub const HTTP2_GIVEN_UP_MAX: usize = 1_024;

// Connections that are sessions.

/// A message before its connection has a session.
pub const FIRST_MESSAGE_BYTES_MAX: usize = 2 * CLIENT_TEXT_BYTES_MAX;
/// Unauthenticated connections of all listeners that are inside a message of more than a few
/// kilobytes.
pub const LONG_FIRST_MESSAGES_MAX: usize = 512;
/// Frames that wait for one client.
pub const OUTBOX_FRAMES_MAX: usize = 65_536;
/// Frames that one write to a client carries.
pub const OUTBOX_BATCH_FRAMES: usize = 256;
/// The broker adds no further frame to a batch of this size.
pub const OUTBOX_BATCH_BYTES: usize = 256 * 1024;
/// Consecutive frames of one client before other clients have their turn.
pub const FRAMES_IN_A_ROW: u32 = 64;
/// Wait of a request in a full session for another request to end.
pub const PIPELINE_WAIT_MAX: Duration = Duration::from_secs(1);
/// Time in which a client that closed its sending side still gets answers.
pub const HALF_CLOSED_MAX: Duration = Duration::from_secs(10);
/// Requests of one QUIC client that have their own streams at the same time.
pub const QUIC_REQUEST_STREAMS_MAX: u32 = 100;
/// QUIC handshakes in progress.
pub const QUIC_HANDSHAKES_MAX: usize = 1_024;
/// Bytes of incomplete requests of one QUIC client, or of queued POSTs of one HTTP+SSE stream.
pub const UNFINISHED_REQUESTS_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Queued POSTs for one HTTP+SSE stream; further ones wait with their request.
pub const HTTP_SSE_QUEUE_FRAMES: usize = 64;
/// Random bytes in the address for the POSTs of an HTTP+SSE stream.
pub const HTTP_SSE_NAME_BYTES: usize = 24;
/// Deadline for writing the last messages to a client whose session has ended.
pub const LAST_FRAMES_WAIT: Duration = Duration::from_secs(5);

// Stores.

/// Time after the end of its lease from which a replica that could not renew it is not ready.
pub const LEASE_LOST_READY: Duration = Duration::from_millis(2_500);
/// Earlier names of a replica whose sessions and tasks it has not reclaimed yet.
pub const PAST_NAMES_MAX: usize = 64;
/// Sessions that a replica reclaims with one statement.
pub const RECLAIM_BATCH: usize = 500;
/// Interval between two attempts to reach an unavailable store.
pub const STORE_PROBE_EVERY: Duration = Duration::from_millis(250);
/// Longest pause before a failed lease renewal is retried.
pub const RENEWAL_RETRY_MAX: Duration = Duration::from_millis(500);
/// Interval at which each replica removes expired rows, varied by up to a half.
pub const SWEEP_INTERVAL: Duration = Duration::from_secs(4);
/// Expired sessions or tasks that one statement removes.
pub const SWEEP_ROWS: u32 = 200;
/// Expired events that one statement removes.
pub const SWEEP_EVENTS: u32 = 2_000;
/// Statements of one kind in one sweep; the rest waits for the next sweep.
pub const SWEEP_ROUNDS_MAX: usize = 10;
/// Shortest interval between two reads of the changes of other replicas.
pub const CONFIG_READ_INTERVAL_MIN: Duration = Duration::from_millis(200);
/// Longest wait of a sign-in for a read of keys and tokens that other replicas stored.
pub const CREDENTIAL_READ_WAIT_MAX: Duration = Duration::from_secs(1);
/// Sign-ins that wait for such a read at the same time.
pub const CREDENTIAL_READ_WAITERS_MAX: usize = 256;
/// Rows that one query reads for a list of the admin API.
pub const ADMIN_PAGE_ROWS: u32 = 500;
/// Entries of one answer of the admin API with sessions or tasks.
pub const ADMIN_LIST_MAX: usize = 20_000;
/// Tasks that the broker compares with the digest of a task in a request of an operator.
pub const TASKS_COMPARED_MAX: usize = 100_000;
/// Writes that share a transaction.
pub const PERSIST_BATCH_MAX: usize = 256;
/// Bytes of the large writes in one transaction. A larger write has its own transaction.
pub const PERSIST_BATCH_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Size from which a write may itself be what slows the store down.
pub const PERSIST_SUSPECT_BYTES: usize = 64 * 1024;
/// Writes that wait for their transaction in one lane.
pub const PERSIST_QUEUE_MAX: usize = 4_096;
/// Entries that one step adds to the event log.
pub const EVENT_BATCH_MAX: usize = 256;
/// The broker adds no further entry to a batch of this size.
pub const EVENT_BATCH_BYTES_MAX: usize = 1024 * 1024;
/// Entries that wait for the event log. The next entry of a stream notes that earlier ones are
/// missing.
pub const EVENT_QUEUE_MAX: usize = 16_384;
/// Bytes that wait for the event log.
pub const EVENT_QUEUE_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Streams with a gap that the broker remembers until the event log notes the gap.
pub const LOST_STREAMS_MAX: usize = 100_000;
/// Events that a stream trims before it trims the event log too; the log may hold a few more.
pub const TRIM_LOGGED_EVERY: u64 = 64;
/// Shortest interval at which a quiet stream renews its entry in the event log.
pub const QUIET_LOGGED_EVERY_MIN: Duration = Duration::from_secs(10);
/// Time in which a session holds back new requests, so that a busy session can be handed off.
pub const CLOSING_UP_MAX: Duration = Duration::from_millis(500);
/// Time for waiting requests to leave with their session.
pub const MOVE_ON_MAX: Duration = Duration::from_secs(1);
/// Wait of a fenced write for the news that its replica reclaimed the row after its lease
/// lapsed.
pub const OWNER_NEWS_WAIT: Duration = Duration::from_secs(5);
/// Shortest time after a failure of the event log before the lists of a session are stored
/// again.
pub const LISTS_RETRY: Duration = Duration::from_secs(10);
/// Sessions whose changes one write-behind pass stores.
pub const FLUSHED_AT_ONCE: usize = 256;
/// Shortest interval at which the last sign of life of a session is stored.
pub const SEEN_STORED_EVERY_MAX: Duration = Duration::from_secs(60);
/// Time for which the event log may delay the hand-off of a session.
pub const EVENTS_FLUSH_WAIT: Duration = Duration::from_secs(2);
/// Sessions that a draining broker hands off at the same time.
pub const RELEASED_AT_ONCE: usize = 64;
/// First wait before the broker stores the end of a session again. It doubles with each failure.
pub const END_RETRY_FIRST: Duration = Duration::from_millis(250);
/// Longest pause before the broker stores the end of a session again.
pub const END_RETRY_PAUSE_MAX: Duration = Duration::from_secs(10);
/// Time for which the broker retries to settle the owner of a session's row.
pub const END_RETRY_MAX: Duration = Duration::from_secs(60);

// Rates and overload.

/// Interval at which a replica settles used rates with Redis. Until then it uses at most its
/// share of a rate.
pub const BUDGET_SETTLE_INTERVAL: Duration = Duration::from_millis(20);
/// Rates in one such exchange.
pub const BUDGET_REQUESTS_BATCH_MAX: usize = 256;
/// Principals of one tenant with a separate rate.
pub const PRINCIPALS_METERED_MAX: usize = 10_000;
/// Tools of one backend with a separate rate.
pub const TOOLS_METERED_MAX: usize = 2_000;
/// Addresses of one listener with a separate rate.
pub const ADDRESSES_METERED_MAX: usize = 20_000;
/// `retryAfterMs` for a client over its limit of sessions or connections; the broker cannot
/// know when one ends.
pub const LIMIT_RETRY_AFTER: Duration = Duration::from_secs(1);
/// `retryAfterMs` for a client that an overloaded process refuses.
pub const OVERLOAD_RETRY: Duration = Duration::from_secs(1);
/// Interval at which memory and the queue of the runtime are sampled.
pub const OVERLOAD_SAMPLE_INTERVAL: Duration = Duration::from_millis(50);
/// Consecutive slow samples of the queue that make an overload.
pub const OVERLOAD_SAMPLES_IN_A_ROW: u32 = 4;
/// An overloaded process still reads a body up to this size, to learn whether it is a new
/// request.
pub const OVERLOAD_BODY_BYTES_MAX: usize = 64 * 1024;

// Traces and the log.

/// The log reports an error for a certificate that is valid for less than this; the Prometheus
/// alert uses the same time.
pub const CERTIFICATE_ENDS_SOON: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// Spans of one request; further ones are dropped and counted.
pub const SPANS_PER_REQUEST_MAX: usize = 64;
/// Spans in one export.
pub const SPAN_BATCH_MAX: usize = 512;
/// Longest wait of a span for its batch.
pub const SPAN_BATCH_WAIT: Duration = Duration::from_secs(1);
/// Deadline of one export; the broker drops the batch then.
pub const SPAN_EXPORT_WAIT: Duration = Duration::from_secs(5);
/// Wait for the last spans at the end of the process.
pub const SPAN_FLUSH_WAIT: Duration = Duration::from_secs(2);
/// Log lines that wait for the reader of standard error.
pub const LOG_LINES_MAX: usize = 8_192;
/// Bytes of those lines.
pub const LOG_LINES_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Wait for the last log lines at the end of the process.
pub const LOG_FLUSH_WAIT: Duration = Duration::from_secs(1);

// The whole process.

/// Time in which open connections close after the grace of the drain, before the process ends.
pub const CLOSE_WAIT: Duration = Duration::from_secs(5);
