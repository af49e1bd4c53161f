//! The capabilities of a client in the form of earlier revisions. The broker declares them for
//! clients of 2026-07-28 when it opens a session, and to servers that refuse newer members.

use bytes::Bytes;

use super::{
    ClientCapabilities,
    server::{ObjectWriter, declared, tape_of_object},
};
use crate::{json::Span, splice::Splice};

impl ClientCapabilities {
    /// Returns the capabilities that servers before 2026-07-28 know, always in the same text. They
    /// include the extensions that the broker passes on.
    pub fn downgraded(&self) -> Self {
        if !self.can_answer() {
            return self.extensions_only();
        }
        let mut raw = String::from("{");
        let mut part = |name: &str, declared: bool, members: [(&str, bool); 2]| {
            if declared {
                let members: Vec<String> = members
                    .iter()
                    .filter(|(_, set)| *set)
                    .map(|(member, _)| format!("\"{member}\":{{}}"))
                    .collect();
                let comma = if raw.len() > 1 { "," } else { "" };
                raw.push_str(&format!("{comma}\"{name}\":{{{}}}", members.join(",")));
            }
        };
        part(
            "elicitation",
            self.elicitation(),
            [("form", self.elicitation_form), ("url", self.elicitation_url)],
        );
        part("roots", self.roots, [("", false), ("", false)]);
        part(
            "sampling",
            self.sampling,
            [("context", self.sampling_context), ("tools", self.sampling_tools)],
        );
        if let Some(extensions) = self.extensions.member() {
            raw.push_str(&format!(",{extensions}"));
        }
        raw.push('}');
        Self {
            raw: raw.into(),
            extensions: self.extensions.clone(),
            roots: self.roots,
            sampling: self.sampling,
            sampling_tools: self.sampling_tools,
            sampling_context: self.sampling_context,
            elicitation_form: self.elicitation_form,
            elicitation_url: self.elicitation_url,
            ..Self::none()
        }
    }

    /// Returns the object that 2025-06-18 defines, in which sampling and elicitation have no
    /// members. `None`: they have none anyway. An elicitation by URL alone has no such form.
    pub fn without_modes(&self) -> Option<Bytes> {
        let tape = tape_of_object(&self.raw).ok()?;
        let has_modes = self.sampling_tools
            || self.sampling_context
            || self.elicitation_url
            || declared(tape.root(), &["elicitation", "form"]);
        if !has_modes {
            return None;
        }
        let empty: &[u8] = b"{}";
        let roots: &[u8] = match self.roots_list_changed {
            true => b"{\"listChanged\":true}",
            false => empty,
        };
        let mut plain = ObjectWriter::new();
        for (name, is_declared, value) in [
            ("roots", self.roots, roots),
            ("sampling", self.sampling, empty),
            ("elicitation", self.elicitation_form, empty),
        ] {
            if is_declared {
                plain.member(name, value);
            }
        }
        Some(plain.close().into())
    }

    /// Returns the same capabilities with roots that may change.
    pub fn with_roots(&self) -> Self {
        if self.roots_list_changed {
            return self.clone();
        }
        let text = self.raw.clone();
        let whole = Span { start: 0, end: u32::try_from(text.len()).unwrap_or(u32::MAX) };
        let others = Splice::new(&text).retain_members(whole, |key| key != "roots").finish();
        let whole = Span { start: 0, end: u32::try_from(others.len()).unwrap_or(u32::MAX) };
        let roots = b"{\"listChanged\":true}";
        let raw = Splice::new(&others).set_member(whole, None, "roots", roots).finish();
        Self { raw, roots: true, roots_list_changed: true, ..self.clone() }
    }

    /// Returns the capabilities of a client that only declares the extensions of this one. Nothing
    /// can be asked of it.
    pub fn extensions_only(&self) -> Self {
        match self.extensions.member() {
            Some(extensions) => Self {
                raw: format!("{{{extensions}}}").into(),
                extensions: self.extensions.clone(),
                ..Self::none()
            },
            None => Self::none(),
        }
    }
}
