//! Edits applied to the sender's bytes: everything else stays as it was written.
//!
//! The rules use it to swap ids, tokens, names and URIs between the two sides of the broker. Edits
//! may be given in any order; they must not overlap. Without an edit the same bytes are returned,
//! uncopied.

use std::{borrow::Cow, ops::Range};

use bytes::{Buf as _, Bytes};
use smallvec::SmallVec;

use crate::envelope::{Kind, Message, OWN_META};
use crate::error::Refusal;
use crate::json::{Document, Limits, Span, Value, quote_into};

struct Edit<'a> {
    span: Span,
    text: Cow<'a, [u8]>,
}

/// Members to be added to one object, joined only when all are known because commas depend on what is there.
struct NewMembers {
    object: Span,
    text: Vec<u8>,
}

/// A set of edits to one text.
pub struct Splice<'a> {
    source: &'a Bytes,
    /// The edits of a usual message need no memory of their own.
    edits: SmallVec<[Edit<'a>; 3]>,
    added: Vec<NewMembers>,
    /// Objects whose only member is removed.
    emptied: Vec<Span>,
    /// Members of a `_meta` that does not exist yet, and their target.
    new_meta: Option<NewMeta>,
}

struct NewMeta {
    target: MetaTarget,
    members: Vec<u8>,
}

#[derive(Clone, Copy)]
enum MetaTarget {
    /// A `_meta` of another type, which has no meaning for any peer.
    Instead(Span),
    /// The params or result object.
    Within(Span),
    /// The message has no params, so they must be made too.
    InNewParams,
}

/// Puts `text` where `span` is. If the buffer is not shared and `text` is no longer than `span`,
/// only the bytes before `span` move, towards the end.
pub fn replace_in_place(source: Bytes, span: Span, text: &[u8]) -> Bytes {
    let Some(spare) = span.len().checked_sub(text.len()) else {
        return Splice::new(&source).replace(span, text).finish();
    };
    match source.try_into_mut() {
        Ok(mut bytes) => {
            let (start, end) = (span.start as usize, span.end as usize);
            bytes.copy_within(..start, spare);
            bytes[start + spare..end].copy_from_slice(text);
            bytes.advance(spare);
            bytes.freeze()
        }
        Err(source) => Splice::new(&source).replace(span, text).finish(),
    }
}

/// Returns the message without the members of `_meta` that begin with [`OWN_META`], except for those
/// that `is_kept` names.
pub fn without_own_meta(
    message: &Message,
    is_kept: impl Fn(&str) -> bool,
) -> Result<Message, Refusal> {
    let Some(meta) = message.fields.meta.filter(|_| message.fields.meta_has_own) else {
        return Ok(message.clone());
    };
    let frame = Splice::new(&message.frame)
        .retain_members(meta, |key| !key.starts_with(OWN_META) || is_kept(key))
        .finish();
    let limits = Limits::with_bytes_max(frame.len());
    Message::decode(frame, &limits).map_err(|rejected| rejected.refusal)
}

impl<'a> Splice<'a> {
    /// Creates a splice without edits.
    pub fn new(source: &'a Bytes) -> Self {
        Self {
            source,
            edits: SmallVec::new(),
            added: Vec::new(),
            emptied: Vec::new(),
            new_meta: None,
        }
    }

    /// Returns the length of the text that is edited.
    pub fn source_bytes(&self) -> usize {
        self.source.len()
    }

    /// Puts `text` where `span` is.
    pub fn replace(&mut self, span: Span, text: impl Into<Cow<'a, [u8]>>) -> &mut Self {
        self.edits.push(Edit { span, text: text.into() });
        self
    }

    /// Puts `text` before the byte at `at`. Several at one position keep the order of the calls.
    pub fn insert(&mut self, at: u32, text: impl Into<Cow<'a, [u8]>>) -> &mut Self {
        self.replace(Span { start: at, end: at }, text)
    }

    /// Leaves out `span`.
    pub fn remove(&mut self, span: Span) -> &mut Self {
        self.replace(span, Cow::Borrowed(&[][..]))
    }

    /// Gives the object's member `key` the JSON text `value`: in place of the value at `existing`, or as a new first
    /// member.
    pub fn set_member(
        &mut self,
        object: Span,
        existing: Option<Span>,
        key: &str,
        value: &[u8],
    ) -> &mut Self {
        match existing {
            Some(span) => self.replace(span, value.to_vec()),
            None => {
                append_member(self.added_to(object), key, value);
                self
            }
        }
    }

