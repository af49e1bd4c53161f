//! The connection for commands. Every call returns within [`CALL_MAX`], even if Redis or the
//! network hangs. After a call without an answer, calls fail at once for [`BACKOFF`], so that an
//! unreachable Redis does not slow down each caller.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use parking_lot::{Mutex, MutexGuard};
use redis::{
    Client, Cmd, ErrorKind, Pipeline, RedisError, ScriptInvocation, ServerErrorKind, Value,
    aio::{ConnectionManager, ConnectionManagerConfig},
};

use crate::StoreError;

pub(super) const RESPONSE_MAX: Duration = Duration::from_millis(500);
pub(super) const CONNECT_MAX: Duration = Duration::from_secs(1);
/// Time limit for connecting and answering together.
const CALL_MAX: Duration = Duration::from_secs(1);
const BACKOFF: Duration = Duration::from_millis(500);
/// Errors with shorter pauses than this count as one outage, which is logged once.
const OUTAGE_OVER_AFTER: Duration = Duration::from_secs(10);

pub(super) enum Request<'a> {
    Command(&'a Cmd),
    Pipeline(&'a Pipeline),
    Script(&'a ScriptInvocation<'a>),
}

/// Reason for a missing answer.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum RedisConnectionError {
    #[error("this connection was closed")]
    Closed,
    #[error("Redis did not answer a moment ago")]
    BackingOff,
    #[error("Redis did not answer in {CALL_MAX:?}")]
    TimedOut,
    #[error("Redis: {0}")]
    Redis(RedisError),
}

pub(super) struct RedisConnection {
    client: Client,
    state: Mutex<ConnectionState>,
    errors: AtomicU64,
    /// Set when [`ConnectionState::outage`] has a value.
    in_outage: AtomicBool,
}

struct ConnectionState {
    connection: Option<ConnectionManager>,
    /// Counts connections.
    generation: u64,
    closed: bool,
    backoff_until: Option<Instant>,
    outage: Option<Outage>,
}

struct Outage {
    begun: Instant,
    last: Instant,
}

impl RedisConnection {
    pub(super) fn new(client: Client) -> Self {
        let state = ConnectionState {
            connection: None,
            generation: 0,
            closed: false,
            backoff_until: None,
            outage: None,
        };
        Self {
            client,
            state: Mutex::new(state),
            errors: AtomicU64::new(0),
            in_outage: AtomicBool::new(false),
        }
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Sends a request and waits for its answer. Tries once more over a new connection if the old
    /// one was lost.
    pub(super) async fn execute(
        &self,
        request: Request<'_>,
    ) -> Result<Value, RedisConnectionError> {
        let mut last_life = 0;
        let answer =
            match tokio::time::timeout(CALL_MAX, self.try_twice(&request, &mut last_life)).await {
                Ok(answer) => answer,
                Err(_) => Err(RedisConnectionError::TimedOut),
            };
        match &answer {
            Ok(_) => self.record_success(),
            Err(RedisConnectionError::TimedOut) => self.discard(last_life, true),
            Err(RedisConnectionError::Redis(error)) if error.is_io_error() => {
                self.discard(last_life, true)
            }
            // A name or a proxy may point to another server now, which may accept writes.
            Err(RedisConnectionError::Redis(error)) if is_of_another_server(error) => {
                self.discard(last_life, false)
            }
            Err(_) => {}
        }
        if let Err(error @ (RedisConnectionError::TimedOut | RedisConnectionError::Redis(_))) =
            &answer
        {
            self.record_errors(1, error);
        }
        answer
    }

    /// A call finds out that a connection was lost while idle, so it gets a second try.
    async fn try_twice(
        &self,
        request: &Request<'_>,
        life: &mut u64,
    ) -> Result<Value, RedisConnectionError> {
        match self.try_once(request, life).await {
            Err(RedisConnectionError::Redis(error))
                if error.is_io_error() && !error.is_timeout() =>
            {
                self.try_once(request, life).await
            }
            answer => answer,
        }
    }

    async fn try_once(
        &self,
        request: &Request<'_>,
        life: &mut u64,
    ) -> Result<Value, RedisConnectionError> {
        let mut connection = self.connection(life)?;
        let answer = match request {
            Request::Command(command) => command.query_async(&mut connection).await,
            Request::Pipeline(pipeline) => pipeline.query_async(&mut connection).await,
            Request::Script(script) => script.invoke_async(&mut connection).await,
        };
        answer.map_err(RedisConnectionError::Redis)
    }

    fn connection(&self, life: &mut u64) -> Result<ConnectionManager, RedisConnectionError> {
        let mut state = self.lock();
        if state.closed {
            return Err(RedisConnectionError::Closed);
        }
        if state.backoff_until.is_some_and(|until| until > Instant::now()) {
            return Err(RedisConnectionError::BackingOff);
        }
        state.backoff_until = None;
        if state.connection.is_none() {
            // One attempt for each call: a waiting caller must not wait for retries.
            let config = ConnectionManagerConfig::new()
                .set_number_of_retries(0)
                .set_response_timeout(Some(RESPONSE_MAX))
                .set_connection_timeout(Some(CONNECT_MAX));
            let connection = ConnectionManager::new_lazy_with_config(self.client.clone(), config)
                .map_err(RedisConnectionError::Redis)?;
            state.connection = Some(connection);
            state.generation += 1;
        }
        *life = state.generation;
        state.connection.clone().ok_or(RedisConnectionError::Closed)
    }

    /// Drops the connection with this number, because the other end may have lost it.
    fn discard(&self, life: u64, rest: bool) {
        let mut state = self.lock();
        if state.generation == life {
            state.connection = None;
            state.backoff_until = rest.then(|| Instant::now() + BACKOFF);
        }
    }

    /// Counts errors, and logs one message for each outage.
    pub(super) fn record_errors(&self, errors: u64, why: &dyn std::fmt::Display) {
        self.errors.fetch_add(errors, Ordering::Relaxed);
        let now = Instant::now();
        let mut state = self.lock();
        match &mut state.outage {
            Some(outage) if now.duration_since(outage.last) <= OUTAGE_OVER_AFTER => {
                outage.last = now
            }
            _ => {
                state.outage = Some(Outage { begun: now, last: now });
                drop(state);
                self.in_outage.store(true, Ordering::Relaxed);
                tracing::warn!(%why, "something is wrong with Redis; hints and wake-ups may be lost, replicas find changes by looking");
            }
        }
    }

    pub(super) fn record_success(&self) {
        if !self.in_outage.load(Ordering::Relaxed) {
            return;
        }
        let mut state = self.lock();
        if let Some(outage) = &state.outage
            && outage.last.elapsed() > OUTAGE_OVER_AFTER
        {
            tracing::info!(lasted = ?outage.last.duration_since(outage.begun), "Redis works again without errors");
            state.outage = None;
            self.in_outage.store(false, Ordering::Relaxed);
        }
    }

    pub(super) fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }

    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.connection = None;
    }

    fn lock(&self) -> MutexGuard<'_, ConnectionState> {
        self.state.lock()
    }
}

fn is_of_another_server(error: &RedisError) -> bool {
    use ServerErrorKind::{Ask, ClusterDown, MasterDown, Moved, ReadOnly};
    matches!(error.kind(), ErrorKind::Server(Moved | Ask | ReadOnly | MasterDown | ClusterDown))
}

impl From<RedisConnectionError> for StoreError {
    fn from(error: RedisConnectionError) -> Self {
        match error {
            RedisConnectionError::Redis(error) if error.code() == Some("OOM") => Self::Full,
            other => Self::Unavailable { detail: other.to_string() },
        }
    }
}
