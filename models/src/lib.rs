//! Models of the broker's synchronisation, run by the scheduler of shuttle in thousands of orders.
//!
//! The modules hold the product's own files, which `build.rs` copies here with other primitives
//! below them: atomics and locks at which the scheduler may switch threads, and a clock that the
//! model sets. The tests state what must hold in every order.
//!
//! shuttle explores orders of threads, and no reordering of memory: to it, each atomic operation is
//! sequentially consistent. The channels and notifications are those of tokio, which checks them
//! with loom; here each of their operations is one step.

#![allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    reason = "the copied files hold more than the models use"
)]

pub mod backends;
pub mod clock;
pub mod metrics;
pub mod persistence;

/// Limits of calls and of unread bytes.
pub mod admission {
    pub mod concurrency_limit {
        include!(concat!(env!("OUT_DIR"), "/concurrency_limit.rs"));
    }
    pub mod outbox_budget {
        include!(concat!(env!("OUT_DIR"), "/outbox_budget.rs"));
    }
}

/// Deadlines, streams, and calls that become tasks.
pub mod sessions {
    pub mod deadline_list {
        include!(concat!(env!("OUT_DIR"), "/deadline_list.rs"));
    }
    pub mod stream {
        include!(concat!(env!("OUT_DIR"), "/stream.rs"));
    }
    pub mod task_handoff {
        include!(concat!(env!("OUT_DIR"), "/task_handoff.rs"));
    }
}

pub mod breaker {
    include!(concat!(env!("OUT_DIR"), "/breaker.rs"));
}

pub mod retries {
    include!(concat!(env!("OUT_DIR"), "/retries.rs"));
}

pub mod shared_permits {
    include!(concat!(env!("OUT_DIR"), "/shared_permits.rs"));
}

mod gcra {
    pub(crate) use rules::gcra::nanoseconds;
}

mod limits {
    pub(crate) use rules::limits::*;
}

mod shared_rate_limit {
    pub(crate) use rules::shared_rate_limit::{ReplicaShare, SharingMode};
}
