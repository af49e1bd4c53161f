//! Sessions as links see them: users of links, and recipients of a backend's messages that belong
//! to no request.

use std::{borrow::Cow, sync::Arc};

use bytes::Bytes;
use protocol::{envelope::Message, error::Refusal, ids::BackendId, phase::SessionPhase};
use rules::{
    endpoint::Endpoint,
    event_log::{EventKind, Topic},
    exposed_names,
    log_level::LogLevel,
};

use super::{Session, questions, subscriptions};
use crate::backends::{
    link::{
        BackendSession, Era,
        connection::{Connection, requester::Inbound},
    },
    link_client::LinkClient,
};

impl Inbound for Session {
    fn need_input(
        self: Arc<Self>,
        connection: &Arc<Connection>,
        question: &Message,
    ) -> Result<(), Refusal> {
        questions::send_question(&self, connection, question, None)
    }

    fn withdraw(&self, number: u64, why: &str) {
        questions::withdraw(self, number, why);
    }

    fn receive(&self, kind: EventKind, message: &Message) {
        self.deliver(kind, message.frame.clone());
    }

    fn complete_elicitation(&self, id: &str, message: &Message) -> bool {
        let was_elicited = questions::was_elicited(self, id);
        if was_elicited {
            self.deliver(EventKind::Message, message.frame.clone());
        }
        was_elicited
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
        if self.sees(&topic) {
            self.deliver_coalesced(EventKind::Message, Some(topic), frame);
        } else {
            self.shared.metrics.dropped_notification("policy");
        }
    }

    fn exposed_uri<'u>(&self, backend: &BackendId, uri: &'u str) -> Cow<'u, str> {
        match &self.endpoint {
            Endpoint::Single(_) => Cow::Borrowed(uri),
            Endpoint::Aggregated | Endpoint::Toolset(_) => {
                Cow::Owned(exposed_names::exposed_uri(backend, uri))
            }
        }
    }

    fn resubscribe(self: Arc<Self>, backend: BackendId) {
        let running = self.shared.running.clone();
        running.spawn(subscriptions::resubscribe(self, backend));
    }

    fn on_own_lists_changed(&self) {
        Session::on_own_lists_changed(self);
    }

    fn on_principal_lists_due(&self) {
        self.tenant.read_lists_of(&self.endpoint, &self.caller.principal);
    }

    fn record_backend_session(&self, backend: &BackendId, session: Option<BackendSession>) {
        let mut state = self.lock();
        if state.phase != SessionPhase::Closed {
            state.dirty.links |= state.links.record_backend_session(backend, session);
        }
    }
}
