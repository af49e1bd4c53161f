//! The plan of a run: replicas, load, and a timetable of faults, all from the seed.

use std::time::Duration;

use crate::choices::Choices;

/// Something that goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A replica dies after so many polls of its tasks, and begins another life later.
    Kill {
        replica: usize,
        polls: u32,
        down: Duration,
    },
    /// A replica stands still.
    Freeze {
        replica: usize,
        time: Duration,
    },
    /// A replica drains, ends, and begins another life.
    Restart {
        replica: usize,
    },
    StoreAway {
        time: Duration,
    },
    /// Operations of the store are slow, fail, or lose their answers.
    StoreFlaky {
        time: Duration,
        failures: u64,
    },
    RedisAway {
        time: Duration,
    },
    RedisFlushed,
    /// Pieces come late, and connections are cut.
    Storm {
        time: Duration,
        cuts: u64,
    },
}

/// Seeds below have small runs. The tests run those.
const SMALL_BELOW: u64 = 1_000;

#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) replicas: usize,
    pub(crate) lease: Duration,
    /// Time over which the load of each principal is spread.
    pub(crate) duration: Duration,
    pub(crate) tasks: usize,
    pub(crate) calls: usize,
    pub(crate) streams: usize,
    pub(crate) questions: usize,
    pub(crate) stateless: usize,
    pub(crate) subscriptions: usize,
    pub(crate) sessions: usize,
    /// In the order of time.
    pub(crate) faults: Vec<(Duration, Fault)>,
}

impl Plan {
    pub(crate) fn of(seed: u64, choices: &mut Choices) -> Self {
        let scale = if seed < SMALL_BELOW { 1 } else { 3 };
        let replicas = [1, 2, 2, 3][choices.index(4)];
        let lease = choices.millis(1_000..5_000);
        let duration = choices.millis(8_000..scale * 25_000);
        let count = choices.below(1..1 + 2 * scale);
        let mut faults: Vec<(Duration, Fault)> = (0..count)
            .map(|_| {
                let at = choices.millis(0..duration.as_millis() as u64);
                (at, fault(choices, replicas, lease))
            })
            .collect();
        faults.sort_by_key(|(at, _)| *at);
        Self {
            replicas,
            lease,
            duration,
            tasks: choices.below(1..1 + 2 * scale) as usize,
            calls: choices.below(1..1 + 2 * scale) as usize,
            streams: choices.below(0..1 + scale) as usize,
            questions: choices.below(0..1 + scale) as usize,
            stateless: choices.below(0..1 + 2 * scale) as usize,
            subscriptions: choices.below(0..1 + scale) as usize,
            sessions: choices.below(1..2 + scale) as usize,
            faults,
        }
    }

    /// Returns the time after a fault in which its traces may show.
    pub(crate) fn slack(&self) -> Duration {
        self.lease * 2 + Duration::from_secs(3)
    }
}

fn fault(choices: &mut Choices, replicas: usize, lease: Duration) -> Fault {
    let replica = choices.index(replicas);
    let lease = lease.as_millis() as u64;
    match choices.below(0..100) {
        0..35 => Fault::Kill {
            replica,
            polls: choices.below(1..400) as u32,
            down: choices.millis(10..3 * lease),
        },
        35..50 => Fault::Freeze { replica, time: choices.millis(lease / 3..4 * lease) },
        50..60 => Fault::Restart { replica },
        60..68 => Fault::StoreAway { time: choices.millis(100..3 * lease) },
        68..80 => Fault::StoreFlaky {
            time: choices.millis(1_000..10_000),
            failures: choices.below(10..200),
        },
        80..85 => Fault::RedisAway { time: choices.millis(100..10_000) },
        85..88 => Fault::RedisFlushed,
        _ => Fault::Storm { time: choices.millis(500..5_000), cuts: choices.below(1..60) },
    }
}
