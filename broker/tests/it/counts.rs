//! How often a test does what it does: a little in `make test`, as often as was promised in `make chaos WHAT=limits`.

/// Set by `make chaos`.
const FULL: &str = "MCP_BROKER_FULL_COUNTS";

pub(crate) fn count(small: usize, full: usize) -> usize {
    if std::env::var_os(FULL).is_some() { full } else { small }
}
