//! Replays the corpus of each target and tries new inputs for a short time.

mod engine;

use fuzz::{TARGETS_MAX, targets::ALL};

/// A test for each target, so that they run side by side and a failure names its target.
macro_rules! target_tests {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                fuzz::test(fuzz::target(stringify!($name)).expect("a target has this name"));
            }
        )*

        #[test]
        fn every_target_has_a_test() {
            let names: Vec<&str> = ALL.iter().map(|target| target.name).collect();
            assert_eq!(names, [$(stringify!($name)),*]);
            assert!(names.len() < TARGETS_MAX, "their shares exceed the time for new inputs");
        }
    };
}

target_tests! {
    json
    envelope
    splice
    server_sent_events
    header_values
    request_framing
    plain_posts
    responses
    websocket
    lines
    proxy_header
    resource_uris
    policy_uris
    cursors
    policies
    arguments
    tokens
    sealed_texts
    admin_bodies
    configuration
}
