//! Validation of the arguments of a call against the `inputSchema` of its tool, with bounds of
//! size, depth and work.
//!
//! A backend's schema is a stranger's program. Before it is compiled, [`cost`] bounds its visits of
//! one location in the arguments, along every reference, and its memory. A schema is not used if it
//! is too costly, refers to a target outside itself, or never ends. The arguments come from a
//! stranger too: [`step_meter`] counts the work on them. It ends the validation if the work is too
//! much, or if its request was dropped.
//!
//! Invariants:
//!
//! - The validator never fetches a schema.
//! - The verdict is computed without creating errors. The search for faults creates at most
//!   [`FAULTS_FOUND_MAX`] errors.

mod cost;
mod equality;
mod formats;
mod instance;
mod instance_builder;
mod pattern;
mod step_meter;

use std::{
    collections::hash_map::RandomState,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use jsonschema::{
    Keyword, PatternOptions, ValidationError, ValidationOptions, Validator,
    error::ValidationErrorKind,
};
use protocol::{
    error::{ErrorKind, Refusal},
    json::{self, duplicate_member},
};
use serde_json::Value;

pub use self::step_meter::ValidationBudget;
use self::{
    instance::{Instance, MeteredJson},
    pattern::Pattern,
    step_meter::{ValidationStop, run_metered},
};
use crate::limits::arguments::{
    ARGUMENT_BYTES_AT_ONCE_MAX, ARGUMENT_BYTES_MAX, ARGUMENT_STEPS_AT_ONCE_MAX, FAULT_CHARS_MAX,
    FAULTS_FOUND_MAX, FAULTS_REPORTED_MAX, PATTERN_COMPILED_BYTES_MAX, SCHEMA_BYTES_MAX,
    SCHEMA_COMPILED_BYTES_MAX, SCHEMA_NODES_MAX,
};

/// Reason for which a schema is not used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SchemaError {
    #[error(
        "the schema is larger than {SCHEMA_BYTES_MAX} bytes or has more than {SCHEMA_NODES_MAX} parts"
    )]
    TooLarge,
    #[error("the compiled schema would need more than {SCHEMA_COMPILED_BYTES_MAX} bytes")]
    TooLargeCompiled,
    /// Holds the reference as JSON text.
    #[error("the schema refers to {0}, which is outside the schema")]
    Reference(String),
    #[error("the schema has `{0}`, which is not supported")]
    DynamicReference(&'static str),
    #[error(
        "the schema refers to itself without end, or would validate one value of the arguments too often"
    )]
    TooCostly,
    #[error("a part of the schema has an `$id`, which only the whole schema may have")]
    NamesItself,
    #[error("the schema is not valid: {0}")]
    Invalid(String),
}

/// A compiled schema that validates arguments.
#[derive(Debug)]
pub struct ArgumentValidator {
    validator: Validator<MeteredJson>,
    bytes: usize,
    /// Cost of one byte of a member's name, in sixteenths of a step, over all patterns for names.
    name_weight: u64,
}

impl ArgumentValidator {
    pub fn compile(schema: &[u8]) -> Result<Self, SchemaError> {
        if schema.len() > SCHEMA_BYTES_MAX {
            return Err(SchemaError::TooLarge);
        }
        let schema: Value = serde_json::from_slice(schema)
            .map_err(|error| SchemaError::Invalid(error.to_string()))?;
        if nodes(&schema) > SCHEMA_NODES_MAX {
            return Err(SchemaError::TooLarge);
        }
        cost::cost(&schema)?;
        let names = NamePatterns::of(&schema)?;
        let counted = cost::compiled_bytes(&schema).saturating_add(names.bytes);
        let remaining =
            SCHEMA_COMPILED_BYTES_MAX.checked_sub(counted).ok_or(SchemaError::TooLargeCompiled)?;
        let remaining = Arc::new(AtomicUsize::new(remaining));
        let validator =
            options(remaining.clone()).build(&schema).map_err(|error| {
                match remaining.load(Ordering::Relaxed) {
                    0 => SchemaError::TooLargeCompiled,
                    _ => SchemaError::Invalid(shortened(&error.to_string())),
                }
            })?;
        Ok(Self {
            validator,
            bytes: SCHEMA_COMPILED_BYTES_MAX - remaining.load(Ordering::Relaxed),
            name_weight: names.weight,
        })
    }

