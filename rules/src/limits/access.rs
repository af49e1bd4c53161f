//! Limits of access policies and of what the broker remembers for them.

use std::time::Duration;

/// Rules of one access policy.
pub const POLICY_RULES_MAX: usize = 2_000;
/// Tests of one access policy.
pub const POLICY_TESTS_MAX: usize = 1_000;
/// Patterns in one list of a rule.
pub const POLICY_PATTERNS_MAX: usize = 500;
/// One pattern of a rule.
pub const POLICY_PATTERN_BYTES_MAX: usize = 512;
/// Views of the catalog that the broker keeps for one tenant: one for each set of rights. Each counts
/// by the number of its entries.
pub const ACCESS_VIEWS_BYTES_MAX: u64 = 512 * 1024 * 1024;
/// Memory that a view usually needs for one entry.
pub const ACCESS_VIEW_ENTRY_BYTES: u64 = 1024;
/// Subjects of one tenant whose view the broker remembers.
pub const ACCESS_SUBJECTS_MAX: usize = 16_384;
/// Rules of which the report of a tenant counts the decisions.
pub const POLICY_REPORT_ROWS_MAX: usize = 1_000;
/// Principals, and objects, that the report shows for a rule.
pub const POLICY_REPORT_SAMPLES_MAX: usize = 5;
/// Age of the decisions that the report counts.
pub const POLICY_REPORT_AGE_MAX: Duration = Duration::from_secs(24 * 3_600);
/// Revocations of tokens of one tenant.
pub const REVOCATIONS_MAX: usize = 10_000;
/// The principal or the token id that a revocation names.
pub const REVOKED_SUBJECT_BYTES_MAX: usize = 512;
