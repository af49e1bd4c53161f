//! One request that stands alone, on its way to a backend and back.
//!
//! It ends in one of three ways: its answer, an answer that asks for input (the exchange waits, parked), or dropped, because
//! its client hung up: then the backend is told that nobody waits any more.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use bytes::Bytes;
use protocol::{
    envelope::{Kind, Message},
    error::{ErrorKind, Refusal},
    ids::{BackendId, RequestId},
    json,
    method::Method,
    modern::{
        inputs::{InputRequest, InputRequired, InputResponses},
        is_cacheable, may_require_input,
        request::capability_required,
        results::CacheHint,
    },
    splice::Splice,
};

use super::{
    Place, Request, Visitor,
    parked::{Asked, Leave, answer_frame, no_answer},
    stand_in::Lease,
};
use crate::{
    actors::{
        session::Session,
        stream::{Next, Reader},
    },
    limits::{INPUT_GATHER_WAIT, INPUT_ROUNDS_MAX},
    rules::{
        catalog::{Catalog, Endpoint},
        event_log::EventKind,
        log_level::{self, LogLevel},
        modern, names,
        offer::Offer,
    },
};

/// What an exchange has for its client.
#[derive(Debug)]
pub enum Step {
    /// Something about the request.
    Frame(Bytes),
    /// The last message, and its `error.code` where it is an error.
    Answer(Bytes, Option<i64>),
    /// There is no more, and was no answer.
    Over,
}

/// One request on its way.
#[derive(Debug)]
pub struct Exchange {
    visitor: Visitor,
    request: Request,
    server_info: Bytes,
    cache: Option<CacheHint>,
    round: u32,
    waiting: Option<Waiting>,
    ready: VecDeque<Bytes>,
    /// What the client was asked for and did not bring.
    missing: Vec<Asked>,
    /// What it brought before it was asked, under the backend's names.
    unasked: Vec<(String, Bytes)>,
    /// Questions that came just now, and until when others are waited for.
    asking: Option<(Vec<Message>, tokio::time::Instant)>,
}

/// What an exchange leaves here when its client has to come back: the request as it is on its way in a stand-in. Dropped, it
/// is cancelled.
#[derive(Debug)]
pub(super) struct Waiting {
    lease: Lease,
    id: RequestId,
    reader: Reader,
}

impl Waiting {
    /// Its call has not ended meanwhile.
    pub(super) fn is_under_way(&self) -> bool {
        self.session().has_in_flight(&self.id)
    }

    fn session(&self) -> &Arc<Session> {
        self.lease.session()
    }

    /// It has a connection to its backend to itself.
    pub(super) fn is_alone(&self) -> bool {
        self.lease.is_alone()
    }

    /// Answers a question of the backend for the client.
    fn answer(&self, number: u64, answer: &Bytes) {
        if let Some(message) = read(answer_frame(number, answer)) {
            self.session().answer(&message);
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.is_under_way() {
            self.lease.retire();
        }
        self.session().cancel_request(&self.id);
    }
}

impl Visitor {
    /// Sends a request on its way. An `Err` is the answer, and nothing was begun.
    pub async fn begin(&self, request: Request, offer: &Offer) -> Result<Exchange, Refusal> {
        let unasked = InputResponses::parse(&request.message)?.answers;
        let waiting = self.submit(&request, offer).await?;
        Ok(Exchange { unasked, ..self.exchange(request, offer, 0, Some(waiting)) })
    }

    /// Goes on with a request that waits at `place`, here.
    pub async fn go_on(&self, request: Request, place: &Place, offer: &Offer) -> Result<Exchange, Refusal> {
        let responses = InputResponses::parse(&request.message)?;
        let mut parked = self.unpark(place, &responses).map_err(super::StateError::refusal)??;
        let (mut missing, mut answered) = (Vec::new(), Vec::new());
        for asked in std::mem::take(&mut parked.questions) {
            match responses.answers.iter().find(|(key, _)| *key == asked.request.key) {
                Some((_, answer)) => answered.push((asked, answer)),
                None => missing.push(asked),
            }
        }
        let Some(waiting) = parked.waiting.take() else {
            // The backend refused the first try before it did anything: it is made again.
            let waiting = self.submit(&request, offer).await?;
            return Ok(self.exchange(request, offer, parked.round(), Some(waiting)));
        };
        answered
            .iter()
            .filter_map(|(asked, answer)| Some((asked.number?, *answer)))
            .for_each(|(number, answer)| waiting.answer(number, answer));
        let mut exchange = self.exchange(request, offer, parked.round(), Some(waiting));
        exchange.missing = missing;
        Ok(exchange)
    }

