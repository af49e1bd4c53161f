//! Violations planted on purpose: a checker that misses them would miss all others.

use super::*;

const SLACK: Duration = Duration::from_millis(500);

/// Seconds from a fixed start, far enough in the future that earlier times exist.
struct Clock(Instant);

impl Clock {
    fn at(&self, seconds: u64) -> Instant {
        self.0 + Duration::from_secs(seconds)
    }
}

struct Planted {
    clock: Clock,
    history: History,
    ledger: Vec<Effect>,
}

impl Planted {
    fn new() -> Self {
        Self { clock: Clock(Instant::now()), history: History::default(), ledger: Vec::new() }
    }

    fn saw(&mut self, from: u64, to: u64, saw: Observation) -> &mut Self {
        let entry = Entry { began: self.clock.at(from), ended: self.clock.at(to), saw };
        self.history.notes().entries.push(entry);
        self
    }

    fn broke(&mut self, fault: InjectedFault, from: u64, to: u64) -> &mut Self {
        self.history.notes().faults.push(FaultInterval {
            fault,
            from: self.clock.at(from),
            to: self.clock.at(to),
        });
        self
    }

    fn effect(&mut self, key: &str, tool: &'static str, from: u64, to: u64) -> &mut Self {
        let result = format!("result of {key}");
        self.ledger.push(Effect {
            key: key.to_owned(),
            tool,
            result,
            began: self.clock.at(from),
            ended: Some(self.clock.at(to)),
        });
        self
    }

    /// Plants a task that went as it should: acknowledged at 1, carried out from 2 to 3, read at 5
    /// and at the end.
    fn good(&mut self, task: &str) -> &mut Self {
        let outcome = completed(task);
        self.saw(0, 1, created(task))
            .effect(&key(task), "write", 2, 3)
            .saw(2, 2, status(task, "working"))
            .saw(4, 5, Observation::Ended { task: task.to_owned(), outcome: outcome.clone() })
            .saw(30, 30, Observation::Finally { task: task.to_owned(), outcome: Some(outcome) })
    }

    /// Plants a task that ended as unknown at 10. Its effect began at 2 and should have ended at 4.
    fn unknown(&mut self, task: &str) -> &mut Self {
        let outcome = Outcome::Failed(OUTCOME_UNKNOWN.to_owned());
        self.saw(0, 1, created(task))
            .effect(&key(task), "write", 2, 4)
            .saw(10, 10, Observation::Ended { task: task.to_owned(), outcome: outcome.clone() })
            .saw(30, 30, Observation::Finally { task: task.to_owned(), outcome: Some(outcome) })
    }

    fn report(&self) -> Report {
        self.history.check(&self.ledger, SLACK)
    }

    #[track_caller]
    fn caught(&self, what: &str) {
        let report = self.report();
        assert!(
            report.violations.iter().any(|violation| violation.contains(what)),
            "{what:?} is not in {report}"
        );
    }
}

fn key(task: &str) -> String {
    format!("key-{task}")
}

fn created(task: &str) -> Observation {
    Observation::Created { key: key(task), task: task.to_owned() }
}

fn status(task: &str, status: &str) -> Observation {
    Observation::Status { task: task.to_owned(), status: status.to_owned() }
}

fn completed(task: &str) -> Outcome {
    Outcome::Completed(format!("result of {}", key(task)))
}

fn called(key: &str, outcome: Option<Outcome>) -> Observation {
    Observation::Called { key: key.to_owned(), outcome }
}

fn event(id: &str, number: u64) -> Observation {
    Observation::Event { stream: "s".to_owned(), id: id.to_owned(), number: Some(number) }
}

