//! Sessions as links know them: users of links, and recipients of what a backend sends to no request.

use std::{borrow::Cow, sync::Arc};

use bytes::Bytes;
use protocol::{envelope::Message, error::Refusal, ids::BackendId};

use super::Session;
use crate::{
    backends::{
        inbound::Inbound,
        link::{BackendSession, Era, connection::Connection},
        link_client::LinkClient,
    },
    rules::{
        endpoint::Endpoint,
        event_log::{EventKind, Topic},
        exposed_names,
        log_level::LogLevel,
    },
};

impl Inbound for Session {
    fn need_input(
        self: Arc<Self>,
        connection: &Arc<Connection>,
        question: &Message,
    ) -> Result<(), Refusal> {
        self.ask(connection, question, None)
    }

    fn withdraw(&self, number: u64, why: &str) {
        self.withdraw_question(number, why);
    }

    fn receive(&self, kind: EventKind, message: &Message) {
        self.deliver(kind, message.frame.clone());
    }

    fn complete_elicitation(&self, id: &str, message: &Message) -> bool {
        let was_asked = self.was_elicited(id);
        if was_asked {
            self.deliver(EventKind::Message, message.frame.clone());
        }
        was_asked
    }

    fn log_level(&self) -> Option<LogLevel> {
        Session::log_level(self)
    }

    fn client_era(&self) -> Era {
        self.era()
    }
}

impl LinkClient for Session {
    fn deliver(&self, topic: Topic, frame: Bytes) {
        self.deliver_coalesced(EventKind::Message, Some(topic), frame);
    }

    fn exposed_uri<'u>(&self, backend: &BackendId, uri: &'u str) -> Cow<'u, str> {
        match &self.endpoint {
            Endpoint::Aggregated => Cow::Owned(exposed_names::exposed_uri(backend, uri)),
            Endpoint::Single(_) => Cow::Borrowed(uri),
        }
    }

    fn resubscribe(self: Arc<Self>, backend: BackendId) {
        let running = self.shared.running.clone();
        running.spawn(Session::resubscribe(self, backend));
    }

    fn note_backend_session(&self, backend: &BackendId, session: Option<BackendSession>) {
        Session::note_backend_session(self, backend, session);
    }
}
