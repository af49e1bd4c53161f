//! Decisions of the access policy after a request was admitted. They concern questions to the
//! client, a request that continues with its client's input, and events that wait for the client.
//!
//! Invariant: the policy in force and the latest credential decide, not those of the first request.

use std::borrow::Cow;

use protocol::{envelope::Message, error::Refusal, method::Method};
use rules::{
    access::{AccessCheck, Object, Subject, Verdict},
    endpoint::Endpoint,
    event_log::Topic,
    exposed_names, routing,
};

use super::{Agreement, Session};
use crate::sessions::{access_checks, access_log, stream::EventStream};

impl Session {
    /// Refuses a request that was admitted, if one like it would be refused now. `check_name` is the name
    /// of this check, which a test can disable.
    pub(in crate::sessions) fn recheck_access(
        &self,
        subject: &Subject,
        message: &Message,
        check_name: &str,
    ) -> Result<(), Refusal> {
        let snapshot = self.catalog();
        let Some(view) = snapshot.view(subject).filter(|_| !access_checks::is_disabled(check_name))
        else {
            return Ok(());
        };
        let check = AccessCheck::new(&view, subject);
        let Agreement { version, advertised, .. } = &self.agreement;
        let (endpoint, catalog) = (&self.endpoint, &view.catalog);
        let decision =
            routing::decide(message, endpoint, advertised, *version, catalog, Some(&check));
        access_log::record(&self.tenant, subject, check);
        decision.map(drop)
    }

    /// Removes notifications after `position` about resources that the caller may not see any
    /// more. The decision takes the session's lock, so it is made outside the lock of the stream,
    /// and the caller of this method holds neither.
    pub(super) fn withdraw_hidden(&self, stream: &EventStream, position: u64) {
        let hides_nothing =
            !self.tenant.has_policy(&self.endpoint) && !self.catalog().full.holds_any();
        if hides_nothing || access_checks::is_disabled("resumed streams") {
            return;
        }
        let mut hidden = stream.topics_after(position);
        hidden.retain(|topic| !self.sees(topic));
        if !hidden.is_empty() {
            let withdrawn = stream.withdraw_after(position, &hidden);
            (0..withdrawn).for_each(|_| self.shared.metrics.dropped_notification("policy"));
        }
    }

    /// Returns whether the caller may still see the resource of a notification, and no pin holds it.
    pub(super) fn sees(&self, topic: &Topic) -> bool {
        let exposed = match topic {
            Topic::List(_) => return true,
            Topic::Resource(exposed) | Topic::ResourcePart(exposed) => exposed,
        };
        let (backend, uri) = match &self.endpoint {
            Endpoint::Single(backend) => (backend.clone(), Cow::Borrowed(exposed.as_str())),
            Endpoint::Aggregated | Endpoint::Toolset(_) => match exposed_names::native_uri(exposed)
            {
                Some(named) => named,
                None => return true,
            },
        };
        if self.catalog().full.is_resource_held(&backend, &uri) {
            return false;
        }
        let subject = self.subject();
        let is_disabled = access_checks::is_disabled("notifications/resources/updated");
        let view = self.tenant.access(&self.endpoint, &subject).filter(|_| !is_disabled);
        let Some(view) = view else { return true };
        let object = Object::Resource { backend: &backend, uri: &uri };
        // The client may use the news only to read the resource.
        [Method::ResourcesUpdated, Method::ResourcesRead]
            .into_iter()
            .all(|method| view.policy().decide(&subject, method, &object).verdict == Verdict::Allow)
    }
}