#[test]
fn a_history_without_faults_passes_and_is_counted() {
    let mut planted = Planted::new();
    planted.good("a").good("b").saw(
        6,
        6,
        Observation::Listed { tasks: vec!["a".to_owned(), "b".to_owned()] },
    );
    planted.saw(
        0,
        1,
        Observation::Refused { key: "r".to_owned(), kind: "store_unavailable".to_owned() },
    );
    planted.saw(0, 1, Observation::Lost { key: "l".to_owned() }).effect("l", "write", 1, 1);
    planted.effect("c", "write", 1, 1).saw(
        1,
        2,
        called("c", Some(Outcome::Completed("result of c".to_owned()))),
    );
    planted
        .saw(1, 1, event("1-1", 1))
        .saw(2, 2, event("1-2", 2))
        .saw(3, 3, Observation::Gap { stream: "s".to_owned() })
        .saw(4, 4, event("1-9", 9));
    let report = planted.report();
    report.assert_passed();
    let counted = (
        report.acknowledged,
        report.refused,
        report.lost,
        report.completed,
        report.calls_answered,
        report.events,
        report.gaps,
    );
    assert_eq!(counted, (2, 1, 1, 2, 1, 3, 1));
    assert_eq!((report.effects, report.slowest.unwrap().0), (4, Duration::from_secs(4)));
}

#[test]
fn a_lost_or_endless_acknowledged_task_is_detected() {
    let mut planted = Planted::new();
    planted.saw(0, 1, created("a"));
    planted.caught("a (key-a) was acknowledged and never read at the end");
    planted.saw(9, 9, Observation::Finally { task: "a".to_owned(), outcome: None });
    planted.caught("a (key-a) did not end");
    let mut planted = Planted::new();
    planted.good("a").saw(3, 3, Observation::Absent { task: "a".to_owned() });
    planted.caught("a (key-a) was acknowledged, and then unknown");
    planted.saw(3, 3, Observation::SessionLost { session: "s1".to_owned() });
    planted.caught("the session s1 is gone");
}

#[test]
fn a_repeated_id_or_key_is_detected() {
    let mut planted = Planted::new();
    planted.good("a").saw(
        0,
        1,
        Observation::Created { key: "other".to_owned(), task: "a".to_owned() },
    );
    planted.caught("the id a was given twice");
    let mut planted = Planted::new();
    planted.good("a").saw(0, 1, Observation::Created { key: key("a"), task: "b".to_owned() });
    planted.caught("key-a was acknowledged twice");
    let mut planted = Planted::new();
    planted.good("a").saw(
        6,
        6,
        Observation::Listed { tasks: vec!["a".to_owned(), "a".to_owned()] },
    );
    planted.caught("a list of 2 tasks names only 1");
}

#[test]
fn a_task_status_that_reverts_is_detected_and_overlapping_reads_are_not() {
    for state in ["working", "input_required"] {
        let mut planted = Planted::new();
        // The request was sent before the end was answered: the status may have been read before.
        planted.good("a").saw(5, 9, status("a", state));
        planted.report().assert_passed();
        planted.saw(6, 7, status("a", state));
        planted.caught(&format!("a (key-a) was over and then {state} again"));
    }
    let mut planted = Planted::new();
    planted.good("a").saw(2, 2, status("a", "input_required")).saw(3, 3, status("a", "working"));
    planted.report().assert_passed();
    planted.saw(6, 6, status("a", "failed"));
    planted.caught("a (key-a) ended in several ways");
}

#[test]
fn a_changed_or_foreign_result_is_detected() {
    let mut planted = Planted::new();
    planted.good("a").saw(
        6,
        6,
        Observation::Ended {
            task: "a".to_owned(),
            outcome: Outcome::Completed("another".to_owned()),
        },
    );
    planted.caught("the outcome of a (key-a) changed");
    let mut planted = Planted::new();
    planted.good("a").ledger[0].result = "something else".to_owned();
    planted.caught(
        "a (key-a) completed with \"result of key-a\"; the backend gave [\"something else\"]",
    );
    let mut planted = Planted::new();
    planted.good("a").ledger.clear();
    planted.caught("a (key-a) completed with \"result of key-a\"; the backend gave []");
}

#[test]
fn a_repeated_unrequested_or_refused_effect_is_detected() {
    let mut planted = Planted::new();
    planted.good("a").effect(&key("a"), "write", 7, 8);
    planted.caught("the effect of key-a was done 2 times");
    let mut planted = Planted::new();
    planted
        .saw(0, 1, Observation::Lost { key: "p".to_owned() })
        .effect("p", "put", 1, 1)
        .effect("p", "put", 2, 2);
    planted.report().assert_passed();
    planted.effect("stray", "write", 1, 1);
    planted.caught("no request asked for the effect of stray");
    planted
        .saw(0, 1, Observation::Refused { key: "r".to_owned(), kind: "task_limit".to_owned() })
        .effect("r", "write", 2, 2);
    planted.caught("r was refused, and its effect was done");
}

