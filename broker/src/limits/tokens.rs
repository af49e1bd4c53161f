//! Limits of tokens of authorization servers, and of the keys they are checked with.

use std::time::Duration;

/// Servers that are configured.
pub const ISSUERS_MAX: usize = 32;
/// A token.
pub const TOKEN_BYTES_MAX: usize = 8 * 1024;
/// The name of the key a token is signed with.
pub const TOKEN_KEY_ID_BYTES_MAX: usize = 256;
/// The name of a token's principal at its issuer.
pub const TOKEN_PRINCIPAL_BYTES_MAX: usize = 255;
/// How much the clocks of an issuer and of the broker may differ: a token is good so long after its end, and before its beginning.
pub const TOKEN_LEEWAY: Duration = Duration::from_secs(60);
/// Tokens that were checked and are known again.
pub const TOKENS_REMEMBERED_MAX: usize = 10_000;
/// How often who waits for the end of a token looks at the clock.
pub const EXPIRY_LOOK_INTERVAL: Duration = Duration::from_secs(20);
/// A set of keys, and the metadata that leads to it.
pub const KEY_SET_BYTES_MAX: usize = 256 * 1024;
/// Keys of one set that are used.
pub const KEY_SET_KEYS_MAX: usize = 64;
/// Keys that cannot be fetched again are believed so long, unless `auth.issuers[].keys_max_age` sets another age.
pub const KEY_SET_AGE_MAX: Duration = Duration::from_secs(24 * 3_600);
/// Keys are fetched again after so long,
pub const KEY_SET_REFRESH_INTERVAL: Duration = Duration::from_secs(300);
/// not more often than this, whatever tokens name,
pub const KEY_SET_PAUSE_MIN: Duration = Duration::from_secs(5);
/// and after a failure so much later at most.
pub const KEY_SET_RETRY_MAX: Duration = Duration::from_secs(60);
/// One fetch.
pub const KEY_SET_FETCH_MAX: Duration = Duration::from_secs(10);
/// A request whose token names a key that is not known waits so long for a fetch,
pub const KEY_SET_WAIT_MAX: Duration = Duration::from_secs(5);
/// and so many do at the same time.
pub const KEY_SET_WAITING_MAX: usize = 256;

const _: () = assert!(KEY_SET_WAIT_MAX.as_millis() <= KEY_SET_FETCH_MAX.as_millis()); // who waits does not outwait the fetch
const _: () = assert!(KEY_SET_PAUSE_MIN.as_millis() <= KEY_SET_RETRY_MAX.as_millis());
const _: () = assert!(KEY_SET_REFRESH_INTERVAL.as_secs() < KEY_SET_AGE_MAX.as_secs()); // keys that are fetched in time never grow too old
