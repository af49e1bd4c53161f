//! Reads a body (a tenant, a backend, a request of the admin API) into its type.
//!
//! The type is the grammar. serde and utoipa derive from the same struct and the same attributes:
//! utoipa makes the schema that the admin API publishes, serde makes the value. serde stops at the
//! first fault. The walk along the schema runs before serde and reports every fault.
//!
//! Invariants: a body with a fault is never returned as its type. A fault does not show a text that
//! may be a secret. A member that is `null` is absent.

use std::{collections::BTreeMap, marker::PhantomData};

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use serde_path_to_error::Segment;
use utoipa::{
    ToSchema,
    openapi::{
        RefOr, Schema,
        schema::{AdditionalProperties, Array, ArrayItems, Object, SchemaType, Type},
    },
};

use super::{
    field_error::{FieldError, describe, element, invalid_value, join, unknown},
    units::WrittenUnit,
};

/// Member that names the variant of a map.
const TAG: &str = "type";

/// Reads bodies of one type, by the schema that utoipa derives for it.
pub struct BodySchema<T> {
    root: RefOr<Schema>,
    /// Schemas that other schemas refer to, by name.
    components: BTreeMap<String, RefOr<Schema>>,
    body: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned + ToSchema> BodySchema<T> {
    pub fn new() -> Self {
        let mut components = Vec::new();
        T::schemas(&mut components);
        Self { root: T::schema(), components: components.into_iter().collect(), body: PhantomData }
    }

    /// Returns the body as its type, or every fault of its shape.
    pub fn read(&self, body: &Value) -> Result<T, Vec<FieldError>> {
        let mut body = body.clone();
        let mut walk = Walk { components: &self.components, faults: Vec::new() };
        walk.check("", &self.root, &mut body);
        if !walk.faults.is_empty() {
            return Err(walk.faults);
        }
        serde_path_to_error::deserialize(body).map_err(|error| {
            let path = error.path().iter().fold(String::new(), |path, segment| match segment {
                Segment::Seq { index } => element(&path, *index),
                Segment::Map { key } => join(&path, key),
                Segment::Enum { variant } => join(&path, variant),
                Segment::Unknown => path,
            });
            vec![FieldError::new(path, format!("is not accepted: {}", error.inner()), "")]
        })
    }
}

impl<T: DeserializeOwned + ToSchema> Default for BodySchema<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// One walk through a body along its schema.
struct Walk<'s> {
    components: &'s BTreeMap<String, RefOr<Schema>>,
    faults: Vec<FieldError>,
}