#[test]
fn an_unknown_outcome_is_accepted_only_after_a_kill() {
    let mut planted = Planted::new();
    planted.unknown("a");
    planted.caught("a (key-a) ended as outcome_unknown, and nothing was killed");
    // Faults before the call, long after its answer, and of the wrong kind.
    planted
        .broke(InjectedFault::Kill, 1, 1)
        .broke(InjectedFault::Kill, 9, 9)
        .broke(InjectedFault::RedisFlushed, 3, 3)
        .broke(InjectedFault::RedisAway, 2, 4);
    planted.caught("ended as outcome_unknown");
    for fault in [InjectedFault::Kill, InjectedFault::Freeze] {
        let mut planted = Planted::new();
        planted.unknown("a").broke(fault, 3, 3);
        planted.report().assert_passed();
        assert_eq!(planted.report().unknown, 1);
    }
    // The answer could not be stored until the database was back, and then the process was killed.
    let mut planted = Planted::new();
    planted.unknown("a").broke(InjectedFault::PostgresAway, 3, 9);
    planted.caught("ended as outcome_unknown");
    planted.broke(InjectedFault::Kill, 9, 9);
    planted.report().assert_passed();
}

#[test]
fn other_failures_and_unrequested_cancellations_are_detected() {
    let ended = |outcome: Outcome| {
        let mut planted = Planted::new();
        planted.saw(0, 1, created("a")).saw(
            30,
            30,
            Observation::Finally { task: "a".to_owned(), outcome: Some(outcome) },
        );
        planted
    };
    ended(Outcome::Failed("internal".to_owned())).caught("a (key-a) failed with internal");
    let mut planted = ended(Outcome::Cancelled);
    planted.caught("a (key-a) was cancelled, and no request asked");
    planted.saw(2, 2, Observation::CancelAsked { task: "a".to_owned() });
    planted.report().assert_passed();
}

#[test]
fn failed_calls_without_a_reason_are_detected() {
    let mut planted = Planted::new();
    planted.saw(2, 4, called("a", None)).effect("a", "write", 2, 3);
    planted.caught("the call a got no answer");
    planted.broke(InjectedFault::Kill, 3, 3);
    planted.report().assert_passed();
    planted.saw(12, 14, called("b", Some(Outcome::Failed(OUTCOME_UNKNOWN.to_owned()))));
    planted.caught("the call b got no answer");
    let mut planted = Planted::new();
    planted
        .saw(2, 4, called("a", Some(Outcome::Completed("x".to_owned()))))
        .effect("a", "write", 2, 3);
    planted.caught("the call a was answered with \"x\"");
    let mut planted = Planted::new();
    planted.saw(2, 4, called("a", Some(Outcome::Failed("draining".to_owned()))));
    planted.report().assert_passed();
    planted.effect("a", "write", 2, 3);
    planted.caught("the call a was refused with draining, and its effect was done");
}

#[test]
fn repeated_and_missing_events_are_detected() {
    let mut planted = Planted::new();
    planted.saw(1, 1, event("1-1", 1)).saw(2, 2, event("1-1", 2));
    planted.caught("the event 1-1 came twice on s");
    let mut planted = Planted::new();
    planted.saw(1, 1, event("1-1", 1)).saw(2, 2, event("1-2", 1));
    planted.caught("on s event 1 came after 1");
    let mut planted = Planted::new();
    planted.saw(1, 1, event("1-1", 1)).saw(2, 2, event("1-4", 4));
    planted.caught("on s the events 2 to 3 are missing");
    // One reported gap excuses one gap.
    let mut planted = Planted::new();
    planted.saw(1, 1, Observation::Gap { stream: "s".to_owned() }).saw(1, 1, event("1-5", 5));
    planted.report().assert_passed();
    planted.saw(2, 2, event("1-7", 7));
    planted.caught("on s the events 6 to 6 are missing");
}
