//! Suspended requests. A suspended request waits until its client sends it again with the input
//! that it needs.
//!
//! The client returns a sealed state. The state names this process with its address, the entry in
//! the table and the round. It opens only for the same principal at the same endpoint. An entry is used once, so a
//! repeated state finds nothing. Every suspension expires, by the clock of its entry only: the wall
//! clocks of replicas may differ, and a wall clock may jump. Each caller has a limited number of
//! entries and bytes. Exclusive pooled sessions have a limit of their own, which leaves some for
//! requests without questions.

use std::{
    collections::HashMap,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use protocol::{
    envelope::Message,
    error::{ErrorKind, Refusal},
    ids::ApprovalId,
    method::Method,
    stateless::inputs::{InputRequest, InputResponses},
};
use rules::{
    endpoint::Endpoint,
    limits::inputs::{
        POOLED_SESSIONS_SUSPENDED_MAX, SUSPENDED_BYTES_MAX, SUSPENDED_BYTES_PER_CALLER_MAX,
        SUSPENDED_BYTES_PER_TENANT_MAX, SUSPENDED_MAX, SUSPENDED_PER_CALLER_MAX,
        SUSPENDED_PER_TENANT_MAX,
    },
    stateless,
};
use serde::{Deserialize, Serialize};

use super::{StatelessClient, millis, pending_exchange::PendingExchange};
use crate::auth::Caller;

#[derive(Debug, Default)]
pub(super) struct SuspensionTable(Mutex<HashMap<u128, SuspendedExchange>>);

/// A suspended request.
#[derive(Debug)]
pub(super) struct SuspendedExchange {
    caller: Caller,
    endpoint: Endpoint,
    round: u32,
    expires: Instant,
    pub(super) questions: Vec<RequestedInput>,
    /// Bytes of the questions, which are the cost of the suspension.
    bytes: usize,
    /// The exchange that continues after the answers. `None` if the request is sent again instead.
    pub(super) waiting: Option<PendingExchange>,
}

/// One input that was requested from the client.
#[derive(Debug, Clone)]
pub(super) struct RequestedInput {
    pub(super) request: InputRequest,
    /// The session's number of the question. `None` if the request is sent again.
    pub(super) number: Option<u64>,
}

/// State that a client returns.
#[derive(Debug, Serialize, Deserialize)]
struct RequestState {
    /// The process that holds the suspended request.
    n: String,
    /// The number of the entry in its table.
    p: String,
    r: u32,
    /// Expiry by the wall clock of the process, in milliseconds since 1970. Only earlier builds read
    /// it.
    x: u64,
    /// Digest of the request, without the members that a retry changes.
    d: String,
    /// Address of the process for other replicas. States of earlier builds have none. The name must
    /// not be that of a member of [`AwaitedApproval`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    h: Option<String>,
    /// True if no call is in flight: the request is sent again. Absent in states of earlier builds.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    f: bool,
}

/// The content of a request state, sealed. The state of a call that waits for an approval grants
/// nothing: it shows that the client was notified, so the call may wait. It also names the approval,
/// whose end the client learns.
#[derive(Serialize, Deserialize)]
struct AwaitedApproval {
    /// Id of the approval.
    a: String,
    /// Digest of the request, as in [`RequestState`].
    d: String,
}

/// What a client comes back for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReturnedState {
    /// A request that is suspended.
    Suspension(SuspensionId),
    /// The approval of a person. Any replica can return its state.
    Approval(ApprovalId),
}

/// Address of a suspended request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SuspensionId {
    pub node: String,
    /// Address of the node for other replicas, if the state has it.
    pub address: Option<String>,
    /// Whether the backend may have carried the request out, in part.
    pub is_started: bool,
    number: u128,
    round: u32,
}

/// Reason why a state is not accepted. The client learns only the variant, not the cause within it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestStateError {
    /// The state is not the broker's, belongs to another caller or request, or was changed.
    Invalid,
    /// The state has expired, was used already, or was lost with its process.
    Expired,
}

impl RequestStateError {
    pub fn refusal(self) -> Refusal {
        let text = match self {
            RequestStateError::Invalid => "requestState does not belong to this request",
            RequestStateError::Expired => {
                "requestState has expired: send the request again without it"
            }
        };
        Refusal::new(ErrorKind::InvalidParams, text)
    }
}

/// The part of a request that is suspended.
pub(super) struct Suspension {
    pub(super) questions: Vec<RequestedInput>,
    pub(super) round: u32,
    /// Digest of the request, without the members that a retry changes.
    pub(super) digest: [u8; 32],
}

