//! Phrases that address a model and not the reader of a definition.
//!
//! A text is compared after its compatibility forms are resolved (NFKC), in lower case and without
//! invisible characters. A phrase in quotes is only named, and is never a serious finding.

use std::sync::LazyLock;

use unicode_normalization::UnicodeNormalization;

use super::{Finding, FindingSeverity, excerpt};
use crate::pins::visible::is_invisible;

/// Marks that models read as the border of an instruction.
const TAGS: &[&str] = &[
    "<important>",
    "<system>",
    "<instruction>",
    "<instructions>",
    "<secret>",
    "<hidden>",
    "<critical>",
    "<|im_start|>",
    "<|system|>",
    "<<sys>>",
    "[inst]",
    "[system]",
    "[important]",
];

/// Files and folders with secrets.
const SECRET_LOCATIONS: &[&str] = &[
    "~/.ssh",
    ".ssh/id_",
    "id_rsa",
    "id_ed25519",
    ".aws/credentials",
    ".config/gcloud",
    ".cursor/mcp.json",
    "claude_desktop_config.json",
    "/etc/passwd",
    "/etc/shadow",
    ".npmrc",
    ".netrc",
    "private key",
];

/// Phrases in words. `|` separates alternatives, and `_3` stands for at most three further words.
const PHRASES: &[(&str, FindingSeverity, &str)] = &[
    (
        "override-instructions",
        FindingSeverity::Serious,
        "ignore|disregard|forget|override|bypass _2 previous|prior|above|earlier|preceding|existing|other|system _1 instruction|instructions|rules|prompt|prompts|guidelines|directives",
    ),
    (
        "conceal-from-user",
        FindingSeverity::Notable,
        "not|don't|dont|never|without _1 tell|telling|mention|mentioning|inform|informing|notify|notifying|reveal|revealing|show|showing|alert|alerting _4 user|users|human",
    ),
    (
        "steer-other-tools",
        FindingSeverity::Notable,
        "before|instead|rather|prior _3 using|calling|any|the|other|all _2 tool|tools",
    ),
    (
        "steer-other-tools",
        FindingSeverity::Notable,
        "always|must _2 call|use|invoke|run|called|invoked|used _2 first|before|this",
    ),
    (
        "steer-other-tools",
        FindingSeverity::Notable,
        "when|whenever|if|after _4 tool _1 is|was _1 called|used|invoked",
    ),
];

enum Part {
    Word(Vec<&'static str>),
    /// At most this number of further words.
    Gap(usize),
}

static PARSED: LazyLock<Vec<(&str, FindingSeverity, Vec<Part>)>> = LazyLock::new(|| {
    let part = |word: &'static str| match word.strip_prefix('_').and_then(|max| max.parse().ok()) {
        Some(max) => Part::Gap(max),
        None => Part::Word(word.split('|').collect()),
    };
    let parsed = |&(rule, severity, phrase): &(&'static str, FindingSeverity, &'static str)| {
        (rule, severity, phrase.split(' ').map(part).collect())
    };
    PHRASES.iter().map(parsed).collect()
});

/// Returns the first match of each rule in a text.
pub(super) fn find(pointer: &str, text: &str) -> Vec<Finding> {
    let plain = plain(text);
    let mut findings: Vec<Finding> = Vec::new();
    let mut add = |rule: &str, severity: FindingSeverity, start: usize, end: usize| {
        let severity = match is_quoted(&plain, start) {
            true => FindingSeverity::Notable,
            false => severity,
        };
        let known = findings.iter().position(|finding| finding.rule == rule);
        let is_worse =
            |at: usize| !findings[at].is_serious() && severity == FindingSeverity::Serious;
        if known.is_none_or(is_worse) {
            known.map(|at| findings.remove(at));
            findings.push(Finding::new(rule, severity, pointer, &excerpt(&plain, start, end)));
        }
    };
    for tag in TAGS {
        for (start, tag) in plain.match_indices(tag) {
            add("instruction-tag", FindingSeverity::Serious, start, start + tag.len());
        }
    }
    for location in SECRET_LOCATIONS {
        for (start, location) in plain.match_indices(location) {
            add("secret-place", FindingSeverity::Notable, start, start + location.len());
        }
    }
    let words = words(&plain);
    for (rule, severity, phrase) in PARSED.iter() {
        for (at, (start, _)) in words.iter().enumerate() {
            if let Some(last) = matches(phrase, &words[at..]) {
                let (end, word) = words[at + last];
                add(rule, *severity, *start, end + word.len());
            }
        }
    }
    findings
}

fn plain(text: &str) -> String {
    let visible = text.chars().filter(|char| !is_invisible(*char)).nfkc();
    visible
        .flat_map(char::to_lowercase)
        .map(|char| if char == '\u{2019}' { '\'' } else { char })
        .collect()
}

/// Returns the words of a text with their positions.
fn words(text: &str) -> Vec<(usize, &str)> {
    let is_part = |char: char| char.is_alphanumeric() || char == '\'';
    let mut words = Vec::new();
    let mut start = None;
    for (at, char) in text.char_indices().chain([(text.len(), ' ')]) {
        match (is_part(char), start) {
            (true, None) => start = Some(at),
            (false, Some(word_start)) => {
                words.push((word_start, &text[word_start..at]));
                start = None;
            }
            _ => {}
        }
    }
    words
}

/// Returns the index of the last word of a phrase that begins with the first of these words.
fn matches(phrase: &[Part], words: &[(usize, &str)]) -> Option<usize> {
    let Some((part, rest)) = phrase.split_first() else { return Some(0) };
    match part {
        Part::Word(alternatives) => {
            let (_, word) = words.first()?;
            if !alternatives.contains(word) {
                return None;
            }
            match rest.is_empty() {
                true => Some(0),
                false => matches(rest, &words[1..]).map(|last| last + 1),
            }
        }
        Part::Gap(max) => (0..=(*max).min(words.len()))
            .find_map(|skipped| matches(rest, &words[skipped..]).map(|last| last + skipped)),
    }
}

/// Returns whether a position in the text is inside quotes or backticks.
fn is_quoted(text: &str, at: usize) -> bool {
    let line = text[..at].rsplit('\n').next().unwrap_or_default();
    let is_open = |quote: char| line.matches(quote).count() % 2 == 1;
    let is_closed = |quote: char| text[at..].split('\n').next().unwrap_or_default().contains(quote);
    ['"', '`'].into_iter().any(|quote| is_open(quote) && is_closed(quote))
        || (line.rfind('\u{201c}') > line.rfind('\u{201d}') && is_closed('\u{201d}'))
}
