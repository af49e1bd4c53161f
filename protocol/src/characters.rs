//! Characters that a reader does not see, or sees at another position than theirs.
//!
//! Checked where programs and people read a text that decides something: names of principals,
//! resource URIs.

/// Characters that are not seen, or that change how others are seen:
///
/// - the default ignorable ones of Unicode 16, which include the zero-width ones and most of those
///   that direct bidirectional text
/// - the separators of lines and paragraphs
/// - annotations
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

/// Characters that direct the text around them (category Cf of Unicode 16) and are seen.
const SEEN_FORMATS: [(char, char); 8] = [
    ('\u{600}', '\u{605}'),
    ('\u{6dd}', '\u{6dd}'),
    ('\u{70f}', '\u{70f}'),
    ('\u{890}', '\u{891}'),
    ('\u{8e2}', '\u{8e2}'),
    ('\u{110bd}', '\u{110bd}'),
    ('\u{110cd}', '\u{110cd}'),
    ('\u{13430}', '\u{1343f}'),
];

/// Returns whether a character is not seen, or changes how others are seen.
pub fn is_unseen(char: char) -> bool {
    !char.is_ascii() && is_among(&UNSEEN, char)
}

/// Returns whether some readers leave the character out: it is not seen, or only directs the text
/// around it.
pub fn is_ignorable(char: char) -> bool {
    is_unseen(char) || (!char.is_ascii() && is_among(&SEEN_FORMATS, char))
}

fn is_among(ranges: &[(char, char)], char: char) -> bool {
    ranges.iter().any(|(first, last)| (*first..=*last).contains(&char))
}
