//! Connection ids of the listener (RFC 9000, 5.1).
//!
//! An id is a random nonce and a tag that this listener's key makes of it. The tag separates ids of
//! an earlier process with the same key from foreign bytes, so only they get a stateless reset (RFC
//! 9000, 10.3).
//!
//! The id in a Retry packet is stored nowhere. If it equals the id of a connection, the client's
//! next packets reach that connection, and the client gets no answer. The generator of the library
//! has three random bytes. With 5,000 connections of eight ids, that is one new client in 400.

use std::time::Duration;

use aws_lc_rs::hmac;
use quinn_proto::{ConnectionId, ConnectionIdGenerator, InvalidCid};

const NONCE_BYTES: usize = 8;
const TAG_BYTES: usize = 4;
const ID_BYTES: usize = NONCE_BYTES + TAG_BYTES;

/// Makes connection ids and recognises them.
pub(super) struct TaggedConnectionIds {
    key: hmac::Key,
}

impl TaggedConnectionIds {
    pub(super) fn new(key: hmac::Key) -> Self {
        Self { key }
    }

    fn tag(&self, nonce: &[u8]) -> [u8; TAG_BYTES] {
        let tag = hmac::sign(&self.key, nonce);
        *tag.as_ref().first_chunk().expect("an SHA-256 tag has 32 bytes")
    }
}

impl ConnectionIdGenerator for TaggedConnectionIds {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut id = [0; ID_BYTES];
        let (nonce, tag) = id.split_at_mut(NONCE_BYTES);
        aws_lc_rs::rand::fill(nonce).expect("the system's random generator works");
        tag.copy_from_slice(&self.tag(nonce));
        ConnectionId::new(&id)
    }

    fn validate(&self, id: &ConnectionId) -> Result<(), InvalidCid> {
        match id.split_at_checked(NONCE_BYTES) {
            Some((nonce, tag)) if tag == self.tag(nonce) => Ok(()),
            _ => Err(InvalidCid),
        }
    }

    fn cid_len(&self) -> usize {
        ID_BYTES
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn ids(secret: u8) -> TaggedConnectionIds {
        TaggedConnectionIds::new(hmac::Key::new(hmac::HMAC_SHA256, &[secret; 32]))
    }

    #[test]
    fn no_two_ids_of_many_connections_are_equal() {
        let mut ids = ids(1);
        // Of so many ids with three random bytes, some two are equal in all but one of 10^500 runs.
        let count = 200_000;
        let distinct: HashSet<Vec<u8>> = (0..count).map(|_| ids.generate_cid().to_vec()).collect();
        assert_eq!(distinct.len(), count);
    }

    #[test]
    fn only_ids_of_the_same_key_are_recognised() {
        let (mut made, again, other) = (ids(1), ids(1), ids(2));
        let id = made.generate_cid();
        assert_eq!(id.len(), made.cid_len());
        assert!(again.validate(&id).is_ok());
        assert!(other.validate(&id).is_err());
        for index in 0..id.len() {
            let mut altered = id.to_vec();
            altered[index] ^= 1;
            assert!(again.validate(&ConnectionId::new(&altered)).is_err(), "byte {index}");
        }
        assert!(again.validate(&ConnectionId::new(&id[..NONCE_BYTES - 1])).is_err());
    }
}
