//! What this host offers to confine children: the Landlock ABI of the kernel, and the right to change users.
//!
//! Asked once, at the start of the broker.

use std::{fs, ops::RangeInclusive, thread};

use ::landlock::{ABI, Access as _, AccessFs, LandlockStatus, RulesetAttr as _, RulesetError};
use rustix::thread::{CapabilitySet, capabilities};

/// From this ABI on TCP connections have rules.
pub const ABI_TCP: i32 = 4;
/// From this ABI on signals and abstract sockets are kept within the sandbox.
pub const ABI_SCOPES: i32 = 6;

/// Needed to change users, to give a folder away, and to end the children of other users.
const NEEDED: [(CapabilitySet, &str); 4] = [
    (CapabilitySet::SETUID, "CAP_SETUID"),
    (CapabilitySet::SETGID, "CAP_SETGID"),
    (CapabilitySet::KILL, "CAP_KILL"),
    (CapabilitySet::CHOWN, "CAP_CHOWN"),
];

/// The ABI of this kernel's Landlock, as far as it is made use of; `None` without Landlock.
pub fn landlock_abi() -> Option<i32> {
    // The status is told to who restricts itself, so a thread does that and ends.
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

/// Why children cannot have users of this range; `None` when they can.
pub fn no_user_change(range: &RangeInclusive<u32>) -> Option<String> {
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

/// Whether one line of such a map holds all of the range.
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
