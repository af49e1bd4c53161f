//! The document of a toolset, as operators write it.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::{
    access::{CatalogSelector, SubjectSelector},
    catalog::ToolTraits,
};

/// A bundle of tools, prompts and resources with an endpoint of its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ToolsetDocument {
    /// Text that clients get first among the instructions of the endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// What the toolset holds. Empty: nothing.
    #[serde(skip_serializing_if = "is_default")]
    pub include: CatalogSelector,
    /// What it does not hold, even if it is included.
    #[serde(skip_serializing_if = "is_default")]
    pub exclude: CatalogSelector,
    /// Names that clients see, by `BACKEND/NAME`: letters, digits, `-` and `_`, without `__`, at
    /// most 64.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub aliases: BTreeMap<String, String>,
    /// Changed entries, by `BACKEND/NAME`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub overrides: BTreeMap<String, EntryOverride>,
    /// Form of the names without an alias.
    #[serde(skip_serializing_if = "is_default")]
    pub names: NameStyle,
    /// How much of the descriptions of tools clients get.
    #[serde(skip_serializing_if = "is_default")]
    pub descriptions: DescriptionLength,
    /// Longest description of a tool, in characters. Absent: any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description_chars_max: Option<u32>,
    /// List the `outputSchema` of tools.
    #[serde(skip_serializing_if = "is_true")]
    pub output_schemas: bool,
    /// Estimated tokens of the result of a tool at most. Longer ones are shortened, and read in pages.
    /// Absent: any.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 200, maximum = 1_000_000)]
    pub max_result_tokens: Option<u32>,
    /// List five tools that find and call the others, instead of the others.
    #[serde(skip_serializing_if = "is_default")]
    pub search: bool,
    /// Whether the endpoint exists.
    #[serde(skip_serializing_if = "is_default")]
    pub published: bool,
    /// Hold the bound callers to the toolset at every endpoint.
    #[serde(skip_serializing_if = "is_default")]
    pub enforce: bool,
    /// The callers that an enforced toolset is bound to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bind: Option<SubjectSelector>,
}

impl Default for ToolsetDocument {
    fn default() -> Self {
        Self {
            description: None,
            include: CatalogSelector::default(),
            exclude: CatalogSelector::default(),
            aliases: BTreeMap::new(),
            overrides: BTreeMap::new(),
            names: NameStyle::Always,
            descriptions: DescriptionLength::Full,
            description_chars_max: None,
            output_schemas: true,
            max_result_tokens: None,
            search: false,
            published: false,
            enforce: false,
            bind: None,
        }
    }
}

/// Form of names without an alias.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum NameStyle {
    /// `{backend}__{name}`, as at `/mcp`.
    #[default]
    Always,
    /// The backend's own name, except for names that several backends have.
    Unique,
    /// The backend's own name. A toolset with an ambiguous name is not published.
    Never,
}

/// How much of a description clients get.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DescriptionLength {
    #[default]
    Full,
    FirstSentence,
}

/// What a toolset changes of one tool or prompt.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EntryOverride {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    #[serde(skip_serializing_if = "is_default")]
    pub annotations: AnnotationOverride,
    /// Fixed and hidden arguments of a tool, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub args: BTreeMap<String, ArgumentOverride>,
    /// Estimated tokens of the result of the tool at most, instead of that of the toolset.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 200, maximum = 1_000_000)]
    pub max_result_tokens: Option<u32>,
    /// Position in the list: lower ones come first, then by backend and name.
    #[serde(skip_serializing_if = "is_default")]
    pub rank: u32,
}

/// Hints of a tool. They can be tightened only.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub struct AnnotationOverride {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// May be `false`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_only_hint: Option<bool>,
    /// May be `true`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destructive_hint: Option<bool>,
    /// May be `false`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotent_hint: Option<bool>,
    /// May be `true`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open_world_hint: Option<bool>,
}

impl AnnotationOverride {
    /// Returns each hint with its name, its value and the value that tightens it.
    pub(super) fn hints(&self) -> [(&'static str, Option<bool>, bool); 4] {
        [
            ("readOnlyHint", self.read_only_hint, false),
            ("destructiveHint", self.destructive_hint, true),
            ("idempotentHint", self.idempotent_hint, false),
            ("openWorldHint", self.open_world_hint, true),
        ]
    }

    /// Returns the traits of a tool with these hints, which only make them stricter.
    pub(super) fn tightened(&self, traits: ToolTraits) -> ToolTraits {
        ToolTraits {
            read_only: traits.read_only && self.read_only_hint != Some(false),
            destructive: traits.destructive || self.destructive_hint == Some(true),
            idempotent: traits.idempotent && self.idempotent_hint != Some(false),
            open_world: traits.open_world || self.open_world_hint == Some(true),
            ..traits
        }
    }
}

/// What a toolset changes of one argument.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ArgumentOverride {
    /// The value in every call, whatever the client sends.
    #[serde(
        rename = "const",
        deserialize_with = "value_or_null",
        skip_serializing_if = "Option::is_none"
    )]
    pub value: Option<Value>,
    /// Whether clients do not see the argument. Without a value, no call has it.
    #[serde(skip_serializing_if = "is_default")]
    pub hidden: bool,
}

/// Reads a value that is there. `null` is one too.
fn value_or_null<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(from).map(Some)
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn is_true(value: &bool) -> bool {
    *value
}