impl<'s> Walk<'s> {
    fn resolve(&self, schema: &'s RefOr<Schema>) -> Option<&'s Schema> {
        match schema {
            RefOr::T(schema) => Some(schema),
            RefOr::Ref(reference) => {
                let name = reference.ref_location.rsplit('/').next()?;
                self.resolve(self.components.get(name)?)
            }
        }
    }

    /// Adds every fault of the value. Removes members that are `null`.
    fn check(&mut self, path: &str, schema: &'s RefOr<Schema>, value: &mut Value) {
        let refused = match (self.resolve(schema), value) {
            (Some(Schema::OneOf(union)), value) => {
                return self.check_union(path, schema, &union.items, value);
            }
            (Some(Schema::Array(array)), Value::Array(entries)) => {
                return self.check_list(path, array, entries);
            }
            (Some(Schema::Object(object)), Value::Object(members)) if is_map(object) => {
                return self.check_map(path, object, members);
            }
            (Some(Schema::Object(object)), value) => scalar_problem(object, value),
            (Some(Schema::Array(_)), value) => Some(mismatch(value)),
            // Bodies use no other kind of schema. serde refuses a value that does not fit.
            _ => None,
        };
        if let Some(problem) = refused {
            self.report(path, problem, schema);
        }
    }

    fn check_list(&mut self, path: &str, array: &'s Array, entries: &mut [Value]) {
        let ArrayItems::RefOrSchema(entry) = &array.items else { return };
        for (index, value) in entries.iter_mut().enumerate() {
            self.check(&element(path, index), entry, value);
        }
    }

    fn check_map(&mut self, path: &str, object: &'s Object, members: &mut Map<String, Value>) {
        let Some(AdditionalProperties::RefOr(entry)) = object.additional_properties.as_deref()
        else {
            return self.check_struct(path, object, members);
        };
        if self.takes(entry, &Value::Null) {
            members.retain(|_, value| !value.is_null());
        }
        for (name, value) in members {
            self.check(&join(path, name), entry, value);
        }
    }

    /// Checks a map whose keys are fixed.
    fn check_struct(&mut self, path: &str, object: &'s Object, members: &mut Map<String, Value>) {
        let known = object.properties.keys().map(String::as_str);
        let others = members.keys().filter(|name| !object.properties.contains_key(*name));
        self.faults.extend(others.map(|name| unknown(path, name, known.clone())));
        members.retain(|_, value| !value.is_null());
        for (name, schema) in &object.properties {
            let path = join(path, name);
            match members.get_mut(name) {
                Some(value) => self.check(&path, schema, value),
                None if object.required.contains(name) => {
                    self.report(&path, "is missing".to_owned(), schema);
                }
                None => {}
            }
        }
    }

    /// Checks a union: the variant that the tag names, or the branch of the value's type.
    fn check_union(
        &mut self,
        path: &str,
        schema: &'s RefOr<Schema>,
        branches: &'s [RefOr<Schema>],
        value: &mut Value,
    ) {
        let tags = self.tags(branches);
        let branch = if tags.is_empty() {
            branches.iter().find(|branch| self.takes(branch, value))
        } else if let Some(members) = value.as_object() {
            let tag = members.get(TAG).and_then(Value::as_str);
            let branch = tag.and_then(|tag| tags.iter().find(|(known, _)| *known == tag));
            let Some((_, branch)) = branch else {
                let problem = match tag {
                    Some(_) => format!("is not a known {}", kind_of_thing(path)),
                    None => "is missing or not text".to_owned(),
                };
                return self.faults.push(FieldError::new(join(path, TAG), problem, names(&tags)));
            };
            Some(*branch)
        } else {
            None
        };
        match branch {
            Some(branch) => self.check(path, branch, value),
            None => self.report(path, mismatch(value), schema),
        }
    }

    /// Returns the variants of a tagged union by their tags, and nothing for another union.
    fn tags(&self, branches: &'s [RefOr<Schema>]) -> Vec<(&'s str, &'s RefOr<Schema>)> {
        let tag = |branch| match self.resolve(branch)? {
            Schema::Object(object) => match self.resolve(object.properties.get(TAG)?)? {
                Schema::Object(tag) => tag.enum_values.as_ref()?.first()?.as_str(),
                _ => None,
            },
            _ => None,
        };
        branches.iter().filter_map(|branch| Some((tag(branch)?, branch))).collect()
    }

    /// Returns whether the schema accepts the type of this value.
    fn takes(&self, schema: &'s RefOr<Schema>, value: &Value) -> bool {
        match self.resolve(schema) {
            Some(Schema::Object(object)) => types(object).iter().any(|kind| match kind {
                Type::Object => value.is_object(),
                Type::String => value.is_string(),
                Type::Integer | Type::Number => value.is_number(),
                Type::Boolean => value.is_boolean(),
                Type::Array => value.is_array(),
                Type::Null => value.is_null(),
            }),
            Some(Schema::Array(_)) => value.is_array(),
            Some(Schema::OneOf(union)) => {
                union.items.iter().any(|branch| self.takes(branch, value))
            }
            _ => false,
        }
    }

    fn report(&mut self, path: &str, problem: String, schema: &'s RefOr<Schema>) {
        let mut allowed = self.alternatives(schema);
        let last = allowed.pop().unwrap_or_default();
        let allowed = match allowed.is_empty() {
            true => last,
            false => format!("{} or {last}", allowed.join(", ")),
        };
        self.faults.push(FieldError::new(path, problem, allowed));
    }

    /// Returns the values that the schema accepts, as text.
    fn alternatives(&self, schema: &'s RefOr<Schema>) -> Vec<String> {
        match self.resolve(schema) {
            Some(Schema::Object(object)) => self.object_alternatives(object),
            Some(Schema::Array(array)) => match &array.items {
                ArrayItems::RefOrSchema(entry) if self.takes(entry, &Value::from("")) => {
                    vec!["a list of texts".to_owned()]
                }
                _ => vec!["a list".to_owned()],
            },
            Some(Schema::OneOf(union)) => {
                let tags = self.tags(&union.items);
                if !tags.is_empty() {
                    let tags = names(&tags);
                    return vec![format!("a map with `{TAG}` ({tags}) and the matching members")];
                }
                union.items.iter().flat_map(|branch| self.alternatives(branch)).collect()
            }
            _ => Vec::new(),
        }
    }

    fn object_alternatives(&self, object: &'s Object) -> Vec<String> {
        let allowed = match type_of(object) {
            Some(Type::Boolean) => return vec!["true".to_owned(), "false".to_owned()],
            Some(Type::String) => match (&object.enum_values, WrittenUnit::of(object)) {
                (Some(values), _) => {
                    values.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", ")
                }
                (None, Some(unit)) => unit.allowed().to_owned(),
                (None, None) => "text (in quotes)".to_owned(),
            },
            Some(Type::Integer) => "a whole number".to_owned(),
            Some(Type::Number) => match (&object.minimum, &object.maximum) {
                (Some(min), Some(max)) => {
                    format!("a number from {} to {}", number(min), number(max))
                }
                _ => "a number".to_owned(),
            },
            Some(Type::Object) => match object.additional_properties.as_deref() {
                Some(AdditionalProperties::RefOr(entry)) => {
                    format!("a map from name to {}", self.alternatives(entry).join(" or "))
                }
                _ => {
                    let known: Vec<&str> = object.properties.keys().map(String::as_str).collect();
                    format!("a map with {}", known.join(", "))
                }
            },
            Some(Type::Array | Type::Null) | None => return Vec::new(),
        };
        vec![allowed]
    }
}

