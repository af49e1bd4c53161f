//! A stream of notifications for a stateless client (MCP 2026-07-28, Subscriptions).
//!
//! It has a pooled session of its own, which gets what any session gets. Each notification goes out
//! under the id of the request that opened the stream. The stream ends with its connection, or with
//! a closing message of the broker.

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;
use futures_util::future::join_all;
use protocol::{
    capabilities::ClientCapabilities,
    envelope::Message,
    error::{ErrorKind, Refusal},
    ids::RequestId,
    json,
    method::Method,
    splice::Splice,
    stateless::{
        META_SUBSCRIPTION_ID,
        results::{SubscriptionFilter, listen_ended, subscription_notification},
    },
};
use rules::{access::AccessCheck, endpoint_info::EndpointInfo, limits::LISTEN_URIS_MAX, routing};
use tokio_util::sync::CancellationToken;

use super::{
    StatelessClient, StatelessRequest, exchange::ExchangeEvent, session_pool,
    task_subscription::TaskSubscription,
};
use crate::sessions::{
    access_checks,
    session::{Session, SessionParams, TaskAcceptance, subscriptions},
    stream::{EventStream, StreamCursor, StreamEnd, StreamItem},
};

/// A stream of notifications. Dropping it ends its session.
#[derive(Debug)]
pub struct NotificationStream {
    session: Arc<Session>,
    id: RequestId,
    reader: StreamCursor,
    filter: SubscriptionFilter,
    server_info: Bytes,
    draining: CancellationToken,
    watching: Option<TaskSubscription>,
    ready: VecDeque<ExchangeEvent>,
    over: bool,
}

impl Drop for NotificationStream {
    fn drop(&mut self) {
        self.session.end("no client listens any more");
    }
}

impl StatelessClient {
    /// Opens a stream for the part of the client's filter that the endpoint can serve.
    pub async fn listen(
        &self,
        request: &StatelessRequest,
        offer: &EndpointInfo,
    ) -> Result<NotificationStream, Refusal> {
        let invalid =
            |why| Refusal::new(ErrorKind::InvalidParams, format!("params.notifications: {why}"));
        let message = &request.message;
        let requested =
            message.bytes(message.fields.notifications).ok_or_else(|| invalid("it is missing"))?;
        let requested = SubscriptionFilter::parse(requested).map_err(invalid)?;
        if requested.uris.len() > LISTEN_URIS_MAX {
            return Err(invalid("the number of resources exceeds the limit")
                .with("maxUris", LISTEN_URIS_MAX));
        }
        let watching = self.watch_tasks(requested.tasks.clone(), request.meta.tasks, offer).await?;
        let params = SessionParams {
            tenant: self.tenant.clone(),
            caller: self.caller.clone(),
            endpoint: self.endpoint.clone(),
            transport: self.transport,
        };
        let session = Session::pooled(
            params,
            session_pool::agreement(ClientCapabilities::none(), offer),
            TaskAcceptance::Declined,
            self.shared.clone(),
        );
        let unreadable = || {
            Refusal::new(ErrorKind::Internal, "the broker cannot read the new notification stream")
        };
        let Some(reader) = session.open_notification_stream() else { return Err(unreadable()) };
        let mut listening = NotificationStream {
            session,
            id: request.id.clone(),
            reader,
            filter: SubscriptionFilter::default(),
            server_info: offer.server_info.clone(),
            draining: self.shared.shutdown.draining.clone(),
            watching,
            ready: VecDeque::new(),
            over: false,
        };
        // From here on the session gets notifications and counts as a session.
        self.tenant.open_session(&listening.session).await?;
        listening.filter = listening.accepted(requested, offer).await;
        let members = format!("\"notifications\":{}", listening.filter.to_json());
        listening.ready.push_back(ExchangeEvent::Frame(subscription_notification(
            Method::SubscriptionsAcknowledged,
            &listening.id,
            &members,
        )));
        Ok(listening)
    }
}

/// Next item of one of the two sources.
enum NotificationSource {
    Session(StreamItem),
    Tasks(Vec<Bytes>),
}

async fn task_updates(watching: &mut Option<TaskSubscription>, id: &RequestId) -> Vec<Bytes> {
    match watching {
        Some(watching) => watching.updates(id).await,
        None => std::future::pending().await,
    }
}

impl NotificationStream {
    pub fn id(&self) -> &RequestId {
        &self.id
    }

    pub fn shared(&self) -> &Arc<crate::sessions::shared::Shared> {
        &self.session.shared
    }

