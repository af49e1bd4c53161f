//! Encoding of data in Redis: names of keys, the bytes of values and messages, and the tag on each
//! of them.
//!
//! Other programs with access to Redis could write under the broker's keys, and two brokers might
//! share one Redis by mistake. So each value has a tag, keyed with a secret of the installation.
//! The tag covers the value and its subject. A value without a valid tag counts as absent. Every
//! key and message contains the version of the layout.
//!
//! Each key has a hash tag, because Redis Cluster carries out a request only on keys of one slot. All
//! keys of a session have the same one of 256 tags. All budgets have one tag, and so have all
//! permits.

use aws_lc_rs::{constant_time, hmac};
use bytes::Bytes;
use protocol::ids::TaskId;
use records::{LoggedEvent, SESSION_KEY_BYTES, SessionKey, StreamRecord};

use crate::{OwnerHint, Wakeup, hot::BackendVerdict};

/// Version of the layout. It increases when a reader of the old layout could misread the new one.
/// Also part of the key names.
const VERSION: u8 = 1;
/// The channel of wakeups.
pub(super) const WAKES_CHANNEL: &str = "mcpb:1:wakes";
/// Hash tag of all budgets, so that one call takes from many of them.
pub(super) const BUDGETS_TAG: &str = "{budgets}";
/// Hash tag of all permits and of the leases of replicas.
const PERMITS_TAG: &str = "{places}";
/// Length of a tag, the first half of an HMAC-SHA256.
const TAG_BYTES: usize = 16;
pub(super) const NODE_BYTES: usize = 16;

const WAKE_CONFIG: u8 = 1;
const WAKE_TASK: u8 = 2;
const WAKE_TASK_MESSAGE: u8 = 3;
const WAKE_SESSION_END: u8 = 4;
const WAKE_VERDICT: u8 = 5;

const GENERAL: u8 = 1;
const WAS_READ: u8 = 2;

/// Returns the key for the owner of a session.
pub(super) fn owner_key(session: &SessionKey) -> String {
    format!("mcpb:1:o:{}", tagged(session))
}

/// Returns the key for the streams of a session.
pub(super) fn streams_key(session: &SessionKey) -> String {
    format!("mcpb:1:s:{}", tagged(session))
}

/// Returns the key for the events of a stream.
pub(super) fn events_key(session: &SessionKey, stream: u64) -> String {
    format!("mcpb:1:e:{}:{stream}", tagged(session))
}

/// Returns the number of the hash tag of a session's keys.
pub(super) fn tag_of(session: &SessionKey) -> u8 {
    session.as_bytes()[0]
}

/// Returns the session in hexadecimal, the first byte as a hash tag.
fn tagged(session: &SessionKey) -> String {
    let [first, rest @ ..] = session.as_bytes();
    format!("{{{first:02x}}}{}", hexadecimal(rest))
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the key for the leases of all replicas.
pub(super) fn permits_leases_key() -> String {
    format!("mcpb:1:r:{PERMITS_TAG}")
}

/// A message from the broadcast channel.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReceivedMessage {
    Wake(Wakeup),
    /// A message of this replica, which it has already handled.
    Own,
    /// A version or kind that this build does not know.
    Unknown,
    /// A message that is not from a replica of this installation.
    Foreign,
}

/// Encodes and decodes values. Every decode checks the tag.
pub(super) struct Codec {
    key: hmac::Key,
    node: [u8; NODE_BYTES],
}

impl Codec {
    pub(super) fn new(key: &[u8; 32], node: [u8; NODE_BYTES]) -> Self {
        Self { key: hmac::Key::new(hmac::HMAC_SHA256, key), node }
    }

    /// Returns the key of a budget. The name of the budget may contain names of people, so the key
    /// is hashed: Redis cannot read the names or guess the key.
    pub(super) fn budget_key(&self, name: &str) -> String {
        format!("mcpb:1:b:{BUDGETS_TAG}:{}", self.hashed("budget", name))
    }

