//! Permits that replicas share: a permit that one replica returns is not used there any more.

use std::time::Duration;

use models::shared_permits::{HeldPermits, PermitAttempt, SharedPermits};
use rules::shared_rate_limit::{ReplicaShare, SharingMode};
use shuttle::thread;

use crate::in_every_order;

const MAX: u32 = 2;
const NOW: Duration = Duration::from_secs(10);
const TWO: ReplicaShare = ReplicaShare { sharing: SharingMode::Global, replicas: 2 };

#[test]
fn concurrent_replicas_never_exceed_the_limit_with_returned_permits() {
    in_every_order(|| {
        let permits = SharedPermits::new("a".into(), 0);
        // This replica holds all permits and uses none.
        (0..MAX).for_each(|_| _ = permits.wait_for_permit(MAX, TWO, || NOW));
        let report = permits.next_report(2);
        permits.settle(report, HeldPermits { held: MAX, others: 0 }, NOW);
        (0..MAX).for_each(|_| permits.stop_waiting());
        let callers: Vec<_> = (0..2)
            .map(|_| {
                let permits = permits.clone();
                thread::spawn(move || permits.try_take(MAX, TWO, || NOW) == PermitAttempt::Taken)
            })
            .collect();
        let returning = {
            let permits = permits.clone();
            thread::spawn(move || {
                let report = permits.next_report(2);
                let held = report.in_use.max(report.wanted);
                permits.settle(report, HeldPermits { held, others: MAX - held }, NOW);
                MAX - held
            })
        };
        let taken = callers.into_iter().map(|caller| caller.join().expect("it ends"));
        let taken = taken.filter(|taken| *taken).count() as u32;
        let others = returning.join().expect("it ends");
        assert!(taken + others <= MAX, "{taken} here and {others} there");
        assert_eq!(permits.in_use(), taken);
    });
}
