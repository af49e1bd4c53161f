//! The capabilities of a client of 2026-07-28, in the form that servers of earlier revisions know.
//! The broker declares them for such clients when it opens a session with such a server.

use super::ClientCapabilities;

impl ClientCapabilities {
    /// Returns the capabilities that servers before 2026-07-28 know, always in the same text.
    pub fn downgraded(&self) -> Self {
        if !self.can_answer() {
            return Self::none();
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
        raw.push('}');
        Self {
            raw: raw.into(),
            roots: self.roots,
            sampling: self.sampling,
            sampling_tools: self.sampling_tools,
            sampling_context: self.sampling_context,
            elicitation_form: self.elicitation_form,
            elicitation_url: self.elicitation_url,
            ..Self::none()
        }
    }
}
