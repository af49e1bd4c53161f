//! Raises the limit of file descriptors of this process at its start, and warns if it is too low.

/// Raises the soft limit to the hard limit. Warns if the connections that the configuration permits
/// exceed it. Children get a limit of their own.
pub(super) fn raise(connections: usize) {
    let limit = transport::descriptor_limit::raise().unwrap_or_else(|error| {
        let (soft, hard) = (error.soft, error.hard);
        tracing::warn!(%error, soft, hard, "the broker cannot raise its limit of file descriptors");
        soft
    });
    if limit <= connections as u64 {
        tracing::warn!(
            descriptors = limit,
            connections,
            "limits.connections exceeds the limit of file descriptors (`ulimit -Hn`): the broker accepts fewer connections"
        );
    }
}
