//! Schemas and arguments of well-behaved and of hostile peers.

use std::{
    sync::atomic::AtomicBool,
    thread,
    time::{Duration, Instant},
};

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::limits::arguments::ARGUMENT_STEPS_MAX;

fn check(checker: &ArgumentValidator, arguments: Option<&[u8]>) -> Result<(), Refusal> {
    checker.validate(
        arguments,
        &ValidationBudget { steps: ARGUMENT_STEPS_MAX, cancelled: Arc::default() },
    )
}

fn reason(refusal: &Refusal) -> &Value {
    refusal.data.iter().find(|(key, _)| *key == "reason").map(|(_, reason)| reason).unwrap()
}

fn checker(schema: Value) -> Result<ArgumentValidator, SchemaError> {
    ArgumentValidator::compile(schema.to_string().as_bytes())
}

fn fault(schema: Value, arguments: Value) -> Option<Refusal> {
    check(&checker(schema).unwrap(), Some(arguments.to_string().as_bytes())).err()
}

#[test]
fn arguments_that_do_not_fit_are_refused_with_their_path() {
    let schema = json!({"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}, "b": {"items": {"maxLength": 3}}},
        "additionalProperties": false});
    assert_eq!(fault(schema.clone(), json!({"a": 1, "b": ["x"]})), None);
    let refusal = fault(schema.clone(), json!({"a": "secret-value"})).unwrap();
    assert_eq!((refusal.kind.refusal_code(), refusal.kind.code()), (Some(1021), -32602));
    assert_eq!(refusal.data[0], ("path", json!("/a")));
    assert!(!refusal.message.contains("secret-value"), "{refusal}");
    assert_eq!(
        fault(schema.clone(), json!({"a": 1, "b": ["x", "long"]})).unwrap().data[0],
        ("path", json!("/b/1"))
    );
    assert_eq!(fault(schema.clone(), json!({})).unwrap().data[0], ("path", json!("")));
    assert!(check(&checker(schema).unwrap(), None).is_err(), "absent arguments are none");
    assert!(check(&checker(json!({"type": "object"})).unwrap(), None).is_ok());
}

#[test]
fn j_24_a_schema_part_with_its_own_id_is_refused() {
    let hidden =
        json!({"$id": "http://a/x", "$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"});
    for schema in [
        json!({"properties": {"x": hidden}, "$defs": {"a": true}}),
        json!({"$defs": {"outer": hidden}, "$ref": "#/$defs/outer/$defs/a"}),
        json!({"$schema": "http://json-schema.org/draft-04/schema#", "properties": {"x": {"id": "http://a/x"}}}),
    ] {
        assert!(matches!(checker(schema.clone()), Err(SchemaError::NamesItself)), "{schema}");
    }
    assert!(checker(json!({"$id": "http://a/x", "properties": {"id": {"type": "string", "examples": [{"id": "1"}]}}})).is_ok());
}

#[test]
fn recursive_schemas_are_used() {
    let tree = json!({"type": "object", "properties": {"tree": {"$ref": "#/$defs/node"}}, "$defs": {"node": {
        "type": "object", "properties": {"left": {"$ref": "#/$defs/node"}, "right": {"$ref": "#/$defs/node"}, "value": {"type": "integer"}}}}});
    assert_eq!(fault(tree.clone(), json!({"tree": {"left": {"right": {"value": 1}}}})), None);
    assert_eq!(
        fault(tree, json!({"tree": {"left": {"right": {"value": "1"}}}})).unwrap().data[0].1,
        json!("/tree/left/right/value")
    );
}

