//! Limits of the inputs that backends of 2026-07-28 request.

/// Times that a backend may request more input before it answers a call.
pub const BACKEND_INPUT_ROUNDS_MAX: u32 = 16;
/// Inputs that a backend may request in one task.
pub const BACKEND_TASK_INPUTS_MAX: usize = 1_024;
/// Random bytes of an elicitation id that the broker creates.
pub const ELICITATION_ID_BYTES: usize = 16;
