//! Holds the arguments of a call to its tool's `inputSchema`, within bounds of size, depth and time.
//!
//! A backend's schema is a stranger's program: before it is compiled, [`cost`] counts how much work it can make of one place
//! in the arguments, following every reference. One that can make much of little, that refers to anything outside of itself
//! or that never ends is not used. Patterns are matched in linear time. Invariant: nothing is ever fetched.

use std::collections::HashMap;

use jsonschema::{PatternOptions, Validator};
use protocol::error::{ErrorKind, Refusal};
use serde_json::Value;

use crate::limits::{
    ARGUMENT_BYTES_MAX, ARGUMENT_CHECKS_MAX, FAULT_CHARS_MAX, FAULTS_TOLD_MAX, PATTERN_COMPILED_BYTES_MAX, SCHEMA_BYTES_MAX,
    SCHEMA_COST_MAX, SCHEMA_DEPTH_MAX, SCHEMA_NESTING_MAX, SCHEMA_NODES_MAX,
};

/// Why a schema is not used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SchemaError {
    #[error("it is larger than {SCHEMA_BYTES_MAX} bytes or has more than {SCHEMA_NODES_MAX} parts")]
    TooLarge,
    #[error("it refers to {0:?}, which is not inside of it")]
    Reference(String),
    #[error("it refers to itself without end, or one place in the arguments would be looked at too often")]
    TooCostly,
    #[error("a part of it has a name of its own (`$id`), which only the whole may have")]
    NamesItself,
    #[error("it is no schema: {0}")]
    Invalid(String),
}

/// A schema that may be asked.
#[derive(Debug)]
pub struct Checker {
    validator: Validator,
    /// How often one place in the arguments is looked at, at most.
    cost: u64,
}

impl Checker {
    pub fn compile(schema: &[u8]) -> Result<Self, SchemaError> {
        if schema.len() > SCHEMA_BYTES_MAX {
            return Err(SchemaError::TooLarge);
        }
        let schema: Value = serde_json::from_slice(schema).map_err(|error| SchemaError::Invalid(error.to_string()))?;
        if nodes(&schema) > SCHEMA_NODES_MAX {
            return Err(SchemaError::TooLarge);
        }
        let cost = cost(&schema)?;
        let patterns = PatternOptions::regex().size_limit(PATTERN_COMPILED_BYTES_MAX).dfa_size_limit(PATTERN_COMPILED_BYTES_MAX);
        let validator = jsonschema::options()
            .with_pattern_options(patterns)
            .build(&schema)
            .map_err(|error| SchemaError::Invalid(shortened(&error.to_string())))?;
        Ok(Self { validator, cost })
    }

    /// `arguments` as the client wrote them; absent ones are none.
    pub fn check(&self, arguments: Option<&[u8]>) -> Result<(), Refusal> {
        let text = arguments.unwrap_or(b"{}");
        if text.len() > ARGUMENT_BYTES_MAX {
            let text = format!("arguments that are held to a schema have at most {ARGUMENT_BYTES_MAX} bytes");
            return Err(refused("", &text));
        }
        let arguments: Value = serde_json::from_slice(text).map_err(|_| refused("", "the arguments can not be read"))?;
        if self.cost.saturating_mul(nodes(&arguments) as u64) > ARGUMENT_CHECKS_MAX {
            return Err(refused("", "the arguments have too many parts to be held to the tool's schema"));
        }
        let faults: Vec<_> = self.validator.iter_errors(&arguments).take(FAULTS_TOLD_MAX).collect();
        let Some(first) = faults.first() else { return Ok(()) };
        let place = |fault: &jsonschema::ValidationError<'_>| shortened(fault.instance_path().as_str());
        let keyword = first.kind().keyword().to_owned();
        let all: Vec<Value> = faults.iter().map(|fault| place(fault).into()).collect();
        // Paths hold what the client wrote: they are for the client, and not for the log.
        let text = format!("the arguments do not fit the tool's inputSchema ({keyword})");
        Err(refused(&place(first), &text).with("keyword", keyword).with("paths", all))
    }
}

fn refused(path: &str, text: &str) -> Refusal {
    Refusal::new(ErrorKind::ArgumentsInvalid, text).with("path", path)
}

fn shortened(text: &str) -> String {
    text.chars().take(FAULT_CHARS_MAX).collect()
}

/// Values in a value, itself included.
fn nodes(value: &Value) -> usize {
    let mut waiting = vec![value];
    let mut count = 0;
    while let Some(value) = waiting.pop() {
        count += 1;
        match value {
            Value::Array(items) => waiting.extend(items),
            Value::Object(members) => waiting.extend(members.values()),
            _ => {}
        }
    }
    count
}

