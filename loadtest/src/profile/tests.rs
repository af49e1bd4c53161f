//! Tests of profiles: the examples are valid, and the parser reports the faults of a file.

use serde_json::json;

use super::*;
use crate::{
    mix::Operation,
    tool_call::{Expectation, ToolCall},
};

fn faults(text: &str) -> String {
    Profile::parse(text).map(drop).expect_err("the profile has a fault").to_string()
}

#[test]
fn the_example_profiles_are_valid() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/profiles");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let profile =
            Profile::parse(&text).unwrap_or_else(|faults| panic!("{}: {faults}", path.display()));
        assert!(text.starts_with("# "), "{} does not say what it is for", path.display());
        assert!(profile.kind == LoopModel::Closed || profile.schedule.calls() > 0);
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        assert_eq!(bundled(&name), Some(text.as_str()));
        names.push(name);
    }
    names.sort();
    assert_eq!(names, BUNDLED.map(|(name, _)| name));
}

#[test]
fn all_settings_of_a_profile_are_read() {
    let text = "
loop: open
sessions: 3
in_flight: 2
warm_up: 500ms
timeout: 2s
refused_max: 0.5
listen: true
phases: [{for: 1s, rate: 10}, {for: 1m, rate: 10, to: 20}]
mix:
  - {method: tools/call, weight: 3, tool: say, bytes: [256, 4KB]}
  - {method: subscription, uri: 'load://text/1'}
";
    let profile = Profile::parse(text).unwrap();
    assert_eq!((profile.kind, profile.callers(), profile.listen), (LoopModel::Open, 6, true));
    assert_eq!(
        (profile.warm_up, profile.timeout),
        (Duration::from_millis(500), Duration::from_secs(2))
    );
    assert_eq!((profile.schedule.time(), profile.schedule.calls()), (Duration::from_secs(61), 910));
    let operations: Vec<&Operation> = profile.mix.operations().collect();
    assert_eq!(
        operations[0],
        &Operation::Call(ToolCall { tool: "say".to_owned(), ..ToolCall::echo(vec![256, 4096]) })
    );
    assert_eq!(operations[1], &Operation::Subscribe { uri: "load://text/1".to_owned() });
}

#[test]
fn every_fault_of_a_profile_is_reported_with_its_path_and_allowed_values() {
    let text = "
sessions: 0
refused_max: 2
timeout: soon
phases: [{for: 10, rate: 5}, {for: 1s}, {for: 1s, rate: -1}]
mix: [{method: tools/cal}, {method: ping, bytes: 5}, {method: resources/read}, {method: task, bytes: 5GB, weight: 0}]
";
    let found = faults(text);
    for wanted in [
        "sessions: 0; 1 to 100000 is allowed",
        "refused_max: 2 is not a share; 0 to 1 is allowed",
        "timeout: \"soon\" is not a duration; write 250ms, 30s, 5m or 1h",
        "phases[0].for: \"10\" is not a duration",
        "phases[1].rate: missing; an open loop needs a rate in calls per second",
        "phases[2].rate: -1 calls a second",
        "mix[0].method: \"tools/cal\" is not one of tools/call, tools/list",
        "mix[1].bytes: ping does not accept this member",
        "mix[2].uri: missing",
        "mix[3].bytes:",
        "mix[3].weight: 0; 1 to 10000 is allowed",
    ] {
        assert!(found.contains(wanted), "{wanted:?} is not in\n{found}");
    }
}

#[test]
fn calls_of_any_tool_have_arguments_and_an_expectation() {
    let text = "
phases: [{for: 1s, rate: 1}]
mix:
  - {method: tools/call, tool: add, arguments: {a: '{{n}}', b: 2}}
  - {method: tools/call, tool: add, arguments: {a: 1, b: 2}, expect: {pointer: /structuredContent/sum, equals: 3}}
  - {method: tools/call, tool: say, arguments: {what: '{{text:4KB}}'}, expect: echo}
  - {method: tools/call, expect: success}
";
    let profile = Profile::parse(text).unwrap();
    let expected: Vec<&Expectation> = profile
        .mix
        .operations()
        .map(|operation| match operation {
            Operation::Call(call) => &call.expect,
            other => panic!("{other:?}"),
        })
        .collect();
    let sum = Expectation::Equals { pointer: "/structuredContent/sum".to_owned(), value: json!(3) };
    assert_eq!(expected, [&Expectation::Success, &sum, &Expectation::Echo, &Expectation::Success]);
    let found = faults(
        "
phases: [{for: 1s, rate: 1}]
mix:
  - {method: tools/call, arguments: {a: '{{m}}'}, bytes: 5}
  - {method: tools/call, arguments: {a: 1}, expect: echo}
  - {method: tools/call, expect: nothing}
  - {method: ping, arguments: {}}
",
    );
    for wanted in [
        "mix[0].arguments: {{m}} is not a placeholder; write `{{n}}` or `{{text:4KB}}`",
        "mix[0].bytes: write the size in `arguments`",
        "mix[1].expect: an echo needs exactly one {{text:SIZE}}",
        "mix[2].expect: \"nothing\" is not valid; write `echo`, `success`",
        "mix[3].arguments: ping does not accept this member",
    ] {
        assert!(found.contains(wanted), "{wanted:?} is not in\n{found}");
    }
}

#[test]
fn yaml_faults_contain_the_key_and_the_line() {
    let found = faults("phases: [{for: 1s, rate: 1}]\nmix: [{method: ping}]\nsesions: 4\n");
    assert!(found.contains("sesions") && found.contains("line 3"), "{found}");
    assert!(faults("mix: [{method: ping}]").contains("phases"));
    assert!(faults("phases: [\n").contains("line"));
}

#[test]
fn a_closed_loop_has_no_rate() {
    assert!(
        faults("loop: closed\nphases: [{for: 1s, rate: 5}]\nmix: [{method: ping}]")
            .contains("a closed loop has no rate")
    );
    assert!(Profile::parse("loop: closed\nphases: [{for: 1s}]\nmix: [{method: ping}]").is_ok());
    assert!(
        faults("loop: closed\nwarm_up: 1s\nphases: [{for: 1s}]\nmix: [{method: ping}]")
            .contains("covers the whole load; a part of the load must remain to measure")
    );
}

#[test]
fn a_load_without_sessions_refuses_operations_that_need_one() {
    let text = "listen: true\nphases: [{for: 1s, rate: 1}]\nmix: [{method: tools/call}, {method: ping}, {method: task}]";
    let faults = Profile::parse_for(Some(Era::Stateless), text).unwrap_err().to_string();
    for fault in ["mix[1].method: ping", "mix[2].method: task", "listen:"] {
        assert!(faults.contains(fault) && !faults.contains("mix[0]"), "{faults}");
    }
    let profile = Profile::parse(
        "era: 2026-07-28\nphases: [{for: 1s, rate: 1}]\nmix: [{method: tools/call}]",
    )
    .unwrap();
    assert_eq!(profile.era, Era::Stateless);
}
