//! What a backend's requests must keep to before they are sent: the resources clients may name, and whether arguments are
//! held to the schemas of their tools. Part of a backend's body; read by [`super::bodies`], kept by `actors::policy`.

use protocol::uri::Root;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::{
    body_reader::{Reader, given},
    fault::{Fault, describe},
};

const ROOTS_MAX: usize = 64;
const ROOTS_PATH: &str = "resources.roots";
const ROOT_ALLOWED: &str =
    "an absolute URI without query, fragment, percent signs, empty segments and dot segments, such as file:///srv/files";

/// Which resources of the backend clients may name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ResourceRules {
    /// URIs below which the resources lie; others are refused. A client's URI begins as the root is written. Empty: any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(example = json!(["file:///srv/files"]))]
    pub roots: Vec<String>,
}

/// What is asked of calls of the backend's tools.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ToolRules {
    /// Arguments that do not fit the tool's inputSchema are refused and not sent.
    #[serde(skip_serializing_if = "is_false")]
    pub validate_arguments: bool,
}

impl ResourceRules {
    pub fn is_empty(&self) -> bool {
        self.roots.is_empty()
    }
}

impl ToolRules {
    pub fn is_empty(&self) -> bool {
        !self.validate_arguments
    }
}

fn is_false(value: &bool) -> bool {
    !value
}

pub(super) fn read_resources(reader: &mut Reader<'_>, value: &Value) -> ResourceRules {
    let Some(members) = reader.object("resources", value, &["roots"], &[]) else { return ResourceRules::default() };
    ResourceRules { roots: reader.text_list("resources", members, "roots") }
}

pub(super) fn read_tools(reader: &mut Reader<'_>, value: &Value) -> ToolRules {
    let Some(members) = reader.object("tools", value, &["validate_arguments"], &[]) else { return ToolRules::default() };
    match given(members, "validate_arguments") {
        None => ToolRules::default(),
        Some(Value::Bool(validate_arguments)) => ToolRules { validate_arguments: *validate_arguments },
        Some(other) => {
            reader.fault("tools.validate_arguments", &format!("is {}", describe(other)), "true or false");
            ToolRules::default()
        }
    }
}

/// Checks what the types can not say.
pub(super) fn check_resources(rules: &ResourceRules, faults: &mut Vec<Fault>) {
    if rules.roots.len() > ROOTS_MAX {
        faults.push(Fault::new(ROOTS_PATH, "has too many entries", format!("at most {ROOTS_MAX}")));
    }
    for (at, _) in rules.roots.iter().enumerate().filter(|(_, root)| Root::parse(root).is_none()) {
        faults.push(Fault::new(format!("{ROOTS_PATH}.{at}"), "is no root", ROOT_ALLOWED));
    }
}