    fn exchange(&self, request: Request, offer: &Offer, round: u32, waiting: Option<Waiting>) -> Exchange {
        let cache = is_cacheable(request.message.method).then_some(CacheHint::NONE);
        Exchange {
            visitor: self.clone(),
            request,
            server_info: offer.server_info.clone(),
            cache,
            round,
            waiting,
            ready: VecDeque::new(),
            missing: Vec::new(),
            unasked: Vec::new(),
            asking: None,
        }
    }

    async fn submit(&self, request: &Request, offer: &Offer) -> Result<Waiting, Refusal> {
        let backend = backend_of(&request.message, &self.endpoint, &self.tenant.catalog());
        let lease = self.shared.modern.stand_ins.lease(self, &request.meta.capabilities, offer, backend.as_ref()).await?;
        let (id, session) = (lease.next_id(), lease.session().clone());
        if let Some(level) = request.log_level.filter(|_| offer.capabilities.logging) {
            session.hear_logs_from(level).await;
        }
        let message = modern::for_session(&request.message, &id)?;
        let stream = session.open_stream(vec![id.clone()], 0);
        let reader = stream.read_from(0).map_err(|_| Refusal::new(ErrorKind::Internal, "a new stream can not be read"))?;
        let waiting = Waiting { lease, id, reader };
        session.submit(message, &stream)?;
        Ok(waiting)
    }
}

/// The backend a request is for, as far as its names tell.
fn backend_of(message: &Message, endpoint: &Endpoint, catalog: &Catalog) -> Option<BackendId> {
    if let Endpoint::Single(backend) = endpoint {
        return Some(backend.clone());
    }
    match message.method {
        Method::ToolsCall => Some(catalog.tool(&message.text(message.fields.name)?)?.backend.clone()),
        Method::PromptsGet => Some(catalog.prompt(&message.text(message.fields.name)?)?.backend.clone()),
        Method::ResourcesRead => names::native_uri(&message.text(message.fields.uri)?).map(|(backend, _)| backend),
        _ => None,
    }
}

impl Exchange {
    pub fn id(&self) -> &RequestId {
        &self.request.id
    }

    pub fn shared(&self) -> &Arc<crate::actors::shared::Shared> {
        &self.visitor.shared
    }

    /// What comes next. Cancel-safe: a dropped call loses nothing.
    pub async fn next(&mut self) -> Step {
        if !self.missing.is_empty() {
            let (missing, waiting) = (std::mem::take(&mut self.missing), self.waiting.take());
            return self.park(missing, waiting);
        }
        loop {
            if let Some(frame) = self.ready.pop_front() {
                return Step::Frame(frame);
            }
            let Some(waiting) = &mut self.waiting else { return Step::Over };
            let next = match &self.asking {
                None => waiting.reader.next().await,
                Some((_, until)) => match tokio::time::timeout_at(*until, waiting.reader.next()).await {
                    Ok(next) => next,
                    Err(_) => match self.ask() {
                        Some(step) => return step,
                        None => continue,
                    },
                },
            };
            let event = match next {
                Next::Event(event) => {
                    waiting.lease.prove();
                    event
                }
                Next::Ended(_) => {
                    self.waiting = None;
                    return Step::Over;
                }
            };
            if event.kind == EventKind::Answer {
                return self.answer(&event.frame); // it did not wait for what it may have asked
            }
            if let Some(message) = read(event.frame) {
                self.heard(message);
            }
        }
    }

    /// Something that comes before the answer.
    fn heard(&mut self, message: Message) {
        if message.kind == Kind::Request {
            let (questions, _) = self.asking.get_or_insert_with(|| (Vec::new(), tokio::time::Instant::now() + INPUT_GATHER_WAIT));
            questions.push(message);
        } else if let Some(withdrawn) = withdrawn(&message) {
            if let Some((questions, _)) = &mut self.asking {
                questions.retain(|question| question.id.as_ref() != Some(&withdrawn));
            }
            self.asking.take_if(|(questions, _)| questions.is_empty());
        } else if let Some(frame) = self.passing(&message) {
            self.ready.push_back(frame);
        }
    }

    /// What its client is told when it ended without an answer: what stood in for a session ended under it.
    pub fn given_up(&self) -> Bytes {
        let text = "the request was given up: it may or may not have been carried out";
        let refusal = Refusal::new(ErrorKind::OutcomeUnknown, text);
        let request_id = self.shared().note_refusal(&refusal, None, Some(self.visitor.tenant.id.as_str()));
        modern::refusal_response(&refusal, Some(&self.request.id), &request_id)
    }

    fn answer(&mut self, frame: &Bytes) -> Step {
        self.waiting = None;
        if let Some(step) = self.urls_first(frame) {
            return step;
        }
        match modern::answer(frame, &self.request.id, self.cache, &self.server_info) {
            Some(answer) => Step::Answer(answer.frame, answer.code),
            None => self.refuse(&Refusal::new(ErrorKind::BackendProtocolError, "the backend's answer can not be read")),
        }
    }

