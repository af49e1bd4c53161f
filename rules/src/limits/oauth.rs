//! Limits of the broker as an OAuth client towards backends.

use std::time::Duration;

/// An answer of an authorization server, or a document about a backend's authorization.
pub const OAUTH_ANSWER_BYTES_MAX: usize = 256 * 1024;
/// Deadline of one request to an authorization server.
pub const OAUTH_REQUEST_MAX: Duration = Duration::from_secs(10);
/// Time for which the broker uses the metadata of an authorization server.
pub const OAUTH_METADATA_AGE_MAX: Duration = Duration::from_secs(3_600);
/// Time without token requests for a backend after one that failed.
pub const OAUTH_FAILURE_PAUSE: Duration = Duration::from_secs(1);
/// Tries of one request to a backend that refuses its token.
pub const OAUTH_TRIES_MAX: u32 = 3;
/// An access token.
pub const OAUTH_TOKEN_BYTES_MAX: usize = 16 * 1024;
