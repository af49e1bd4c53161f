//! Checks of requests before they are sent to a backend: the resources that clients may name, and
//! the validation of arguments against tool schemas. Part of a backend's body. Read by
//! [`super::spec_parser`], applied by `backends::policy`.

use std::time::Duration;

use protocol::uri::Root;
use rules::limits::arguments::{
    VALIDATE_TIMEOUT_DEFAULT, VALIDATE_TIMEOUT_MAX, VALIDATE_TIMEOUT_MIN,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    field_error::{FieldError, element},
    units::{DurationText, format_duration},
};

const ROOTS_MAX: usize = 64;
const ROOTS_PATH: &str = "resources.roots";
const TIMEOUT_PATH: &str = "tools.validate_timeout";
const ROOT_ALLOWED: &str = "an absolute URI without query, fragment, percent signs, empty segments and dot segments, such as file:///srv/files";

/// Resources of the backend that clients may name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ResourceRules {
    /// URIs below which the resources are; requests for others are refused. A client's URI must
    /// begin exactly like the root. Empty: any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(example = json!(["file:///srv/files"]))]
    pub roots: Vec<String>,
}

/// Checks of calls of the backend's tools.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ToolRules {
    /// Refuse arguments that do not match the tool's inputSchema, without sending the call.
    #[serde(skip_serializing_if = "is_false")]
    pub validate_arguments: bool,
    /// Time limit of that check, including the wait for a thread, 1ms to 10s. Arguments that take
    /// longer are refused. Absent: 100ms.
    #[serde(
        with = "super::serde_units::optional_duration",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = DurationText)]
    pub validate_timeout: Option<Duration>,
}

impl ResourceRules {
    pub fn is_empty(&self) -> bool {
        self.roots.is_empty()
    }
}

impl ToolRules {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the timeout in force.
    pub fn validate_timeout(&self) -> Duration {
        self.validate_timeout.unwrap_or(VALIDATE_TIMEOUT_DEFAULT)
    }
}

fn is_false(value: &bool) -> bool {
    !value
}

fn timeout_allowed() -> String {
    let (min, max) = (format_duration(VALIDATE_TIMEOUT_MIN), format_duration(VALIDATE_TIMEOUT_MAX));
    format!("a duration from {min} to {max}, such as 100ms")
}

/// Checks the rules that the types do not express.
pub(super) fn check_resources(rules: &ResourceRules, faults: &mut Vec<FieldError>) {
    if rules.roots.len() > ROOTS_MAX {
        faults.push(FieldError::new(
            ROOTS_PATH,
            "has too many entries",
            format!("at most {ROOTS_MAX}"),
        ));
    }
    for (at, _) in rules.roots.iter().enumerate().filter(|(_, root)| Root::parse(root).is_none()) {
        faults.push(FieldError::new(element(ROOTS_PATH, at), "is not a root", ROOT_ALLOWED));
    }
}

/// Adds the range to a refused timeout. The schema of the body knows only the form of a duration.
pub(super) fn with_ranges(mut faults: Vec<FieldError>) -> Vec<FieldError> {
    for fault in faults.iter_mut().filter(|fault| fault.path == TIMEOUT_PATH) {
        fault.allowed = timeout_allowed();
    }
    faults
}

/// Checks the rules for tools that the types do not express.
pub(super) fn check_tools(rules: &ToolRules, faults: &mut Vec<FieldError>) {
    let Some(timeout) = rules.validate_timeout else { return };
    if !(VALIDATE_TIMEOUT_MIN..=VALIDATE_TIMEOUT_MAX).contains(&timeout) {
        faults.push(FieldError::new(
            TIMEOUT_PATH,
            format!("is {}", format_duration(timeout)),
            timeout_allowed(),
        ));
    }
}
