//! The scopes of token requests. The broker adds the scopes that a backend demands in its
//! challenges, within a limit.

use std::collections::HashSet;

use rules::limits::oauth::{TOKEN_SCOPES_BYTES_MAX, TOKEN_SCOPES_MAX};

use super::challenge::Challenge;

/// Returns the scopes to request: those of the settings or of discovery. After a challenge, those
/// that the last token had, and those of the challenge.
pub(super) fn chosen_scopes(
    configured: &[String],
    discovered: &[String],
    held: Vec<String>,
    challenge: Option<&Challenge>,
) -> Vec<String> {
    let named = if configured.is_empty() { discovered } else { configured };
    match challenge.filter(|challenge| challenge.wants_scopes()) {
        Some(challenge) => with_demanded(&held, named, &challenge.scopes),
        None if held.is_empty() => distinct(named),
        None => held,
    }
}

/// Returns the scopes of the last token with those that a backend demands now. Beyond the limit, the
/// named ones take the place of those of the last token, and the rest is cut.
pub(super) fn with_demanded(held: &[String], named: &[String], demanded: &[String]) -> Vec<String> {
    let all = distinct(held.iter().chain(demanded));
    if within_limit(&all).count() == all.len() {
        return all;
    }
    let few = distinct(named.iter().chain(demanded));
    within_limit(few).collect()
}

fn distinct<'s>(scopes: impl IntoIterator<Item = &'s String>) -> Vec<String> {
    let mut seen = HashSet::new();
    scopes.into_iter().filter(|scope| seen.insert(*scope)).cloned().collect()
}

/// Returns the first scopes, up to the limit. A request separates them by spaces.
pub(super) fn within_limit<S: AsRef<str>>(
    scopes: impl IntoIterator<Item = S>,
) -> impl Iterator<Item = S> {
    let mut bytes = 0;
    scopes.into_iter().take(TOKEN_SCOPES_MAX).take_while(move |scope| {
        bytes += scope.as_ref().len() + 1;
        bytes <= TOKEN_SCOPES_BYTES_MAX
    })
}

/// Returns the scopes that a peer names in a text, up to the limit.
pub(super) fn named_scopes(text: &str) -> Vec<String> {
    within_limit(text.split_ascii_whitespace()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn challenge(scopes: &[&str]) -> Challenge {
        let scopes = scopes.iter().map(|scope| (*scope).to_owned()).collect();
        Challenge { scopes, error: Some("insufficient_scope".to_owned()), ..Challenge::default() }
    }

    #[test]
    fn scopes_of_challenges_add_up_to_a_limit_and_the_newest_are_requested() {
        let configured = ["base".to_owned(), "read".to_owned()];
        for size in [10, 1_000] {
            let mut held = Vec::new();
            for number in 0..500 {
                let demanded = format!("{number:0size$}");
                let challenge = challenge(&["base", &demanded]);
                let before = held.clone();
                held = chosen_scopes(&configured, &[], held, Some(&challenge));
                assert!(
                    held.len() <= TOKEN_SCOPES_MAX
                        && held.join(" ").len() <= TOKEN_SCOPES_BYTES_MAX
                );
                assert!(held.contains(&"base".to_owned()) && held.contains(&demanded));
                if held.len() < before.len() {
                    assert_eq!(held, ["base", "read", &demanded], "a new start");
                }
            }
        }
    }

    #[test]
    fn a_challenge_beyond_the_limit_is_cut() {
        let many: Vec<String> = (0..1_000).map(|number| format!("scope-{number}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let configured = ["base".to_owned()];
        let chosen = chosen_scopes(&configured, &[], Vec::new(), Some(&challenge(&many)));
        assert_eq!((chosen.len(), chosen[0].as_str()), (TOKEN_SCOPES_MAX, "base"));
    }

    #[test]
    fn the_scopes_that_a_peer_names_are_cut_at_the_limit() {
        assert_eq!(named_scopes(" a  b "), ["a", "b"]);
        assert_eq!(named_scopes(&"a ".repeat(100_000)).len(), TOKEN_SCOPES_MAX);
        let long = format!("a {} b", "c".repeat(TOKEN_SCOPES_BYTES_MAX));
        assert_eq!(named_scopes(&long), ["a"]);
    }

    #[test]
    fn without_a_challenge_the_scopes_stay() {
        let texts =
            |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let (configured, discovered) = (texts(&["own", "own"]), texts(&["found"]));
        assert_eq!(chosen_scopes(&configured, &discovered, Vec::new(), None), ["own"]);
        assert_eq!(chosen_scopes(&[], &discovered, Vec::new(), None), ["found"]);
        assert_eq!(chosen_scopes(&configured, &[], texts(&["held"]), None), ["held"]);
    }
}
