//! Limits of the broker as an OAuth client towards backends.

use std::time::Duration;

/// An answer of an authorization server, or a document about a backend's authorization.
pub const OAUTH_ANSWER_BYTES_MAX: usize = 256 * 1024;
/// Deadline of one request to an authorization server.
pub const OAUTH_REQUEST_MAX: Duration = Duration::from_secs(10);
/// Time for which the broker uses the metadata of an authorization server.
pub const OAUTH_METADATA_AGE_MAX: Duration = Duration::from_secs(3_600);
/// The same for a backend without metadata, which is its own authorization server.
pub const UNNAMED_SERVER_AGE_MAX: Duration = Duration::from_secs(60);
/// URL in metadata or in a challenge.
pub const OAUTH_URL_BYTES_MAX: usize = 2 * 1024;
/// Authorization servers of a backend's metadata that the broker reads.
pub const AUTHORIZATION_SERVERS_MAX: usize = 16;
/// Time without token requests for a backend after one that failed.
pub const OAUTH_FAILURE_PAUSE: Duration = Duration::from_secs(1);
/// Tries of one request to a backend that refuses its token.
pub const OAUTH_TRIES_MAX: u32 = 3;
/// An access token.
pub const OAUTH_TOKEN_BYTES_MAX: usize = 16 * 1024;
/// Scopes of a token, if a backend demanded some of them in challenges.
pub const TOKEN_SCOPES_MAX: usize = 100;
/// Those scopes together, with spaces between them.
pub const TOKEN_SCOPES_BYTES_MAX: usize = 8 * 1024;
/// Principals of one backend whose tokens a replica remembers.
pub const GRANT_CACHED_MAX: usize = 10_000;
/// Grants that are read at a time to find the oldest one that can be used.
pub const GRANTS_SOUGHT_AT_ONCE: u32 = 50;
/// Oldest grants of a backend among which the broker looks for one that fetches the lists.
pub const GRANTS_SOUGHT_MAX: u32 = 1_000;
/// Time after which a replica looks whether a grant has changed or ended.
pub const GRANT_LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// Time for which one replica alone may use a refresh token.
pub const GRANT_LEASE: Duration = Duration::from_secs(15);
/// Time for which a replica leaves a lapsed lease to its holder, which may have a new refresh token
/// to write.
pub const GRANT_LEASE_SETTLES: Duration = Duration::from_secs(2);
/// Longest wait for a token that another replica renews.
pub const GRANT_WAIT_MAX: Duration = Duration::from_secs(20);
/// Interval at which a replica looks whether another one has renewed a token.
pub const GRANT_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Longest wait for the token of a caller that another replica saw.
pub const SUBJECT_WAIT_MAX: Duration = Duration::from_secs(2);
/// Tokens for exchanges that the database has of one principal. Each other one replaces one of them.
pub const SUBJECT_ROWS_PER_PRINCIPAL: usize = 64;
/// Writes of such tokens of one tenant at the same time, in each process.
pub const SUBJECT_WRITES_PER_TENANT_MAX: usize = 32;
/// Principals of one backend whose lists a replica remembers.
pub const PRINCIPAL_LISTS_CACHED_MAX: usize = 10_000;
/// Age of the lists that a backend shows to one principal. Older ones are read again when they are
/// used.
pub const PRINCIPAL_LISTS_AGE_MAX: Duration = Duration::from_secs(300);
/// Time after which lists that a backend did not show to a principal are asked for again.
pub const PRINCIPAL_LISTS_RETRY: Duration = Duration::from_secs(5);
/// Principals of one backend whose lists are read at the same time.
pub const PRINCIPAL_LISTS_READ_MAX: usize = 8;
/// Time for which the broker signs with one key that it made.
pub const CLIENT_KEY_PERIOD: Duration = Duration::from_secs(30 * 24 * 3_600);
/// Time for which a replica publishes a set of its keys without a look at the database.
pub const CLIENT_KEY_SET_AGE_MAX: Duration = Duration::from_secs(60);
/// Life of an authorization request that a browser began.
pub const CONNECT_REQUEST_LIFE: Duration = Duration::from_secs(600);
/// Authorization requests of one principal at one backend that wait for their answers. One more
/// replaces another.
pub const CONNECT_REQUESTS_MAX: u32 = 16;
/// Client id and secret of a registration at an authorization server.
pub const REGISTRATION_BYTES_MAX: usize = 4 * 1024;
/// Life of a one-time link to the connect page.
pub const CONNECT_LINK_LIFE: Duration = Duration::from_secs(900);
/// Life of the login that a one-time link gives a browser.
pub const CONNECT_LOGIN_LIFE: Duration = Duration::from_secs(3_600);
/// The sealed login in its cookie. Browsers keep cookies of 4096 bytes.
pub const CONNECT_LOGIN_BYTES_MAX: usize = 3_800;
/// Wait for another replica that is notified of a connection, and the tries to notify it.
pub const CONNECTION_NOTICE_WAIT: Duration = Duration::from_secs(5);
pub const CONNECTION_NOTICE_TRIES: u32 = 3;
/// Time for which the broker uses the metadata of an issuer at which people log in.
pub const LOGIN_METADATA_AGE_MAX: Duration = Duration::from_secs(300);
/// Time without requests for the metadata of such an issuer after one that failed.
pub const LOGIN_METADATA_PAUSE: Duration = Duration::from_secs(5);
/// Sign-ins at the connect page and logins at the console that use an issuer at the same time.
pub const LOGINS_AT_ONCE_MAX: usize = 64;
/// Those of one issuer.
pub const LOGINS_PER_ISSUER_MAX: usize = 16;
/// Body of a form of the connect page.
pub const CONNECT_FORM_BYTES_MAX: usize = 8 * 1024;
/// Stored credentials that are read at a time to be sealed again.
pub const RESEALED_AT_ONCE: u32 = 200;
/// Pause after each of these reads.
pub const RESEAL_PAUSE: Duration = Duration::from_millis(100);
/// Pause before stored credentials are sealed again, after the database did not answer.
pub const RESEAL_RETRY: Duration = Duration::from_secs(10);

const _: () = assert!(OAUTH_REQUEST_MAX.as_millis() < GRANT_LEASE.as_millis()); // a refresh ends within its lease
const _: () =
    assert!(GRANT_LEASE.as_millis() + GRANT_LEASE_SETTLES.as_millis() < GRANT_WAIT_MAX.as_millis()); // who waits outlives a lease that is left alone
const _: () = assert!(GRANT_POLL_INTERVAL.as_millis() * 4 < GRANT_LEASE_SETTLES.as_millis()); // the holder tries to write several times
