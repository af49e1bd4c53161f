//! The beginning of each HTTP connection: its sender, and the task that posts its notifications and
//! answers.

use std::sync::{Arc, OnceLock};

use http::{HeaderMap, HeaderName, HeaderValue, header::AUTHORIZATION};
use protocol::{ids::PrincipalId, json};
use rules::{
    limits::{ONE_WAY_QUEUE_FRAMES, SESSION_DELETE_WAIT},
    retries,
};
use tokio::sync::mpsc;

use super::http_wire::HttpWire;
use crate::{
    backends::{
        backend::Backend,
        fault_lines::RepeatedFault,
        link::{
            Link,
            connection::Connection,
            failure::Failure,
            queue::{FrameQueue, QueueOwner, QueuedFrame},
        },
    },
    oauth::{LinkPosts, LinkTokens},
};

/// Posts notifications and answers, in order. A frame that the backend does not take in time is
/// dropped. After the connection is closed, queued frames have [`SESSION_DELETE_WAIT`] left.
pub(super) async fn send_one_way(
    wire: Arc<HttpWire>,
    link: Arc<Link>,
    connection: Arc<Connection>,
    mut frames: mpsc::Receiver<QueuedFrame>,
) {
    let limit = link.backend.timeouts().control;
    let (tenant, backend) = (&link.backend.tenant, &link.backend.id);
    let lines = &link.backend.resources.fault_lines;
    let checked = || lines.check(tenant, backend, RepeatedFault::RefusedMessage);
    let sending = async {
        while let Some(frame) = frames.recv().await {
            let frame = frame.into_frame();
            let posting = until_sent(|| wire.post_one_way(frame.clone()));
            match tokio::time::timeout(limit, posting).await {
                Ok(Ok(())) => {}
                Ok(Err(failure)) => {
                    if let Some(left_out) = checked() {
                        let redacted = link.backend.redactor.redact(&failure);
                        tracing::info!(%tenant, %backend, left_out, failure = redacted, "a notification or answer did not reach the backend");
                    }
                    if failure == Failure::SessionGone {
                        connection.close_forgotten();
                    }
                }
                Err(_) => {
                    if let Some(left_out) = checked() {
                        tracing::info!(%tenant, %backend, left_out, "the backend did not accept a notification or response in time");
                    }
                }
            }
        }
    };
    let too_late = async {
        connection.closed().await;
        tokio::time::sleep(SESSION_DELETE_WAIT).await;
    };
    tokio::select! { () = sending => {}, () = too_late => {} }
    connection.mark_flushed();
}

/// Posts a frame again, a few times at most, if it certainly did not reach the backend. A lost answer
/// would leave a question of the backend open until its call times out.
async fn until_sent<Posting>(mut post: impl FnMut() -> Posting) -> Result<(), Failure>
where
    Posting: Future<Output = Result<(), Failure>>,
{
    let mut repeats = 0;
    loop {
        let posted = post().await;
        match &posted {
            Err(failure) if retries::may_retry(failure.attempt(), false, repeats) => {
                tokio::time::sleep(retries::backoff(repeats, rand::random())).await;
                repeats += 1;
            }
            _ => return posted,
        }
    }
}

fn credentials(backend: &Backend) -> Result<HeaderMap, Failure> {
    let credentials = &backend.spec.credentials;
    let mut headers = HeaderMap::new();
    let bad = |_| Failure::NotSent("a credential is not a valid header".to_owned());
    for (name, value) in &credentials.headers {
        let name = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| Failure::NotSent("a header name is not valid".to_owned()))?;
        headers.insert(name, HeaderValue::from_str(value).map_err(bad)?);
    }
    if let Some(bearer) = &credentials.bearer {
        let value = HeaderValue::from_str(&format!("Bearer {bearer}")).map_err(bad)?;
        headers.insert(AUTHORIZATION, value);
    }
    headers.values_mut().for_each(|value| value.set_sensitive(true));
    Ok(headers)
}

impl HttpWire {
    /// Creates the sender for a backend, without a session, and the queue of its notifications and
    /// answers.
    pub(super) async fn to(
        backend: &Backend,
        principal: Option<PrincipalId>,
        url: &str,
    ) -> Result<(Self, mpsc::Receiver<QueuedFrame>), Failure> {
        let context = &backend.context;
        let depth = context.metrics.queue_depth("http_one_way");
        let owner = QueueOwner::new(&backend.tenant, &backend.id);
        let (one_way, frames) = FrameQueue::new(owner, ONE_WAY_QUEUE_FRAMES, depth);
        let wire = Self {
            client: backend
                .resources
                .tls_clients
                .http_client(&context.http, backend.spec.tls.identity())
                .await?,
            uri: transport::url::parse_http_url(url)
                .map_err(|error| Failure::NotSent(error.to_string()))?,
            headers: credentials(backend)?,
            tokens: backend.tokens.clone().map(|source| LinkTokens { source, principal }),
            session: OnceLock::new(),
            version: OnceLock::new(),
            prepared: OnceLock::new(),
            prepared_with: LinkPosts::default(),
            limits: json::Limits::with_bytes_max(backend.message_bytes()),
            one_way,
            endpoint: None,
            refused: OnceLock::new(),
            era_check: tokio::sync::Mutex::default(),
        };
        Ok((wire, frames))
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use rules::limits::RETRIES_MAX;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_a_message_that_did_not_reach_the_backend_is_posted_again() {
        let not_sent = || Failure::NotSent("the connection was refused".to_owned());
        let mut posts = 0;
        let posted = until_sent(|| {
            posts += 1;
            ready(if posts == 1 { Err(not_sent()) } else { Ok(()) })
        });
        assert_eq!(posted.await, Ok(()));
        assert_eq!(posts, 2);

        let (mut posts, lost) = (0, || Failure::Lost("the connection ended".to_owned()));
        let posted = until_sent(|| {
            posts += 1;
            ready(Err(lost()))
        });
        assert_eq!(posted.await, Err(lost()));
        assert_eq!(posts, 1);

        let mut posts = 0;
        let posted = until_sent(|| {
            posts += 1;
            ready(Err(not_sent()))
        });
        assert_eq!(posted.await, Err(not_sent()));
        assert_eq!(posts, 1 + RETRIES_MAX);
    }
}
