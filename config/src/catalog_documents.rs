//! Toolsets and hosted prompts of declared tenants: `tenants.{tenant}.toolsets` and
//! `tenants.{tenant}.prompts`. Backends may be stored, so their names are not checked here.

use protocol::ids::{TenantId, ToolsetId};
use rules::{
    access::PolicyFault,
    catalog::{HostedPrompt, HostedPromptDocument, PROMPT_NAME_ALLOWED, parse_prompt_name},
    toolsets::{Toolset, ToolsetDocument},
};
use serde::de::DeserializeOwned;
use serde_json::Value;
use utoipa::ToSchema;

use super::{
    BodySchema,
    config_reader::ConfigReader,
    field_error::{FieldError, NAME_ALLOWED, join},
};

/// Documents by tenant and name.
pub(super) type Declared<Document> = Vec<(TenantId, String, Document)>;

pub(super) fn toolsets(reading: &mut ConfigReader<'_>) -> Declared<ToolsetDocument> {
    documents(reading, "toolsets", |name, document: &ToolsetDocument| {
        let id = ToolsetId::parse(name)
            .map_err(|_| vec![FieldError::new("", "is not a name for a toolset", NAME_ALLOWED)])?;
        let field = |fault: PolicyFault| FieldError::new(fault.path, fault.problem, "");
        Toolset::compile(id, document, None)
            .map(drop)
            .map_err(|faults| faults.into_iter().map(field).collect())
    })
}

pub(super) fn prompts(reading: &mut ConfigReader<'_>) -> Declared<HostedPromptDocument> {
    documents(reading, "prompts", |name, document: &HostedPromptDocument| {
        parse_prompt_name(name).map_err(|_| {
            vec![FieldError::new("", "is not a name for a prompt", PROMPT_NAME_ALLOWED)]
        })?;
        let field = |(path, problem)| FieldError::new(path, problem, "");
        HostedPrompt::compile(document)
            .map(drop)
            .map_err(|faults| faults.into_iter().map(field).collect())
    })
}

fn documents<D: DeserializeOwned + ToSchema>(
    reading: &mut ConfigReader<'_>,
    member: &str,
    check: impl Fn(&str, &D) -> Result<(), Vec<FieldError>>,
) -> Declared<D> {
    let schema = BodySchema::<D>::new();
    let mut read = Vec::new();
    for (tenant, body) in reading.raw.map("tenants").into_iter().flatten() {
        let path = join(&join("tenants", tenant), member);
        let entries = match body.get(member) {
            None | Some(Value::Null) => continue,
            Some(Value::Object(entries)) => entries,
            Some(_) => {
                reading.faults.push(FieldError::new(path, "is not a map", "a map by name"));
                continue;
            }
        };
        for (name, body) in entries {
            let path = join(&path, name);
            let read_one = schema.read(body);
            let document = read_one.and_then(|document| check(name, &document).map(|()| document));
            match (TenantId::parse(tenant), document) {
                (Ok(tenant), Ok(document)) => read.push((tenant, name.clone(), document)),
                (_, Err(faults)) => {
                    let faults = faults.into_iter().map(|fault| fault.nested_in(&path));
                    reading.faults.extend(faults);
                }
                (Err(_), Ok(_)) => {} // the reader of tenants reports the name
            }
        }
    }
    read
}
