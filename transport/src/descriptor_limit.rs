//! Limit of file descriptors of this process, raised at its start.
//!
//! Used by the broker and the load tester, which serve or open thousands of connections. Most systems
//! start programs with a soft limit of 1024.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The limit is not raised beyond this. Some systems permit a billion descriptors, and programs that
/// close all of them one by one then take minutes.
const DESCRIPTORS_MAX: u64 = 1 << 20;

/// The system does not permit the hard limit as the soft limit.
#[derive(Debug, thiserror::Error)]
#[error("{source}")]
pub struct DescriptorLimitError {
    pub soft: u64,
    pub hard: u64,
    source: io::Error,
}

/// Raises the soft limit to the hard limit, which an administrator sets. Returns the limit, which is
/// `u64::MAX` if there is none.
pub fn raise() -> Result<u64, DescriptorLimitError> {
    let Rlimit { current: Some(soft), maximum } = getrlimit(Resource::Nofile) else {
        return Ok(u64::MAX);
    };
    let hard = maximum.unwrap_or(DESCRIPTORS_MAX).min(DESCRIPTORS_MAX);
    if hard <= soft {
        return Ok(soft);
    }
    match setrlimit(Resource::Nofile, Rlimit { current: Some(hard), maximum }) {
        Ok(()) => Ok(hard),
        Err(error) => Err(DescriptorLimitError { soft, hard, source: error.into() }),
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
        assert_eq!(raise().unwrap(), hard);
        assert_eq!(getrlimit(Resource::Nofile).current, Some(hard));
    }
}