/// Returns the name of the choice that a tag makes, from the path of its map.
fn kind_of_thing(path: &str) -> &str {
    let name = path.rsplit('.').next().unwrap_or_default();
    if name.is_empty() || name.ends_with(']') { "variant" } else { name }
}

fn names(tags: &[(&str, &RefOr<Schema>)]) -> String {
    tags.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}

fn types(object: &Object) -> &[Type] {
    match &object.schema_type {
        SchemaType::Type(kind) => std::slice::from_ref(kind),
        SchemaType::Array(kinds) => kinds,
        SchemaType::AnyValue => &[],
    }
}

/// Returns the first type that is not `null`.
fn type_of(object: &Object) -> Option<&Type> {
    types(object).iter().find(|kind| **kind != Type::Null)
}

fn is_map(object: &Object) -> bool {
    type_of(object) == Some(&Type::Object)
}

/// Returns why the value does not fit, or `None` when it fits.
fn scalar_problem(object: &Object, value: &Value) -> Option<String> {
    match type_of(object)? {
        Type::Boolean if value.is_boolean() => None,
        Type::Integer if value.is_number() => {
            let fits = |count| !is_int32(object) || u32::try_from(count).is_ok();
            (!value.as_u64().is_some_and(fits)).then(|| invalid_value(value))
        }
        Type::Number if value.is_number() => {
            let is_above = |share| object.minimum.as_ref().is_none_or(|min| share >= number(min));
            let is_below = |share| object.maximum.as_ref().is_none_or(|max| share <= number(max));
            let fits = value.as_f64().is_some_and(|share| is_above(share) && is_below(share));
            (!fits).then(|| invalid_value(value))
        }
        Type::String => {
            let Some(text) = value.as_str() else { return Some(mismatch(value)) };
            match &object.enum_values {
                Some(known) => (!known.contains(value)).then(|| invalid_value(value)),
                None => WrittenUnit::of(object)?.problem(text),
            }
        }
        _ => Some(mismatch(value)),
    }
}

