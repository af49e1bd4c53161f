//! Limits of arguments that are held to a schema, and of the schemas. Read by `rules::arguments` and `backends::validation_pool`.

use std::time::Duration;

/// The `inputSchema` of a tool whose arguments are checked; a larger one is not used.
pub const SCHEMA_BYTES_MAX: usize = 256 * 1024;
/// Values in such a schema.
pub const SCHEMA_NODES_MAX: usize = 10_000;
/// Levels of arguments for which is counted how often a schema makes one place be looked at.
pub const SCHEMA_DEPTH_MAX: usize = 32;
/// Subschemas inside one another that speak of the same place.
pub const SCHEMA_NESTING_MAX: usize = 16;
/// How often a schema may make one place be looked at.
pub const SCHEMA_COST_MAX: u64 = 1_000;
/// One compiled pattern of a schema, in bytes.
pub const PATTERN_COMPILED_BYTES_MAX: usize = 256 * 1024;
/// One compiled schema, as counted before it is compiled, with its patterns.
pub const SCHEMA_COMPILED_BYTES_MAX: usize = 8 * 1024 * 1024;
/// All compiled schemas of the process; over it those go that were not used for longest, of the tenant that has most.
pub const SCHEMAS_COMPILED_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Tools of a backend whose unused schemas are told to operators.
pub const SCHEMAS_UNUSED_TOLD_MAX: usize = 16;
/// How long a call waits for the schema of its tool to be compiled.
pub const SCHEMA_COMPILE_WAIT: Duration = Duration::from_secs(5);

/// Arguments that are checked; larger ones are refused where they would be.
pub const ARGUMENT_BYTES_MAX: usize = 1024 * 1024;
/// Steps of one validation: single values, comparisons, and states of patterns by the characters they are matched against.
pub const ARGUMENT_STEPS_MAX: u64 = 100_000_000;
/// Arguments that may be checked on the spot, without a validation thread.
pub const ARGUMENT_BYTES_AT_ONCE_MAX: usize = 4 * 1024;
/// Steps of such a check; what needs more is begun again on a validation thread.
pub const ARGUMENT_STEPS_AT_ONCE_MAX: u64 = 4_000;
/// Arguments that are searched for members that stand twice on the spot.
pub const DUPLICATES_BYTES_AT_ONCE_MAX: usize = 32 * 1024;
/// Faults of arguments a client is told.
pub const FAULTS_TOLD_MAX: usize = 5;
/// Faults after which a validation stops, those inside of alternatives included.
pub const FAULTS_FOUND_MAX: usize = 16;
/// How much of the place of a fault is told, in characters.
pub const FAULT_CHARS_MAX: usize = 200;
/// Strings that can have a `format` whose check may take more than linear time; longer ones have none.
pub const FORMAT_BYTES_MAX: usize = 2 * 1024;

/// Validation threads, whatever the number of processors.
pub const VALIDATION_THREADS_MAX: usize = 8;
/// Validations of one tenant that wait for a thread.
pub const VALIDATIONS_QUEUED_PER_TENANT_MAX: usize = 64;
/// Validations of all tenants that wait for a thread.
pub const VALIDATIONS_QUEUED_MAX: usize = 1_024;
/// By how much validation threads give way to all other threads of the process (`nice`).
pub const VALIDATION_NICENESS: i32 = 10;
/// How long validation may take where the backend does not say otherwise.
pub const VALIDATE_TIMEOUT_DEFAULT: Duration = Duration::from_millis(100);
/// The shortest time that a backend can say.
pub const VALIDATE_TIMEOUT_MIN: Duration = Duration::from_millis(1);
/// The longest time that a backend can say for a validation.
pub const VALIDATE_TIMEOUT_MAX: Duration = Duration::from_secs(10);

const _: () = assert!(FAULTS_TOLD_MAX <= FAULTS_FOUND_MAX); // else fewer would be found than are told
const _: () = assert!(SCHEMA_COMPILED_BYTES_MAX <= SCHEMAS_COMPILED_BYTES_MAX); // one that may be compiled must have room
const _: () = assert!(ARGUMENT_BYTES_AT_ONCE_MAX <= DUPLICATES_BYTES_AT_ONCE_MAX); // what is checked on the spot is searched there
const _: () = assert!(ARGUMENT_STEPS_AT_ONCE_MAX <= ARGUMENT_STEPS_MAX);
const _: () = assert!(VALIDATIONS_QUEUED_PER_TENANT_MAX * 2 <= VALIDATIONS_QUEUED_MAX); // one tenant must not fill the queue
