//! Sealed texts at rest and at clients: only what was sealed opens, with its key, in its context,
//! and each has one spelling.
//!
//! An input has lines: a context, another context, changes of the sealed text, and the text.

use std::sync::LazyLock;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use broker::auth::{Keys, SealError, SealKey};

use super::text_changes;
use crate::{Outcome, Target};

pub(super) const TARGET: Target = Target {
    name: "sealed_texts",
    tokens: &[
        "\n",
        "console login",
        "connect login",
        "backend/acme/files",
        "root key",
        "{\"token\":\"t\",\"until\":1}",
        "\0",
        "=",
        "é",
    ],
    bytes_max: 512,
    check,
};

/// Number of the key, nonce and tag.
const OVERHEAD: usize = 1 + 12 + 16;

/// The keys of a broker before and after a change of its secret, and keys of others.
struct SealKeys {
    before: SealKey,
    after: SealKey,
    others: [SealKey; 3],
}

static KEYS: LazyLock<SealKeys> = LazyLock::new(|| {
    let with =
        |root: &[u8], added: &[[u8; 32]], active| Keys::with_seal_keys(root, added, active).seal;
    SealKeys {
        before: Keys::from_root(b"root").seal,
        after: with(b"root", &[[7; 32]], 2),
        // Another root, another added key, and both keys under each other's number.
        others: [
            with(b"toor", &[[6; 32]], 2),
            with(b"toor", &[[8; 32]], 1),
            with(b"root, or nearly", &[[9; 32], [7; 32]], 3),
        ],
    }
});

fn check(input: &[u8]) -> Outcome {
    let mut lines = input.splitn(4, |byte| *byte == b'\n');
    let [context, elsewhere, changes, text] =
        std::array::from_fn(|_| lines.next().unwrap_or_default());
    let (context, elsewhere) =
        (String::from_utf8_lossy(context), String::from_utf8_lossy(elsewhere));
    let SealKeys { before, after, others } = &*KEYS;
    // A stranger has sealed nothing.
    assert_eq!(after.open(&context, input), Err(SealError), "bytes of a stranger");
    let as_it_is = String::from_utf8_lossy(input);
    assert_eq!(after.open_from_client(&context, &as_it_is), Err(SealError), "text of a stranger");

    for key in [before, after] {
        let sealed = key.seal(&context, text).expect("a short text is sealed");
        assert_eq!(sealed.len(), text.len() + OVERHEAD, "the length tells nothing else");
        assert_eq!(sealed[0], key.active(), "the number of the key");
        assert_eq!(after.open(&context, &sealed).as_deref(), Ok(text), "the round trip");
        let known = (key.active() == before.active()).then_some(text).ok_or(SealError);
        assert_eq!(
            before.open(&context, &sealed).as_deref(),
            known.as_deref(),
            "before the change"
        );
        for other in others {
            assert_eq!(other.open(&context, &sealed), Err(SealError), "a key of others");
        }
        if elsewhere != context {
            assert_eq!(after.open(&elsewhere, &sealed), Err(SealError), "another context");
        }
        let again = key.seal(&context, text).expect("a short text is sealed");
        assert_ne!(sealed[1..13], again[1..13], "every sealing takes a nonce of its own");
        let changed = text_changes::changed(&sealed, changes);
        if changed != sealed {
            assert_eq!(after.open(&context, &changed), Err(SealError), "changed bytes");
        }
    }

    let shown = after.seal_for_client(&context, text).expect("a short text is sealed");
    assert_eq!(after.open_from_client(&context, &shown).as_deref(), Ok(text), "the round trip");
    assert_eq!(before.open_from_client(&context, &shown), Err(SealError), "an unknown key");
    if elsewhere != context {
        assert_eq!(after.open_from_client(&elsewhere, &shown), Err(SealError), "another context");
    }
    let changed = text_changes::changed(shown.as_bytes(), changes);
    let is_changed = changed != shown.as_bytes();
    let is_base64 = URL_SAFE_NO_PAD.decode(&changed).is_ok();
    if is_changed {
        let changed = String::from_utf8_lossy(&changed);
        assert_eq!(after.open_from_client(&context, &changed), Err(SealError), "changed text");
    }
    let size = Outcome::magnitude(text.len());
    Outcome::of(&(size, context.is_empty(), elsewhere == context, is_changed, is_base64))
}
