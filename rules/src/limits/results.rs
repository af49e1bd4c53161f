//! Limits of results that are shortened for their clients.

use std::time::Duration;

/// Smallest budget of a result, in estimated tokens. The note about the rest fits into it.
pub const RESULT_TOKENS_MIN: u32 = 200;
/// Largest budget of a result, in estimated tokens.
pub const RESULT_TOKENS_MAX: u32 = 1_000_000;
/// Bytes of one estimated token.
pub const TOKEN_BYTES: usize = 4;
/// The stored part of one result.
pub const KEPT_RESULT_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Stored results of one principal. Beyond it, the oldest ones are removed.
pub const KEPT_RESULT_BYTES_PER_PRINCIPAL: u64 = 32 * 1024 * 1024;
/// Stored results of one tenant. Beyond it, a result is sent as it is.
pub const KEPT_RESULT_BYTES_PER_TENANT: u64 = 512 * 1024 * 1024;
/// Time for which a result is stored.
pub const KEPT_RESULT_TTL: Duration = Duration::from_secs(3_600);
/// Random bytes of the id of a stored result.
pub const KEPT_RESULT_ID_BYTES: usize = 24;
/// Largest page of a stored result. A page is not larger than the budget of the result.
pub const KEPT_RESULT_PAGE_BYTES_MAX: usize = 64 * 1024;