    /// Returns the key of permits, hashed like that of a budget.
    pub(super) fn permits_key(&self, name: &str) -> String {
        format!("mcpb:1:p:{PERMITS_TAG}:{}", self.hashed("places", name))
    }

    fn hashed(&self, what: &str, name: &str) -> String {
        let tag = hmac::sign(&self.key, format!("{what}\0{name}").as_bytes());
        hexadecimal(&tag.as_ref()[..TAG_BYTES])
    }

    /// Returns the name of this replica.
    pub(super) fn node_name(&self) -> String {
        hexadecimal(&self.node)
    }

    pub(super) fn owner(&self, session: &SessionKey, owner: &OwnerHint) -> Vec<u8> {
        let mut body = Vec::with_capacity(2 + owner.node.len() + owner.address.len());
        let node = &owner.node.as_bytes()[..owner.node.len().min(usize::from(u16::MAX))];
        body.extend_from_slice(&(node.len() as u16).to_be_bytes());
        body.extend_from_slice(node);
        body.extend_from_slice(owner.address.as_bytes());
        self.sealed("owner", &[session.as_bytes()], &body)
    }

    pub(super) fn read_owner(&self, session: &SessionKey, value: &[u8]) -> Option<OwnerHint> {
        let body = self.unsealed("owner", &[session.as_bytes()], value)?;
        let (length, rest) = body.split_first_chunk()?;
        let (node, address) = rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
        Some(OwnerHint { node: text(node)?, address: text(address)? })
    }

    pub(super) fn stream(&self, session: &SessionKey, record: &StreamRecord) -> Vec<u8> {
        let mut body = vec![
            if record.standalone { GENERAL } else { 0 }
                | if record.was_read { WAS_READ } else { 0 },
        ];
        body.extend_from_slice(&record.pending_answers);
        self.sealed("stream", &[session.as_bytes(), &record.number.to_be_bytes()], &body)
    }

    pub(super) fn read_stream(
        &self,
        session: &SessionKey,
        number: u64,
        value: &[u8],
    ) -> Option<StreamRecord> {
        let body = self.unsealed("stream", &[session.as_bytes(), &number.to_be_bytes()], value)?;
        let (flags, due) = body.split_first()?;
        Some(StreamRecord {
            number,
            standalone: flags & GENERAL != 0,
            pending_answers: due.to_vec(),
            was_read: flags & WAS_READ != 0,
        })
    }

    pub(super) fn event(&self, session: &SessionKey, stream: u64, event: &LoggedEvent) -> Vec<u8> {
        let mut body = Vec::with_capacity(1 + event.frame.len());
        body.push(event.kind);
        body.extend_from_slice(&event.frame);
        self.sealed(
            "event",
            &[session.as_bytes(), &stream.to_be_bytes(), &event.sequence.to_be_bytes()],
            &body,
        )
    }

    pub(super) fn read_event(
        &self,
        session: &SessionKey,
        stream: u64,
        sequence: u64,
        value: Vec<u8>,
    ) -> Option<LoggedEvent> {
        let about: [&[u8]; 3] =
            [session.as_bytes(), &stream.to_be_bytes(), &sequence.to_be_bytes()];
        let kind = *self.unsealed("event", &about, &value)?.first()?;
        Some(LoggedEvent { sequence, kind, frame: Bytes::from(value).slice(TAG_BYTES + 1..) })
    }

    pub(super) fn wake(&self, wake: &Wakeup) -> Vec<u8> {
        let mut body = Vec::new();
        match wake {
            Wakeup::Config => body.push(WAKE_CONFIG),
            Wakeup::Task { task, session } => {
                body.push(WAKE_TASK);
                body.extend_from_slice(session.as_bytes());
                body.extend_from_slice(task.as_str().as_bytes());
            }
            Wakeup::TaskNotification { session, frame } => {
                body.push(WAKE_TASK_MESSAGE);
                body.extend_from_slice(session.as_bytes());
                body.extend_from_slice(frame);
            }
            Wakeup::SessionEnd(session) => {
                body.push(WAKE_SESSION_END);
                body.extend_from_slice(session.as_bytes());
            }
            Wakeup::Verdict(verdict) => {
                body.push(WAKE_VERDICT);
                verdict.write(&mut body);
            }
        }
        let mut message = vec![VERSION];
        message.extend_from_slice(&self.node);
        message.extend_from_slice(&self.sealed("wake", &[&[VERSION], &self.node], &body));
        message
    }

