//! Limits of validated arguments and of their schemas. `rules::arguments` and
//! `backends::validation_pool` read them.

use std::time::Duration;

/// The `inputSchema` of a tool whose arguments are validated.
pub const SCHEMA_BYTES_MAX: usize = 256 * 1024;
/// Values in such a schema.
pub const SCHEMA_NODES_MAX: usize = 10_000;
/// Levels of arguments for which the broker counts how often a schema visits one location.
pub const SCHEMA_DEPTH_MAX: usize = 32;
/// Nested subschemas that apply to the same location.
pub const SCHEMA_NESTING_MAX: usize = 16;
/// Visits of one location that a schema may cause.
pub const SCHEMA_COST_MAX: u64 = 1_000;
/// One compiled pattern of a schema.
pub const PATTERN_COMPILED_BYTES_MAX: usize = 256 * 1024;
/// One compiled schema with its patterns, estimated before it is compiled.
pub const SCHEMA_COMPILED_BYTES_MAX: usize = 8 * 1024 * 1024;
/// All compiled schemas of the process. Beyond it, the least recently used schemas of the
/// tenant with the most bytes are evicted.
pub const SCHEMAS_COMPILED_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Tools of a backend in its list of unused schemas.
pub const UNUSED_SCHEMAS_REPORTED_MAX: usize = 16;
/// Wait of a call for the schema of its tool to be compiled.
pub const SCHEMA_COMPILE_WAIT: Duration = Duration::from_secs(5);

/// Arguments that are validated.
pub const ARGUMENT_BYTES_MAX: usize = 1024 * 1024;
/// Steps of one validation: values, comparisons, and states of patterns times characters.
pub const ARGUMENT_STEPS_MAX: u64 = 100_000_000;
/// Arguments that may be validated inline, without a validation thread.
pub const ARGUMENT_BYTES_AT_ONCE_MAX: usize = 4 * 1024;
/// Steps of an inline validation; a longer one starts again on a validation thread.
pub const ARGUMENT_STEPS_AT_ONCE_MAX: u64 = 4_000;
/// Arguments that are searched inline for duplicate members.
pub const DUPLICATES_BYTES_AT_ONCE_MAX: usize = 32 * 1024;
/// Faults of arguments in one refusal.
pub const FAULTS_REPORTED_MAX: usize = 5;
/// Faults after which a validation stops, including those inside of alternatives.
pub const FAULTS_FOUND_MAX: usize = 16;
/// The location of a fault in a refusal, in characters.
pub const FAULT_CHARS_MAX: usize = 200;
/// A string with a `format` whose check may take more than linear time; a longer string fails
/// the check.
pub const FORMAT_BYTES_MAX: usize = 2 * 1024;

/// Validation threads, whatever the number of processors.
pub const VALIDATION_THREADS_MAX: usize = 8;
/// Validations of one tenant that wait for a thread.
pub const VALIDATIONS_QUEUED_PER_TENANT_MAX: usize = 64;
/// Validations of all tenants that wait for a thread.
pub const VALIDATIONS_QUEUED_MAX: usize = 1_024;
/// Niceness of validation threads, so that all other threads of the process run first.
pub const VALIDATION_NICENESS: i32 = 10;
/// Deadline of a validation, unless the backend sets another one.
pub const VALIDATE_TIMEOUT_DEFAULT: Duration = Duration::from_millis(100);
/// Shortest deadline that a backend can set.
pub const VALIDATE_TIMEOUT_MIN: Duration = Duration::from_millis(1);
/// Longest deadline that a backend can set.
pub const VALIDATE_TIMEOUT_MAX: Duration = Duration::from_secs(10);

const _: () = assert!(FAULTS_REPORTED_MAX <= FAULTS_FOUND_MAX); // else fewer would be found than are reported
const _: () = assert!(SCHEMA_COMPILED_BYTES_MAX <= SCHEMAS_COMPILED_BYTES_MAX); // one that may be compiled must have capacity
const _: () = assert!(ARGUMENT_BYTES_AT_ONCE_MAX <= DUPLICATES_BYTES_AT_ONCE_MAX); // what is checked on the spot is searched there
const _: () = assert!(ARGUMENT_STEPS_AT_ONCE_MAX <= ARGUMENT_STEPS_MAX);
const _: () = assert!(VALIDATIONS_QUEUED_PER_TENANT_MAX * 2 <= VALIDATIONS_QUEUED_MAX); // one tenant must not fill the queue
