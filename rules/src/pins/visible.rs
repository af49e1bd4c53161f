//! Characters that people do not see, made visible.

use std::fmt::Write as _;

/// Returns the text with a name for each character that is invisible or that controls how text is
/// shown, such as `<U+200B>`.
pub fn visible(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        if is_invisible(char) {
            let _infallible = write!(out, "<U+{:04X}>", u32::from(char));
        } else {
            out.push(char);
        }
    }
    out
}

/// Returns whether people do not see the character, or it controls how text is shown.
pub(super) fn is_invisible(char: char) -> bool {
    let is_break = matches!(char, '\n' | '\t' | '\r');
    (char.is_control() && !is_break)
        || is_direction(char)
        || is_zero_width(char)
        || is_tag(char)
        || is_variation(char)
        || matches!(char, '\u{2028}' | '\u{2029}')
}

/// Returns whether the character sets the direction of text (Unicode, Annex 9).
pub(super) fn is_direction(char: char) -> bool {
    matches!(char, '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Returns whether the character has no width.
pub(super) fn is_zero_width(char: char) -> bool {
    matches!(char, '\u{00ad}' | '\u{034f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180e}' | '\u{200b}'..='\u{200d}'
        | '\u{2060}'..='\u{2065}' | '\u{206a}'..='\u{206f}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}')
}

/// Returns whether the character is a tag, which spells ASCII invisibly.
pub(super) fn is_tag(char: char) -> bool {
    matches!(char, '\u{e0000}'..='\u{e007f}')
}

/// Returns whether the character is a variation selector that spells bytes invisibly. The sixteen
/// selectors of emoji are none.
pub(super) fn is_variation(char: char) -> bool {
    matches!(char, '\u{e0100}'..='\u{e01ef}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invisible_characters_get_names() {
        assert_eq!(
            visible("a\u{200b}b\u{202e}c\u{e0041}\u{1b}"),
            "a<U+200B>b<U+202E>c<U+E0041><U+001B>"
        );
        assert_eq!(
            visible("two\nlines, \u{e4} \u{1f600}\u{fe0f}"),
            "two\nlines, \u{e4} \u{1f600}\u{fe0f}"
        );
    }
}
