//! Limits of the audit log: its queue, its records, its chains and its retention.

use std::time::Duration;

/// Audit records that wait to be stored.
pub const AUDIT_QUEUE_MAX: usize = 16_384;
/// Bytes of those records.
pub const AUDIT_QUEUE_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Audit records of one principal per minute about refused requests that took nothing from a rate.
/// The next such record has the number of those that the broker left out.
pub const AUDIT_FREE_REFUSALS_PER_MINUTE: u32 = 60;
/// Principals whose records of such requests the broker counts apart. Further ones share one count.
pub const AUDIT_REFUSED_PRINCIPALS_MAX: usize = 1_000;
/// Records in one commit.
pub const AUDIT_BATCH_MAX: usize = 500;
/// The broker adds no further record to a batch of this size.
pub const AUDIT_BATCH_BYTES_MAX: usize = 1024 * 1024;
/// Wait for the last records at the end of the process.
pub const AUDIT_FLUSH_WAIT: Duration = Duration::from_secs(2);
/// Records after which a chain of the audit log gets a checkpoint, whatever
/// `audit.checkpoint_interval` is.
pub const AUDIT_CHECKPOINT_ROWS: i64 = 1_000;
/// Records of the audit log that one query reads for a verification.
pub const AUDIT_PAGE_ROWS: u32 = 500;
/// Chains of the audit log that are signed or trimmed at once.
pub const AUDIT_CHAINS_AT_ONCE: u32 = 100;
/// Delay before a shorter retention of the audit log takes effect.
pub const AUDIT_RETENTION_DELAY: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// Arguments in the audit log; it keeps only a digest of longer ones.
pub const AUDIT_ARGUMENTS_BYTES_MAX: usize = 16 * 1024;
/// Policies in audit records of their changes. Of a longer one, only its digest is recorded.
pub const AUDIT_VALUE_BYTES_MAX: usize = 64 * 1024;
/// A name or URI in the audit log, in characters.
pub const AUDIT_TARGET_CHARS_MAX: usize = 512;
