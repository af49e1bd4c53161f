//! A call to a backend of 2026-07-28, over one or more requests.
//!
//! - The backend may need input of the client. The broker gets it and sends the request again (MCP
//!   2026-07-28, Multi Round-Trip Requests).
//! - The backend may refuse the headers. The broker builds them again from fresh schemas, once.
//! - The backend may create a task for the call. The broker follows it to its end.
//!
//! Invariants:
//!
//! - A client of an earlier revision understands the answer, whatever came in between.
//! - A failure after the backend processed a request of the call permits no repetition of the whole
//!   call. It could have an effect, or ask the user again.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use protocol::{
    envelope::{Kind, Message},
    json,
    method::Method,
    splice::Splice,
    stateless::{
        HEADER_MISMATCH, UNSUPPORTED_PROTOCOL_VERSION, downgrade, inputs::InputRequired,
        may_require_input, results::ResultType,
    },
};
use rules::{
    limits::{BACKOFF_FIRST, BACKOFF_MAX, inputs::BACKEND_INPUT_ROUNDS_MAX},
    retries::{self, AttemptOutcome},
};

use super::{
    inputs,
    requests::{self, RequestIdentity},
    tasks,
};
use crate::backends::{
    link::{
        Link,
        connection::{
            Connection,
            requester::{Requester, SentRequest},
        },
        failure::Failure,
        request::{BackendRequest, WireRequest},
    },
    list_fetch,
};

/// Additions to a request that is sent again.
#[derive(Default)]
struct InputRound {
    /// The object `inputResponses`.
    responses: Option<Vec<u8>>,
    /// `requestState`, exactly as it came.
    state: Option<String>,
}

/// How far a call has come.
#[derive(Default)]
struct CallProgress {
    /// Requests that the backend answered with a need for input.
    rounds: u32,
    /// Repetitions of requests that the backend did not process.
    repeats: u32,
    /// Set once the client has got a question of the backend.
    client_was_asked: bool,
    /// Set once the schemas of the tools were fetched again because the backend refused a header.
    tools_refreshed: bool,
}

impl CallProgress {
    /// Counts a round that needs input; returns the failure of the call when it has too many.
    fn begin_round(&mut self) -> Result<(), Failure> {
        self.rounds += 1;
        if self.rounds > BACKEND_INPUT_ROUNDS_MAX {
            return Err(Failure::Protocol(format!(
                "the backend asked for input more than {BACKEND_INPUT_ROUNDS_MAX} times in one call"
            )));
        }
        Ok(())
    }

    /// Returns the wait before the same round is sent again. `None`: the failure ends the attempt.
    fn repetition(
        &mut self,
        failure: &Failure,
        connection: &Connection,
        link: &Link,
    ) -> Option<Duration> {
        let is_possible = self.rounds > 0 && failure.was_not_seen() && !connection.is_closed();
        let is_due = retries::may_retry(AttemptOutcome::NotProcessed, true, self.repeats);
        let pause =
            failure.retry_after().unwrap_or_else(|| retries::backoff(self.repeats, rand::random()));
        if !is_possible || !is_due || pause > BACKOFF_MAX || !link.backend.spend_retry() {
            return None;
        }
        self.repeats += 1;
        Some(pause)
    }

    /// Returns the failure of the whole call. That of a later request alone would claim that the
    /// backend did not process the call.
    fn whole(&self, failure: Failure) -> Failure {
        let permits_a_repetition =
            failure.was_not_seen() || failure.attempt() == AttemptOutcome::MaybeProcessed;
        if self.client_was_asked && permits_a_repetition {
            Failure::Unfinished(Box::new(failure))
        } else if self.rounds > 0 && failure.was_not_seen() {
            Failure::Lost(failure.to_string())
        } else {
            failure
        }
    }
}

/// Sends a client's request and waits for its answer.
pub(in crate::backends::link) async fn exchange(
    connection: &Arc<Connection>,
    link: &Arc<Link>,
    outgoing: BackendRequest<'_>,
) -> Result<Message, Failure> {
    let mut exchange =
        BackendExchange { connection, link, outgoing, progress: CallProgress::default() };
    let answer = exchange.run().await;
    answer.map_err(|failure| exchange.progress.whole(failure))
}

/// A client's request, from its first round to its answer.
struct BackendExchange<'a> {
    connection: &'a Arc<Connection>,
    link: &'a Arc<Link>,
    outgoing: BackendRequest<'a>,
    progress: CallProgress,
}

/// What the answer to one round requires.
enum NextStep {
    /// The call is answered.
    Return(Message),
    /// The same round is sent again.
    SendAgain,
    /// The backend needs input before it answers.
    GetInput(InputRequired),
}

