//! Signed cursors: only what was sealed opens, in its scope, and each cursor has one spelling.
//!
//! The first byte chooses a change of a valid cursor; the rest is the entry that it names.

use aws_lc_rs::hmac;
use rules::cursor::{CursorScope, open, seal};

use crate::{Outcome, Random, Target};

pub(super) const TARGET: Target = Target {
    name: "cursors",
    tokens: &["tool", "weather__forecast", "=", "-", "_", "\0", "é"],
    bytes_max: 256,
    check,
};

const SCOPE: CursorScope<'_> = CursorScope { tenant: "acme", endpoint: "files", list: "tools" };
const OTHERS: [CursorScope<'_>; 4] = [
    CursorScope { tenant: "other", ..SCOPE },
    CursorScope { endpoint: "", ..SCOPE },
    CursorScope { list: "prompts", ..SCOPE },
    CursorScope { tenant: "acmef", endpoint: "iles", list: "tools" },
];

fn check(input: &[u8]) -> Outcome {
    let key = hmac::Key::new(hmac::HMAC_SHA256, &[7; 32]);
    let other_key = hmac::Key::new(hmac::HMAC_SHA256, &[8; 32]);
    let as_it_is = String::from_utf8_lossy(input);
    // Instrumented code shows the tag that it compares with, so an input can be a cursor.
    if let Some(entry) = open(&key, SCOPE, &as_it_is) {
        assert_eq!(seal(&key, SCOPE, &entry), as_it_is, "a cursor has one spelling");
    }
    let [change, entry @ ..] = input else { return Outcome::of(&"empty") };
    let entry = String::from_utf8_lossy(entry);
    let cursor = seal(&key, SCOPE, &entry);
    assert_eq!(open(&key, SCOPE, &cursor).as_deref(), Some(&*entry), "the round trip");
    assert_eq!(open(&other_key, SCOPE, &cursor), None, "another key");
    for scope in OTHERS {
        assert_eq!(open(&key, scope, &cursor), None, "{scope:?}");
    }
    let mut changed = cursor.clone().into_bytes();
    let mut random = Random::new(u64::from(*change) << 32 | entry.len() as u64);
    let at = random.below(changed.len());
    match change % 4 {
        0 => changed[at] = b"ABCabc019-_"[random.below(11)],
        1 => drop(changed.remove(at)),
        2 => changed.insert(at, b"A=. \n"[random.below(5)]),
        _ => changed.truncate(at),
    }
    let changed = String::from_utf8(changed).expect("a cursor is ASCII");
    if changed != cursor {
        assert_eq!(open(&key, SCOPE, &changed), None, "{changed} is not {cursor}");
    }
    Outcome::of(&(change % 4, Outcome::magnitude(entry.len()), changed == cursor))
}
