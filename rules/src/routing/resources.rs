//! Requests that name a resource by its URI, and completions that refer to a prompt or resource.

use protocol::{
    envelope::Message,
    error::{ErrorKind, Refusal},
    ids::BackendId,
    json,
    method::Method,
    uri,
};

use super::{
    BackendTarget, Decision, Plan, ResourceTarget, check_held, held, quoted, required_text,
    supported, template_values,
};
use crate::{
    access::{AccessCheck, Object},
    catalog::{Catalog, ListKind},
    endpoint::Endpoint,
    exposed_names,
    limits::URI_BYTES_MAX,
    result_budget::ResultPage,
};

pub(super) fn by_uri(
    message: &Message,
    endpoint: &Endpoint,
    catalog: &Catalog,
    access: Option<&AccessCheck<'_>>,
) -> Result<Decision, Refusal> {
    let (span, uri) = required_text(message, message.fields.uri, "params.uri")?;
    let target = resource_target(&uri, endpoint, catalog)?;
    // A client may always end a subscription.
    if message.method != Method::ResourcesUnsubscribe {
        check_resource(catalog, access, message.method, &target)?;
    }
    supported(catalog, &target.backend, message.method)?;
    Ok(match message.method {
        Method::ResourcesSubscribe => Decision::Subscribe(target),
        Method::ResourcesUnsubscribe => Decision::Unsubscribe(target),
        _ => {
            let edits = if target.uri == uri {
                Vec::new()
            } else {
                vec![(span, json::quote(&target.uri).into_bytes())]
            };
            let plan = Plan::new(target.backend, edits);
            Decision::Forward(Plan { target: BackendTarget::Resource(target.uri), ..plan })
        }
    })
}

/// Returns the page of a stored result that a request names, if it names one. No backend of a merged
/// endpoint has such a URI.
pub(super) fn kept_result(message: &Message) -> Option<ResultPage> {
    ResultPage::parse(&message.text(message.fields.uri)?)
}

/// Refuses a resource that the caller may not use, like one that does not exist, and one that pins
/// keep from clients.
fn check_resource(
    catalog: &Catalog,
    access: Option<&AccessCheck<'_>>,
    method: Method,
    target: &ResourceTarget,
) -> Result<(), Refusal> {
    if let Some(access) = access {
        let object = Object::Resource { backend: &target.backend, uri: &target.uri };
        access.check(method, &object, || resource_not_found(&target.exposed_uri))?;
    }
    match catalog.is_resource_held(&target.backend, &target.uri) {
        true => Err(held()),
        false => Ok(()),
    }
}

/// Returns the refusal of a resource that does not exist, or that the caller may not see.
pub fn resource_not_found(uri: &str) -> Refusal {
    Refusal::new(ErrorKind::ResourceNotFound, "resource not found").with("uri", uri)
}

pub(super) fn by_reference(
    message: &Message,
    endpoint: &Endpoint,
    catalog: &Catalog,
    access: Option<&AccessCheck<'_>>,
) -> Result<Decision, Refusal> {
    let fields = &message.fields;
    let plan = if refers_to_resource(message)? {
        let (span, uri) = required_text(message, fields.reference_uri, "params.ref.uri")?;
        let target = resource_target(&uri, endpoint, catalog)?;
        if let Some(access) = access {
            // A backend completes for the resources that these values leave.
            let uri_template = &template_values::with_values(&target.uri, message)?;
            let object = Object::Template { backend: &target.backend, uri_template };
            access.check(object.listing_method(), &object, || {
                resource_not_found(&target.exposed_uri)
            })?;
        }
        if catalog.is_held(&target.backend, ListKind::ResourceTemplates, &target.uri)
            || catalog.is_resource_held(&target.backend, &target.uri)
        {
            return Err(held());
        }
        let edits = if target.uri == uri {
            Vec::new()
        } else {
            vec![(span, json::quote(&target.uri).into_bytes())]
        };
        Plan { target: BackendTarget::Resource(target.uri), ..Plan::new(target.backend, edits) }
    } else {
        let (span, name) = required_text(message, fields.reference_name, "params.ref.name")?;
        let unknown = || {
            let text = format!("unknown prompt {}", quoted(&name));
            Refusal::new(ErrorKind::ReferenceNotFound, text)
        };
        let check = |backend: &BackendId, name: &str| match access {
            Some(access) => {
                access.check(Method::PromptsGet, &Object::Prompt { backend, name }, unknown)
            }
            None => Ok(()),
        };
        match endpoint {
            Endpoint::Single(backend) => {
                check(backend, &name)?;
                check_held(catalog, backend, ListKind::Prompts, &name, unknown)?;
                Plan::new(backend.clone(), Vec::new())
            }
            Endpoint::Aggregated | Endpoint::Toolset(_) => {
                let target = catalog.prompt(&name).ok_or_else(|| {
                    match catalog.is_exposed_held(ListKind::Prompts, &name) {
                        true => held(),
                        false => unknown(),
                    }
                })?;
                check(&target.backend, &target.name)?;
                if target.backend == BackendId::hosted() {
                    let hosted = catalog.hosted_prompt(&target.name).ok_or_else(unknown)?;
                    let (argument, prefix) = completed(message)?;
                    return Ok(Decision::Answer(hosted.complete(&argument, &prefix)));
                }
                Plan::new(
                    target.backend.clone(),
                    vec![(span, json::quote(&target.name).into_bytes())],
                )
            }
        }
    };
    supported(catalog, &plan.backend, message.method)?;
    Ok(Decision::Forward(plan))
}

