//! GET requests: a new general stream, or a stream resumed from the client's position. The stream
//! may be an earlier owner's.
//!
//! A gap before the position is never skipped. On a GET stream the client gets notifications of
//! everything that may have changed. On any other stream it gets an error. Requests whose calls
//! ended with an earlier owner get an answer on their stream.

mod inherited;

use std::{sync::Arc, time::Instant};

use bytes::Bytes;
use protocol::{
    error::{ErrorKind, Refusal},
    handshake, json,
    method::Method,
    version::Batches,
};
use records::{LogEntry, StoredStream};
use rules::event_log::{EventKind, Topic};

use self::inherited::{InheritedEvents, InheritedStream, restored_event};
use super::{
    Session,
    state::{SessionState, is_general},
};
use crate::sessions::stream::{
    EventId, EventStream, LeftOut, PendingAnswer, StreamCursor, parse_event_id,
};

/// A stream for a GET.
#[derive(Debug)]
pub struct ResumedStream {
    pub reader: StreamCursor,
    /// True if events were lost. The stream then begins with notifications of what may have
    /// changed.
    pub gap: bool,
}

/// Opens and resumes the streams of GET requests to one session.
#[derive(Debug, Clone, Copy)]
pub struct StreamResumption<'s> {
    session: &'s Session,
}

impl<'s> StreamResumption<'s> {
    pub fn new(session: &'s Session) -> Self {
        Self { session }
    }

    /// Counts a GET of the session. Each causes records of the event log, and may read the log. Some
    /// are free, so that a client that reconnects gets its answers also over its rate. Each further
    /// one takes a request from the rates of the caller.
    pub fn take_opening(self) -> Result<(), Refusal> {
        let session = self.session;
        let is_free = session.lock().streams.admits_free_opening(session.shared.uptime());
        if is_free { Ok(()) } else { session.tenant.take_budget(&session.caller.principal) }
    }

    /// Opens the stream of a GET without `Last-Event-ID`. Missing events of an earlier owner also
    /// make a gap.
    pub async fn open_general_stream(self) -> Result<ResumedStream, Refusal> {
        self.open_new(None, false).await
    }

    /// Resumes the stream that a GET names in `Last-Event-ID`, and only that. `answer` settles each
    /// request on it that an earlier owner left without an answer.
    pub(in crate::sessions) async fn resume(
        self,
        last_event_id: &str,
        answer: impl Fn(PendingAnswer, &Arc<EventStream>),
    ) -> Result<ResumedStream, Refusal> {
        let EventId { stream: number, sequence: position, request } =
            parse_event_id(last_event_id).ok_or_else(cannot_resume)?;
        let (known, possible, foreign) = {
            let state = self.open_state()?;
            (
                state.streams.get(number),
                state.streams.may_have_existed(number),
                state.streams.is_inherited(number),
            )
        };
        if let Some(stream) = known {
            return self.resume_local(&stream, position).await;
        }
        if !possible {
            return Err(cannot_resume());
        }
        // This owner's forgotten streams are not in the log either.
        let stored = match foreign {
            // The read includes the event at the position, which may be an answer.
            true => match self
                .session
                .shared
                .persistence
                .logged_stream(&self.session.key, number, position.saturating_sub(1))
                .await
            {
                Err(_) if is_general(number) && self.session.shared.persistence.logs_apart() => {
                    return self.open_after_gap(Some(number)).await;
                }
                stored => stored?,
            },
            false => None,
        };
        let stored = stored.map(|stored| {
            let batches = self.session.agreement.version.batches() == Batches::Permitted;
            InheritedStream::new(stored, position).seen_with(request.as_ref(), batches)
        });
        match stored {
            Some(stored) if is_general(number) && !stored.gap => {
                self.continue_general(stored).await
            }
            Some(stored) if !is_general(number) && stored.can_be_answered() => {
                self.continue_answers(stored, answer)
            }
            _ if is_general(number) => self.open_after_gap(Some(number)).await,
            // Its owner died before it was logged, or the log lost it. The request is answered as
            // one without a log.
            None if foreign && request.is_some() => {
                self.continue_answers(InheritedStream::unlogged(number, position, request), answer)
            }
            _ => Err(events_gone()),
        }
    }