impl StatelessClient {
    /// Suspends a request until its client returns. Returns the sealed state for the client.
    pub(super) fn suspend(
        &self,
        suspension: Suspension,
        waiting: Option<PendingExchange>,
    ) -> Result<String, Refusal> {
        let within = self.shared.config.timeouts.client_request;
        let number = rand::random::<u128>();
        let state = RequestState {
            n: self.shared.persistence.node().as_str().to_owned(),
            p: format!("{number:032x}"),
            r: suspension.round,
            x: now_ms().saturating_add(millis(within)),
            d: URL_SAFE_NO_PAD.encode(suspension.digest),
            h: self.shared.persistence.address().map(str::to_owned),
            f: waiting.is_none(),
        };
        let sealed = self.sealed(&state)?;
        let suspended = SuspendedExchange {
            caller: self.caller.clone(),
            endpoint: self.endpoint.clone(),
            round: suspension.round,
            expires: Instant::now() + within,
            bytes: suspension.questions.iter().map(RequestedInput::bytes).sum(),
            questions: suspension.questions,
            waiting,
        };
        self.stateless.suspensions.put(number, suspended)?;
        Ok(sealed)
    }

    /// Returns the state for the client of a call that waits for an approval.
    pub(super) fn approval_state(
        &self,
        approval: &ApprovalId,
        request: &Message,
    ) -> Result<String, Refusal> {
        let digest = URL_SAFE_NO_PAD.encode(stateless::request_digest(request));
        self.sealed(&AwaitedApproval { a: approval.as_str().to_owned(), d: digest })
    }

    fn sealed(&self, state: &impl Serialize) -> Result<String, Refusal> {
        let seal_context = self.seal_context();
        let sealed = serde_json::to_vec(state).ok().and_then(|text| {
            self.shared.persistence.seal.seal_for_client(&seal_context, &text).ok()
        });
        sealed
            .ok_or_else(|| Refusal::new(ErrorKind::Internal, "the request state cannot be sealed"))
    }

    /// Returns what this state names.
    pub fn returned_state(
        &self,
        state: &str,
        request: &Message,
    ) -> Result<ReturnedState, RequestStateError> {
        let text = self
            .shared
            .persistence
            .seal
            .open_from_client(&self.seal_context(), state)
            .map_err(|_| RequestStateError::Invalid)?;
        let digest = URL_SAFE_NO_PAD.encode(stateless::request_digest(request));
        if let Ok(approval) = serde_json::from_slice::<AwaitedApproval>(&text) {
            let is_same = approval.d == digest;
            let returned = is_same.then(|| ReturnedState::Approval(ApprovalId::new(approval.a)));
            return returned.ok_or(RequestStateError::Invalid);
        }
        let state: RequestState =
            serde_json::from_slice(&text).map_err(|_| RequestStateError::Invalid)?;
        if state.d != digest {
            return Err(RequestStateError::Invalid);
        }
        let number = u128::from_str_radix(&state.p, 16).map_err(|_| RequestStateError::Invalid)?;
        Ok(ReturnedState::Suspension(SuspensionId {
            node: state.n,
            address: state.h,
            is_started: !state.f,
            number,
            round: state.r,
        }))
    }

    /// Takes the suspended exchange out of the table, once.
    pub(super) fn take_suspended(
        &self,
        suspension: &SuspensionId,
        responses: &InputResponses,
    ) -> Result<Result<SuspendedExchange, Refusal>, RequestStateError> {
        let mut suspended = self.stateless.suspensions.lock();
        let found = suspended
            .get(&suspension.number)
            .filter(|found| found.round == suspension.round && found.expires > Instant::now());
        // The rate counts each return, also one that finds nothing. A request that is sent again
        // instead is counted when it is.
        if found.is_none_or(|found| found.waiting.is_some())
            && let Err(refusal) = self.tenant.take_budget(&self.caller.principal)
        {
            return Ok(Err(refusal));
        }
        let found = found.ok_or(RequestStateError::Expired)?;
        // An ill-formed answer leaves the exchange in place, so that the client can send a proper
        // one.
        for input in &found.questions {
            let answer = responses.answers.iter().find(|(key, _)| *key == input.request.key);
            if answer.is_some_and(|(_, answer)| {
                !stateless::is_valid_answer(input.request.method, answer)
            }) {
                return Ok(Err(no_answer(&input.request.key, input.request.method)));
            }
        }
        suspended.remove(&suspension.number).map(Ok).ok_or(RequestStateError::Expired)
    }

    /// Suspends a request again whose repetition was refused.
    pub(super) fn suspend_again(&self, suspension: &SuspensionId, suspended: SuspendedExchange) {
        // Beyond a limit of the table the client has to begin again.
        let _refused = self.stateless.suspensions.put(suspension.number, suspended);
    }

    /// Returns the context of the seal, which binds a state to its caller and endpoint.
    fn seal_context(&self) -> String {
        let Caller { tenant, principal, .. } = &self.caller;
        format!(
            "request state/{tenant}/{}/{}",
            URL_SAFE_NO_PAD.encode(principal.as_str()),
            self.endpoint.name()
        )
    }
}

/// Number and bytes of suspended requests.
#[derive(Default)]
struct SuspendedUsage {
    count: usize,
    bytes: usize,
}

impl SuspendedUsage {
    fn add(&mut self, one: &SuspendedExchange) {
        self.count += 1;
        self.bytes = self.bytes.saturating_add(one.bytes);
    }
}

impl RequestedInput {
    fn bytes(&self) -> usize {
        self.request.key.len() + self.request.params.as_ref().map_or(0, Bytes::len)
    }
}

