//! Times of a process that ends: how its listeners close.

use std::time::Duration;

/// Time in which a listener that shares its port still accepts connections whose handshake had
/// begun, after it stopped.
pub const HANDSHAKES_END_WITHIN: Duration = Duration::from_millis(500);
/// Time in which a stopped listener still accepts what waits in its queue. The kernel resets the
/// connections that a closed socket leaves behind.
pub const QUEUE_ACCEPTED_WITHIN: Duration = Duration::from_millis(50);
/// Time after the grace period, or after the close of the listeners if that is later, in which other
/// replicas still answer forwarded requests.
pub const FORWARDED_ANSWERED_WITHIN: Duration = Duration::from_secs(3);
/// Time in which connections of a stopped listener still serve a request that is on its way.
pub const LAST_REQUESTS_WITHIN: Duration = Duration::from_millis(250);
