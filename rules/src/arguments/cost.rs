//! Cost of a schema, computed before it is compiled: visits of one location in the arguments, and
//! memory of the compiled schema.
//!
//! Invariant: every reference is followed. A reference out of the schema, or without an end, is an
//! error.

use std::collections::HashMap;

use serde_json::Value;

use super::{SchemaError, shortened};
use crate::limits::arguments::{SCHEMA_COST_MAX, SCHEMA_DEPTH_MAX, SCHEMA_NESTING_MAX};

/// Bytes of a part of a compiled schema, in addition to its location and its text.
const PART_BYTES: usize = 512;
/// Copies that a compiled schema keeps of the location of each part.
const PATH_COPIES: usize = 6;

/// Returns an upper bound of the bytes of the compiled schema, without its patterns. Each part
/// holds its location, so long names above many parts cost the most. Negations, enumerations and
/// constants are also kept for their faults.
pub(super) fn compiled_bytes(schema: &Value) -> usize {
    weight(schema, 0).1
}

/// Returns the bytes of a part's values and its compiled bytes. `path_bytes` is the length of its
/// location.
fn weight(part: &Value, path_bytes: usize) -> (usize, usize) {
    let own = PART_BYTES.saturating_add(PATH_COPIES * path_bytes);
    match part {
        Value::Object(members) => {
            members.iter().fold((PART_BYTES / 4, own), |(values, compiled), (name, member)| {
                let (member_values, member_compiled) = weight(member, path_bytes + name.len() + 1);
                let member_compiled = match (name.as_str(), member) {
                    // Values, not schemas. Only an enumeration is an array under this name.
                    ("enum", Value::Array(_)) => 4 * member_values,
                    ("not" | "const", _) => member_compiled.saturating_add(4 * member_values),
                    _ => member_compiled,
                };
                let named = values.saturating_add(member_values).saturating_add(name.len());
                (named, compiled.saturating_add(member_compiled).saturating_add(4 * name.len()))
            })
        }
        Value::Array(items) => {
            items.iter().fold((PART_BYTES / 4, own), |(values, compiled), item| {
                let (item_values, item_compiled) = weight(item, path_bytes + 6);
                (values.saturating_add(item_values), compiled.saturating_add(item_compiled))
            })
        }
        Value::String(text) => (PART_BYTES / 4 + text.len(), own.saturating_add(2 * text.len())),
        _ => (PART_BYTES / 4, own),
    }
}

/// Returns the number of visits of one location in the arguments.
pub(super) fn cost(schema: &Value) -> Result<u64, SchemaError> {
    // Draft 4 and earlier use `id`. In later drafts, an argument may have that name.
    let is_old = schema
        .get("$schema")
        .and_then(Value::as_str)
        .is_some_and(|url| url.contains("draft-03") || url.contains("draft-04"));
    let name = if is_old { "id" } else { "$id" };
    if schema
        .as_object()
        .is_some_and(|members| members.values().any(|part| names_itself(part, name)))
    {
        return Err(SchemaError::NamesItself);
    }
    let mut costs = CostCounter { root: schema, known: HashMap::new() };
    let mut worst = 0;
    for depth in 0..=SCHEMA_DEPTH_MAX {
        worst = worst.max(costs.of(schema, depth, 0)?);
        if worst > SCHEMA_COST_MAX {
            return Err(SchemaError::TooCostly);
        }
    }
    Ok(worst)
}

/// Returns whether a part has an id. Below such a part, references have other targets than this
/// count assumes.
fn names_itself(value: &Value, name: &str) -> bool {
    match value {
        Value::Object(members) => {
            members.get(name).is_some_and(Value::is_string)
                || members.values().any(|part| names_itself(part, name))
        }
        Value::Array(items) => items.iter().any(|part| names_itself(part, name)),
        _ => false,
    }
}

/// Keywords with subschemas for the same location.
const IN_PLACE: [&str; 5] = ["not", "if", "then", "else", "propertyNames"];
const IN_PLACE_LISTS: [&str; 3] = ["allOf", "anyOf", "oneOf"];
const IN_PLACE_MAPS: [&str; 2] = ["dependentSchemas", "dependencies"];
/// Keywords with subschemas for locations below.
const BELOW: [&str; 6] = [
    "additionalProperties",
    "unevaluatedProperties",
    "items",
    "additionalItems",
    "unevaluatedItems",
    "contains",
];

struct CostCounter<'s> {
    root: &'s Value,
    /// Visits by subschema and depth. `None` while they are being counted.
    known: HashMap<(*const Value, usize), Option<u64>>,
}

impl<'s> CostCounter<'s> {
    /// Returns an upper bound of the visits of a location `depth` levels below, per use of this
    /// subschema.
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
            if members.contains_key(name) {
                return Err(SchemaError::DynamicReference(name));
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
        for subschema in
            IN_PLACE_LISTS.iter().filter_map(|name| members.get(*name)?.as_array()).flatten()
        {
            add(self.of(subschema, depth, nesting + 1)?);
        }
        for subschema in IN_PLACE_MAPS
            .iter()
            .filter_map(|name| members.get(*name)?.as_object())
            .flat_map(|map| map.values())
        {
            add(self.of(subschema, depth, nesting + 1)?);
        }
        if depth > 0 {
            add(self.below(members, depth - 1)?);
        }
        self.known.insert(key, Some(sum));
        Ok(sum)
    }

    /// Adds the visits below. A value has one name or index, so only one of the named subschemas
    /// applies. All other subschemas may apply in addition.
    fn below(
        &mut self,
        members: &'s serde_json::Map<String, Value>,
        depth: usize,
    ) -> Result<u64, SchemaError> {
        let mut sum: u64 = 0;
        for name in BELOW {
            for subschema in members.get(name).into_iter().flat_map(|value| {
                value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice)
            }) {
                sum = sum.saturating_add(self.of(subschema, depth, 0)?);
            }
        }
        for subschema in members
            .get("patternProperties")
            .and_then(Value::as_object)
            .into_iter()
            .flat_map(|map| map.values())
        {
            sum = sum.saturating_add(self.of(subschema, depth, 0)?);
        }
        let named = members
            .get("properties")
            .and_then(Value::as_object)
            .into_iter()
            .flat_map(|map| map.values());
        let numbered = members.get("prefixItems").and_then(Value::as_array).into_iter().flatten();
        let mut worst: u64 = 0;
        for subschema in named.chain(numbered) {
            worst = worst.max(self.of(subschema, depth, 0)?);
        }
        Ok(sum.saturating_add(worst))
    }

    /// Returns the target of a reference, which must be in this schema.
    fn target(&self, reference: &Value) -> Result<&'s Value, SchemaError> {
        let outside = || SchemaError::Reference(shortened(&reference.to_string()));
        let pointer =
            reference.as_str().and_then(|text| text.strip_prefix('#')).ok_or_else(outside)?;
        if pointer.contains('%') {
            return Err(outside());
        }
        self.root.pointer(pointer).ok_or_else(outside)
    }
}
