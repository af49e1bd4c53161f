//! Limit of file descriptors of this process, raised at start.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The limit is not raised beyond this. Some systems permit a billion descriptors, and programs that
/// close all of them one by one then take minutes.
const DESCRIPTORS_MAX: u64 = 1 << 20;

/// Raises the soft limit to the hard limit, which an administrator sets. Warns if the connections
/// that the configuration permits exceed it. Children get a limit of their own.
pub(super) fn raise(connections: usize) {
    let Rlimit { current: Some(soft), maximum } = getrlimit(Resource::Nofile) else { return };
    let hard = maximum.unwrap_or(DESCRIPTORS_MAX).min(DESCRIPTORS_MAX);
    let mut limit = soft;
    if hard > soft {
        match setrlimit(Resource::Nofile, Rlimit { current: Some(hard), maximum }) {
            Ok(()) => limit = hard,
            Err(error) => {
                tracing::warn!(%error, soft, hard, "the broker cannot raise its limit of file descriptors");
            }
        }
    }
    if limit <= connections as u64 {
        tracing::warn!(
            descriptors = limit,
            connections,
            "limits.connections exceeds the limit of file descriptors (`ulimit -Hn`): the broker accepts fewer connections"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_becomes_the_hard_limit() {
        let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
        let hard = maximum.unwrap_or(DESCRIPTORS_MAX).min(DESCRIPTORS_MAX);
        setrlimit(Resource::Nofile, Rlimit { current: Some(hard / 2), maximum }).unwrap();
        raise(1);
        assert_eq!(getrlimit(Resource::Nofile).current, Some(hard));
    }
}
