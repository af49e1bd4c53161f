//! Places that replicas share: a place that one replica returns is not used there any more.

use std::time::Duration;

use models::shared_places::{PlaceAttempt, PlacesHeld, SharedPlaces};
use rules::shared_rate_limit::{ReplicaShare, SharingMode};
use shuttle::thread;

use crate::in_every_order;

const MAX: u32 = 2;
const NOW: Duration = Duration::from_secs(10);
const TWO: ReplicaShare = ReplicaShare { sharing: SharingMode::Global, replicas: 2 };

#[test]
fn concurrent_replicas_never_exceed_the_limit_with_returned_places() {
    in_every_order(|| {
        let places = SharedPlaces::new("a".into(), 0);
        // This replica holds all places and uses none.
        (0..MAX).for_each(|_| _ = places.wait_for_place(MAX, TWO, || NOW));
        let report = places.next_report(2);
        places.settle(report, PlacesHeld { held: MAX, others: 0 }, NOW);
        (0..MAX).for_each(|_| places.stop_waiting());
        let callers: Vec<_> = (0..2)
            .map(|_| {
                let places = places.clone();
                thread::spawn(move || places.try_take(MAX, TWO, || NOW) == PlaceAttempt::Taken)
            })
            .collect();
        let returning = {
            let places = places.clone();
            thread::spawn(move || {
                let report = places.next_report(2);
                let held = report.in_use.max(report.wanted);
                places.settle(report, PlacesHeld { held, others: MAX - held }, NOW);
                MAX - held
            })
        };
        let taken = callers.into_iter().map(|caller| caller.join().expect("it ends"));
        let taken = taken.filter(|taken| *taken).count() as u32;
        let others = returning.join().expect("it ends");
        assert!(taken + others <= MAX, "{taken} here and {others} there");
        assert_eq!(places.in_use(), taken);
    });
}
