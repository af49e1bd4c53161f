//! Limits of what clients declare, and of the roots that operators give backends.

use std::time::Duration;

/// Pools of one principal at one endpoint whose requests declare extensions. They differ in the
/// settings of these extensions, which clients choose freely.
pub const EXTENSION_POOLS_MAX: usize = 16;
/// How long the first lists of a backend wait for a probe of the capabilities that it requires.
pub const CAPABILITY_PROBE_WAIT: Duration = Duration::from_secs(3);
/// Time between two probes of a backend that lists new tools or prompts.
pub const CAPABILITY_PROBE_INTERVAL_MIN: Duration = Duration::from_secs(60);
/// Roots that operators give one backend.
pub const ROOTS_MAX: usize = 64;
/// Characters of the name of such a root.
pub const ROOT_NAME_CHARS_MAX: usize = 256;
