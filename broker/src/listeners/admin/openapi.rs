//! OpenAPI 3.1 document of the admin API, generated from the routes' annotations. `mcp-broker
//! openapi` prints the same document.

use axum::{Json, response::IntoResponse};
use utoipa::{
    Modify, OpenApi,
    openapi::{
        Object, Ref, RefOr, Schema,
        schema::{AdditionalProperties, Discriminator},
        security::{Http, HttpAuthScheme, SecurityScheme},
    },
};

use super::{
    approvals, audit, audit_verify, backends, catalog, configuration, connections, health, issuers,
    live, log, operators, overview, permissions, pins, policies, problem::Problem, revocations,
    roots, tenants, trial,
};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "mcp-broker admin API",
        description = "Manages the tenants, API keys and backends of an MCP broker, and shows its state. Errors are `application/problem+json`."
    ),
    paths(
        tenants::list, tenants::show, tenants::put, tenants::remove,
        tenants::list_keys, tenants::create_key, tenants::revoke_key,
        backends::list, backends::show, backends::put, backends::remove, backends::probe, backends::breaker,
        pins::list, pins::diff, pins::approve, pins::block,
        roots::add, roots::remove,
        operators::list, operators::create, operators::revoke,
        policies::show, policies::put, policies::remove, policies::check, policies::report,
        catalog::list_toolsets, catalog::show_toolset, catalog::put_toolset, catalog::remove_toolset,
        catalog::list_prompts, catalog::show_prompt, catalog::put_prompt, catalog::remove_prompt, catalog::cost,
        approvals::list, approvals::show, approvals::decide,
        connections::list, connections::link, connections::remove, connections::test,
        issuers::list, issuers::show, issuers::put, issuers::remove,
        revocations::list, revocations::create, revocations::remove,
        live::sessions, live::session, live::end_session,
        live::tasks, live::task, live::cancel_task, live::subscriptions, live::nodes, live::drain, live::drain_node,
        overview::overview, overview::signed_in, overview::backends, overview::activity, overview::catalog,
        trial::send, trial::listen, trial::end,
        configuration::show, configuration::effective,
        log::show, log::put, log::reset,
        audit::list, audit::export, audit_verify::chains, audit_verify::verify,
        health::live, health::ready, health::metrics, serve,
    ),
    security(("admin_token" = [])),
    modifiers(&AdminToken, &NamedTransports, &OpenedDocuments, &DescribedResponses, &RequiredPermissions)
)]
struct AdminApi;

struct AdminToken;

impl Modify for AdminToken {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let components = document.components.get_or_insert_default();
        components.add_security_scheme(
            "admin_token",
            SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer)),
        );
    }
}

/// Adds the permission that each operation requires.
struct RequiredPermissions;

impl Modify for RequiredPermissions {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        for (method, path, permission) in permissions::OPERATIONS {
            let Some(item) = document.paths.paths.get_mut(*path) else { continue };
            let operation = match method.as_str() {
                "GET" => &mut item.get,
                "PUT" => &mut item.put,
                "POST" => &mut item.post,
                _ => &mut item.delete,
            };
            if let Some(operation) = operation {
                let extensions = operation.extensions.get_or_insert_default();
                extensions.insert("x-permission".to_owned(), permission.name().into());
            }
        }
    }
}

/// Describes each response that has no description of its own. OpenAPI requires one.
struct DescribedResponses;

impl Modify for DescribedResponses {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        for item in document.paths.paths.values_mut() {
            let operations = [&mut item.get, &mut item.put, &mut item.post, &mut item.delete];
            for operation in operations.into_iter().flatten() {
                for (status, response) in &mut operation.responses.responses {
                    if let RefOr::T(response) = response
                        && response.description.is_empty()
                    {
                        response.description = usual_description(status).to_owned();
                    }
                }
            }
        }
    }
}

fn usual_description(status: &str) -> &'static str {
    match status {
        "200" => "The current state",
        "201" => "Created",
        "202" => "Accepted",
        "204" => "Removed",
        _ => "Refused: `type` names the reason, and `detail` explains it",
    }
}

/// Makes a schema of its own of each transport, with a discriminator, so that generated clients have
/// a class with a name for each. Forbids unknown members in them, as utoipa does for structs only.
struct NamedTransports;

