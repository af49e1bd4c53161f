//! Sessions as links see them: users of links, and recipients of a backend's messages that belong
//! to no request.

use std::{borrow::Cow, sync::Arc};

use bytes::Bytes;
use protocol::{
    envelope::Message, error::Refusal, ids::BackendId, method::Method, phase::SessionPhase,
};
use rules::{
    access::{Object, Verdict},
    endpoint::Endpoint,
    event_log::{EventKind, Topic},
    exposed_names,
    log_level::LogLevel,
};

use super::{Session, questions, subscriptions};
use crate::{
    backends::{
        inbound::Inbound,
        link::{BackendSession, Era, connection::Connection},
        link_client::LinkClient,
    },
    sessions::access_doors,
};

impl Inbound for Session {
    fn need_input(
        self: Arc<Self>,
        connection: &Arc<Connection>,
        question: &Message,
    ) -> Result<(), Refusal> {
        questions::ask(&self, connection, question, None)
    }

    fn withdraw(&self, number: u64, why: &str) {
        questions::withdraw(self, number, why);
    }

    fn receive(&self, kind: EventKind, message: &Message) {
        self.deliver(kind, message.frame.clone());
    }

    fn complete_elicitation(&self, id: &str, message: &Message) -> bool {
        let was_asked = questions::was_elicited(self, id);
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

impl Session {
    /// Returns whether the caller may still see the resource of a notification.
    fn sees(&self, topic: &Topic) -> bool {
        let Topic::Resource(exposed) = topic else { return true };
        let subject = self.subject();
        let is_open = access_doors::is_open("notifications/resources/updated");
        let Some(view) = self.tenant.access(&subject).filter(|_| !is_open) else { return true };
        let (backend, uri) = match &self.endpoint {
            Endpoint::Single(backend) => (backend.clone(), exposed.as_str()),
            Endpoint::Aggregated => match exposed_names::native_uri(exposed) {
                Some(named) => named,
                None => return true,
            },
        };
        let object = Object::Resource { backend: &backend, uri };
        view.policy().decide(&subject, Method::ResourcesRead, &object).verdict == Verdict::Allow
    }
}

impl LinkClient for Session {
    fn deliver(&self, topic: Topic, frame: Bytes) {
        if self.sees(&topic) {
            self.deliver_coalesced(EventKind::Message, Some(topic), frame);
        } else {
            self.shared.metrics.dropped_notification("policy");
        }
    }

    fn exposed_uri<'u>(&self, backend: &BackendId, uri: &'u str) -> Cow<'u, str> {
        match &self.endpoint {
            Endpoint::Aggregated => Cow::Owned(exposed_names::exposed_uri(backend, uri)),
            Endpoint::Single(_) => Cow::Borrowed(uri),
        }
    }

    fn resubscribe(self: Arc<Self>, backend: BackendId) {
        let running = self.shared.running.clone();
        running.spawn(subscriptions::resubscribe(self, backend));
    }

    fn note_backend_session(&self, backend: &BackendId, session: Option<BackendSession>) {
        let mut state = self.lock();
        if state.phase != SessionPhase::Closed {
            state.dirty.links |= state.links.note_backend_session(backend, session);
        }
    }
}
