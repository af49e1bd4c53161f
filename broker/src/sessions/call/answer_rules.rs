//! What becomes of an answer before its client gets it: hidden characters are found, user interfaces
//! are held to their pins, and long results are shortened.

use protocol::{
    envelope::{Kind, Message},
    error::Refusal,
    json,
    method::Method,
};
use rules::{
    exposure::ResourceUris,
    pins::{PinMode, ResultScan},
    result_budget,
    routing::{Named, Plan},
};

use super::Call;
use crate::backends::backend::Backend;

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
    fn of(plan: &Plan, backend: Option<&Backend>) -> Option<Self> {
        match &plan.names {
            Named::Tool(tool) => {
                let tokens = plan.result_tokens?;
                Some(Self::Budget { tokens, tool: tool.name.clone() })
            }
            Named::Resource(uri) if uri.starts_with(APP_SCHEME) => {
                let is_pinned = backend.is_some_and(|backend| backend.pins.mode != PinMode::Off);
                is_pinned.then(|| Self::App { uri: uri.clone() })
            }
            Named::Resource(_) | Named::Other => None,
        }
    }
}

impl Call {
    /// Sets the rule for the answer, if the request has one. Called before the call runs.
    pub fn record_answer_rule(&self, plan: &Plan) {
        if let Some(rule) = AnswerRule::of(plan, self.registered_backend.as_deref()) {
            let _set_once = self.answer_rule.set(Box::new(rule));
        }
    }

    /// Returns whether a rule changes or may refuse this answer.
    pub(super) fn is_ruled(&self, answer: &Message) -> bool {
        let Some(rule) = self.answer_rule.get() else { return false };
        match (&**rule, answer.result.filter(|_| answer.kind == Kind::Result)) {
            (_, None) => false,
            (AnswerRule::Budget { tokens, .. }, Some(result)) => {
                result_budget::exceeds(result.of(&answer.frame), *tokens)
            }
            (AnswerRule::App { .. }, Some(_)) => self.method == Method::ResourcesRead,
        }
    }

    /// Returns the answer as the rule of the call makes it.
    pub(super) async fn apply_rule(
        &self,
        answer: Message,
        uris: ResourceUris,
    ) -> Result<(Message, ResourceUris), Refusal> {
        match self.answer_rule.get().map(|rule| &**rule) {
            Some(AnswerRule::Budget { tokens, tool }) => {
                Ok(self.shorten((*tokens, tool), answer, uris).await)
            }
            Some(AnswerRule::App { uri }) => {
                self.admit_app(uri, &answer).await?;
                Ok((answer, uris))
            }
            None => Ok((answer, uris)),
        }
    }

    /// Holds a user interface to its pin, if a tool of its backend links it.
    async fn admit_app(&self, uri: &str, answer: &Message) -> Result<(), Refusal> {
        let Some(backend) = &self.registered_backend else { return Ok(()) };
        let links = |lists: &rules::catalog::BackendLists| {
            lists.tools.iter().any(|tool| tool.ui_links().iter().any(|link| link == uri))
        };
        if !backend.lists.load_full().is_some_and(|lists| links(&lists)) {
            return Ok(());
        }
        let result = answer.bytes(answer.result).unwrap_or_default();
        backend.pins.admit_app(uri, result).await
    }

    /// Applies the settings of its backend for hidden characters to the result of a tool.
    pub(super) fn scanned(&self, answer: Message) -> Message {
        let Some(backend) = &self.registered_backend else { return answer };
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