// N-SCH-02
#[test]
fn j_24_schema_bombs_are_not_compiled() {
    let doubled = |keyword: &str| {
        let level = |n: usize| json!({keyword: [{"$ref": format!("#/$defs/a{}", n + 1)}, {"$ref": format!("#/$defs/a{}", n + 1)}]});
        let mut defs: serde_json::Map<String, Value> =
            (0..60).map(|n| (format!("a{n}"), level(n))).collect();
        defs.insert("a60".into(), json!({"type": "object"}));
        json!({"$ref": "#/$defs/a0", "$defs": defs})
    };
    let nested = (0..40).fold(json!({"type": "object"}), |inner, _| json!({"allOf": [inner]}));
    let deep_doubling = json!({"$ref": "#/$defs/t", "$defs": {"t": {"additionalProperties": {"allOf": [{"$ref": "#/$defs/t"}, {"$ref": "#/$defs/t"}]}}}});
    for (schema, why) in [
        (doubled("allOf"), SchemaError::TooCostly),
        (doubled("anyOf"), SchemaError::TooCostly),
        (doubled("oneOf"), SchemaError::TooCostly),
        (nested, SchemaError::TooCostly),
        (deep_doubling, SchemaError::TooCostly),
        (json!({"$ref": "#"}), SchemaError::TooCostly),
        (
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"not": {"$ref": "#/$defs/a"}}}}),
            SchemaError::TooCostly,
        ),
        (json!({"enum": (0..30_000).collect::<Vec<_>>()}), SchemaError::TooLarge),
        (json!({"description": "x".repeat(SCHEMA_BYTES_MAX)}), SchemaError::TooLarge),
    ] {
        let started = Instant::now();
        let shown = shortened(&schema.to_string());
        assert_eq!(checker(schema).err(), Some(why), "{shown}");
        assert!(started.elapsed() < Duration::from_secs(2), "{shown}: {:?}", started.elapsed());
    }
}

#[test]
fn j_24_references_out_of_a_schema_are_refused() {
    for reference in [
        "http://127.0.0.1:1/schema",
        "file:///etc/passwd",
        "other.json",
        "#missing",
        "#/$defs/none",
        "https://json-schema.org/draft/2020-12/schema",
    ] {
        let refused = checker(json!({"properties": {"a": {"$ref": reference}}})).err();
        assert!(matches!(refused, Some(SchemaError::Reference(_))), "{reference}: {refused:?}");
    }
    assert!(matches!(
        checker(json!({"$schema": "http://127.0.0.1:1/meta"})).err(),
        Some(SchemaError::Invalid(_))
    ));
    assert!(checker(json!({"properties": {"a": {"$dynamicRef": "#x"}}})).is_err());
}

#[test]
fn j_24_patterns_take_linear_time() {
    let schema = json!({"properties": {"a": {"pattern": "^(a+)+$"}, "b": {"pattern": "^(([a-z])+.)+[A-Z]([a-z])+$"}}});
    let checker = checker(schema).unwrap();
    let started = Instant::now();
    let text = json!({"a": "a".repeat(100_000) + "!", "b": "a".repeat(100_000)}).to_string();
    assert!(check(&checker, Some(text.as_bytes())).is_err());
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    let bomb = ArgumentValidator::compile(
        json!({"properties": {"a": {"pattern": "(((a{1,1000}){1,1000}){1,1000})"}}})
            .to_string()
            .as_bytes(),
    );
    assert!(matches!(bomb, Err(SchemaError::Invalid(_))), "{bomb:?}");
}

#[test]
fn s02_oversized_arguments_are_refused_by_their_size() {
    let checker = checker(json!({})).unwrap();
    let refusal = check(&checker, Some(&vec![b' '; ARGUMENT_BYTES_MAX + 1])).unwrap_err();
    assert_eq!(reason(&refusal), "too_large");
    assert_eq!(reason(&check(&checker, Some(b"{")).unwrap_err()), "unreadable");
}

