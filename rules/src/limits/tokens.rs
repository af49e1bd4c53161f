//! Limits of tokens of authorization servers, and of the keys that verify them.

use std::time::Duration;

/// Configured issuers.
pub const ISSUERS_MAX: usize = 32;
/// A token.
pub const TOKEN_BYTES_MAX: usize = 8 * 1024;
/// The `kid` of a token.
pub const TOKEN_KEY_ID_BYTES_MAX: usize = 256;
/// The `sub` of a token.
pub const TOKEN_PRINCIPAL_BYTES_MAX: usize = 255;
/// Difference between the clocks of issuer and broker. A token is valid this long before `nbf`
/// and after `exp`.
pub const TOKEN_LEEWAY: Duration = Duration::from_secs(60);
/// Verified tokens in the cache.
pub const TOKENS_REMEMBERED_MAX: usize = 10_000;
/// Interval at which a connection compares the end of its token with the clock.
pub const EXPIRY_LOOK_INTERVAL: Duration = Duration::from_secs(20);
/// A key set, and the metadata that leads to it.
pub const KEY_SET_BYTES_MAX: usize = 256 * 1024;
/// Keys of one set that the broker uses.
pub const KEY_SET_KEYS_MAX: usize = 64;
/// Age up to which the broker uses keys that it cannot fetch again, unless
/// `auth.issuers[].keys_max_age` sets another age.
pub const KEY_SET_AGE_MAX: Duration = Duration::from_secs(24 * 3_600);
/// Interval at which the broker fetches keys again.
pub const KEY_SET_REFRESH_INTERVAL: Duration = Duration::from_secs(300);
/// Shortest interval between two fetches, whatever key ids tokens name.
pub const KEY_SET_PAUSE_MIN: Duration = Duration::from_secs(5);
/// Longest wait before a failed fetch is retried.
pub const KEY_SET_RETRY_MAX: Duration = Duration::from_secs(60);
/// Deadline of one fetch.
pub const KEY_SET_FETCH_MAX: Duration = Duration::from_secs(10);
/// Wait of a request for a fetch when its token names an unknown key.
pub const KEY_SET_WAIT_MAX: Duration = Duration::from_secs(5);
/// Requests that wait for such a fetch at the same time.
pub const KEY_SET_WAITING_MAX: usize = 256;
/// Issuers of one tenant that operators stored.
pub const ISSUERS_PER_TENANT_MAX: usize = 8;
/// Members of `metadata_set` of an adapted issuer.
pub const METADATA_MEMBERS_MAX: usize = 32;
/// Redirect URIs in a list: those that an adapted issuer permits, or those of a registration.
pub const REGISTRATION_URIS_MAX: usize = 64;
/// A redirect URI.
pub const REGISTRATION_URI_BYTES_MAX: usize = 2 * 1024;
/// Body of a token request or of a registration.
pub const AUTHORIZATION_REQUEST_BYTES_MAX: usize = 64 * 1024;
/// Answer of an issuer to a forwarded token request.
pub const AUTHORIZATION_ANSWER_BYTES_MAX: usize = 256 * 1024;
/// Deadline of a forwarded token request.
pub const AUTHORIZATION_FORWARD_MAX: Duration = Duration::from_secs(10);
/// Token requests that the broker forwards at the same time.
pub const AUTHORIZATION_FORWARDS_MAX: usize = 256;
/// Those of one issuer.
pub const AUTHORIZATION_FORWARDS_PER_ISSUER_MAX: usize = 16;
/// An answer of an introspection endpoint.
pub const INTROSPECTION_BYTES_MAX: usize = 16 * 1024;
/// Deadline of one introspection, and of the wait for one of the introspections at the same time.
pub const INTROSPECTION_MAX: Duration = Duration::from_secs(5);
/// Introspections of one issuer at the same time.
pub const INTROSPECTIONS_AT_ONCE_MAX: usize = 32;
/// Introspections at the same time that tokens that were never valid here cannot use.
pub const INTROSPECTIONS_RESERVED: usize = 8;
/// Requests that wait for introspections of one issuer at the same time.
pub const INTROSPECTION_WAITING_MAX: usize = 1_024;
/// Waiting requests that tokens that were never valid here cannot use.
pub const INTROSPECTION_WAITING_RESERVED: usize = 256;
/// Introspections per second of tokens that were never valid here. Tokens that were valid are not
/// counted.
pub const INTROSPECTION_NEW_TOKENS_PER_SECOND: u32 = 100;
/// Time for which a token stays refused after its issuer reported it as inactive.
pub const INTROSPECTION_INACTIVE_FOR: Duration = Duration::from_secs(10);
/// Time without introspections of an issuer after one that failed.
pub const INTROSPECTION_FAILURE_PAUSE: Duration = Duration::from_secs(1);
/// Remembered answers about active tokens of one issuer, and as many about inactive ones.
pub const INTROSPECTIONS_REMEMBERED_MAX: usize = 10_000;

const _: () = assert!(KEY_SET_WAIT_MAX.as_millis() <= KEY_SET_FETCH_MAX.as_millis()); // who waits does not outwait the fetch
const _: () = assert!(KEY_SET_PAUSE_MIN.as_millis() <= KEY_SET_RETRY_MAX.as_millis());
const _: () = assert!(INTROSPECTIONS_RESERVED < INTROSPECTIONS_AT_ONCE_MAX); // new tokens need some too
const _: () = assert!(INTROSPECTION_WAITING_RESERVED < INTROSPECTION_WAITING_MAX);
const _: () = assert!(KEY_SET_REFRESH_INTERVAL.as_secs() < KEY_SET_AGE_MAX.as_secs()); // keys that are fetched in time never grow too old
