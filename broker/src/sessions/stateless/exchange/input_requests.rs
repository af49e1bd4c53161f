//! Questions of a backend during an exchange. The broker answers the exchange with them as input
//! requests, and the client sends its request again with the input.

use protocol::{
    envelope::{Kind, Message},
    error::{ErrorKind, Refusal},
    stateless::{
        inputs::{InputRequest, InputRequired, name_missing_capability},
        may_require_input,
        request::capability_required,
    },
    version::Version,
};
use rules::{limits::INPUT_ROUNDS_MAX, stateless};

use super::{Exchange, ExchangeEvent};
use crate::sessions::{
    session::questions,
    stateless::{
        pending_exchange::PendingExchange,
        suspended::{RequestedInput, Suspension, no_answer},
    },
};

impl Exchange {
    /// Requests the client to open URLs before the request is sent again (MCP 2025-11-25,
    /// Elicitation: -32042).
    pub(super) fn urls_first(&mut self, error: &Message) -> Option<ExchangeEvent> {
        if error.kind != Kind::Error || stateless::error_code(error) != -32042 {
            return None;
        }
        let requests = stateless::elicitations_required(error);
        if requests.is_empty() || !may_require_input(self.request.message.method) {
            return None;
        }
        if !self.request.meta.capabilities.elicitation_url {
            let text = "the user must open a URL first, but the request does not declare elicitation by URL";
            return Some(self.refuse(&capability_required(r#"{"elicitation":{"url":{}}}"#, text)));
        }
        let questions =
            requests.into_iter().map(|request| RequestedInput { request, number: None }).collect();
        Some(self.suspend(questions, None))
    }

    /// Returns the backend's questions as the answer for now. `None` if the client had sent all
    /// answers already.
    pub(super) fn require_input(&mut self) -> Option<ExchangeEvent> {
        let questions =
            self.pending_questions.take().map(|(questions, _)| questions).unwrap_or_default();
        let waiting = self.waiting.as_ref()?;
        let mut inputs: Vec<RequestedInput> = Vec::with_capacity(questions.len());
        for question in &questions {
            let Some((number, mut request)) = stateless::input_request(question) else { continue };
            // The backend's keys are kept, because the client uses them.
            let own = questions::input_key(waiting.session(), number);
            if let Some(own) = own.filter(|own| inputs.iter().all(|one| one.request.key != *own)) {
                if let Some(at) = self.early_answers.iter().position(|(key, _)| *key == own) {
                    let (_, answer) = self.early_answers.swap_remove(at);
                    if !stateless::is_valid_answer(request.method, &answer) {
                        return Some(self.refuse(&no_answer(&own, request.method)));
                    }
                    waiting.answer(number, &answer);
                    continue;
                }
                request.key = own;
            }
            inputs.push(RequestedInput { request, number: Some(number) });
        }
        self.request_inputs(inputs)
    }

    /// Requests the inputs that this request permits, and refuses the others at the backend. Each
    /// request declares its own capabilities, also a repeated one (MCP 2026-07-28, Basic: Meta).
    /// `None` if no input is left.
    pub(super) fn request_inputs(
        &mut self,
        mut inputs: Vec<RequestedInput>,
    ) -> Option<ExchangeEvent> {
        inputs.retain(|input| match self.permits(&input.request) {
            Ok(()) => true,
            Err(refusal) => {
                if let (Some(waiting), Some(number)) = (&self.waiting, input.number) {
                    waiting.refuse_question(number, &refusal);
                }
                false
            }
        });
        if inputs.is_empty() {
            return None;
        }
        let waiting = self.waiting.take();
        Some(self.suspend(inputs, waiting))
    }

    fn permits(&self, input: &InputRequest) -> Result<(), Refusal> {
        let unreadable = || {
            Refusal::new(ErrorKind::BackendProtocolError, "the backend's request cannot be read")
        };
        let question = input.to_message().ok_or_else(unreadable)?;
        // A pooled session of this version asked the question.
        let declared = &self.request.meta.capabilities;
        declared
            .permits(&question, Version::LATEST_WITH_SESSIONS)
            .map_err(|refusal| name_missing_capability(refusal, &question))
    }

    fn suspend(
        &mut self,
        questions: Vec<RequestedInput>,
        mut waiting: Option<PendingExchange>,
    ) -> ExchangeEvent {
        waiting.iter_mut().for_each(PendingExchange::detach);
        let round = self.round + 1;
        if round > INPUT_ROUNDS_MAX {
            let text =
                format!("the backend asked for input {INPUT_ROUNDS_MAX} times, which is the limit");
            return self.refuse(&Refusal::new(ErrorKind::BackendProtocolError, text));
        }
        let requests: Vec<InputRequest> =
            questions.iter().map(|input| input.request.clone()).collect();
        let suspension = Suspension {
            questions,
            round,
            digest: stateless::request_digest(&self.request.message),
        };
        match self.client.suspend(suspension, waiting) {
            Ok(state) => {
                let required = InputRequired { requests, state: Some(state) };
                ExchangeEvent::Answer(
                    required.to_response(&self.request.id, &self.server_info),
                    None,
                )
            }
            Err(refusal) => self.refuse(&refusal),
        }
    }
}