/// Returns arguments near the size limit, each with the schema that causes the most work for them.
fn hostile() -> Vec<(&'static str, Value, String)> {
    let size = ARGUMENT_BYTES_MAX - 64;
    let of = |item: &str| format!("{{\"a\":[{}]}}", vec![item; size / (item.len() + 1)].join(","));
    let object = json!({"type": "object", "required": ["x", "y"], "properties": {"x": {"type": "string"}}, "additionalProperties": false});
    let listed: Vec<Value> = (0..9_000).map(|n| json!(n)).collect();
    let texts: Vec<Value> =
        (0..900).map(|n| json!(format!("{}{n}", "x".repeat(100)))).chain([json!(1)]).collect();
    let alternatives: Vec<Value> =
        (0..300).map(|n| json!({"type": "object", "required": [n.to_string()]})).collect();
    let items = |schema: Value| json!({"properties": {"a": {"items": schema}}});
    let unlike: Vec<String> = (0..size / 10).map(|n| format!("[{n}]")).collect();
    vec![
        ("objects", items(object), of("{}")),
        ("enum of numbers", items(json!({"enum": listed})), of("9999")),
        (
            "enum of texts",
            items(json!({"enum": texts})),
            of(&format!("\"{}899\"", "x".repeat(100))),
        ),
        ("const", items(json!({"const": (0..900).collect::<Vec<_>>()})), of("0")),
        (
            "pattern",
            json!({"properties": {"a": {"pattern": "^([a-z]{1,40} ?){1,40}$"}}}),
            format!("{{\"a\":\"{}\"}}", "ab".repeat(size / 2)),
        ),
        (
            "patterns",
            items(json!({"pattern": "^(a|b|ab)*c{0,500}$"})),
            of("\"abababababababababab\""),
        ),
        (
            "uniqueItems",
            json!({"properties": {"a": {"uniqueItems": true}}}),
            format!("{{\"a\":[{}]}}", unlike.join(",")),
        ),
        ("uniqueItems inside", items(json!({"uniqueItems": true})), of("[[],[[]],[[[]]]]")),
        ("anyOf", items(json!({"anyOf": alternatives})), of("{}")),
        (
            "names",
            json!({"patternProperties": {"^(a|b|ab)*c{1,400}$": false}}),
            format!("{{\"{}\":0}}", "ab".repeat(size / 2)),
        ),
        (
            "propertyNames",
            json!({"propertyNames": {"pattern": "^(a|b|ab)*c{1,400}$"}}),
            format!("{{\"{}\":0}}", "ab".repeat(size / 2)),
        ),
    ]
}

#[test]
fn s02_hostile_schemas_and_arguments_stop_at_the_allowed_steps() {
    for (name, schema, arguments) in hostile() {
        let checker = checker(schema).unwrap();
        let allowance = ValidationBudget { steps: 200_000, cancelled: Arc::default() };
        let refusal = checker.validate(Some(arguments.as_bytes()), &allowance).unwrap_err();
        assert_eq!(reason(&refusal), "too_costly", "{name}");
        assert!(checker.try_validate_inline(Some(arguments.as_bytes())).is_none(), "{name}");
    }
}

#[test]
fn s02_a_cancelled_validation_ends() {
    for (name, schema, arguments) in hostile() {
        let checker = checker(schema).unwrap();
        // Cancelled before the validation begins, and during it.
        for early in [true, false] {
            let allowance = ValidationBudget {
                steps: u64::MAX / 2,
                cancelled: Arc::new(AtomicBool::new(early)),
            };
            thread::scope(|scope| {
                let at_work =
                    scope.spawn(|| checker.validate(Some(arguments.as_bytes()), &allowance));
                allowance.cancelled.store(true, Ordering::Relaxed);
                let ended = at_work.join().unwrap();
                assert!(ended.is_err(), "{name}");
            });
        }
    }
}

#[test]
fn s02_at_most_five_faults_are_reported() {
    let schema = json!({"properties": {"a": {"items": {"type": "object", "required": ["x"]}}}});
    let checker = checker(schema).unwrap();
    let arguments = format!("{{\"a\":[{}]}}", vec!["{}"; 300_000].join(","));
    let refusal = check(&checker, Some(arguments.as_bytes())).unwrap_err();
    let reported = refusal
        .data
        .iter()
        .find(|(key, _)| *key == "paths")
        .map(|(_, paths)| paths.clone())
        .unwrap();
    assert_eq!(reported, json!(["/a/0", "/a/1", "/a/2", "/a/3", "/a/4"]));
    assert_eq!(reason(&refusal), "mismatch");
    // Faults of alternatives end the search too. No fault is reported that exists only because of
    // the end.
    let alternatives: Vec<Value> =
        (0..40).map(|n| json!({"type": "object", "required": [n.to_string()]})).collect();
    let anyhow = json!({"properties": {"a": {"anyOf": alternatives}, "b": {"type": "object", "required": ["c"]}}});
    let refusal = fault(anyhow, json!({"a": {}, "b": {"c": 1}})).unwrap();
    let reported = refusal
        .data
        .iter()
        .find(|(key, _)| *key == "paths")
        .map(|(_, paths)| paths.clone())
        .unwrap();
    assert_eq!(reported, json!(["/a"]));
}

