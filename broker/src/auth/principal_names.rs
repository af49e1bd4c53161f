//! Names of principals: the reserved ones, and the permitted characters.
//!
//! Used where a principal enters the broker: with a token, with a certificate, and at the creation
//! of an API key.

use protocol::characters;

use super::caller::ANONYMOUS;

/// Begin of the principal of an operator who tries a tool. Neither a key nor a certificate nor a token
/// has such a principal, so nothing of a user is within its reach.
pub use rules::operators::TRIAL_PREFIX as OPERATOR_PREFIX;

/// Returns whether a name looks the same to a reader and to the broker. Such a name has no control
/// characters, no invisible characters, and no surrounding white space.
pub fn is_printable(name: &str) -> bool {
    name.trim() == name
        && !name.chars().any(|char| char.is_control() || characters::is_unseen(char))
}

/// Returns the reason why API keys and certificates cannot name a principal, or `None` if they can.
/// A name that looks reserved is reserved too: in another letter case, or with surrounding white
/// space.
pub fn reserved_reason(principal: &str) -> Option<&'static str> {
    let shown = principal.trim().to_lowercase();
    if shown == ANONYMOUS {
        return Some("is reserved for callers without a credential");
    }
    if shown.starts_with(OPERATOR_PREFIX) {
        return Some("is reserved for operators who try a tool");
    }
    is_of_token(&shown).then_some("has the reserved form of token principals")
}

/// Returns whether a principal has the form of a token's principal: issuer, space, name. A URL
/// holds no space, so two issuers share no principal. API keys and certificates cannot name such a
/// principal.
fn is_of_token(principal: &str) -> bool {
    let is_url = |text: &str| text.starts_with("https://") || text.starts_with("http://");
    principal.split_once(char::is_whitespace).is_some_and(|(issuer, _)| is_url(issuer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s10_a_name_with_unseen_characters_is_not_printable() {
        for fine in
            ["ann", "Ann Lee", "ann@example.com", "Änne Łuk", "安", "علي", "a\u{301}", "auth0|1234"]
        {
            assert!(is_printable(fine), "{fine:?}");
        }
        for unseen in [
            "a\nb",
            "a\0",
            "\u{7f}",
            "a\u{85}",
            "a\u{200b}nn",
            "ann\u{200d}",
            "\u{202e}nna",
            "a\u{2066}b",
            "a\u{2028}b",
            "a\u{2029}b",
            "\u{feff}ann",
            "ann\u{ad}",
            "a\u{61c}",
            "a\u{e0041}",
            "a\u{3164}b",
            "a\u{fe0f}",
            " ann",
            "ann ",
            "ann\u{a0}",
            "\u{3000}ann",
        ] {
            assert!(!is_printable(unseen), "{unseen:?}");
        }
    }

    #[test]
    fn s11_names_of_other_kinds_of_principals_are_reserved() {
        for name in [ANONYMOUS, "https://login.example.com ann", "http://127.0.0.1:1 x"] {
            assert!(reserved_reason(name).is_some(), "{name}");
        }
        for name in [
            "Anonymous",
            "ANONYMOUS",
            " anonymous",
            "anonymous ",
            "HTTPS://login.example.com ann",
            "https://a.example\u{a0}ann",
            "operator ann as bob",
            "Operator ann",
        ] {
            assert!(reserved_reason(name).is_some(), "{name:?}");
        }
        for name in [
            "ann",
            "operator",
            "operators",
            "anonymous2",
            "https://a.example",
            "a https://b.example c",
        ] {
            assert_eq!(reserved_reason(name), None, "{name}");
        }
    }
}