impl Modify for NamedTransports {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let components = document.components.get_or_insert_default();
        let Some(RefOr::T(Schema::OneOf(transports))) = components.schemas.get_mut("TransportSpec")
        else {
            return;
        };
        let mut named = Vec::new();
        let mut mapping = Vec::new();
        for variant in &mut transports.items {
            let RefOr::T(Schema::Object(transport)) = variant else { continue };
            let Some(kind) = transport_kind(transport) else { continue };
            transport.additional_properties = Some(Box::new(AdditionalProperties::FreeForm(false)));
            let name = transport_name(&kind);
            let reference = Ref::from_schema_name(&name);
            mapping.push((kind, reference.ref_location.clone()));
            named.push((name, std::mem::replace(variant, RefOr::Ref(reference))));
        }
        transports.discriminator = Some(Discriminator::with_mapping("type", mapping));
        components.schemas.extend(named);
    }
}

/// Returns the value of `type` that chooses a transport.
fn transport_kind(transport: &Object) -> Option<String> {
    let RefOr::T(Schema::Object(tag)) = transport.properties.get("type")? else { return None };
    Some(tag.enum_values.as_ref()?.first()?.as_str()?.to_owned())
}

/// Returns the name of a transport's schema: `HttpTransport` for `http`.
fn transport_name(kind: &str) -> String {
    let (first, rest) = kind.split_at(kind.len().min(1));
    format!("{}{rest}Transport", first.to_ascii_uppercase())
}

/// Opens the documents that views flatten. As a part of a view, a document has further members.
struct OpenedDocuments;

impl Modify for OpenedDocuments {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let components = document.components.get_or_insert_default();
        let closed = components.schemas.clone();
        let views = components.schemas.values_mut().filter_map(|schema| match schema {
            RefOr::T(Schema::AllOf(view)) => Some(view),
            _ => None,
        });
        for item in views.flat_map(|view| &mut view.items) {
            let RefOr::Ref(reference) = &*item else { continue };
            let name = reference.ref_location.rsplit('/').next().unwrap_or_default();
            if let Some(RefOr::T(Schema::Object(document))) = closed.get(name) {
                let mut opened = document.clone();
                opened.additional_properties = None;
                *item = RefOr::T(Schema::Object(opened));
            }
        }
    }
}

/// Returns the document.
pub fn document() -> utoipa::openapi::OpenApi {
    AdminApi::openapi()
}

/// Returns this document.
#[utoipa::path(get, operation_id = "show_openapi", path = "/admin/v1/openapi.json", tag = "health", responses(
    (status = 200, description = "OpenAPI 3.1", body = Object),
    (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn serve() -> impl IntoResponse {
    Json(document())
}

#[cfg(test)]
mod tests {
    use rules::limits::{
        ADMIN_LIST_MAX,
        results::{RESULT_TOKENS_MAX, RESULT_TOKENS_MIN},
    };
    use serde_json::{Value, json};

    use super::*;

    fn as_json() -> Value {
        serde_json::to_value(document()).unwrap()
    }

    #[test]
    fn the_document_states_the_range_of_result_budgets() {
        let schemas = &as_json()["components"]["schemas"];
        for name in ["ToolsetDocument", "EntryOverride"] {
            let budget = &schemas[name]["properties"]["max_result_tokens"];
            assert_eq!(
                (&budget["minimum"], &budget["maximum"]),
                (&json!(RESULT_TOKENS_MIN), &json!(RESULT_TOKENS_MAX)),
                "{name}"
            );
        }
    }

    #[test]
    fn the_document_states_the_longest_answer_with_sessions_or_tasks() {
        let paths = &as_json()["paths"];
        for path in ["/admin/v1/sessions", "/admin/v1/tasks"] {
            let parameters = paths[path]["get"]["parameters"].as_array().unwrap();
            let limit = parameters.iter().find(|parameter| parameter["name"] == "limit").unwrap();
            let text = limit["description"].as_str().unwrap();
            assert!(text.ends_with(&format!("absent: {ADMIN_LIST_MAX}.")), "{path}: {text}");
        }
    }

    #[test]
    fn every_operation_declares_refusals_and_the_body_of_a_document() {
        let document = as_json();
        for (path, operations) in document["paths"].as_object().unwrap() {
            for (method, operation) in operations.as_object().unwrap() {
                let answers = operation["responses"].as_object().unwrap();
                let is_public = path == "/healthz" || path == "/readyz" || path == "/metrics";
                assert!(
                    is_public || answers.contains_key("default"),
                    "{method} {path}: {answers:?}"
                );
            }
        }
        let shown = &document["paths"]["/admin/v1/openapi.json"]["get"]["responses"]["200"];
        assert!(shown["content"].get("application/json").is_some(), "{shown}");
    }
}