    /// An answer that asks for URLs to be opened before the request is sent again (MCP 2025-11-25, Elicitation: -32042).
    fn urls_first(&mut self, frame: &Bytes) -> Option<Step> {
        memchr::memmem::find(frame, b"-32042")?;
        let error = read(frame.clone()).filter(|error| error.kind == Kind::Error && modern::error_code(error) == -32042)?;
        let requests = modern::elicitations_required(&error);
        if requests.is_empty() || !may_require_input(self.request.message.method) {
            return None;
        }
        if !self.request.meta.capabilities.elicitation_url {
            let text = "the backend needs the user to open a URL first, which the request does not declare";
            return Some(self.refuse(&capability_required(r#"{"elicitation":{"url":{}}}"#, text)));
        }
        let questions = requests.into_iter().map(|request| Asked { request, number: None }).collect();
        Some(self.park(questions, None))
    }

    /// What the backend asks is the answer for now. `None`: its client had brought all of it.
    fn ask(&mut self) -> Option<Step> {
        let questions = self.asking.take().map(|(questions, _)| questions).unwrap_or_default();
        let waiting = self.waiting.as_ref()?;
        let mut asked: Vec<Asked> = Vec::with_capacity(questions.len());
        for question in &questions {
            let Some((number, mut request)) = modern::input_request(question) else { continue };
            // The backend's names are kept, so that its client finds what it looks for.
            let own = waiting.session().input_key(number);
            if let Some(own) = own.filter(|own| asked.iter().all(|other| other.request.key != *own)) {
                if let Some(at) = self.unasked.iter().position(|(key, _)| *key == own) {
                    let (_, answer) = self.unasked.swap_remove(at);
                    if !modern::is_answer(request.method, &answer) {
                        return Some(self.refuse(&no_answer(&own, request.method)));
                    }
                    waiting.answer(number, &answer);
                    continue;
                }
                request.key = own;
            }
            asked.push(Asked { request, number: Some(number) });
        }
        if asked.is_empty() {
            return None;
        }
        let waiting = self.waiting.take();
        Some(self.park(asked, waiting))
    }

    fn park(&mut self, questions: Vec<Asked>, waiting: Option<Waiting>) -> Step {
        let round = self.round + 1;
        if round > INPUT_ROUNDS_MAX {
            let text = format!("the backend asked for input {INPUT_ROUNDS_MAX} times, which is the limit");
            return self.refuse(&Refusal::new(ErrorKind::BackendProtocolError, text));
        }
        let requests: Vec<InputRequest> = questions.iter().map(|asked| asked.request.clone()).collect();
        let leave = Leave { questions, round, digest: modern::digest_of(&self.request.message) };
        match self.visitor.park(leave, waiting) {
            Ok(state) => {
                let required = InputRequired { requests, state: Some(state) };
                Step::Answer(required.to_response(&self.request.id, &self.server_info), None)
            }
            Err(refusal) => self.refuse(&refusal),
        }
    }

    fn refuse(&mut self, refusal: &Refusal) -> Step {
        self.waiting = None;
        let request_id = self.shared().note_refusal(refusal, None, Some(self.visitor.tenant.id.as_str()));
        Step::Answer(modern::refusal_response(refusal, Some(&self.request.id), &request_id), Some(refusal.kind.code()))
    }

    /// A notification about the request, if its client wants it.
    fn passing(&self, message: &Message) -> Option<Bytes> {
        match message.method {
            Method::Progress => {
                let token = self.request.message.bytes(self.request.message.fields.meta_progress_token)?;
                Some(Splice::new(&message.frame).replace(message.fields.progress_token?, token.to_vec()).finish())
            }
            Method::LogMessage => {
                let wanted = self.request.log_level?;
                let level = message.text(message.fields.level).and_then(|level| LogLevel::parse(&level));
                log_level::passes(level, Some(wanted)).then(|| message.frame.clone())
            }
            // That a URL was opened is known when the request goes on; anything else has no place here.
            _ => None,
        }
    }
}

fn read(frame: Bytes) -> Option<Message> {
    let limits = json::Limits { bytes_max: frame.len(), ..json::Limits::default() };
    Message::decode(frame, &limits).ok()
}

/// The question a backend does not ask any more.
fn withdrawn(message: &Message) -> Option<RequestId> {
    let span = message.fields.request_id.filter(|_| message.method == Method::Cancelled)?;
    Some(RequestId::from_raw(span.slice(&message.frame)))
}

const _: () = assert!(INPUT_GATHER_WAIT.as_millis() < Duration::from_secs(1).as_millis());