    /// Subscribes, and returns the part of the filter that the stream serves.
    async fn accepted(
        &self,
        requested: SubscriptionFilter,
        offer: &EndpointInfo,
    ) -> SubscriptionFilter {
        let (catalog, capabilities) = (self.session.visible_catalog(), &offer.capabilities);
        let subject = self.session.subject();
        let is_disabled = access_checks::is_disabled("subscriptions/listen");
        let tenant = &self.session.tenant;
        let access = tenant.access(&self.session.endpoint, &subject).filter(|_| !is_disabled);
        let mut uris = requested.uris;
        uris.sort_unstable();
        uris.dedup();
        let mut targets = Vec::with_capacity(uris.len());
        for uri in uris {
            let target = routing::subscription(
                &uri,
                &self.session.endpoint,
                &catalog,
                access.as_ref().map(|view| AccessCheck::new(view, &subject)).as_ref(),
            );
            targets.extend(target.ok().map(|target| (uri, target)));
            // A decision about a URI with many spellings takes milliseconds.
            tokio::task::yield_now().await;
        }
        let subscribed = targets.into_iter().map(async |(uri, target)| {
            subscriptions::listen_to(self.session.clone(), target).await.ok().map(|()| uri)
        });
        SubscriptionFilter {
            tools: requested.tools && capabilities.tools_list_changed,
            prompts: requested.prompts && capabilities.prompts_list_changed,
            resources: requested.resources && capabilities.resources_list_changed,
            uris: join_all(subscribed).await.into_iter().flatten().collect(),
            tasks: self.watching.as_ref().map(TaskSubscription::tasks).unwrap_or_default(),
        }
    }

    /// Returns the stream that it reads.
    pub fn stream(&self) -> &Arc<EventStream> {
        &self.reader.stream
    }

    /// Returns the next event. Cancel-safe: a dropped future loses nothing.
    pub async fn next(&mut self) -> ExchangeEvent {
        loop {
            if let Some(step) = self.ready.pop_front() {
                return step;
            }
            if self.over {
                return ExchangeEvent::Ended;
            }
            let next = tokio::select! {
                biased;
                // First, because these come at most once per look into the store. Events of the
                // session may come without a pause.
                updates = task_updates(&mut self.watching, &self.id) => NotificationSource::Tasks(updates),
                next = self.reader.next() => NotificationSource::Session(next),
                () = self.draining.cancelled() => NotificationSource::Session(StreamItem::Ended(StreamEnd::Complete)),
            };
            match next {
                NotificationSource::Tasks(frames) => {
                    self.ready.extend(frames.into_iter().map(ExchangeEvent::Frame))
                }
                NotificationSource::Session(StreamItem::Event(event)) => {
                    // No client can resume the stream, so it does not hold delivered events.
                    self.reader.mark_sent(None);
                    if let Some(frame) = self.filtered(event.frame) {
                        return ExchangeEvent::Frame(frame);
                    }
                }
                NotificationSource::Session(StreamItem::Ended(_)) => self.end(),
            }
        }
    }

    /// Queues the closing messages. No message follows them.
    pub fn end(&mut self) {
        if std::mem::replace(&mut self.over, true) {
            return;
        }
        // Both messages are needed, because some clients know only one of them.
        let members = format!("\"requestId\":{}", self.id);
        self.ready.push_back(ExchangeEvent::Frame(subscription_notification(
            Method::Cancelled,
            &self.id,
            &members,
        )));
        self.ready
            .push_back(ExchangeEvent::Answer(listen_ended(&self.id, &self.server_info), None));
    }

    /// Returns a notification of the session for the client, if its filter accepts it.
    fn filtered(&self, frame: Bytes) -> Option<Bytes> {
        let limits = json::Limits::with_bytes_max(frame.len());
        let message = Message::decode(frame, &limits).ok()?;
        let wanted = match message.method {
            Method::ToolsListChanged => self.filter.tools,
            Method::PromptsListChanged => self.filter.prompts,
            Method::ResourcesListChanged => self.filter.resources,
            Method::ResourcesUpdated => true, // subscribed to for this client
            _ => false,
        };
        if !wanted {
            return None;
        }
        Some(
            Splice::new(&message.frame)
                .set_meta(&message, META_SUBSCRIPTION_ID, self.id.raw())
                .finish(),
        )
    }
}

#[cfg(test)]
mod tests {
    use protocol::handshake;
    use rules::event_log::EventKind;

    use super::*;
    use crate::{
        broker::Broker,
        persistence::Stores,
        sessions::stateless::tests::{empty_offer, pooled_session},
    };

    #[tokio::test]
    async fn a_delivered_notification_is_not_held() {
        let broker = Broker::over(Stores::in_memory().await);
        let session = pooled_session(&broker);
        let reader = session.open_notification_stream().unwrap();
        let mut listening = NotificationStream {
            session,
            id: RequestId::from_u64(1),
            reader,
            filter: SubscriptionFilter { tools: true, ..SubscriptionFilter::default() },
            server_info: empty_offer().server_info,
            draining: broker.shared.shutdown.draining.clone(),
            watching: None,
            ready: VecDeque::new(),
            over: false,
        };
        for method in [Method::PromptsListChanged, Method::ToolsListChanged] {
            let frame = handshake::notification(method, None);
            listening.session.deliver(EventKind::Message, frame);
        }
        assert!(!listening.stream().is_empty());
        assert!(matches!(listening.next().await, ExchangeEvent::Frame(_)));
        assert!(listening.stream().is_empty(), "no client can request them again");
    }
}
