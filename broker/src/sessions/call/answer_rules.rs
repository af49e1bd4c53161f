//! The changes and checks of an answer before the client gets it. The broker scans it for hidden
//! characters, compares user interfaces with their pins, and shortens long results.

use std::collections::BTreeSet;

use protocol::{
    envelope::{Kind, Message},
    error::Refusal,
    json,
    method::Method,
};
use rules::{
    catalog::CatalogEntry,
    exposure::ResourceUris,
    pins::{PinMode, ResultScan},
    resource_uri::{Spellings, is_read_with_prefix},
    result_budget,
    routing::{BackendTarget, Plan},
};

use super::Call;
use crate::{backends::backend::Backend, sessions::session};

/// The scheme of user interfaces (MCP Apps).
const APP_SCHEME: &str = "ui://";

/// A rule for the answer of one call.
#[derive(Debug)]
pub(super) enum AnswerRule {
    /// The result of a tool has at most so many estimated tokens.
    Budget { tokens: u32, tool: String },
    /// The answer is a user interface, whose contents are pinned.
    App { uri: String },
}

impl AnswerRule {
    /// Returns the rule for the answer to a request with this plan, if it has one.
    pub(super) fn of(plan: &Plan, backend: Option<&Backend>) -> Option<Self> {
        match &plan.target {
            BackendTarget::Tool(tool) => {
                let tokens = plan.result_tokens?;
                Some(Self::Budget { tokens, tool: tool.name.clone() })
            }
            BackendTarget::Resource(uri) => {
                // Most backends have no pins, and the readings of a URI cost more than this look.
                let is_pinned = backend.is_some_and(|backend| backend.pins.mode != PinMode::Off);
                let is_app = is_pinned && is_read_with_prefix(uri, APP_SCHEME);
                is_app.then(|| Self::App { uri: uri.clone() })
            }
            BackendTarget::Other => None,
        }
    }
}

/// Returns the links that a server may read as this URI, each once. A link with this spelling is
/// the only one.
fn links_read_as(uri: &str, links: impl Iterator<Item = String>) -> BTreeSet<String> {
    let spellings = Spellings::of(uri);
    let mut alike: BTreeSet<String> = links.filter(|link| spellings.include(link)).collect();
    match alike.take(uri) {
        Some(same) => BTreeSet::from([same]),
        None => alike,
    }
}

impl Call {
    /// Returns whether a rule changes or may refuse this answer.
    pub(super) fn is_ruled(&self, answer: &Message) -> bool {
        let Some(rule) = &self.answer_rule else { return false };
        match (&**rule, answer.result.filter(|_| answer.kind == Kind::Result)) {
            (_, None) => false,
            (AnswerRule::Budget { tokens, .. }, Some(result)) => {
                result_budget::exceeds(result.of(&answer.frame), *tokens)
            }
            (AnswerRule::App { .. }, Some(_)) => self.method == Method::ResourcesRead,
        }
    }

    /// Applies the rule of the call to the answer.
    pub(super) async fn apply_rule(
        &self,
        answer: Message,
        uris: ResourceUris,
    ) -> Result<(Message, ResourceUris), Refusal> {
        match self.answer_rule.as_deref() {
            Some(AnswerRule::Budget { tokens, tool }) => {
                Ok(self.shorten(*tokens, tool, answer, uris).await)
            }
            Some(AnswerRule::App { uri }) => {
                self.admit_app(uri, &answer).await?;
                Ok((answer, uris))
            }
            None => Ok((answer, uris)),
        }
    }

    /// Compares a user interface with its pin. Does so if a tool of the backend links it, under any
    /// spelling of its URI. The tool is in the shared lists, or in those of this session or
    /// principal.
    async fn admit_app(&self, uri: &str, answer: &Message) -> Result<(), Refusal> {
        let Some(backend) = &self.target.registered else { return Ok(()) };
        let lists = [backend.lists.load_full(), session::lists_of(&self.session, &backend.id)];
        let tools = lists.iter().flatten().flat_map(|lists| &lists.tools);
        let links = tools.flat_map(CatalogEntry::ui_links);
        let result = answer.bytes(answer.result).unwrap_or_default();
        for link in links_read_as(uri, links) {
            backend.pins.admit_app(&link, result).await?;
        }
        Ok(())
    }

    /// Applies the backend's settings for hidden characters to the result of a tool.
    pub(super) fn scanned(&self, answer: Message) -> Message {
        let Some(backend) = &self.target.registered else { return answer };
        let scan = backend.pins.results;
        if scan == ResultScan::Off || self.method != Method::ToolsCall {
            return answer;
        }
        let Some(scanned) = scan.scan(&answer) else { return answer };
        for finding in &scanned.findings {
            self.session.shared.metrics.pins.found_in_result(&finding.rule);
        }
        tracing::info!(tenant = %backend.tenant, backend = %backend.id, count = scanned.findings.len(), "a result has hidden characters");
        let limits = json::Limits::with_bytes_max(scanned.frame.len());
        Message::decode(scanned.frame, &limits).unwrap_or(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_found_under_every_spelling() {
        let links = ["ui://app/x", "UI://app/y", "ui://app/z", "ui://app/./z"];
        let found = |uri| -> Vec<String> {
            links_read_as(uri, links.map(str::to_owned).into_iter()).into_iter().collect()
        };
        for uri in ["ui://app/x", "UI://app/x", "ui://app/./x", "ui://APP/%78"] {
            assert_eq!(found(uri), ["ui://app/x"], "{uri}");
        }
        assert_eq!(found("ui://app/y"), ["UI://app/y"]);
        assert_eq!(found("ui://app/z"), ["ui://app/z"]);
        assert_eq!(found("UI://app/z"), ["ui://app/./z", "ui://app/z"]);
        assert!(found("ui://app/other").is_empty());
    }
}