    /// Returns an upper bound of its bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Validates `arguments` as the client wrote them inline, if the work is small. Absent
    /// arguments count as `{}`. Returns `None` if the work exceeds the inline limits.
    pub fn try_validate_inline(&self, arguments: Option<&[u8]>) -> Option<Result<(), Refusal>> {
        if self.name_weight > 0
            || arguments.is_some_and(|text| text.len() > ARGUMENT_BYTES_AT_ONCE_MAX)
        {
            return None;
        }
        let allowance =
            ValidationBudget { steps: ARGUMENT_STEPS_AT_ONCE_MAX, cancelled: Arc::default() };
        let (verdict, over) = self.verdict(arguments, &allowance);
        over.is_none_or(|over| over == ValidationStop::Faults).then_some(verdict)
    }

    /// Validates `arguments` within `allowance`. The result has no meaning once `allowance` is
    /// given up.
    pub fn validate(
        &self,
        arguments: Option<&[u8]>,
        allowance: &ValidationBudget,
    ) -> Result<(), Refusal> {
        match self.verdict(arguments, allowance) {
            (_, Some(ValidationStop::Steps)) => Err(refused(
                "too_costly",
                "",
                "the validation against the tool's inputSchema takes more steps than are allowed",
            )),
            (_, Some(ValidationStop::Cancelled)) => Err(refused(
                "timeout",
                "",
                "the broker stopped the validation against the tool's inputSchema",
            )),
            (verdict, _) => verdict,
        }
    }

    fn verdict(
        &self,
        arguments: Option<&[u8]>,
        allowance: &ValidationBudget,
    ) -> (Result<(), Refusal>, Option<ValidationStop>) {
        let text = arguments.unwrap_or(b"{}");
        if text.len() > ARGUMENT_BYTES_MAX {
            let text = format!(
                "arguments that the broker validates must have at most {ARGUMENT_BYTES_MAX} bytes"
            );
            return (Err(refused("too_large", "", &text)), None);
        }
        run_metered(allowance, self.name_weight, FAULTS_FOUND_MAX, || {
            let arguments = Instance::read(text)
                .map_err(|_| refused("unreadable", "", "the arguments cannot be read"))?;
            if self.validator.is_valid(arguments.root()) {
                Ok(())
            } else {
                Err(self.faults(&arguments))
            }
        })
    }

    /// Returns a refusal with the faults of the arguments, up to the limits.
    fn faults(&self, arguments: &Instance<'_>) -> Refusal {
        let faults = self.validator.iter_errors(arguments.root()).filter(is_one);
        let faults: Vec<_> = faults.take(FAULTS_REPORTED_MAX).collect();
        let Some(first) = faults.first() else {
            return refused("mismatch", "", "the arguments do not fit the tool's inputSchema");
        };
        let path = |fault: &ValidationError<'_>| shortened(fault.instance_path().as_str());
        let keyword = first.kind().keyword().to_owned();
        let all: Vec<Value> = faults.iter().map(|fault| path(fault).into()).collect();
        // Paths hold text of the client, so they go to the client and not to the log.
        let text = format!("the arguments do not fit the tool's inputSchema ({keyword})");
        refused("mismatch", &path(first), &text).with("keyword", keyword).with("paths", all)
    }
}

/// Returns whether a fault is genuine. A fault may also come from parts that are gone since the
/// search ended. A fault that holds others was found before them, so it is genuine if one of them
/// is.
fn is_one(fault: &ValidationError<'_>) -> bool {
    let of_others = || match fault.kind() {
        ValidationErrorKind::AnyOf { context }
        | ValidationErrorKind::OneOfNotValid { context }
        | ValidationErrorKind::OneOfMultipleValid { context } => {
            context.iter().flatten().any(is_one)
        }
        ValidationErrorKind::PropertyNames { error } => is_one(error),
        _ => false,
    };
    **fault.instance() == Value::Bool(true) || of_others()
}

/// Patterns of `patternProperties`. The validator matches them itself, so their cost is counted
/// before.
struct NamePatterns {
    bytes: usize,
    weight: u64,
}

