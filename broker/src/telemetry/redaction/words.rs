//! Recognizes harmless words by their form: names, numbers, versions, files and packages.
//!
//! A secret in the form of such a word is not recognized, which `docs/security.md` documents.

/// Maximum length of a plain word, and of each of its parts between joining signs.
const WORD_CHARS_MAX: usize = 40;
const PART_CHARS_MAX: usize = 16;
/// Maximum length of a lower-case part that is pronounceable, such as `modelcontextprotocol`.
const LONG_PART_CHARS_MAX: usize = 24;
/// Maximum number of consecutive consonants in a word.
const CONSONANTS_MAX: usize = 5;
const LONG_CONSONANTS_MAX: usize = 4;
/// Maximum number of digits of a number.
const DIGITS_MAX: usize = 8;
/// Maximum number of letters after a single dash. More letters are an option with its value, or a
/// name.
const FLAGS_MAX: usize = 3;
/// Signs between the words of a harmless text, in addition to those within words.
const SIGNS: &[char] =
    &['/', ':', '@', ',', '~', '*', '$', '{', '}', '&', '|', '<', '>', '(', ')', '[', ']', '\\'];
/// Words of options in capitals that are longer than abbreviations.
const LEVELS: [&str; 4] = ["WARNING", "CRITICAL", "NOTICE", "VERBOSE"];
/// Units of sizes and times.
const UNITS: [&str; 18] = [
    "b", "k", "m", "g", "t", "kb", "mb", "gb", "tb", "kib", "mib", "gib", "ms", "s", "h", "d",
    "min", "x",
];

/// Returns whether the text is `--name`, `-n`, a few letters (`-it`), or a lower-case word after
/// one dash, as in Go programs.
pub(super) fn is_flag(text: &str) -> bool {
    let is_name =
        |name: &str| name.starts_with(|first: char| first.is_ascii_alphabetic()) && is_word(name);
    if let Some(name) = text.strip_prefix("--") {
        return name.is_empty() || is_name(name);
    }
    let Some(name) = text.strip_prefix('-') else { return false };
    let is_letters = name.bytes().all(|byte| byte.is_ascii_alphabetic());
    let is_repeated = name.bytes().all(|byte| Some(byte) == name.bytes().next());
    name.is_empty()
        || (is_letters && (name.len() <= FLAGS_MAX || is_repeated))
        || (is_name(name) && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-'))
}

/// Returns whether the text has only names, numbers, versions and signs between them. An empty text
/// is plain.
pub(super) fn is_plain(text: &str) -> bool {
    let bare = text.trim_matches(['\'', '"']);
    if bare.starts_with(['/', '.', '~', '@']) {
        return bare.split('/').all(is_plain_segment);
    }
    bare.split(SIGNS).all(is_plain_word)
}

/// Returns whether the text is a plain part of a path. File names contain numbers more often than
/// other words, such as `my2ndfile.db`.
pub(super) fn is_plain_segment(segment: &str) -> bool {
    let is_file_part = |part: &str| {
        let numbers = part.split(|char: char| !char.is_ascii_digit()).filter(|one| !one.is_empty());
        part.len() <= 10
            && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
            && numbers.clone().count() <= 1
            && numbers.clone().all(|number| number.len() <= 2)
    };
    segment.split(SIGNS).all(is_plain_word)
        || (segment.len() <= WORD_CHARS_MAX && segment.split(['-', '_', '.']).all(is_file_part))
}

fn is_plain_word(word: &str) -> bool {
    word.len() <= WORD_CHARS_MAX && word.split(['-', '_', '.', '+']).all(is_plain_part)
}

fn is_plain_part(part: &str) -> bool {
    let unit = part.trim_start_matches(|first: char| first.is_ascii_digit());
    let digits = part.len() - unit.len();
    let is_quantity = (1..=DIGITS_MAX).contains(&digits)
        && (unit.is_empty() || UNITS.contains(&unit.to_ascii_lowercase().as_str()));
    is_part(part) || is_quantity || is_long_part(part) || LEVELS.contains(&part)
}

fn is_long_part(part: &str) -> bool {
    let is_vowel = |letter: char| "aeiouy".contains(letter);
    part.len() <= LONG_PART_CHARS_MAX
        && part.bytes().all(|byte| byte.is_ascii_lowercase())
        && part.split(is_vowel).all(|consonants| consonants.len() <= LONG_CONSONANTS_MAX)
        && part.chars().filter(|letter| is_vowel(*letter)).count() * 10 >= part.len() * 3
}

/// Returns whether the text looks like a chosen name, such as `mcp`, `v1`, `mcpServer` or
/// `2025-11-25`. An empty text does.
pub(super) fn is_word(text: &str) -> bool {
    text.len() <= WORD_CHARS_MAX && text.split(['-', '_', '.']).all(is_part)
}

fn is_part(part: &str) -> bool {
    let letters = part.trim_end_matches(|last: char| last.is_ascii_digit());
    let digits = part.len() - letters.len();
    if part.len() > PART_CHARS_MAX || !letters.bytes().all(|byte| byte.is_ascii_alphabetic()) {
        return false;
    }
    match (letters.is_empty(), digits) {
        (true, _) => digits <= 4,
        (false, 0) if letters.bytes().all(|byte| byte.is_ascii_uppercase()) => {
            letters.len() <= CONSONANTS_MAX
        }
        (false, 0..=3) => is_pronounceable(letters) && has_word_case(letters),
        _ => false,
    }
}

fn is_pronounceable(letters: &str) -> bool {
    let is_vowel = |letter: char| "aeiouyAEIOUY".contains(letter);
    letters.split(is_vowel).all(|consonants| consonants.len() <= CONSONANTS_MAX)
}

/// Returns whether the letters are lower case, except for the first letters of words.
fn has_word_case(letters: &str) -> bool {
    let words = letters.split(|letter: char| letter.is_ascii_uppercase());
    words.enumerate().all(|(index, rest)| index == 0 || rest.len() >= 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s14_texts_in_the_form_of_names_and_numbers_are_plain() {
        for plain in [
            "",
            "mcp",
            "stdio",
            "server-filesystem",
            "@modelcontextprotocol/server-everything@2026.8.31",
            "image:1.2",
            "8080:80",
            "2025-11-25",
            "100ms",
            "x86",
            "&&",
            "2>&1",
            "'files'",
        ] {
            assert!(is_plain(plain), "{plain}");
        }
        for secret in [
            "hunter2x9",
            "9sK2mX81pQzR7vLw",
            "8f14e45fceea167a5a36dedd4bea2543",
            "Tr0ub4dor",
            "JBSWY3DPEHPK3PXP",
            "a%b",
            "abc=",
            "p@ssw0rd",
            "kjhgfdsxcvbq",
            "123456789",
            "ünter",
        ] {
            assert!(!is_plain(secret), "{secret}");
        }
        assert!(is_plain_segment("my2ndfile.db") && !is_plain("my2ndfile.db"));
        assert!(!is_plain_segment("s3cr3t") && !is_plain_segment("9sK2mX81pQzR7vLw"));
    }

    #[test]
    fn s14_flags_are_names_behind_dashes() {
        for flag in ["-", "--", "-p", "-it", "-vvvv", "-jar", "--api-key", "-toolsets", "--v2"] {
            assert!(is_flag(flag), "{flag}");
        }
        for other in ["p", "-p9", "-pSecret", "-ps3cr3t", "--9sK2mX81pQzR7vLw", "---", "-a=b"] {
            assert!(!is_flag(other), "{other}");
        }
    }
}