    async fn resume_local(
        self,
        stream: &Arc<EventStream>,
        position: u64,
    ) -> Result<ResumedStream, Refusal> {
        self.session.withdraw_hidden(stream, position);
        match stream.read_from(position) {
            Ok(reader) => {
                let mut gap = false;
                if stream.is_general() {
                    let mut state = self.session.lock();
                    let left_out = state.streams.adopt_unknown(stream);
                    gap = left_out.is_gap;
                    self.report_left_out(&state, stream, left_out);
                }
                Ok(ResumedStream { reader, gap })
            }
            Err(_) if stream.is_general() => self.open_after_gap(Some(stream.number)).await,
            Err(_) => Err(events_gone()),
        }
    }

    /// Opens a GET stream for a client that missed events.
    async fn open_after_gap(self, lost: Option<u64>) -> Result<ResumedStream, Refusal> {
        self.open_new(lost, true).await
    }

    /// Opens a GET stream. After a gap it begins with notifications of everything that may have
    /// changed.
    async fn open_new(self, lost: Option<u64>, gap: bool) -> Result<ResumedStream, Refusal> {
        let inheritance = self.load_inherited().await?;
        let mut state = self.open_state()?;
        let inherited = self.take_inherited(&mut state, inheritance);
        let told = gap || inherited.gap || inherited.may_be_missed;
        let changes = if told { self.change_notifications(&state) } else { Vec::new() };
        let opened = state.streams.open_general(changes, inherited.events);
        let gap = told || opened.left_out.is_gap;
        self.report_left_out(&state, &opened.stream, LeftOut { is_gap: gap, ..opened.left_out });
        let reader = opened.stream.read_from(0).map_err(|_| cannot_resume())?;
        self.drop_from_log(&inherited.streams);
        if let Some(lost) = lost {
            match state.streams.get(lost) {
                Some(stream) if stream.is_connected() => {} // another connection reads it
                Some(_) => state.streams.forget(lost),
                None => self.drop_from_log(&[lost]),
            }
        }
        drop(state);
        self.session.withdraw_hidden(&opened.stream, 0);
        Ok(ResumedStream { reader, gap })
    }

    fn change_notifications(self, state: &SessionState) -> Vec<(Topic, Bytes)> {
        let advertised = &self.session.agreement.advertised;
        let lists = [
            (advertised.tools_list_changed, Method::ToolsListChanged),
            (advertised.prompts_list_changed, Method::PromptsListChanged),
            (advertised.resources_list_changed, Method::ResourcesListChanged),
        ];
        let lists = lists.into_iter().filter(|(promised, _)| *promised);
        let lists =
            lists.map(|(_, method)| (Topic::List(method), handshake::notification(method, None)));
        let resources = state.subscriptions.exposed_uris().map(|uri| {
            let params = format!("{{\"uri\":{}}}", json::quote(uri));
            (
                Topic::Resource(uri.clone()),
                handshake::notification(Method::ResourcesUpdated, Some(params.as_bytes())),
            )
        });
        lists.chain(resources).collect()
    }

    async fn continue_general(self, stored: InheritedStream) -> Result<ResumedStream, Refusal> {
        let inheritance = self.load_inherited().await?;
        let mut state = self.open_state()?;
        let (number, position, mut gap) = (stored.number, stored.position, false);
        let stream = match state.streams.get(number) {
            Some(stream) => stream, // another GET was faster
            None => {
                let inherited = self.take_inherited(&mut state, inheritance);
                let stream = EventStream::restored(
                    number,
                    state.streams.limits,
                    None,
                    None,
                    stored.held(self.session.epoch()),
                );
                let stream = state.streams.track_unread(stream);
                let mut left_out = state.streams.continue_general(&stream, inherited.events);
                self.drop_from_log(&inherited.streams);
                left_out.is_gap |= inherited.gap;
                gap = left_out.is_gap;
                self.report_left_out(&state, &stream, left_out);
                stream
            }
        };
        drop(state);
        self.session.withdraw_hidden(&stream, position);
        stream
            .read_from(position)
            .map(|reader| ResumedStream { reader, gap })
            .map_err(|_| cannot_resume())
    }

    fn continue_answers(
        self,
        stored: InheritedStream,
        answer: impl Fn(PendingAnswer, &Arc<EventStream>),
    ) -> Result<ResumedStream, Refusal> {
        let mut state = self.open_state()?;
        let (number, position, is_logged) = (stored.number, stored.position, stored.is_logged);
        let mut due = Vec::new();
        let stream = match state.streams.get(number) {
            Some(stream) => stream,
            None => {
                due.clone_from(&stored.pending);
                let stream = EventStream::restored(
                    number,
                    state.streams.limits,
                    Some(due.clone()),
                    stored.answered.clone(),
                    stored.held(self.session.epoch()),
                );
                let stream = state.streams.track_unread(stream);
                if is_logged {
                    state.streams.continue_answers(&stream);
                } else {
                    state.streams.retain(&stream);
                }
                stream
            }
        };
        drop(state);
        due.into_iter().for_each(|due| answer(due, &stream));
        stream
            .read_from(position)
            .map(|reader| ResumedStream { reader, gap: false })
            .map_err(|_| events_gone())
    }