    pub(super) fn read_wake(&self, message: &[u8]) -> ReceivedMessage {
        let Some((&version, rest)) = message.split_first() else { return ReceivedMessage::Foreign };
        if version != VERSION {
            return ReceivedMessage::Unknown;
        }
        let Some((node, value)) = rest.split_first_chunk::<NODE_BYTES>() else {
            return ReceivedMessage::Foreign;
        };
        if *node == self.node {
            return ReceivedMessage::Own;
        }
        let Some(body) = self.unsealed("wake", &[&[version], node], value) else {
            return ReceivedMessage::Foreign;
        };
        read_wake_body(body).map_or(ReceivedMessage::Unknown, ReceivedMessage::Wake)
    }

    fn sealed(&self, what: &str, about: &[&[u8]], body: &[u8]) -> Vec<u8> {
        let mut value = Vec::with_capacity(TAG_BYTES + body.len());
        value.extend_from_slice(&self.tag(what, about, body));
        value.extend_from_slice(body);
        value
    }

    fn unsealed<'a>(&self, what: &str, about: &[&[u8]], value: &'a [u8]) -> Option<&'a [u8]> {
        let (tag, body) = value.split_at_checked(TAG_BYTES)?;
        constant_time::verify_slices_are_equal(tag, &self.tag(what, about, body))
            .ok()
            .map(|()| body)
    }

    fn tag(&self, what: &str, about: &[&[u8]], body: &[u8]) -> [u8; TAG_BYTES] {
        let mut context = hmac::Context::with_key(&self.key);
        for part in [&[VERSION], what.as_bytes()].iter().chain(about).chain([&body]) {
            context.update(&(part.len() as u64).to_be_bytes()); // so that no two lists of parts look the same
            context.update(part);
        }
        let tag = context.sign();
        let mut short = [0; TAG_BYTES];
        short.copy_from_slice(&tag.as_ref()[..TAG_BYTES]);
        short
    }
}

fn read_wake_body(body: &[u8]) -> Option<Wakeup> {
    let (kind, rest) = body.split_first()?;
    if *kind == WAKE_CONFIG {
        return Some(Wakeup::Config);
    }
    if *kind == WAKE_VERDICT {
        return BackendVerdict::read(rest).map(Wakeup::Verdict);
    }
    let (session, rest) = rest.split_first_chunk::<SESSION_KEY_BYTES>()?;
    let session = SessionKey::new(*session);
    match *kind {
        WAKE_TASK => Some(Wakeup::Task { task: TaskId::new(text(rest)?), session }),
        WAKE_TASK_MESSAGE => {
            Some(Wakeup::TaskNotification { session, frame: Bytes::copy_from_slice(rest) })
        }
        WAKE_SESSION_END => Some(Wakeup::SessionEnd(session)),
        _ => None,
    }
}