#[test]
fn s02_schemas_that_would_be_large_once_compiled_are_not_compiled() {
    let parts: serde_json::Map<String, Value> =
        (0..3_000).map(|n| (format!("p{n}"), json!({"type": "string"}))).collect();
    let long_paths = json!({"properties": {"x".repeat(100_000): {"properties": parts}}});
    let patterns: Vec<Value> =
        (0..2_000).map(|n| json!({"pattern": format!("^\\w{{1,{}}}$", 400 + n % 7)})).collect();
    let names: serde_json::Map<String, Value> =
        (0..200).map(|n| (format!("^[a-z]{{1,9}}{n}$"), json!(true))).collect();
    let properties: serde_json::Map<String, Value> =
        patterns.into_iter().enumerate().map(|(n, part)| (n.to_string(), part)).collect();
    for (name, schema) in [
        ("long paths", long_paths),
        ("patterns", json!({ "properties": properties })),
        ("patterns of names", json!({ "patternProperties": names })),
    ] {
        assert!(schema.to_string().len() <= SCHEMA_BYTES_MAX, "{name}");
        assert_eq!(checker(schema).err(), Some(SchemaError::TooLargeCompiled), "{name}");
    }
}

#[test]
fn s02_ordinary_calls_are_checked_inline() {
    let schema = json!({"type": "object", "required": ["path"], "additionalProperties": false, "properties": {
        "path": {"type": "string", "minLength": 1}, "id": {"pattern": "^[0-9a-f]{8}-[0-9a-f]{4}$"},
        "mode": {"enum": ["read", "write"]}, "lines": {"type": "array", "items": {"type": "integer"}, "uniqueItems": true}}});
    let checker = checker(schema).unwrap();
    let fitting = json!({"path": "/srv/a/b.txt", "id": "0123abcd-4567", "mode": "read", "lines": (0..100).collect::<Vec<_>>()});
    assert_eq!(checker.try_validate_inline(Some(fitting.to_string().as_bytes())), Some(Ok(())));
    let unfit = json!({"path": "", "id": "x", "lines": [1, 1.0]});
    let refusal =
        checker.try_validate_inline(Some(unfit.to_string().as_bytes())).unwrap().unwrap_err();
    assert_eq!(
        refusal.data.iter().find(|(key, _)| *key == "paths").unwrap().1.as_array().unwrap().len(),
        3,
        "{refusal:?}"
    );
    let large = json!({"path": "x".repeat(ARGUMENT_BYTES_AT_ONCE_MAX)});
    assert_eq!(checker.try_validate_inline(Some(large.to_string().as_bytes())), None);
}