/// How often one place in the arguments can be looked at.
fn cost(schema: &Value) -> Result<u64, SchemaError> {
    // Draft 4 and earlier have no `$` before it; later ones let tools have an argument's value like that.
    let is_old = schema.get("$schema").and_then(Value::as_str).is_some_and(|url| url.contains("draft-03") || url.contains("draft-04"));
    let name = if is_old { "id" } else { "$id" };
    if schema.as_object().is_some_and(|members| members.values().any(|part| names_itself(part, name))) {
        return Err(SchemaError::NamesItself);
    }
    let mut costs = Costs { root: schema, known: HashMap::new() };
    let mut worst = 0;
    for depth in 0..=SCHEMA_DEPTH_MAX {
        worst = worst.max(costs.of(schema, depth, 0)?);
        if worst > SCHEMA_COST_MAX {
            return Err(SchemaError::TooCostly);
        }
    }
    Ok(worst)
}

/// Below a name of its own, references mean other places than those that are looked at here.
fn names_itself(value: &Value, name: &str) -> bool {
    match value {
        Value::Object(members) => members.get(name).is_some_and(Value::is_string) || members.values().any(|part| names_itself(part, name)),
        Value::Array(items) => items.iter().any(|part| names_itself(part, name)),
        _ => false,
    }
}

/// Subschemas that speak of the same place.
const IN_PLACE: [&str; 5] = ["not", "if", "then", "else", "propertyNames"];
const IN_PLACE_LISTS: [&str; 3] = ["allOf", "anyOf", "oneOf"];
const IN_PLACE_MAPS: [&str; 2] = ["dependentSchemas", "dependencies"];
/// Subschemas that speak of any place below.
const BELOW: [&str; 6] = ["additionalProperties", "unevaluatedProperties", "items", "additionalItems", "unevaluatedItems", "contains"];

struct Costs<'s> {
    root: &'s Value,
    /// By subschema and how much deeper the place is. `None` while it is being found out.
    known: HashMap<(*const Value, usize), Option<u64>>,
}

impl<'s> Costs<'s> {
    /// How often a place `depth` levels below is looked at, at most, when this subschema is applied once.
    fn of(&mut self, schema: &'s Value, depth: usize, nesting: usize) -> Result<u64, SchemaError> {
        let Value::Object(members) = schema else { return Ok(u64::from(depth == 0)) };
        if nesting > SCHEMA_NESTING_MAX {
            return Err(SchemaError::TooCostly);
        }
        let key = (std::ptr::from_ref(schema), depth);
        match self.known.get(&key) {
            Some(Some(known)) => return Ok(*known),
            Some(None) => return Err(SchemaError::TooCostly), // it leads back to itself in the same place
            None => drop(self.known.insert(key, None)),
        }
        let mut sum = u64::from(depth == 0);
        let mut add = |cost: u64| sum = sum.saturating_add(cost);
        for name in ["$dynamicRef", "$recursiveRef"] {
            if let Some(reference) = members.get(name) {
                return Err(SchemaError::Reference(shortened(&reference.to_string())));
            }
        }
        if let Some(reference) = members.get("$ref") {
            add(self.of(self.target(reference)?, depth, nesting + 1)?);
        }
        for name in IN_PLACE {
            if let Some(subschema) = members.get(name) {
                add(self.of(subschema, depth, nesting + 1)?);
            }
        }
        for subschema in IN_PLACE_LISTS.iter().filter_map(|name| members.get(*name)?.as_array()).flatten() {
            add(self.of(subschema, depth, nesting + 1)?);
        }
        for subschema in IN_PLACE_MAPS.iter().filter_map(|name| members.get(*name)?.as_object()).flat_map(|map| map.values()) {
            add(self.of(subschema, depth, nesting + 1)?);
        }
        if depth > 0 {
            add(self.below(members, depth - 1)?);
        }
        self.known.insert(key, Some(sum));
        Ok(sum)
    }

