//! Calls of stateless clients that wait for the approval of a person (MCP 2026-07-28, Multi
//! Round-Trip Requests). The answer is `input_required` with a state and without a question: a
//! person who is not at the client decides. The client sends the call again with the state, on any
//! replica. The broker then holds the call up to its deadline, so the client need not retry often.

use bytes::Bytes;
use protocol::{
    envelope::Message,
    error::{ErrorKind, Refusal},
    method::Method,
    splice::Splice,
    stateless::inputs::InputRequired,
};
use rules::{
    access::{Object, Verdict},
    approvals::{APPROVAL_META, ApprovalNotice},
    routing, tasks,
};

use super::{StatelessClient, StatelessRequest};

impl StatelessClient {
    /// Returns whether the policy requires the approval of a call.
    pub(super) fn needs_approval(&self, call: &Message) -> bool {
        let subject = &self.caller.subject;
        let Some(view) = self.tenant.access(&self.endpoint, subject) else { return false };
        let Some((backend, tool)) = routing::called_tool(call, &self.endpoint, &view.catalog)
        else {
            return false;
        };
        let traits = view.catalog.traits(&backend, &tool).unwrap_or_default();
        let object = Object::Tool { backend: &backend, name: &tool, traits };
        let decision = view.decide(subject, Method::ToolsCall, &object);
        decision.is_some_and(|decision| decision.verdict == Verdict::Approve)
    }

    /// Returns the answer to a call that waits: its client comes back with the state.
    pub(super) fn approval_required(
        &self,
        request: &StatelessRequest,
        notice: &ApprovalNotice,
        server_info: &[u8],
    ) -> Result<Bytes, Refusal> {
        let state = self.approval_state(&notice.id, &request.message)?;
        let required = InputRequired { requests: Vec::new(), state: Some(state) };
        let unreadable =
            || Refusal::new(ErrorKind::Internal, "the broker could not build the answer");
        let answer = tasks::decoded(required.to_response(&request.id, server_info))
            .ok_or_else(unreadable)?;
        let mut splice = Splice::new(&answer.frame);
        splice.set_meta(&answer, APPROVAL_META, notice.meta().as_bytes());
        Ok(splice.finish())
    }
}
