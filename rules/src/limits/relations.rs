//! Relations between the limits. The compiler checks them.

use std::time::Duration;

use protocol::{json::VALUES_MAX, stateless::tool_headers::ANNOTATIONS_MAX};

use super::{
    ADMIN_LIST_MAX, ADMIN_PAGE_ROWS, AUDIT_BATCH_BYTES_MAX, AUDIT_BATCH_MAX, AUDIT_FLUSH_WAIT,
    AUDIT_QUEUE_BYTES_MAX, AUDIT_QUEUE_MAX, BACKOFF_FIRST, BACKOFF_MAX, BACKOFF_WAIT_MAX,
    CLOSE_WAIT, CLOSING_UP_MAX, EVENT_BATCH_BYTES_MAX, EVENT_BATCH_MAX, EVENT_QUEUE_BYTES_MAX,
    EVENT_QUEUE_MAX, FLUSHED_AT_ONCE, HTTP_HEADERS_MAX, LATENCY_WEIGHT, LINK_QUEUE_FRAMES,
    LIST_BYTES_MAX, LIST_ENTRIES_MAX, LIST_ENTRY_VALUES_MAX, LIST_PAGES_MAX, OUTBOX_BATCH_BYTES,
    OUTBOX_STEP_BYTES, OWNER_RETRY_JITTER, OWNER_SEARCH_EXTRA, PAGE_BYTES_MAX, PAGE_ENTRIES,
    PERSIST_BATCH_MAX, PERSIST_QUEUE_MAX, REFRESH_DEBOUNCE, REFRESH_INTERVAL_MIN,
    REQUEST_HEAD_BYTES_MAX, RETRY_DEFAULT, RETRY_MAX, SESSION_ID_BYTES, SPAN_FLUSH_WAIT,
    STABLE_AFTER, STORE_RETRY_FIRST, STORE_RETRY_MAX, TASK_POLL_MAX, TASK_POLL_MIN,
    TASK_POLLER_INTERVAL, TASK_POLLER_INTERVAL_ALONE, URI_BYTES_MAX, WRITE_BATCH_FRAMES,
    toolsets::BATCH_RESULT_VALUES_MAX,
};

const fn at_most(shorter: Duration, longer: Duration) -> bool {
    shorter.as_millis() <= longer.as_millis()
}

const _: () = assert!(OUTBOX_BATCH_BYTES <= OUTBOX_STEP_BYTES); // a step holds what one connection is about to write
const _: () = assert!(PAGE_ENTRIES <= LIST_ENTRIES_MAX); // a full page must be possible
const _: () = assert!(LIST_PAGES_MAX * PAGE_ENTRIES >= LIST_ENTRIES_MAX); // pages of our own size must reach the limit of entries
const _: () = assert!(LIST_PAGES_MAX * (PAGE_BYTES_MAX / 2) >= LIST_BYTES_MAX); // and that of bytes: two pages in a row have more than one may have
const _: () = assert!(at_most(BACKOFF_FIRST, BACKOFF_WAIT_MAX)); // one failure must not refuse the calls right after it
const _: () = assert!(at_most(BACKOFF_WAIT_MAX, BACKOFF_MAX));
const _: () = assert!(at_most(BACKOFF_MAX, STABLE_AFTER)); // else failures would be forgotten while they are waited for
const _: () = assert!(at_most(RETRY_DEFAULT, RETRY_MAX));
const _: () = assert!(WRITE_BATCH_FRAMES <= LINK_QUEUE_FRAMES); // a batch is taken out of the queue
const _: () = assert!(at_most(REFRESH_DEBOUNCE, REFRESH_INTERVAL_MIN)); // the debounce is part of the interval
const _: () = assert!(LATENCY_WEIGHT > 0); // it divides
const _: () = assert!(ADMIN_PAGE_ROWS as usize <= ADMIN_LIST_MAX);
const _: () = assert!(PERSIST_BATCH_MAX <= PERSIST_QUEUE_MAX); // a batch is taken out of the queue
const _: () = assert!(SESSION_ID_BYTES.is_multiple_of(3)); // its base64 text has no remainder
const _: () = assert!(at_most(CLOSING_UP_MAX, OWNER_SEARCH_EXTRA)); // a request that is held back must still find the session
const _: () = assert!(at_most(OWNER_RETRY_JITTER, OWNER_SEARCH_EXTRA)); // the wait for a lease must fit into the search
const _: () = assert!(at_most(TASK_POLL_MIN, TASK_POLL_MAX));
const _: () = assert!(at_most(TASK_POLLER_INTERVAL_ALONE, TASK_POLLER_INTERVAL));
const _: () = assert!(at_most(STORE_RETRY_FIRST, STORE_RETRY_MAX));
const _: () =
    assert!(EVENT_BATCH_MAX <= EVENT_QUEUE_MAX && EVENT_BATCH_BYTES_MAX <= EVENT_QUEUE_BYTES_MAX);
const _: () =
    assert!(AUDIT_BATCH_MAX <= AUDIT_QUEUE_MAX && AUDIT_BATCH_BYTES_MAX <= AUDIT_QUEUE_BYTES_MAX);
const _: () =
    assert!(at_most(AUDIT_FLUSH_WAIT, CLOSE_WAIT) && at_most(SPAN_FLUSH_WAIT, CLOSE_WAIT)); // both are waited for while closing
const _: () = assert!(FLUSHED_AT_ONCE <= PERSIST_QUEUE_MAX); // else deferred writes could crowd out those that a request waits for
const _: () = assert!(URI_BYTES_MAX < REQUEST_HEAD_BYTES_MAX);
const _: () = assert!(PAGE_ENTRIES * LIST_ENTRY_VALUES_MAX < VALUES_MAX); // the broker reads each page again for stateless clients
const _: () = assert!(2 * BATCH_RESULT_VALUES_MAX < VALUES_MAX); // the broker reads the result of a batch again for stateless clients
const _: () = assert!(ANNOTATIONS_MAX <= HTTP_HEADERS_MAX); // a client must be able to send all headers of a tool