fn is_int32(object: &Object) -> bool {
    object.format
        == Some(utoipa::openapi::SchemaFormat::KnownFormat(utoipa::openapi::KnownFormat::Int32))
}

fn number(number: &utoipa::Number) -> f64 {
    match number {
        utoipa::Number::Int(number) => *number as f64,
        utoipa::Number::UInt(number) => *number as f64,
        utoipa::Number::Float(number) => *number,
    }
}

/// Returns the type of the value as text. Does not show the value, as it may be a secret.
fn mismatch(value: &Value) -> String {
    format!("is {}", describe(value))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde::{Deserialize, Serialize};
    use serde_json::json;

    use super::*;
    use crate::{serde_units::optional_duration, units::DurationText};

    #[derive(Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
    #[serde(deny_unknown_fields, default)]
    struct Cup {
        size: u32,
        #[serde(with = "optional_duration")]
        #[schema(value_type = DurationText)]
        keeps_warm: Option<Duration>,
        labels: BTreeMap<String, String>,
        parts: Vec<Part>,
        /// Schema that accepts more values than the type.
        #[schema(value_type = u32)]
        level: u8,
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize, ToSchema)]
    #[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields)]
    enum Part {
        Lid { fits: bool },
        Handle { count: Option<u32> },
    }

    fn read(body: Value) -> Result<Cup, Vec<String>> {
        BodySchema::<Cup>::new()
            .read(&body)
            .map_err(|faults| faults.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn every_fault_is_reported_with_its_path_and_the_allowed_values() {
        let body = json!({
            "sise": 1, "size": -1, "keeps_warm": "long", "labels": {"a": 1, "b": null},
            "parts": [{"type": "lid"}, {"type": "spout"}, {"type": "handle", "count": "two", "fits": true}, {}, 5],
        });
        let part = "a map with `type` (lid, handle) and the matching members";
        assert_eq!(
            read(body).unwrap_err(),
            [
                "sise: is not a known key, perhaps `size` was meant; allowed: size, keeps_warm, labels, parts, level".to_owned(),
                "size: is -1; allowed: a whole number".to_owned(),
                "keeps_warm: \"long\" is not a duration; allowed: a whole number with one unit: 250ms, 30s, 5m, 2h or 7d".to_owned(),
                "labels.a: is a number; allowed: text (in quotes)".to_owned(),
                "labels.b: is empty; allowed: text (in quotes)".to_owned(),
                "parts[0].fits: is missing; allowed: true or false".to_owned(),
                "parts[1].type: is not a known variant; allowed: lid, handle".to_owned(),
                "parts[2].fits: is not a known key; allowed: count, type".to_owned(),
                "parts[2].count: is text; allowed: a whole number".to_owned(),
                "parts[3].type: is missing or not text; allowed: lid, handle".to_owned(),
                format!("parts[4]: is a number; allowed: {part}"),
            ]
        );
    }

    #[test]
    fn a_member_that_is_null_is_absent() {
        let body = json!({"size": null, "keeps_warm": null, "labels": null, "parts": [{"type": "handle", "count": null}]});
        assert_eq!(
            read(body).unwrap(),
            Cup { parts: vec![Part::Handle { count: None }], ..Cup::default() }
        );
        assert_eq!(
            read(json!({"sise": null})).unwrap_err().len(),
            1,
            "an unknown key is one all the same"
        );
    }

    #[test]
    fn a_value_refused_only_by_serde_is_reported_with_its_path() {
        let faults = read(json!({"level": 256})).unwrap_err();
        assert!(faults[0].starts_with("level: is not accepted: "), "{faults:?}");
    }
}
