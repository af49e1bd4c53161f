//! Names of principals: which ones are reserved, and which characters a name may hold.
//!
//! Used where a principal comes in: with a token, with a certificate, and at the creation of an API key.

use super::ANONYMOUS;

/// Characters that are not seen, or that change how others are seen: the default ignorable ones of Unicode 16, which include the
/// zero-width ones and most of those that direct bidirectional text; the separators of lines and paragraphs; annotations.
const UNSEEN: [(char, char); 19] = [
    ('\u{ad}', '\u{ad}'),
    ('\u{34f}', '\u{34f}'),
    ('\u{61c}', '\u{61c}'),
    ('\u{115f}', '\u{1160}'),
    ('\u{17b4}', '\u{17b5}'),
    ('\u{180b}', '\u{180f}'),
    ('\u{200b}', '\u{200f}'),
    ('\u{2028}', '\u{202e}'),
    ('\u{2060}', '\u{206f}'),
    ('\u{3164}', '\u{3164}'),
    ('\u{fe00}', '\u{fe0f}'),
    ('\u{feff}', '\u{feff}'),
    ('\u{ffa0}', '\u{ffa0}'),
    ('\u{fff0}', '\u{fffb}'),
    ('\u{fffe}', '\u{ffff}'),
    ('\u{1bca0}', '\u{1bca3}'),
    ('\u{1d173}', '\u{1d17a}'),
    ('\u{e0000}', '\u{e0fff}'),
    ('\u{10fffe}', '\u{10ffff}'),
];

/// Tells if a name looks the same to a reader and to the broker: it holds neither control characters nor unseen ones.
pub fn is_printable(name: &str) -> bool {
    let is_unseen =
        |char: char| UNSEEN.iter().any(|(first, last)| (*first..=*last).contains(&char));
    !name.chars().any(|char| char.is_control() || (!char.is_ascii() && is_unseen(char)))
}

/// The reason for which neither an API key nor a certificate speaks for a principal. `None`: both can.
pub fn reserved(principal: &str) -> Option<&'static str> {
    if principal == ANONYMOUS {
        return Some("is the principal of callers without a credential");
    }
    is_of_token(principal).then_some("is named as the principals of tokens are")
}

/// Tells if a principal is named as those of tokens are: by their issuer, a space and their name there. As no URL holds a space, no
/// two issuers have a principal in common. API keys and certificates do not speak for such.
fn is_of_token(principal: &str) -> bool {
    let is_url = |text: &str| text.starts_with("https://") || text.starts_with("http://");
    principal.split_once(' ').is_some_and(|(issuer, _)| is_url(issuer))
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
        ] {
            assert!(!is_printable(unseen), "{unseen:?}");
        }
    }

    #[test]
    fn s11_names_of_others_are_reserved() {
        for name in [ANONYMOUS, "https://login.example.com ann", "http://127.0.0.1:1 x"] {
            assert!(reserved(name).is_some(), "{name}");
        }
        for name in ["ann", "Anonymous", "https://a.example", "a https://b.example c"] {
            assert_eq!(reserved(name), None, "{name}");
        }
    }
}
