//! Permits in Redis: one hash for each limit, with the permits that each replica holds, and one
//! hash with the lease of each replica. Proxies and clones of Redis refuse scripts with undeclared
//! keys, so the script gets each key that it reads.

use redis::{Script, from_redis_value};

use super::{RedisStore, codec, milliseconds, server::Request};
use crate::hot::permits::{PermitsAnswer, PermitsGrant, PermitsLifetime, PermitsRequest};

pub(super) fn script() -> Script {
    Script::new(include_str!("permits.lua"))
}

pub(super) async fn settle(
    store: &RedisStore,
    lifetime: PermitsLifetime,
    requests: &[PermitsRequest],
) -> Option<PermitsAnswer> {
    let mut script = store.permits.prepare_invoke();
    let node = store.codec.node_name();
    let leases = codec::permits_leases_key();
    script.key(&leases);
    script.arg(&node);
    script.arg(milliseconds(lifetime.lease)).arg(milliseconds(lifetime.kept));
    for request in requests {
        script.key(store.codec.permits_key(&request.name));
        script.arg(request.max).arg(request.in_use).arg(request.wanted);
    }
    let answer = store.link.execute(Some(&leases), Request::Script(&script)).await.ok()?;
    let numbers: Vec<u64> = from_redis_value(answer).ok()?;
    let (renewed, counts) = numbers.split_first()?;
    let count = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    let grants = counts.as_chunks::<2>().0.iter();
    let grants: Vec<_> = grants
        .map(|[held, others]| PermitsGrant { held: count(*held), others: count(*others) })
        .collect();
    (grants.len() == requests.len()).then_some(PermitsAnswer { renewed: *renewed == 1, grants })
}