    /// A value has one name or number: of those that are listed, one applies. Everything else may apply beside it.
    fn below(&mut self, members: &'s serde_json::Map<String, Value>, depth: usize) -> Result<u64, SchemaError> {
        let mut sum: u64 = 0;
        for name in BELOW {
            for subschema in
                members.get(name).into_iter().flat_map(|value| value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice))
            {
                sum = sum.saturating_add(self.of(subschema, depth, 0)?);
            }
        }
        for subschema in members.get("patternProperties").and_then(Value::as_object).into_iter().flat_map(|map| map.values()) {
            sum = sum.saturating_add(self.of(subschema, depth, 0)?);
        }
        let named = members.get("properties").and_then(Value::as_object).into_iter().flat_map(|map| map.values());
        let numbered = members.get("prefixItems").and_then(Value::as_array).into_iter().flatten();
        let mut worst: u64 = 0;
        for subschema in named.chain(numbered) {
            worst = worst.max(self.of(subschema, depth, 0)?);
        }
        Ok(sum.saturating_add(worst))
    }

    /// What a reference names: a place in this very schema, or nothing that is looked for.
    fn target(&self, reference: &Value) -> Result<&'s Value, SchemaError> {
        let outside = || SchemaError::Reference(shortened(&reference.to_string()));
        let pointer = reference.as_str().and_then(|text| text.strip_prefix('#')).ok_or_else(outside)?;
        if pointer.contains('%') {
            return Err(outside());
        }
        self.root.pointer(pointer).ok_or_else(outside)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use serde_json::json;

    use super::*;

    fn checker(schema: Value) -> Result<Checker, SchemaError> {
        Checker::compile(schema.to_string().as_bytes())
    }

    fn fault(schema: Value, arguments: Value) -> Option<Refusal> {
        checker(schema).unwrap().check(Some(arguments.to_string().as_bytes())).err()
    }

    #[test]
    fn arguments_that_do_not_fit_are_refused_with_their_place() {
        let schema = json!({"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}, "b": {"items": {"maxLength": 3}}},
            "additionalProperties": false});
        assert_eq!(fault(schema.clone(), json!({"a": 1, "b": ["x"]})), None);
        let refusal = fault(schema.clone(), json!({"a": "secret-value"})).unwrap();
        assert_eq!((refusal.kind.refusal_code(), refusal.kind.code()), (Some(1021), -32602));
        assert_eq!(refusal.data[0], ("path", json!("/a")));
        assert!(!refusal.message.contains("secret-value"), "{refusal}");
        assert_eq!(fault(schema.clone(), json!({"a": 1, "b": ["x", "long"]})).unwrap().data[0], ("path", json!("/b/1")));
        assert_eq!(fault(schema.clone(), json!({})).unwrap().data[0], ("path", json!("")));
        assert!(checker(schema).unwrap().check(None).is_err(), "absent arguments are none");
        assert!(checker(json!({"type": "object"})).unwrap().check(None).is_ok());
    }

    #[test]
    fn j_24_a_part_with_a_name_of_its_own_is_not_used() {
        let hidden = json!({"$id": "http://a/x", "$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"});
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
        assert_eq!(fault(tree, json!({"tree": {"left": {"right": {"value": "1"}}}})).unwrap().data[0].1, json!("/tree/left/right/value"));
    }

    // N-SCH-02
    #[test]
    fn j_24_schema_bombs_are_not_compiled() {
        let doubled = |keyword: &str| {
            let level = |n: usize| json!({keyword: [{"$ref": format!("#/$defs/a{}", n + 1)}, {"$ref": format!("#/$defs/a{}", n + 1)}]});
            let mut defs: serde_json::Map<String, Value> = (0..60).map(|n| (format!("a{n}"), level(n))).collect();
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
            let begun = Instant::now();
            let shown = shortened(&schema.to_string());
            assert_eq!(checker(schema).err(), Some(why), "{shown}");
            assert!(begun.elapsed() < Duration::from_secs(2), "{shown}: {:?}", begun.elapsed());
        }
    }

    #[test]
    fn j_24_nothing_outside_of_a_schema_is_looked_for() {
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
        assert!(matches!(checker(json!({"$schema": "http://127.0.0.1:1/meta"})).err(), Some(SchemaError::Invalid(_))));
        assert!(checker(json!({"properties": {"a": {"$dynamicRef": "#x"}}})).is_err());
    }

    #[test]
    fn j_24_patterns_take_linear_time() {
        let schema = json!({"properties": {"a": {"pattern": "^(a+)+$"}, "b": {"pattern": "^(([a-z])+.)+[A-Z]([a-z])+$"}}});
        let checker = checker(schema).unwrap();
        let begun = Instant::now();
        let text = json!({"a": "a".repeat(100_000) + "!", "b": "a".repeat(100_000)}).to_string();
        assert!(checker.check(Some(text.as_bytes())).is_err());
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        let bomb = Checker::compile(json!({"properties": {"a": {"pattern": "(((a{1,1000}){1,1000}){1,1000})"}}}).to_string().as_bytes());
        assert!(matches!(bomb, Err(SchemaError::Invalid(_))), "{bomb:?}");
    }

    #[test]
    fn arguments_without_measure_are_refused_before_any_work() {
        let costly: Vec<Value> = (0..200).map(|n| json!({"minProperties": n})).collect();
        let checker = checker(json!({"additionalProperties": {"anyOf": costly}})).unwrap();
        let many: serde_json::Map<String, Value> = (0..20_000).map(|n| (n.to_string(), json!({}))).collect();
        assert!(checker.check(Some(Value::Object(many).to_string().as_bytes())).is_err());
        assert!(checker.check(Some(&vec![b' '; ARGUMENT_BYTES_MAX + 1])).is_err());
        assert!(checker.check(Some(b"{")).is_err());
    }
}
