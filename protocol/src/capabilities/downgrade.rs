//! What a client of 2026-07-28 declares, as servers of the revisions before know it. Used for whoever stands in for such
//! clients: who can be asked the same declares the same.

use super::ClientCapabilities;

impl ClientCapabilities {
    /// The same as far as servers before 2026-07-28 know it, always in the same words.
    pub fn known_before_modern(&self) -> Self {
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
