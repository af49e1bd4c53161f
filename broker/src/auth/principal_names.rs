//! Names of principals: which ones are reserved, and which characters a name may hold.
//!
//! Used where a principal comes in: with a token, with a certificate, and at the creation of an API key.

use protocol::characters;

use super::caller::ANONYMOUS;

/// Tells if a name looks the same to a reader and to the broker: it holds neither control characters nor unseen ones, and no white
/// space stands around it.
pub fn is_printable(name: &str) -> bool {
    name.trim() == name
        && !name.chars().any(|char| char.is_control() || characters::is_unseen(char))
}

/// The reason for which neither an API key nor a certificate speaks for a principal. `None`: both can. A name that a reader takes
/// for a reserved one is reserved too: in another letter case, or with white space around it.
pub fn reserved(principal: &str) -> Option<&'static str> {
    let shown = principal.trim().to_lowercase();
    if shown == ANONYMOUS {
        return Some("is the principal of callers without a credential");
    }
    is_of_token(&shown).then_some("is named as the principals of tokens are")
}

/// Tells if a principal is named as those of tokens are: by their issuer, a space and their name there. As no URL holds a space, no
/// two issuers have a principal in common. API keys and certificates do not speak for such.
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
    fn s11_names_of_others_are_reserved() {
        for name in [ANONYMOUS, "https://login.example.com ann", "http://127.0.0.1:1 x"] {
            assert!(reserved(name).is_some(), "{name}");
        }
        for name in [
            "Anonymous",
            "ANONYMOUS",
            " anonymous",
            "anonymous ",
            "HTTPS://login.example.com ann",
            "https://a.example\u{a0}ann",
        ] {
            assert!(reserved(name).is_some(), "{name:?}");
        }
        for name in ["ann", "anonymous2", "https://a.example", "a https://b.example c"] {
            assert_eq!(reserved(name), None, "{name}");
        }
    }
}