impl NamePatterns {
    /// Bytes of lazily built states: a pattern is compiled in both directions, and each thread
    /// keeps its states.
    const KEPT_BYTES: usize = 4 * NAME_PATTERN_FOUND_BYTES;

    fn of(schema: &Value) -> Result<Self, SchemaError> {
        let (mut bytes, mut weight) = (0_usize, 0_u64);
        let mut waiting = vec![schema];
        while let Some(part) = waiting.pop() {
            match part {
                Value::Array(items) => waiting.extend(items),
                Value::Object(members) => {
                    let named = members.get("patternProperties").and_then(Value::as_object);
                    for pattern in named.into_iter().flat_map(|patterns| patterns.keys()) {
                        let pattern = Pattern::new(pattern)
                            .map_err(|why| SchemaError::Invalid(why.to_owned()))?;
                        bytes = bytes.saturating_add(3 * pattern.bytes() + Self::KEPT_BYTES);
                        weight = weight.saturating_add(pattern.weight());
                        if bytes > SCHEMA_COMPILED_BYTES_MAX {
                            return Err(SchemaError::TooLargeCompiled);
                        }
                    }
                    waiting.extend(members.values());
                }
                _ => {}
            }
        }
        Ok(Self { bytes, weight })
    }
}

/// Bytes of lazily built states of one pattern of `patternProperties`, per thread and direction.
const NAME_PATTERN_FOUND_BYTES: usize = 64 * 1024;

/// Returns the options for the validator. `remaining` holds the bytes that compiled patterns may
/// still take. A pattern that needs more sets it to zero.
fn options(
    remaining: Arc<AtomicUsize>,
) -> ValidationOptions<'static, Arc<dyn jsonschema::Retrieve>, MeteredJson> {
    let of_names = PatternOptions::regex()
        .size_limit(PATTERN_COMPILED_BYTES_MAX)
        .dfa_size_limit(NAME_PATTERN_FOUND_BYTES);
    let options = jsonschema::options_for::<MeteredJson>()
        .with_pattern_options(of_names)
        // Annotations in all revisions since 2019-09. Parsing a text as JSON has no bound of its
        // own.
        .without_content_media_type_support("application/json")
        .without_content_encoding_support("base64")
        .with_keyword("pattern", move |_, pattern: &Value, _| {
            let pattern = Pattern::new(pattern.as_str().unwrap_or_default())
                .map_err(ValidationError::custom)?;
            let taken = remaining.try_update(Ordering::Relaxed, Ordering::Relaxed, |remaining| {
                remaining.checked_sub(pattern.bytes())
            });
            taken.map_err(|_| {
                remaining.store(0, Ordering::Relaxed);
                ValidationError::custom("the patterns of the schema are too large")
            })?;
            Ok(Box::new(pattern) as Box<dyn for<'i> Keyword<'i, MeteredJson>>)
        });
    formats::bounded(options)
}

/// Refuses arguments with a duplicate member in an object. Readers differ in which of the two they
/// use.
pub fn refuse_duplicates(arguments: &[u8], hasher: &RandomState) -> Result<(), Refusal> {
    let limits = json::Limits::with_bytes_max(arguments.len());
    match duplicate_member(arguments, &limits, hasher, FAULT_CHARS_MAX) {
        Ok(None) => Ok(()),
        Ok(Some(path)) => Err(refused(
            "duplicate_member",
            &path,
            "an object in the arguments holds a member twice",
        )),
        Err(_) => Err(refused("unreadable", "", "the arguments cannot be read")),
    }
}

/// Returns the refusal for a validation that exceeded its deadline.
pub fn refused_late(timeout: Duration) -> Refusal {
    let text = format!(
        "the broker could not validate the arguments against the tool's inputSchema within {} ms",
        timeout.as_millis()
    );
    refused("timeout", "", &text)
}

fn refused(reason: &str, path: &str, text: &str) -> Refusal {
    Refusal::new(ErrorKind::ArgumentsInvalid, text).with("path", path).with("reason", reason)
}

fn shortened(text: &str) -> String {
    text.chars().take(FAULT_CHARS_MAX).collect()
}

/// Returns the number of values in a value, itself included.
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

#[cfg(test)]
mod tests;