#[test]
fn s02_formats_are_checked_within_bounds() {
    let schema = |format: &str| json!({"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"a": {"format": format}}});
    for (format, good, bad) in [
        ("email", "a@example.com", "a"),
        ("hostname", "example.com", "-a-host-name-that-starts-with--"),
        ("regex", "^a(b|c)*$", "a("),
        ("date-time", "2026-11-23T11:00:00Z", "yesterday"),
    ] {
        assert_eq!(fault(schema(format), json!({"a": good})), None, "{format}");
        let refusal = fault(schema(format), json!({"a": bad}));
        assert_eq!(refusal.map(|refusal| refusal.data[0].1.clone()), Some(json!("/a")), "{format}");
    }
    assert!(fault(schema("regex"), json!({"a": "a".repeat(3_000)})).is_some());
}

/// Generates simple values from a small range, so that equal ones are frequent.
fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!(null)),
        any::<bool>().prop_map(Value::from),
        prop_oneof![
            Just(json!(0)),
            Just(json!(1)),
            Just(json!(1.0)),
            Just(json!(-1)),
            Just(json!(2.5)),
            Just(json!(1e20)),
            Just(json!(u64::MAX))
        ],
        prop_oneof![Just("a"), Just("ab"), Just("b"), Just(""), Just("é\n")].prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::btree_map("[a-e]", inner.clone(), 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
            // Enough members for a binary search.
            prop::collection::btree_map("[a-z]", inner, 9..14)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

fn schemas() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        prop_oneof![
            Just("string"),
            Just("integer"),
            Just("number"),
            Just("object"),
            Just("array"),
            Just("null")
        ]
        .prop_map(|kind| json!({"type": kind})),
        prop::collection::vec(values(), 1..4).prop_map(|values| json!({"enum": values})),
        values().prop_map(|value| json!({"const": value})),
        prop_oneof![Just("^a"), Just("b$"), Just("^(a|b)*$"), Just("\\s"), Just("[^a]")]
            .prop_map(|pattern| json!({"pattern": pattern})),
        Just(json!({"uniqueItems": true})),
        (0..3_u64).prop_map(
            |n| json!({"minLength": n, "maxItems": n + 1, "minProperties": n, "maximum": n})
        ),
        prop::collection::btree_set("[a-e]", 0..3).prop_map(|names| json!({"required": names})),
        Just(json!({"multipleOf": 0.5})),
        Just(json!(false)),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        let map = |names| prop::collection::btree_map(names, inner.clone(), 0..4);
        let list = prop::collection::vec(inner.clone(), 1..4);
        prop_oneof![
            (map("[a-e]"), inner.clone()).prop_map(|(properties, rest)| json!({"properties": properties, "additionalProperties": rest})),
            (inner.clone(), inner.clone()).prop_map(|(first, rest)| json!({"prefixItems": [first], "items": rest})),
            (map("[a-c]"), inner.clone()).prop_map(|(patterns, names)| json!({"patternProperties": patterns, "propertyNames": names})),
            list.clone().prop_map(|all| json!({"allOf": all})),
            list.clone().prop_map(|any| json!({"anyOf": any})),
            list.prop_map(|one| json!({"oneOf": one})),
            inner.clone().prop_map(|not| json!({"not": not})),
            (inner.clone(), inner.clone(), inner.clone()).prop_map(|(a, b, c)| json!({"if": a, "then": b, "else": c})),
            inner.clone().prop_map(|contains| json!({"contains": contains, "maxContains": 2})),
            inner
                .clone()
                .prop_map(|part| json!({"$defs": {"d": part}, "properties": {"a": {"$ref": "#/$defs/d"}}, "unevaluatedProperties": false})),
            inner.prop_map(|part| json!({"prefixItems": [part], "unevaluatedItems": false})),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn s02_the_verdict_equals_that_over_plain_values(schema in schemas(), arguments in values()) {
        // References are to the root: a part with its own definitions would be another schema.
        let schema = if schema.to_string().matches("$defs").count() > 2 { json!({}) } else { schema };
        let plain = jsonschema::options().with_pattern_options(PatternOptions::regex()).build(&schema);
        let Ok(plain) = plain else { return Ok(()) };
        let Ok(checker) = checker(schema.clone()) else { return Ok(()) };
        let text = arguments.to_string();
        let verdict = check(&checker, Some(text.as_bytes()));
        let paths: Vec<String> = plain.iter_errors(&arguments).map(|fault| fault.instance_path().as_str().to_owned()).collect();
        prop_assert_eq!(verdict.is_ok(), paths.is_empty(), "{} {}", schema, text);
        if let Err(refusal) = verdict {
            let reported = refusal.data.iter().find(|(key, _)| *key == "paths").map(|(_, paths)| paths.clone()).unwrap_or_default();
            let reported: Vec<&str> = reported.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            prop_assert!(!reported.is_empty() && reported.len() <= FAULTS_REPORTED_MAX);
            prop_assert!(reported.iter().all(|path| paths.iter().any(|known| known == path)), "{:?} {:?} {} {}", reported, paths, schema, text);
        }
    }
}