fn text(bytes: &[u8]) -> Option<String> {
    std::str::from_utf8(bytes).ok().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use protocol::ids::{BackendId, TenantId};

    use super::*;
    use crate::hot::VerdictState;

    const SESSION: SessionKey = SessionKey::new([7; 32]);
    const OTHER: SessionKey = SessionKey::new([8; 32]);

    fn codec(key: u8, node: u8) -> Codec {
        Codec::new(&[key; 32], [node; NODE_BYTES])
    }

    #[test]
    fn a_value_is_read_only_under_the_key_it_was_written_for() {
        let (ours, theirs) = (codec(1, 1), codec(2, 2));
        let owner = OwnerHint { node: "a/1".into(), address: "10.0.0.1:7000".into() };
        let value = ours.owner(&SESSION, &owner);
        assert_eq!(ours.read_owner(&SESSION, &value), Some(owner));
        assert_eq!(
            (ours.read_owner(&OTHER, &value), theirs.read_owner(&SESSION, &value)),
            (None, None)
        );

        let record = StreamRecord {
            number: 1 << 32 | 5,
            standalone: true,
            pending_answers: vec![1, 2, 3],
            was_read: false,
        };
        let value = ours.stream(&SESSION, &record);
        assert_eq!(ours.read_stream(&SESSION, record.number, &value).as_ref(), Some(&record));
        assert_eq!(
            (
                ours.read_stream(&SESSION, 5, &value),
                theirs.read_stream(&SESSION, record.number, &value)
            ),
            (None, None)
        );

        let event = LoggedEvent { sequence: 9, kind: 2, frame: Bytes::from_static(b"{}") };
        let value = ours.event(&SESSION, 5, &event);
        assert_eq!(ours.read_event(&SESSION, 5, 9, value.clone()), Some(event));
        assert_eq!(
            (
                ours.read_event(&SESSION, 5, 10, value.clone()),
                ours.read_event(&SESSION, 6, 9, value.clone())
            ),
            (None, None)
        );
        assert_eq!(ours.read_stream(&SESSION, 5, &value), None, "an event is no stream");
    }

    #[test]
    fn keys_of_one_session_have_one_slot() {
        use crate::hot::redis::slots::slot;
        let codec = codec(1, 1);
        let session = SessionKey::new(std::array::from_fn(|at| at as u8 + 0xe0));
        assert_eq!(
            events_key(&session, 7),
            "mcpb:1:e:{e0}e1e2e3e4e5e6e7e8e9eaebecedeeeff0f1f2f3f4f5f6f7f8f9fafbfcfdfeff:7"
        );
        let keys = [owner_key(&session), streams_key(&session), events_key(&session, 7)];
        assert_eq!(keys.map(|key| slot(&key)), [slot("{e0}"); 3]);
        assert_ne!(slot(&owner_key(&SESSION)), slot(&owner_key(&OTHER)));
        assert_eq!(slot(&codec.budget_key("a")), slot(BUDGETS_TAG));
        assert_eq!(slot(&codec.permits_key("a")), slot(&permits_leases_key()));
    }

    #[test]
    fn every_kind_of_wakeup_of_another_replica_is_received() {
        let (sender, hearer) = (codec(1, 1), codec(1, 2));
        let wakeups = [
            Wakeup::Config,
            Wakeup::Task { task: TaskId::new("t-1"), session: SESSION },
            Wakeup::TaskNotification {
                session: SESSION,
                frame: Bytes::from_static(b"{\"method\":\"x\"}"),
            },
            Wakeup::SessionEnd(OTHER),
            Wakeup::Verdict(BackendVerdict {
                tenant: TenantId::parse("acme").unwrap(),
                backend: BackendId::parse("files").unwrap(),
                node: "a/1".into(),
                state: VerdictState::Open,
            }),
        ];
        for wakeup in wakeups {
            let message = sender.wake(&wakeup);
            assert_eq!(
                (hearer.read_wake(&message), sender.read_wake(&message)),
                (ReceivedMessage::Wake(wakeup), ReceivedMessage::Own)
            );
            assert_eq!(codec(2, 2).read_wake(&message), ReceivedMessage::Foreign);
        }
    }

    #[test]
    fn a_truncated_or_changed_message_is_not_a_wakeup() {
        let (sender, hearer) = (codec(1, 1), codec(1, 2));
        let message = sender.wake(&Wakeup::SessionEnd(SESSION));
        for length in 0..message.len() {
            assert_eq!(
                hearer.read_wake(&message[..length]),
                ReceivedMessage::Foreign,
                "{length} bytes of it"
            );
        }
        for at in 1..message.len() {
            let mut changed = message.clone();
            changed[at] ^= 1;
            assert_eq!(hearer.read_wake(&changed), ReceivedMessage::Foreign, "byte {at} changed");
        }
        let mut newer = message;
        newer[0] = 2;
        assert_eq!(hearer.read_wake(&newer), ReceivedMessage::Unknown);
    }
}
