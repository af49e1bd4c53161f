//! Permits that all replicas share: how many each of them holds of one limit. `redis/permits.lua`
//! computes the shares of replicas on one Redis. An entry lives as long as the lease of its replica,
//! which every exchange renews.

use std::time::Duration;

/// Report of one replica about one limit, with a request for permits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PermitsRequest {
    /// Same name on every replica. May contain names that clients chose.
    pub name: String,
    /// The limit over all replicas.
    pub max: u32,
    /// Permits in use. They count even beyond the limit.
    pub in_use: u32,
    /// Permits to hold, those in use included.
    pub wanted: u32,
}

/// How long permits stay without a further report.
#[derive(Debug, Clone, Copy)]
pub struct PermitsLifetime {
    /// Time after which all permits of a replica are free.
    pub lease: Duration,
    /// Time after which one entry of a living replica is forgotten.
    pub kept: Duration,
}

/// Answer to a [`PermitsRequest`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PermitsGrant {
    /// Permits that the replica holds from now on.
    pub held: u32,
    /// Permits that the other replicas hold.
    pub others: u32,
}

/// Answers to the requests of one exchange.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PermitsAnswer {
    /// Whether the replica's lease was in force. Otherwise others may have its permits.
    pub renewed: bool,
    /// One answer for each request, in the same order.
    pub grants: Vec<PermitsGrant>,
}

/// Answers the requests of a replica that is the only one.
pub(super) fn settle_alone(requests: &[PermitsRequest]) -> PermitsAnswer {
    let grant = |request: &PermitsRequest| PermitsGrant {
        held: request.in_use.max(request.wanted.min(request.max)),
        others: 0,
    };
    PermitsAnswer { renewed: true, grants: requests.iter().map(grant).collect() }
}