    /// Removes the member `key` from the object, with its comma. At most one per object.
    pub fn remove_member(&mut self, object: Span, key: &str) -> &mut Self {
        let Some((span, only)) = member_extent(object.of(self.source), key) else {
            return self;
        };
        if only {
            self.emptied.push(object);
        }
        self.remove(span.shifted(object.start))
    }

    /// Removes every member of the object whose key `wanted` refuses.
    pub fn retain_members(&mut self, object: Span, wanted: impl Fn(&str) -> bool) -> &mut Self {
        let kept = with_object(object.of(self.source), |root| {
            let mut kept = b"{".to_vec();
            root.members()
                .filter(|member| wanted(&member.key))
                .for_each(|member| append_member(&mut kept, &member.key, member.value.raw()));
            kept.push(b'}');
            Some(kept)
        });
        match kept {
            Some(kept) => self.replace(object, kept),
            None => self,
        }
    }

    /// Sets a member of `_meta` in the params or result of `message`, whose frame this splice
    /// edits. Creates `_meta` (and params) if absent. Each key may be set once. Error responses
    /// have no `_meta` and stay as they are.
    pub fn set_meta(&mut self, message: &Message, key: &str, value: &[u8]) -> &mut Self {
        if message.kind == Kind::Error {
            return self;
        }
        match message.fields.meta {
            Some(meta) if self.source[meta.start as usize] == b'{' => {
                let existing =
                    member_value(meta.of(self.source), key).map(|span| span.shifted(meta.start));
                self.set_member(meta, existing, key, value)
            }
            other => {
                let parent = message.params.or(message.result);
                let target = match (other, parent) {
                    (Some(meta), _) => MetaTarget::Instead(meta),
                    (None, Some(parent)) => MetaTarget::Within(parent),
                    (None, None) => MetaTarget::InNewParams,
                };
                let new_meta =
                    self.new_meta.get_or_insert_with(|| NewMeta { target, members: Vec::new() });
                append_member(&mut new_meta.members, key, value);
                self
            }
        }
    }

    /// Returns the edited text.
    pub fn finish(&mut self) -> Bytes {
        if self.collect_edits() {
            self.edited(0..self.source.len()).into()
        } else {
            self.source.clone()
        }
    }

    /// Returns whether the splice holds an edit of this span and nothing else.
    pub fn is_only(&self, span: Span) -> bool {
        let adds = self.new_meta.is_some() || !self.added.is_empty();
        matches!(&self.edits[..], [edit] if edit.span == span && !adds)
    }

    /// Returns the edited text in three consecutive pieces. The bytes before the first edit and
    /// after the last one are not copied, which pays off if they are many.
    pub fn finish_vectored(&mut self) -> [Bytes; 3] {
        if !self.collect_edits() {
            return [self.source.clone(), Bytes::new(), Bytes::new()];
        }
        let start = self.edits.first().map_or(0, |edit| edit.span.start as usize);
        let end = self.edits.iter().map(|edit| edit.span.end as usize).max().unwrap_or(start);
        [self.source.slice(..start), self.edited(start..end).into(), self.source.slice(end..)]
    }

    /// Puts all edits in order. False: there are none.
    fn collect_edits(&mut self) -> bool {
        self.settle_meta();
        self.settle_members();
        // Stable: insertions at one position stay in order, and come before a replacement that
        // starts there.
        self.edits.sort_by_key(|edit| (edit.span.start, edit.span.end));
        !self.edits.is_empty()
    }

    /// Returns the edited part of the text. All edits must lie in it.
    fn edited(&self, part: Range<usize>) -> Vec<u8> {
        let (added, left_out) = self
            .edits
            .iter()
            .fold((0, 0), |(added, out), edit| (added + edit.text.len(), out + edit.span.len()));
        // The capacity is exact: with spare space the bytes would need a second allocation to be
        // shared.
        let mut out = Vec::with_capacity((part.len() + added).saturating_sub(left_out));
        let mut copied = part.start;
        for edit in &self.edits {
            let (start, end) = (edit.span.start as usize, edit.span.end as usize);
            debug_assert!(copied <= start, "edits overlap");
            if copied > start {
                continue;
            }
            out.extend_from_slice(&self.source[copied..start]);
            out.extend_from_slice(&edit.text);
            copied = end;
        }
        out.extend_from_slice(&self.source[copied..part.end]);
        out
    }