    /// Loads the GET streams of earlier owners, with the events of those that no client knows.
    /// `None` if the log cannot be read now. The client still gets its stream then.
    async fn load_inherited(self) -> Result<Option<Vec<StoredStream>>, Refusal> {
        match self.load_general().await {
            Err(_) if self.session.shared.persistence.logs_apart() => Ok(None),
            loaded => loaded.map(Some),
        }
    }

    async fn load_general(self) -> Result<Vec<StoredStream>, Refusal> {
        if !self.session.lock().streams.may_inherit {
            return Ok(Vec::new());
        }
        let persistence = &self.session.shared.persistence;
        let all = persistence.logged_streams(&self.session.key).await?.into_iter();
        let mut streams = Vec::new();
        for record in all.filter(|stream| stream.standalone) {
            // A stream that the client knows is resumed from its position. Its events are not
            // needed here.
            let position = if record.was_read { u64::MAX } else { 0 };
            let stored = persistence.logged_stream(&self.session.key, record.number, position);
            streams.extend(stored.await?);
        }
        Ok(streams)
    }

    /// Takes the inherited events, once: a second caller gets none.
    fn take_inherited(
        self,
        state: &mut SessionState,
        loaded: Option<Vec<StoredStream>>,
    ) -> InheritedEvents {
        let mut inherited = InheritedEvents::default();
        let Some(loaded) = loaded else {
            inherited.gap = state.streams.may_inherit; // until it can be read
            return inherited;
        };
        if !std::mem::take(&mut state.streams.may_inherit) {
            return inherited;
        }
        let mut earlier = loaded
            .into_iter()
            .filter(|stored| state.streams.get(stored.record.number).is_none())
            .peekable();
        // Without a GET stream, the log lost those of earlier owners, or they have expired.
        inherited.gap = earlier.peek().is_none() && state.lists.were_logged();
        for stored in earlier {
            if stored.record.was_read {
                // The log does not have the client's position, so the last event may be unread.
                inherited.may_be_missed |= stored.last_sequence > 0;
                continue;
            }
            inherited.streams.push(stored.record.number);
            // No client read the stream, so the trimmed events never reached one.
            inherited.gap |= stored.trimmed_through > 0;
            inherited.events.extend(stored.events.into_iter().map(restored_event));
        }
        inherited
    }

    fn open_state(self) -> Result<parking_lot::MutexGuard<'s, SessionState>, Refusal> {
        let state = self.session.lock();
        state.check_accepting().map(|()| state)
    }

    /// Removes streams from the log. Called after their events were logged elsewhere, so that none
    /// is lost in between.
    fn drop_from_log(self, streams: &[u64]) {
        if let Some(log) = &self.session.shared.persistence.event_log {
            streams.iter().for_each(|stream| {
                log.log(LogEntry::Drop { session: self.session.key, stream: *stream })
            });
        }
    }

    /// Counts what a GET stream does not have. After a gap the stream gets notifications of
    /// everything that may have changed, unless they wait in it already.
    fn report_left_out(self, state: &SessionState, stream: &EventStream, left_out: LeftOut) {
        let metrics = &self.session.shared.metrics;
        (0..left_out.count).for_each(|_| metrics.dropped_notification("slow_client"));
        if !left_out.is_gap {
            return;
        }
        metrics.event_gap();
        tracing::info!(session = %self.session.digest, "events are lost: the broker notifies the client of possible changes");
        for (topic, frame) in self.change_notifications(state) {
            let now = Instant::now();
            let _never_cut = stream.push_coalesced(now, EventKind::Message, Some(topic), frame);
        }
    }
}

fn cannot_resume() -> Refusal {
    Refusal::new(
        ErrorKind::InvalidRequest,
        "Last-Event-ID names no event that this session can resume from; open a stream without it",
    )
}

pub(super) fn events_gone() -> Refusal {
    Refusal::new(
        ErrorKind::EventsGone,
        "the broker has discarded the events after this Last-Event-ID; answers among them are lost",
    )
}
