//! Detects the sandbox features of this host: the Landlock ABI of the kernel, and the right to
//! change users.
//!
//! Called before the first child starts, and again if a feature could not be detected.

use std::{fs, io, ops::RangeInclusive, thread};

use ::landlock::{
    ABI, Access as _, AccessFs, CreateRulesetError, LandlockStatus, RulesetAttr as _, RulesetError,
};
use rustix::{
    io::Errno,
    thread::{CapabilitySet, capabilities},
};

/// First ABI with rules for TCP connections.
pub const ABI_TCP: i32 = 4;
/// First ABI that confines signals and abstract sockets to the sandbox.
pub const ABI_SCOPES: i32 = 6;

/// Capabilities for changing users, giving a folder away, and ending the children of other users.
const NEEDED: [(CapabilitySet, &str); 4] = [
    (CapabilitySet::SETUID, "CAP_SETUID"),
    (CapabilitySet::SETGID, "CAP_SETGID"),
    (CapabilitySet::KILL, "CAP_KILL"),
    (CapabilitySet::CHOWN, "CAP_CHOWN"),
];

/// Returns whether an error says nothing about this host: it lacks descriptors, memory, threads or
/// disk space now, or a disk fails.
pub fn is_passing(error: &io::Error) -> bool {
    const PASSING: [Errno; 9] = [
        Errno::AGAIN,
        Errno::DQUOT,
        Errno::IO,
        Errno::MFILE,
        Errno::NFILE,
        Errno::NOMEM,
        Errno::NOSPC,
        Errno::ROFS,
        Errno::STALE,
    ];
    Errno::from_io_error(error).is_some_and(|errno| PASSING.contains(&errno))
}

/// Returns the Landlock ABI of this kernel, capped at the newest one in use. Returns `None` without
/// Landlock. Returns an error if the kernel could not be asked now.
pub fn landlock_abi() -> io::Result<Option<i32>> {
    probed_abi(thread::Builder::new().name("landlock-probe".to_owned()))
}

/// Only a restricted thread learns the status, so a separate thread restricts itself and ends.
fn probed_abi(thread: thread::Builder) -> io::Result<Option<i32>> {
    let probe = || -> Result<LandlockStatus, RulesetError> {
        let ruleset = ::landlock::Ruleset::default().handle_access(AccessFs::from_all(ABI::V1))?;
        Ok(ruleset.create()?.restrict_self()?.landlock)
    };
    match thread.spawn(probe)?.join() {
        Ok(Ok(LandlockStatus::Available { effective_abi, .. })) => Ok(Some(effective_abi as i32)),
        Ok(Err(RulesetError::CreateRuleset(CreateRulesetError::CreateRulesetCall {
            source,
            ..
        }))) if is_passing(&source) => Err(source),
        _ => Ok(None),
    }
}

/// Returns the reason why children cannot have users of this range, or `None` if they can. Returns
/// an error if the system could not be asked now.
pub fn user_change_obstacle(range: &RangeInclusive<u32>) -> io::Result<Option<String>> {
    let own = match capabilities(None) {
        Ok(sets) => sets.effective,
        Err(error) => {
            return Ok(Some(format!("the capabilities of the broker cannot be read: {error}")));
        }
    };
    let lacking: Vec<&str> =
        NEEDED.iter().filter(|(needed, _)| !own.contains(*needed)).map(|(_, name)| *name).collect();
    if !lacking.is_empty() {
        return Ok(Some(format!("the broker does not have {}", lacking.join(", "))));
    }
    for name in ["uid_map", "gid_map"] {
        let map = match fs::read_to_string(format!("/proc/self/{name}")) {
            Err(error) if is_passing(&error) => return Err(error),
            map => map.unwrap_or_default(),
        };
        if !is_mapped(&map, range) {
            return Ok(Some(format!(
                "the users {} to {} do not exist in this user namespace (/proc/self/{name})",
                range.start(),
                range.end()
            )));
        }
    }
    Ok(None)
}

/// Returns whether one line of a user map contains the whole range.
fn is_mapped(map: &str, range: &RangeInclusive<u32>) -> bool {
    map.lines().any(|line| {
        let mut numbers = line.split_whitespace().map(str::parse::<u64>);
        let (Some(Ok(first)), Some(Ok(_)), Some(Ok(count))) =
            (numbers.next(), numbers.next(), numbers.next())
        else {
            return false;
        };
        first <= u64::from(*range.start()) && u64::from(*range.end()) < first + count
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_that_the_system_refused_says_nothing_about_the_kernel() {
        // No address space has room for this stack.
        let refused = probed_abi(thread::Builder::new().stack_size(1 << 56));
        assert!(is_passing(&refused.unwrap_err()));
        assert!(landlock_abi().is_ok());
    }
}