    /// Returns the edited message without decoding it again. Its fields are derived from the edits,
    /// unless these add something or reach into a part that is read; then `Err` holds the edited
    /// text. `message` is the decoded text, except for values that are replaced.
    pub fn finish_message(&mut self, mut message: Message) -> Result<Message, Bytes> {
        let adds = self.new_meta.is_some()
            || !self.added.is_empty()
            || self.edits.iter().any(|edit| edit.span.is_empty());
        let frame = self.finish();
        if adds {
            return Err(frame);
        }
        message.frame = frame;
        if self.edits.is_empty() {
            return Ok(message);
        }
        let mut all = true;
        message.spans_mut().flatten().for_each(|span| match self.moved(*span) {
            Some(moved) => *span = moved,
            None => all = false,
        });
        if all { Ok(message) } else { Err(message.frame) }
    }

    /// Returns the span of a part after the edits, which are sorted by now. `None`: an edit
    /// changed it.
    fn moved(&self, span: Span) -> Option<Span> {
        let (mut start, mut end) = (i64::from(span.start), i64::from(span.end));
        for edit in self.edits.iter().take_while(|edit| edit.span.start < span.end) {
            let grown =
                i64::try_from(edit.text.len()).ok()? - i64::try_from(edit.span.len()).ok()?;
            let is_inside = edit.span.start >= span.start && edit.span.end <= span.end;
            match () {
                () if edit.span.end <= span.start => (start, end) = (start + grown, end + grown),
                () if is_inside => end += grown,
                () => return None,
            }
        }
        Some(Span { start: u32::try_from(start).ok()?, end: u32::try_from(end).ok()? })
    }

    fn added_to(&mut self, object: Span) -> &mut Vec<u8> {
        let at = self.added.iter().position(|added| added.object == object).unwrap_or_else(|| {
            self.added.push(NewMembers { object, text: Vec::new() });
            self.added.len() - 1
        });
        &mut self.added[at].text
    }

    fn settle_meta(&mut self) {
        let Some(NewMeta { target, members }) = self.new_meta.take() else {
            return;
        };
        let meta = [b"{", members.as_slice(), b"}"].concat();
        match target {
            MetaTarget::Instead(span) => self.replace(span, meta),
            MetaTarget::Within(parent) => self.set_member(parent, None, "_meta", &meta),
            MetaTarget::InNewParams => {
                let root = root_object(self.source);
                let params = [b"{\"_meta\":", meta.as_slice(), b"}"].concat();
                self.set_member(root, None, "params", &params)
            }
        };
    }

    fn settle_members(&mut self) {
        for NewMembers { object, mut text } in std::mem::take(&mut self.added) {
            if !is_empty_object(object.of(self.source)) && !self.emptied.contains(&object) {
                text.push(b',');
            }
            self.insert(object.start + 1, text);
        }
    }
}

/// Appends `"key":value`, after a comma unless it is the first.
fn append_member(out: &mut Vec<u8>, key: &str, value: &[u8]) {
    if !matches!(out.as_slice(), [] | [b'{']) {
        out.push(b',');
    }
    quote_into(out, key);
    out.push(b':');
    out.extend_from_slice(value);
}

fn is_empty_object(text: &[u8]) -> bool {
    text[1..].iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'}')
}

/// Returns the outermost object of a message, which may have whitespace around it.
fn root_object(text: &[u8]) -> Span {
    let start = text.iter().position(|&byte| byte == b'{').unwrap_or(0);
    let end = text.iter().rposition(|&byte| byte == b'}').map_or(text.len(), |last| last + 1);
    Span { start: start as u32, end: end as u32 }
}

fn with_object<R>(text: &[u8], read: impl FnOnce(Value<'_>) -> Option<R>) -> Option<R> {
    let usual = Limits::with_bytes_max(text.len());
    // It is part of a decoded message, whose limit may have been set higher than usual.
    let document = Document::parse(text, &usual)
        .or_else(|_| Document::parse(text, &Limits { depth_max: text.len(), ..usual }));
    read(document.ok()?.root())
}

fn member_value(object: &[u8], key: &str) -> Option<Span> {
    with_object(object, |root| Some(root.get(key)?.span()))
}

/// Returns the span to cut to remove the member, and whether it is the only one.
fn member_extent(object: &[u8], key: &str) -> Option<(Span, bool)> {
    with_object(object, |root| {
        let members: Vec<_> = root.members().collect();
        let at = members.iter().position(|member| member.key == key)?;
        let start = members[at].key_span.start;
        let end = members[at].value.span().end;
        let before = at.checked_sub(1).map(|before| members[before].value.span().end);
        Some(match (members.get(at + 1), before) {
            (Some(next), _) => (Span { start, end: next.key_span.start }, false),
            (None, Some(start)) => (Span { start, end }, false),
            (None, None) => (Span { start, end }, true),
        })
    })
}
