//! Validation of arguments: the verdict is that of the library over plain values, within the bounds
//! of work.
//!
//! The bytes up to the first LF are a backend's schema, the rest is a client's arguments.

use std::{collections::hash_map::RandomState, sync::Arc};

use jsonschema::PatternOptions;
use rules::{
    arguments::{ArgumentValidator, ValidationBudget, refuse_duplicates},
    limits::arguments::ARGUMENT_STEPS_MAX,
};
use serde_json::Value;

use crate::{Outcome, Target};

pub(super) const TARGET: Target = Target {
    name: "arguments",
    tokens: &[
        "{",
        "}",
        "[",
        "]",
        ",",
        "\n",
        "\"type\":\"object\"",
        "\"type\":[\"string\",\"null\"]",
        "\"properties\":{",
        "\"a\":",
        "\"required\":[\"a\"]",
        "\"items\":{",
        "\"prefixItems\":[",
        "\"additionalProperties\":false",
        "\"patternProperties\":{\"^a\":",
        "\"propertyNames\":{",
        "\"enum\":[1,\"a\",null]",
        "\"const\":1.0",
        "\"minimum\":1",
        "\"multipleOf\":0.1",
        "\"maxLength\":2",
        "\"pattern\":\"^a+$\"",
        "\"format\":\"email\"",
        "\"uniqueItems\":true",
        "\"anyOf\":[",
        "\"oneOf\":[",
        "\"not\":{",
        "\"if\":{",
        "\"then\":{",
        "\"$ref\":\"#/$defs/a\"",
        "\"$defs\":{\"a\":",
        "\"dependentRequired\":{\"a\":[\"b\"]}",
        "\"contains\":{",
        "\"minContains\":2",
        "\"unevaluatedProperties\":false",
        "1.0",
        "1e2",
        "-0",
        "null",
        "true",
        "18446744073709551615",
        "\"a\"",
    ],
    bytes_max: 1024,
    check,
};

fn check(input: &[u8]) -> Outcome {
    let split = input.iter().position(|byte| *byte == b'\n').unwrap_or(input.len());
    let (schema, arguments) = (&input[..split], input.get(split + 1..).unwrap_or_default());
    let validator = match ArgumentValidator::compile(schema) {
        Ok(validator) => validator,
        Err(error) => {
            return Outcome::of(&format!("{error:?}").split('(').next().map(str::to_owned));
        }
    };
    let budget = ValidationBudget { steps: ARGUMENT_STEPS_MAX, cancelled: Arc::default() };
    let ours = validator.validate(Some(arguments), &budget);
    let reason = ours.as_ref().err().map(|refusal| {
        let reason = refusal.data.iter().find(|(key, _)| *key == "reason");
        reason.map(|(_, reason)| reason.to_string()).unwrap_or_default()
    });
    if let Some(inline) = validator.try_validate_inline(Some(arguments)) {
        assert_eq!(inline.is_ok(), ours.is_ok(), "inline and in the pool");
    }
    let (Ok(schema), Ok(plain)) =
        (serde_json::from_slice::<Value>(schema), serde_json::from_slice::<Value>(arguments))
    else {
        return Outcome::of(&("unreadable", reason));
    };
    if refuse_duplicates(arguments, &RandomState::new()).is_err() {
        return Outcome::of(&("repeated members", reason));
    }
    let library =
        jsonschema::options().with_pattern_options(PatternOptions::regex()).build(&schema);
    if let (Ok(library), true) =
        (library, reason.as_deref().is_none_or(|reason| reason == "\"mismatch\""))
    {
        assert_eq!(ours.is_ok(), library.is_valid(&plain), "the verdict of the library");
    }
    Outcome::of(&(reason, keywords(&schema), plain.is_object()))
}

/// Returns the keywords of a schema's outermost level.
fn keywords(schema: &Value) -> Vec<String> {
    schema.as_object().into_iter().flatten().map(|(keyword, _)| keyword.clone()).take(6).collect()
}