/// Returns whether a completion refers to a resource, and not to a prompt. Only one of them is
/// checked, so a reference that a backend could take for the other is refused.
fn refers_to_resource(message: &Message) -> Result<bool, Refusal> {
    let fields = &message.fields;
    let kind = message.text(fields.reference_type);
    match (kind.as_deref(), fields.reference_name, fields.reference_uri) {
        (Some("ref/prompt"), Some(_), None) => Ok(false),
        (Some("ref/resource"), None, Some(_)) => Ok(true),
        _ => {
            let text = "params.ref has type ref/prompt and a name, or type ref/resource and a uri";
            Err(Refusal::new(ErrorKind::InvalidParams, text))
        }
    }
}

/// Returns the name of the argument that a completion is for, and its prefix.
fn completed(message: &Message) -> Result<(String, String), Refusal> {
    let refuse = |text: &str| Refusal::new(ErrorKind::InvalidParams, text);
    let params = message.bytes(message.params).unwrap_or_default();
    let limits = json::Limits::with_bytes_max(params.len());
    let document =
        json::Document::parse(params, &limits).map_err(|_| refuse("params cannot be read"))?;
    let text = |member: &str| {
        let value = document.root().path(&["argument", member]);
        value.and_then(|value| value.as_str()).map(|text| text.into_owned())
    };
    let named = text("name").zip(text("value"));
    named.ok_or_else(|| refuse("params.argument.name and params.argument.value must be strings"))
}

/// Returns the resource that a client subscribes to.
pub fn subscription(
    uri: &str,
    endpoint: &Endpoint,
    catalog: &Catalog,
    access: Option<&AccessCheck<'_>>,
) -> Result<ResourceTarget, Refusal> {
    let target = resource_target(uri, endpoint, catalog)?;
    check_resource(catalog, access, Method::ResourcesSubscribe, &target)?;
    supported(catalog, &target.backend, Method::ResourcesSubscribe)?;
    Ok(target)
}

fn resource_target(
    uri: &str,
    endpoint: &Endpoint,
    catalog: &Catalog,
) -> Result<ResourceTarget, Refusal> {
    if uri.len() > URI_BYTES_MAX || uri.chars().any(char::is_control) || !uri.contains(':') {
        let text = format!(
            "a URI must have a scheme, no control characters and at most {URI_BYTES_MAX} bytes"
        );
        return Err(Refusal::new(ErrorKind::UriInvalid, text));
    }
    let climbs = |_| {
        Refusal::new(
            ErrorKind::PathTraversal,
            "the path of a resource URI must not lead to a parent folder",
        )
    };
    match endpoint {
        Endpoint::Single(backend) => {
            uri::check(uri).map_err(climbs)?;
            Ok(ResourceTarget {
                backend: backend.clone(),
                uri: uri.to_owned(),
                exposed_uri: uri.to_owned(),
            })
        }
        Endpoint::Aggregated | Endpoint::Toolset(_) => exposed_names::native_uri(uri)
            .filter(|(backend, _)| catalog.backends.contains_key(backend))
            .map(|(backend, native)| ResourceTarget {
                // The one form in which clients are notified of changes.
                exposed_uri: exposed_names::exposed_uri(&backend, &native),
                uri: native.into_owned(),
                backend,
            })
            .ok_or_else(|| resource_not_found(uri))
            .and_then(|target| uri::check(&target.uri).map(|()| target).map_err(climbs)),
    }
}
