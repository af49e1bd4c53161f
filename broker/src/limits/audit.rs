//! Limits of the audit log: of its queue, its records, its chains and its retention.

use std::time::Duration;

/// Records of the audit log that wait to be stored; what finds no room is dropped and counted.
pub const AUDIT_QUEUE_MAX: usize = 16_384;
/// Bytes of those.
pub const AUDIT_QUEUE_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Records stored in one commit.
pub const AUDIT_BATCH_MAX: usize = 500;
/// No further record is added to a batch that holds this much.
pub const AUDIT_BATCH_BYTES_MAX: usize = 1024 * 1024;
/// How long the end of the process waits for records to be stored.
pub const AUDIT_FLUSH_WAIT: Duration = Duration::from_secs(2);
/// A chain of the audit log gets a checkpoint after so many records, however long `audit.checkpoint_interval` is.
pub const AUDIT_CHECKPOINT_ROWS: i64 = 1_000;
/// Records of the audit log that are read at once to be verified.
pub const AUDIT_PAGE_ROWS: u32 = 500;
/// Chains of the audit log that are signed or trimmed at once.
pub const AUDIT_CHAINS_AT_ONCE: u32 = 100;
/// A shorter retention of the audit log takes effect so much later.
pub const AUDIT_RETENTION_DELAY: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// Longer arguments have a digest in the audit log, and no text.
pub const AUDIT_ARGUMENTS_BYTES_MAX: usize = 16 * 1024;
/// Longer names and URIs are cut in the audit log.
pub const AUDIT_TARGET_CHARS_MAX: usize = 512;
