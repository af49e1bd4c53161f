//! Repetitions in a test: few in `make test`, as many as promised in `make chaos WHAT=limits`.

/// Variable that `make chaos` sets.
const FULL: &str = "MCP_BROKER_FULL_COUNTS";

pub(crate) fn count(small: usize, full: usize) -> usize {
    if std::env::var_os(FULL).is_some() { full } else { small }
}