impl SuspendedExchange {
    fn is_alone(&self) -> bool {
        self.waiting.as_ref().is_some_and(PendingExchange::is_alone)
    }

    pub(super) fn round(&self) -> u32 {
        self.round
    }
}

/// Returns the refusal of a value that does not answer its question.
pub(super) fn no_answer(key: &str, method: Method) -> Refusal {
    Refusal::new(
        ErrorKind::InvalidParams,
        format!("params.inputResponses[\"{key}\"] is not an answer to {method}"),
    )
}

impl SuspensionTable {
    fn put(&self, number: u128, one: SuspendedExchange) -> Result<(), Refusal> {
        let mut suspended = self.lock();
        let mut own = SuspendedUsage::default();
        let (mut of_tenant, mut all) = (SuspendedUsage::default(), SuspendedUsage::default());
        for other in suspended.values() {
            all.add(other);
            if other.caller.tenant == one.caller.tenant {
                of_tenant.add(other);
            }
            if other.caller == one.caller {
                own.add(other);
            }
        }
        let alone = suspended
            .values()
            .filter(|other| {
                other.is_alone() && other.caller == one.caller && other.endpoint == one.endpoint
            })
            .count();
        for (whose, held, count_max, bytes_max) in [
            ("this caller", own, SUSPENDED_PER_CALLER_MAX, SUSPENDED_BYTES_PER_CALLER_MAX),
            ("this tenant", of_tenant, SUSPENDED_PER_TENANT_MAX, SUSPENDED_BYTES_PER_TENANT_MAX),
            ("all callers", all, SUSPENDED_MAX, SUSPENDED_BYTES_MAX),
        ] {
            if held.count >= count_max {
                let text = format!(
                    "{} requests of {whose} already wait for input; the limit is {count_max}",
                    held.count
                );
                return Err(Refusal::new(ErrorKind::TooManyCalls, text));
            }
            // The first suspension always has capacity. The limit of a message bounds its size.
            if held.count > 0 && held.bytes.saturating_add(one.bytes) > bytes_max {
                let text = format!(
                    "requests of {whose} that wait for input already hold {} bytes; the limit is {bytes_max}",
                    held.bytes
                );
                return Err(Refusal::new(ErrorKind::TooManyCalls, text));
            }
        }
        if one.is_alone() && alone >= POOLED_SESSIONS_SUSPENDED_MAX {
            let text = format!(
                "{alone} requests of this caller wait for input at backends that cannot tell them apart; the limit is {POOLED_SESSIONS_SUSPENDED_MAX}"
            );
            return Err(Refusal::new(ErrorKind::TooManyCalls, text));
        }
        suspended.insert(number, one);
        Ok(())
    }

    pub(super) fn expire(&self, now: Instant) {
        self.drop_those(|one| one.expires <= now);
    }

    pub(super) fn end(&self, is_meant: impl Fn(&Caller, &Endpoint) -> bool) {
        self.drop_those(|one| is_meant(&one.caller, &one.endpoint));
    }

    /// Removes exchanges. They are dropped outside the lock, because the drop cancels them.
    fn drop_those(&self, goes: impl Fn(&SuspendedExchange) -> bool) {
        let mut gone = Vec::new();
        let mut suspended = self.lock();
        let numbers: Vec<u128> =
            suspended.iter().filter(|(_, one)| goes(one)).map(|(number, _)| *number).collect();
        gone.extend(numbers.iter().filter_map(|number| suspended.remove(number)));
        drop(suspended);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u128, SuspendedExchange>> {
        self.0.lock()
    }
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map(millis).unwrap_or_default()
}

const _: () = assert!(SUSPENDED_PER_CALLER_MAX <= SUSPENDED_MAX);

#[cfg(test)]
mod tests {
    use protocol::json;

    use super::*;
    use crate::{
        broker::Broker, persistence::Stores, sessions::stateless::tests::anonymous_client,
    };

    #[tokio::test]
    async fn a_wall_clock_that_differs_ends_no_suspension() {
        let broker = Broker::over(Stores::in_memory().await);
        let client = anonymous_client(&broker);
        let frame = br#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"b__pay"}}"#;
        let request = Message::decode(Bytes::from_static(frame), &json::Limits::default()).unwrap();
        let digest = stateless::request_digest(&request);
        let suspension = Suspension { questions: Vec::new(), round: 0, digest };
        let sealed = client.suspend(suspension, None).unwrap();
        let (seal, context) = (&broker.shared.persistence.seal, client.seal_context());
        let text = seal.open_from_client(&context, &sealed).unwrap();
        let state: RequestState = serde_json::from_slice(&text).unwrap();
        // By the clock of this process, the clock of the sealing process was hours late.
        let sealed = client.sealed(&RequestState { x: 0, ..state }).unwrap();
        let Ok(ReturnedState::Suspension(named)) = client.returned_state(&sealed, &request) else {
            panic!("the owner alone decides whether a suspension has expired");
        };
        let nothing = InputResponses::default();
        assert!(matches!(client.take_suspended(&named, &nothing), Ok(Ok(_))));
        assert!(matches!(client.take_suspended(&named, &nothing), Err(RequestStateError::Expired)));
    }
}
