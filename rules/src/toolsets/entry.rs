//! An entry of a list as a toolset shows it: renamed, changed, and cut.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use protocol::{
    json::{self, Span, Tape, TapeValue, ValueKind},
    splice::Splice,
};

use super::document::{ArgumentOverride, EntryOverride};
use crate::catalog::{CatalogEntry, FixedArguments, ListKind};

/// What a toolset changes of one entry.
#[derive(Debug)]
pub(super) struct EntryShape {
    pub(super) given: EntryOverride,
    pub(super) fixed: Option<Arc<FixedArguments>>,
}

/// What a toolset cuts of every tool.
#[derive(Debug, Clone, Copy)]
pub(super) struct Trim {
    pub(super) first_sentence: bool,
    /// Longest description, in characters.
    pub(super) chars_max: Option<usize>,
    pub(super) output_schemas: bool,
    /// Estimated tokens of a result at most.
    pub(super) result_tokens: Option<u32>,
}

impl Trim {
    fn is_none(&self) -> bool {
        !self.first_sentence
            && self.chars_max.is_none()
            && self.output_schemas
            && self.result_tokens.is_none()
    }

    /// Returns the part of a description that stays.
    fn cut<'t>(&self, text: &'t str) -> &'t str {
        let text = if self.first_sentence { first_sentence(text) } else { text };
        let Some(max) = self.chars_max else { return text };
        text.char_indices().nth(max).map_or(text, |(end, _)| &text[..end])
    }
}

/// Returns the text up to the first end of a sentence or line.
fn first_sentence(text: &str) -> &str {
    let text = text.trim_start();
    let mut chars = text.char_indices().peekable();
    while let Some((at, char)) = chars.next() {
        let is_last = chars.peek().is_none_or(|(_, next)| next.is_whitespace());
        match char {
            '\n' => return text[..at].trim_end(),
            '.' | '!' | '?' if is_last => return &text[..at + 1],
            _ => {}
        }
    }
    text
}

/// Returns an entry under the name that clients see. `None`: it cannot be read.
pub(super) fn shaped(
    entry: &CatalogEntry,
    kind: ListKind,
    name: &str,
    shape: Option<&EntryShape>,
    trim: &Trim,
) -> Option<CatalogEntry> {
    let is_trimmed = kind == ListKind::Tools && !trim.is_none();
    let mut shown = entry.clone();
    if name == entry.exposed_key && shape.is_none() && !is_trimmed {
        return Some(shown);
    }
    let limits = json::Limits::with_bytes_max(entry.exposed.len());
    let tape = Tape::parse(&entry.exposed, &limits).ok()?;
    let root = tape.root();
    let mut splice = Splice::new(&entry.exposed);
    if name != entry.exposed_key {
        set(&mut splice, root, "name", json::quote(name).as_bytes());
    }
    let given = shape.map(|shape| &shape.given);
    if let Some(title) = given.and_then(|given| given.title.as_deref()) {
        set(&mut splice, root, "title", json::quote(title).as_bytes());
    }
    describe(&mut splice, root, given, is_trimmed.then_some(trim));
    if kind == ListKind::Tools {
        if let Some(given) = given {
            annotate(&mut splice, root, given);
            shown.listed_traits = given.annotations.tightened(entry.listed_traits);
            rewrite_schema(&mut splice, root, &given.args)?;
        }
        shown.result_tokens =
            given.and_then(|given| given.max_result_tokens).or(trim.result_tokens);
        // A shortened result has no structured content, so no schema is promised.
        if !trim.output_schemas || shown.result_tokens.is_some() {
            splice.remove_member(root.span(), "outputSchema");
        }
    }
    shown.exposed = splice.finish();
    name.clone_into(&mut shown.exposed_key);
    if let Some(shape) = shape {
        shown.fixed = shape.fixed.clone().filter(|_| kind == ListKind::Tools);
        shown.rank = shape.given.rank;
    }
    Some(shown)
}

fn set(splice: &mut Splice<'_>, object: TapeValue<'_>, key: &str, value: &[u8]) {
    splice.set_member(object.span(), object.get(key).map(|value| value.span()), key, value);
}

