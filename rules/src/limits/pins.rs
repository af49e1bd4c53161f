//! Limits of pins and of the scanner of definitions.

/// Pins of one backend. Above it, new objects are not pinned, and modes that hold objects hold them.
pub const PINS_PER_BACKEND_MAX: u32 = 50_000;
/// Sightings that the broker stores in one transaction.
pub const PINS_STORED_AT_ONCE: usize = 500;
/// Bytes of their definitions, so that the transaction ends within its deadline. A sighting with more
/// has its own transaction.
pub const PINS_STORED_BYTES_AT_ONCE: usize = 1024 * 1024;
/// Values of one definition of which the broker makes a canonical form. A definition with more is
/// hashed as its text.
pub const DEFINITION_VALUES_MAX: usize = 32 * 1024;
/// Findings that the scanner keeps of one definition.
pub const FINDINGS_MAX: usize = 20;
/// JSON pointer of a finding; the rest is cut.
pub const FINDING_POINTER_BYTES_MAX: usize = 1_024;
/// Excerpt of a finding; the rest is cut.
pub const FINDING_EXCERPT_BYTES_MAX: usize = 1_024;
/// Names and values of one definition that the scanner reads. A longer one is a finding itself.
pub const SCANNED_BYTES_MAX: usize = 256 * 1024;
/// A description above it is a finding.
pub const DESCRIPTION_BYTES_USUAL: usize = 4_096;
/// A default value in a schema above it is a finding.
pub const DEFAULT_BYTES_USUAL: usize = 256;
/// Entries that are left out of a list, and definitions that changed, that the log names. The broker
/// only counts the rest.
pub const SKIPPED_LOGGED_MAX: usize = 5;