impl<'a> BackendExchange<'a> {
    async fn run(&mut self) -> Result<Message, Failure> {
        let mut round = InputRound::default();
        let mut pause = BACKOFF_FIRST;
        loop {
            let answer = match self.send_round(&round).await {
                Ok(answer) => answer,
                Err(failure) => {
                    let repetition = self.progress.repetition(&failure, self.connection, self.link);
                    match repetition {
                        Some(pause) => {
                            tokio::time::sleep(pause).await;
                            continue;
                        }
                        None => return Err(failure),
                    }
                }
            };
            let needed = match self.next_step(&answer).await? {
                NextStep::Return(answer) => return Ok(answer),
                NextStep::SendAgain => continue,
                NextStep::GetInput(needed) => needed,
            };
            self.progress.begin_round()?;
            let responses = if needed.requests.is_empty() {
                self.outgoing.requester.touch(); // the backend waits for this broker only
                tokio::time::sleep(pause).await; // it sheds load
                pause = (pause * 2).min(BACKOFF_MAX);
                None
            } else {
                self.progress.client_was_asked = true;
                let requester = self.outgoing.requester;
                match inputs::gather(self.connection, self.link, requester, &needed.requests)
                    .await?
                {
                    Ok(responses) => Some(responses),
                    Err(refusal) => return Ok(*refusal),
                }
            };
            round = InputRound { responses, state: needed.state };
        }
    }

    /// Sends the request of one round; returns the backend's answer to it.
    async fn send_round(&self, round: &InputRound) -> Result<Message, Failure> {
        let Self { connection, link, outgoing, progress } = self;
        let sent_at = if progress.rounds == 0 { outgoing.sent_at } else { Instant::now() };
        let request = self.prepare(round);
        let sent = SentRequest { connection: Arc::clone(connection), wire_id: request.wire_id };
        outgoing.requester.sent_as(sent, sent_at);
        let answer = requests::send(connection, link, request).await;
        if !outgoing.requester.is_task() {
            link.backend.record_latency(sent_at.elapsed());
        }
        answer
    }

    fn prepare(&self, round: &InputRound) -> WireRequest<'a> {
        let Self { connection, link, outgoing, .. } = self;
        let message = outgoing.message;
        let wire_id = connection.next_wire_id();
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(wire_id).as_bytes();
        let identity = RequestIdentity::of(connection, outgoing.requester);
        let mut splice = Splice::new(&message.frame);
        for span in [message.id_span, message.fields.meta_progress_token].into_iter().flatten() {
            splice.replace(span, digits);
        }
        for (span, text) in outgoing.edits {
            splice.replace(*span, &text[..]);
        }
        for (key, value) in identity.meta() {
            splice.set_meta(message, key, &value);
        }
        if let Some(params) = message.params {
            if let Some(responses) = &round.responses {
                splice.set_member(
                    params,
                    message.fields.input_responses,
                    "inputResponses",
                    responses,
                );
            }
            if let Some(state) = &round.state {
                splice.set_member(
                    params,
                    message.fields.request_state,
                    "requestState",
                    json::quote(state).as_bytes(),
                );
            }
        }
        let frame = connection.wire().finished(splice);
        let headers = requests::is_http(connection).then(|| requests::call_headers(link, outgoing));
        let request = WireRequest::new(wire_id, frame).for_requester(outgoing.requester);
        WireRequest { headers, ..request }
    }

    async fn next_step(&mut self, answer: &Message) -> Result<NextStep, Failure> {
        let (method, requester) = (self.outgoing.message.method, self.outgoing.requester);
        if answer.kind == Kind::Error {
            return self.step_after_error(answer).await;
        }
        match ResultType::of(answer) {
            ResultType::Complete => {
                requests::for_the_requester(answer, method, requester).map(NextStep::Return)
            }
            ResultType::InputRequired if may_require_input(method) => {
                InputRequired::parse(answer.bytes(answer.result).unwrap_or_default())
                    .map(NextStep::GetInput)
                    .map_err(|why| Failure::Protocol(why.to_owned()))
            }
            ResultType::Task if method == Method::ToolsCall => {
                let created = tasks::created(self.connection, self.link, requester, answer);
                created.await.map(NextStep::Return)
            }
            other => Err(Failure::Protocol(format!(
                "the backend returned a result of type {} for {}",
                other.name(),
                method.name()
            ))),
        }
    }

    async fn step_after_error(&mut self, answer: &Message) -> Result<NextStep, Failure> {
        let Self { connection, link, outgoing, progress } = self;
        let requester = outgoing.requester;
        match downgrade::error_code(answer) {
            Some(HEADER_MISMATCH) if !progress.tools_refreshed => {
                progress.tools_refreshed = true;
                // Boxed, because it is rare and would enlarge the future of every call.
                Box::pin(list_fetch::refresh_tools(connection, link)).await?;
                Ok(NextStep::SendAgain)
            }
            // The refused header may be one of the client, which does not show a fault of the
            // backend.
            Some(HEADER_MISMATCH) if requester.forwarded_headers().is_empty() => {
                Err(Failure::Protocol("the backend refused the headers of a request".to_owned()))
            }
            Some(UNSUPPORTED_PROTOCOL_VERSION) => Err(requests::end_outdated_era(connection, link)),
            _ => requests::for_the_requester(answer, outgoing.message.method, requester)
                .map(NextStep::Return),
        }
    }
}

/// Sends a request of the broker on behalf of `requester`, whose client may get questions
/// meanwhile.
pub(in crate::backends::link) async fn request_for(
    connection: &Arc<Connection>,
    link: &Arc<Link>,
    method: Method,
    params: &[u8],
    requester: &Arc<dyn Requester>,
) -> Result<Message, Failure> {
    match method {
        // The state of a task that is over contains its outcome.
        Method::TasksResult => tasks::result(link, requester, params).await,
        _ => {
            requests::send_of_broker(connection, link, method, Some(params), Some(requester)).await
        }
    }
}