fn describe(
    splice: &mut Splice<'_>,
    root: TapeValue<'_>,
    given: Option<&EntryOverride>,
    trim: Option<&Trim>,
) {
    let own = root.get("description").and_then(|value| value.as_str());
    let given = given.and_then(|given| given.description.as_deref());
    let Some(text) = given.or(own.as_deref()) else { return };
    let kept = trim.map_or(text, |trim| trim.cut(text));
    if given.is_some() || kept.len() < text.len() {
        set(splice, root, "description", json::quote(kept).as_bytes());
    }
}

fn annotate(splice: &mut Splice<'_>, root: TapeValue<'_>, given: &EntryOverride) {
    let mut members: Vec<(&str, String)> = Vec::new();
    members.extend(given.annotations.title.as_ref().map(|title| ("title", json::quote(title))));
    let hints = given.annotations.hints();
    members.extend(
        hints.iter().filter_map(|(name, value, _)| Some((*name, value.as_ref()?.to_string()))),
    );
    if members.is_empty() {
        return;
    }
    match root.get("annotations").filter(|value| value.kind() == ValueKind::Object) {
        Some(annotations) => members
            .iter()
            .for_each(|(name, value)| set(splice, annotations, name, value.as_bytes())),
        None => {
            let members: Vec<String> =
                members.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
            let text = format!("{{{}}}", members.join(","));
            set(splice, root, "annotations", text.as_bytes());
        }
    }
}

/// Removes fixed and hidden arguments from the schema. Hidden ones have no property, and visible
/// ones have their value only. No client has to send one.
fn rewrite_schema(
    splice: &mut Splice<'_>,
    root: TapeValue<'_>,
    args: &BTreeMap<String, ArgumentOverride>,
) -> Option<()> {
    if args.is_empty() {
        return Some(());
    }
    let schema = root.get("inputSchema")?;
    if let Some(properties) = schema.get("properties") {
        splice.replace(properties.span(), rewritten_properties(properties, args)?);
    }
    if let Some(required) = schema.get("required") {
        let is_free =
            |name: &TapeValue<'_>| name.as_str().is_none_or(|name| !args.contains_key(&*name));
        let kept: Vec<&[u8]> = required.elements().filter(is_free).map(|name| name.raw()).collect();
        splice.replace(required.span(), [b"[", &*kept.join(&b","[..]), b"]"].concat());
    }
    Some(())
}

fn rewritten_properties(
    properties: TapeValue<'_>,
    args: &BTreeMap<String, ArgumentOverride>,
) -> Option<Vec<u8>> {
    let mut out = b"{".to_vec();
    for member in properties.members() {
        let value = match args.get(&*member.key) {
            Some(argument) if argument.hidden => continue,
            Some(argument) => with_const(member.value, &argument.value.as_ref()?.to_string()),
            None => Bytes::copy_from_slice(member.value.raw()),
        };
        if out.len() > 1 {
            out.push(b',');
        }
        json::quote_into(&mut out, &member.key);
        out.push(b':');
        out.extend_from_slice(&value);
    }
    out.push(b'}');
    Some(out)
}

/// Returns the schema of a property that has one value only.
fn with_const(schema: TapeValue<'_>, value: &str) -> Bytes {
    if schema.kind() != ValueKind::Object {
        return Bytes::from(format!("{{\"const\":{value}}}"));
    }
    let text = Bytes::copy_from_slice(schema.raw());
    let whole = Span { start: 0, end: schema.span().end - schema.span().start };
    let base = schema.span().start;
    let span = schema.get("const").map(|known| known.span());
    let span = span.map(|span| Span { start: span.start - base, end: span.end - base });
    Splice::new(&text).set_member(whole, span, "const", value.as_bytes()).finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_ends_at_its_punctuation_or_line_end() {
        for (text, first) in [
            ("Reads a file. Then more.", "Reads a file."),
            ("Reads v1.2 files! Yes", "Reads v1.2 files!"),
            ("no mark", "no mark"),
            ("line\nnext.", "line"),
            (" One?", "One?"),
            ("", ""),
        ] {
            assert_eq!(first_sentence(text), first, "{text}");
        }
    }

    #[test]
    fn a_text_is_cut_between_characters() {
        let trim = Trim {
            first_sentence: false,
            chars_max: Some(2),
            output_schemas: true,
            result_tokens: None,
        };
        assert_eq!((trim.cut("äöü"), trim.cut("ä")), ("äö", "ä"));
    }
}
