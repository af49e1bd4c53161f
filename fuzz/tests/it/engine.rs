//! The engine itself: it finds a fault, shortens its input, and repeats a run.

use std::time::Duration;

use fuzz::{Corpus, Effort, Mutator, Outcome, Target, explore};

/// Fails on inputs with a repeated member, which only structure-aware mutations make often.
fn fails_on_a_repeated_member(input: &[u8]) -> Outcome {
    let text = String::from_utf8_lossy(input);
    assert!(text.matches("\"name\":").count() < 3, "three of them");
    Outcome::of(&text.matches(':').count())
}

fn target(check: fn(&[u8]) -> Outcome) -> Target {
    Target { name: "engine", tokens: &["\"name\":"], bytes_max: 256, check }
}

fn corpus() -> Corpus {
    let mut corpus = Corpus::read("engine").expect("a target without a folder has no inputs");
    corpus.inputs.push(("one".to_owned(), br#"{"name":1,"other":[2,{"a":3}]}"#.to_vec()));
    corpus
}

#[test]
fn a_fault_is_found_and_its_input_is_minimized() {
    let effort = Effort { time: Duration::from_secs(60), seed: 7 };
    let finding = explore(&target(fails_on_a_repeated_member), &corpus(), effort);
    let finding = finding.expect_err("the fault is easy to find");
    assert_eq!(finding.input, b"\"name\":\"name\":\"name\":");
    assert_eq!(finding.message, "three of them");
    let again = explore(&target(fails_on_a_repeated_member), &corpus(), effort);
    assert_eq!(again.expect_err("the seed decides"), finding);
}

#[test]
fn the_inputs_follow_from_the_seed() {
    let known = [b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(), br#"{"a":[1,2]}"#.to_vec()];
    let made = |seed| {
        let mut mutator = Mutator::new(seed, &["chunked"], 64);
        (0..1_000).map(|_| mutator.next_input(&known)).collect::<Vec<_>>()
    };
    assert_eq!(made(1), made(1));
    assert_ne!(made(1), made(2));
    assert!(made(3).iter().all(|input| input.len() <= 64));
    let mut different = made(4);
    different.sort();
    different.dedup();
    assert!(different.len() > 800, "{} inputs differ", different.len());
}
