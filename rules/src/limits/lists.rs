//! Limits of lists and of names in them.

use std::time::Duration;

/// Entries on one page of a list that the broker answers.
pub const PAGE_ENTRIES: usize = 100;
/// Bytes of the entries on such a page, so that a client on a slow line gets it in time. A larger
/// entry has a page of its own.
pub const PAGE_BYTES_MAX: usize = 512 * 1024;
/// Pages of one list of one backend that the broker fetches, because a backend can send cursors without end.
pub const LIST_PAGES_MAX: usize = 1_000;
/// Cursor of a list of one backend. A longer one ends the list.
pub const CURSOR_BYTES_MAX: usize = 8 * 1024;
/// Catalogs of brokers behind the lists of one backend that is a broker. The lists of a backend with
/// more are not used, because they could contain those of the tenant.
pub const CATALOG_MARKS_MAX: usize = 256;
/// A page of a list of a backend that is read inline. A longer one could delay other tenants.
pub const LIST_PAGE_BYTES_AT_ONCE_MAX: usize = 64 * 1024;
/// Entries of a catalog of which a request builds its part inline.
pub const CATALOG_BYTES_AT_ONCE_MAX: usize = 1024 * 1024;
/// Entries that the broker keeps of one list of one backend.
pub const LIST_ENTRIES_MAX: usize = 10_000;
/// JSON values of one entry of a list, at any depth. A page of the largest entries has fewer values
/// than one message may have.
pub const LIST_ENTRY_VALUES_MAX: usize = 10_000;
/// Bytes that the broker keeps of one list of one backend.
pub const LIST_BYTES_MAX: usize = 32 * 1024 * 1024;
/// The URI of a resource.
pub const URI_BYTES_MAX: usize = 8 * 1024;
/// Text of the other forms in which servers may read a URI, as a multiple of its bytes. Rules take a
/// URI with more for any resource.
pub const URI_READING_FACTOR: usize = 24;
/// Text of these forms that every URI may have.
pub const URI_READING_BYTES_MIN: usize = 4 * 1024;
/// Bytes of the URIs in one list of one backend that have other forms.
pub const LIST_URIS_WITH_FORMS_BYTES_MAX: usize = 1024 * 1024;
/// Wait after a `list_changed` for the next one, so that a burst causes one refresh.
pub const REFRESH_DEBOUNCE: Duration = Duration::from_millis(50);
/// Shortest interval between two fetches of a backend's lists.
pub const REFRESH_INTERVAL_MIN: Duration = Duration::from_millis(500);
