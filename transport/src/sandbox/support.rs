//! Detects the sandbox features of this host: the Landlock ABI of the kernel, and the right to
//! change users.
//!
//! Called once, at the start of the broker.

use std::{fs, ops::RangeInclusive, thread};

use ::landlock::{ABI, Access as _, AccessFs, LandlockStatus, RulesetAttr as _, RulesetError};
use rustix::thread::{CapabilitySet, capabilities};

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

/// Returns the Landlock ABI of this kernel, capped at the newest one in use. Returns `None` without
/// Landlock.
pub fn landlock_abi() -> Option<i32> {
    // Only a restricted thread learns the status, so a separate thread restricts itself and ends.
    let probe = || -> Result<LandlockStatus, RulesetError> {
        let ruleset = ::landlock::Ruleset::default().handle_access(AccessFs::from_all(ABI::V1))?;
        Ok(ruleset.create()?.restrict_self()?.landlock)
    };
    match thread::Builder::new()
        .name("landlock-probe".to_owned())
        .spawn(probe)
        .ok()?
        .join()
        .ok()?
        .ok()?
    {
        LandlockStatus::Available { effective_abi, .. } => Some(effective_abi as i32),
        LandlockStatus::NotEnabled | LandlockStatus::NotImplemented => None,
    }
}

/// Returns the reason why children cannot have users of this range, or `None` if they can.
pub fn user_change_obstacle(range: &RangeInclusive<u32>) -> Option<String> {
    let own = match capabilities(None) {
        Ok(sets) => sets.effective,
        Err(error) => {
            return Some(format!("the capabilities of the broker cannot be read: {error}"));
        }
    };
    let lacking: Vec<&str> =
        NEEDED.iter().filter(|(needed, _)| !own.contains(*needed)).map(|(_, name)| *name).collect();
    if !lacking.is_empty() {
        return Some(format!("the broker does not have {}", lacking.join(", ")));
    }
    ["uid_map", "gid_map"].into_iter().find_map(|name| {
        let map = fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
        (!is_mapped(&map, range)).then(|| {
            format!(
                "the users {} to {} do not exist in this user namespace (/proc/self/{name})",
                range.start(),
                range.end()
            )
        })
    })
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
