//! Limits of the inputs that backends request: of calls that wait for the input of a stateless
//! client, and of backends of 2026-07-28.

/// Times that a backend may request more input before it answers a call.
pub const BACKEND_INPUT_ROUNDS_MAX: u32 = 16;
/// Inputs that a backend may request in one task.
pub const BACKEND_TASK_INPUTS_MAX: usize = 1_024;
/// Random bytes of an elicitation id that the broker creates.
pub const ELICITATION_ID_BYTES: usize = 16;
/// Suspended requests of one caller: they wait for input that the broker requested.
pub const SUSPENDED_PER_CALLER_MAX: usize = 64;
/// Suspended requests of one tenant.
pub const SUSPENDED_PER_TENANT_MAX: usize = 2_500;
/// Suspended requests of all callers.
pub const SUSPENDED_MAX: usize = 10_000;
/// Bytes that the suspended requests of one caller hold.
pub const SUSPENDED_BYTES_PER_CALLER_MAX: usize = 8 * 1024 * 1024;
/// Bytes that the suspended requests of one tenant hold.
pub const SUSPENDED_BYTES_PER_TENANT_MAX: usize = 64 * 1024 * 1024;
/// Bytes that the suspended requests of all callers hold.
pub const SUSPENDED_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Suspended requests at one endpoint that hold a pooled session for themselves.
pub const POOLED_SESSIONS_SUSPENDED_MAX: usize = 24;
