//! Characters that a reader does not see.

use super::{Finding, excerpt};
use crate::pins::pointer::Pointer;
use crate::pins::visible::{is_direction, is_invisible, is_tag, is_variation, is_zero_width};

/// Begins a flag of emoji, whose country follows in tags.
const FLAG: char = '\u{1f3f4}';

/// The rules about characters.
pub const CHARACTER_RULES: [&str; 5] = [
    "hidden-direction",
    "hidden-tag",
    "hidden-variation",
    "hidden-zero-width",
    "control-character",
];

/// Returns one finding for each kind of hidden characters in a text.
pub(in crate::pins) fn hidden(pointer: &Pointer<'_>, text: &str) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    for (at, char, rule) in judged(text) {
        if let Some(rule) = rule
            && findings.iter().all(|finding| finding.rule != rule)
        {
            let excerpt = excerpt(text, at, at + char.len_utf8());
            findings.push(Finding::serious(rule, &pointer.text(), &excerpt));
        }
    }
    findings
}

/// Returns whether a text has hidden characters.
pub(in crate::pins) fn has_hidden(text: &str) -> bool {
    judged(text).any(|(_, _, rule)| rule.is_some())
}

/// Returns a text without the characters that are findings.
pub(in crate::pins) fn without_hidden(text: &str) -> String {
    judged(text).filter(|(_, _, rule)| rule.is_none()).map(|(_, char, _)| char).collect()
}

/// Returns each character of a text with its position, and the rule that it breaks.
fn judged(text: &str) -> impl Iterator<Item = (usize, char, Option<&'static str>)> {
    let (mut before, mut in_flag) = (None, false);
    let mut chars = text.char_indices().peekable();
    std::iter::from_fn(move || {
        let (at, char) = chars.next()?;
        in_flag = char == FLAG || (in_flag && is_tag(char));
        let after = chars.peek().map(|(_, char)| *char);
        let is_hidden = is_invisible(char) && !in_flag && !joins_script(before, char, after);
        before = Some(char);
        Some((at, char, is_hidden.then(|| rule_of(char)).flatten()))
    })
}

fn rule_of(char: char) -> Option<&'static str> {
    Some(match char {
        _ if is_direction(char) => "hidden-direction",
        _ if is_tag(char) => "hidden-tag",
        _ if is_variation(char) => "hidden-variation",
        _ if is_zero_width(char) => "hidden-zero-width",
        _ if char.is_control() => "control-character",
        _ => return None,
    })
}

/// Returns whether a joiner stands where scripts and emoji need it: next to characters that are not
/// Latin.
fn joins_script(before: Option<char>, char: char, after: Option<char>) -> bool {
    matches!(char, '\u{200c}' | '\u{200d}')
        && before.is_some_and(|char| !char.is_ascii())
        && after.is_some_and(|char| !char.is_ascii())
}
