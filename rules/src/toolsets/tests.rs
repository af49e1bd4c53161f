//! What a toolset lists, under which names, and that exactly this can be called.

use std::collections::HashMap;

use aws_lc_rs::hmac;
use bytes::Bytes;
use proptest::prelude::*;
use protocol::{
    envelope::Message,
    ids::{PrincipalId, TenantId},
    json,
    version::Version,
};
use serde_json::{Value, json};

use super::*;
use crate::{
    access::{AccessCheck, Attribute, PolicyDocument, PolicyIndex, Subject, Verdict},
    catalog::{HostedPrompt, HostedPrompts, TaskHost, read_page},
    endpoint::Endpoint,
    routing::{self, Decision},
};

const NAMES: [&str; 5] = ["read", "write", "a__b", "odd.name", "delete"];

fn backend(name: &str) -> BackendId {
    BackendId::parse(name).unwrap()
}

fn lists(name: &str, tools: &[Value], resources: &[&str]) -> (BackendId, Arc<BackendLists>) {
    let id = backend(name);
    let entries = |kind: ListKind, list: Vec<Value>| {
        let page = json!({kind.member(): list}).to_string();
        read_page(kind, &id, TaskHost::Backend, page.as_bytes()).unwrap().entries
    };
    let resources = resources.iter().map(|uri| json!({"uri": uri, "name": uri})).collect();
    let lists = BackendLists {
        tools: entries(ListKind::Tools, tools.to_vec()),
        resources: entries(ListKind::Resources, resources),
        ..BackendLists::declaring(br#"{"tools":{},"resources":{},"prompts":{}}"#).unwrap()
    };
    (id, Arc::new(lists))
}

fn tool(name: &str) -> Value {
    let schema = json!({
        "type": "object", "required": ["path", "repo"],
        "properties": {"path": {"type": "string"}, "repo": {"type": "string"}}
    });
    json!({"name": name, "description": "Does it. And more.", "inputSchema": schema,
        "annotations": {"readOnlyHint": name == "read"}})
}

fn catalog(backends: impl IntoIterator<Item = (BackendId, Arc<BackendLists>)>) -> Catalog {
    let key = hmac::Key::new(hmac::HMAC_SHA256, &[1; 32]);
    let prompt = json!({"messages": [{"text": "Hello."}]});
    let prompt = HostedPrompt::compile(&serde_json::from_value(prompt).unwrap()).unwrap();
    let prompts = HostedPrompts::new([("greet".to_owned(), Arc::new(prompt))]);
    let backends = backends.into_iter().collect();
    Catalog::with_hosted(TenantId::parse("acme").unwrap(), key, backends, Arc::new(prompts), 0)
}

fn two_backends() -> Catalog {
    let tools = NAMES.map(tool);
    catalog([lists("files", &tools, &["file:///a", "file:///b"]), lists("web", &tools[..2], &[])])
}

fn compiled(document: Value) -> Result<Toolset, Vec<PolicyFault>> {
    let known = [backend("files"), backend("web"), BackendId::hosted()];
    let id = ToolsetId::parse("set").unwrap();
    Toolset::compile(id, &serde_json::from_value(document).unwrap(), Some(&known))
}

fn toolset(document: Value) -> Toolset {
    compiled(document).unwrap()
}

fn endpoint() -> Endpoint {
    Endpoint::Toolset(ToolsetId::parse("set").unwrap())
}

fn listed(catalog: &Catalog, kind: ListKind) -> Vec<Value> {
    let page = catalog.list(&endpoint(), kind, None).unwrap();
    let page: Value = serde_json::from_slice(&page).unwrap();
    page[kind.member()].as_array().unwrap().clone()
}

fn names(document: Value) -> Vec<String> {
    let shown = toolset(document).catalog(&two_backends());
    let tools = listed(&shown, ListKind::Tools);
    tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn an_empty_toolset_lists_nothing() {
    let shown = toolset(json!({})).catalog(&two_backends());
    for kind in ListKind::ALL {
        assert_eq!(listed(&shown, kind), Vec::<Value>::new());
    }
    assert!(shown.backends.is_empty());
}

#[test]
fn entries_are_in_the_order_of_rank_backend_and_name() {
    assert_eq!(
        names(json!({"include": {"tools": ["*"]}, "exclude": {"tools": ["*/a__b", "files/odd*"]},
            "overrides": {"web/read": {"rank": 0}, "files/delete": {"rank": 7}}})),
        ["files__read", "files__write", "web__read", "web__write", "files__delete"]
    );
}

#[test]
fn included_patterns_aliases_and_overrides_that_match_nothing_are_warnings() {
    let toolset = toolset(json!({
        "include": {"tools": ["files/read", "files/raed", "web/*"], "prompts": ["web/none"]},
        "aliases": {"files/raed": "r", "files/read": "s"}, "overrides": {"web/none": {"rank": 1}}
    }));
    let warnings = toolset.unused_members(&two_backends());
    let paths: Vec<&str> = warnings.iter().map(|warning| warning.path.as_str()).collect();
    let expected =
        ["include.tools[1]", "include.prompts[0]", "aliases.files/raed", "overrides.web/none"];
    assert_eq!(paths, expected);
}

#[test]
fn names_without_prefixes_stay_unique() {
    let all = json!({"tools": ["*"]});
    // One with `__` could be another backend's, and one with a dot fits no model's rules.
    let odd = exposed_names::exposed_name(&backend("files"), "odd.name");
    assert_eq!(
        names(json!({"include": all, "names": "unique"})),
        ["files__a__b", "delete", &odd, "files__read", "files__write", "web__read", "web__write"]
    );
    let aliases = json!({"web/read": "fetch", "web/write": "delete"});
    let never = json!({"include": all, "names": "never", "aliases": aliases});
    let ambiguous = toolset(never.clone()).ambiguities(&two_backends());
    assert_eq!(ambiguous.len(), 1, "{ambiguous:?}");
    assert!(ambiguous[0].problem.contains("delete is the name of files/delete and web/write"));
    let shown = names(never);
    assert!(shown.contains(&"files__delete".to_owned()) && shown.contains(&"delete".to_owned()));
    assert!(
        toolset(json!({"include": all, "names": "unique"})).ambiguities(&two_backends()).is_empty()
    );
}

#[test]
fn faults_of_a_document_have_their_paths() {
    let faults = compiled(json!({
        "include": {"tools": ["gone/x"]},
        "aliases": {"files/a": "x__y", "files/b": "same", "files/c": "same", "nothing": "d", "gone/x": "e"},
        "overrides": {
            "files/read": {"annotations": {"readOnlyHint": true}, "args": {"repo": {}}},
            "files/*": {"annotations": {"destructiveHint": false}}
        },
        "description_chars_max": 0, "enforce": true
    }))
    .unwrap_err();
    let paths: Vec<&str> = faults.iter().map(|fault| fault.path.as_str()).collect();
    for path in [
        "include.tools[0]",
        "aliases.files/a",
        "aliases.files/c",
        "aliases.nothing",
        "aliases.gone/x",
        "overrides.files/read.annotations.readOnlyHint",
        "overrides.files/read.args.repo",
        "overrides.files/*.annotations.destructiveHint",
        "description_chars_max",
        "enforce",
    ] {
        assert!(paths.contains(&path), "{path} of {paths:?}");
    }
    assert!(compiled(json!({"bind": {"groups": ["a"]}})).is_err());
    assert!(compiled(json!({"enforce": true, "bind": {}})).is_err());
}

#[test]
fn texts_hints_and_arguments_are_changed_and_nothing_else() {
    let shown = toolset(json!({
        "include": {"tools": ["files/read"]}, "aliases": {"files/read": "look"},
        "overrides": {"files/read": {
            "title": "Look", "description": "Reads \"it\". Well.",
            "annotations": {"readOnlyHint": false, "openWorldHint": true},
            "args": {"repo": {"const": {"a": [1]}, "hidden": true}, "path": {"const": "/x"}}
        }},
        "descriptions": "first_sentence"
    }))
    .catalog(&two_backends());
    assert_eq!(
        listed(&shown, ListKind::Tools),
        [json!({
            "name": "look", "title": "Look", "description": "Reads \"it\".",
            "annotations": {"readOnlyHint": false, "openWorldHint": true},
            "inputSchema": {"type": "object", "required": [],
                "properties": {"path": {"type": "string", "const": "/x"}}}
        })]
    );
    let plain = toolset(json!({"include": {"tools": ["files/read"]}})).catalog(&two_backends());
    let full = two_backends();
    let native = &full.backends[&backend("files")].tools[0];
    let page = plain.list(&endpoint(), ListKind::Tools, None).unwrap();
    let same = [b"{\"tools\":[".as_slice(), &native.exposed, b"]}"].concat();
    assert_eq!(page, same, "an entry that nothing changes keeps its bytes");
}

#[test]
fn null_is_a_value_of_a_fixed_argument() {
    let set = json!({
        "include": {"tools": ["files/read"]},
        "overrides": {"files/read": {"args": {"repo": {"const": null}}}}
    });
    let document: ToolsetDocument = serde_json::from_value(set.clone()).unwrap();
    assert_eq!(serde_json::to_value(&document).unwrap(), set, "it is stored as it was written");
    let shown = toolset(set).catalog(&two_backends());
    let repo = &listed(&shown, ListKind::Tools)[0]["inputSchema"]["properties"]["repo"];
    assert_eq!(*repo, json!({"type": "string", "const": null}));
    let fixed = shown.backends[&backend("files")].tools[0].fixed.as_ref().unwrap();
    assert_eq!(fixed.apply(Some(br#"{"repo":"x"}"#)).unwrap(), br#"{"repo":null}"#.as_slice());
}

fn subject(groups: &[&str]) -> Subject {
    let groups = Attribute::of(groups.iter().copied());
    Subject { groups, ..Subject::of_principal(PrincipalId::new("ann")) }
}

/// Returns what a request leads to: the backend and the request that it gets, the answer, or the
/// kind of the refusal.
fn outcome(
    full: &Catalog,
    toolsets: &Toolsets,
    (at, subject): (&Endpoint, &Subject),
    policy: Option<&Arc<Policy>>,
    (method, params): (&str, Value),
) -> Result<(String, Value), &'static str> {
    let request = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
    let message =
        Message::decode(Bytes::from(request.to_string()), &json::Limits::default()).unwrap();
    let view = view(full, toolsets, at, policy, subject);
    let catalog = view.as_ref().map_or(full, |view| &view.catalog);
    let check = view.as_ref().map(|view| AccessCheck::new(view, subject));
    let version = Version::LATEST_WITH_SESSIONS;
    match routing::decide(&message, at, &full.capabilities, version, catalog, check.as_ref()) {
        Ok(Decision::Forward(plan)) => {
            let mut splice = protocol::splice::Splice::new(&message.frame);
            for (span, text) in &plan.edits {
                splice.replace(*span, text.clone());
            }
            let sent: Value = serde_json::from_slice(&splice.finish()).unwrap();
            Ok((plan.backend.to_string(), sent["params"].clone()))
        }
        Ok(Decision::Answer(answer)) => {
            Ok((String::new(), serde_json::from_slice(&answer).unwrap()))
        }
        Ok(other) => panic!("{other:?}"),
        Err(refusal) => Err(refusal.kind.name()),
    }
}

fn view(
    full: &Catalog,
    toolsets: &Toolsets,
    at: &Endpoint,
    policy: Option<&Arc<Policy>>,
    subject: &Subject,
) -> Option<crate::access::AccessView> {
    let toolset = match at {
        Endpoint::Toolset(id) => Some(toolsets.get(id).expect("published").clone()),
        _ => None,
    };
    let policy = toolsets.policy(policy, toolset.as_deref())?;
    let shown = match &toolset {
        Some(toolset) => toolset.catalog(full),
        None => full.rebuilt(full.backends.clone()),
    };
    let index = PolicyIndex::new(policy, Arc::new(shown));
    let (_, verdicts) = index.verdicts(subject);
    Some(index.view(&verdicts))
}

#[test]
fn a_call_is_sent_to_the_backend_with_the_arguments_of_the_operator() {
    let full = two_backends();
    let set = toolset(json!({
        "include": {"tools": ["files/read"]}, "aliases": {"files/read": "look"},
        "overrides": {"files/read": {"args": {"repo": {"const": "x", "hidden": true}}}}
    }));
    let toolsets = Toolsets::new([(Arc::new(set), true)]);
    let ann = subject(&[]);
    let call =
        |params| outcome(&full, &toolsets, (&endpoint(), &ann), None, ("tools/call", params));
    for (params, arguments) in [
        (json!({"name": "look"}), json!({"repo": "x"})),
        (
            json!({"name": "look", "arguments": {"repo": "evil", "path": "/"}}),
            json!({"repo": "x", "path": "/"}),
        ),
    ] {
        let sent = json!({"name": "read", "arguments": arguments});
        assert_eq!(call(params), Ok(("files".to_owned(), sent)));
    }
    for name in ["read", "files__read", "files__write", "web__read"] {
        assert_eq!(call(json!({"name": name})), Err("tool_not_found"), "{name}");
    }
    assert_eq!(call(json!({"name": "look", "arguments": {"REPO": 1}})), Err("invalid_params"));
}

#[test]
fn resources_and_prompts_outside_are_reported_as_absent() {
    let full = two_backends();
    let set = toolset(
        json!({"include": {"resources": ["files/file:///a*"], "prompts": ["_broker/greet"]}}),
    );
    let toolsets = Toolsets::new([(Arc::new(set), true)]);
    let ann = subject(&[]);
    let request =
        |method, params| outcome(&full, &toolsets, (&endpoint(), &ann), None, (method, params));
    assert!(request("resources/read", json!({"uri": "files+file:///a"})).is_ok());
    assert!(request("resources/read", json!({"uri": "files+file:///a/unlisted"})).is_ok());
    for uri in ["files+file:///b", "web+file:///a", "files+file:///%62"] {
        assert_eq!(
            request("resources/read", json!({"uri": uri})),
            Err("resource_not_found"),
            "{uri}"
        );
    }
    assert!(request("prompts/get", json!({"name": "greet"})).is_ok());
    let none = toolset(json!({"include": {"tools": ["*"]}}));
    let toolsets = Toolsets::new([(Arc::new(none), true)]);
    let got = outcome(
        &full,
        &toolsets,
        (&endpoint(), &ann),
        None,
        ("prompts/get", json!({"name": "greet"})),
    );
    assert!(got.is_err(), "{got:?}");
}

#[test]
fn an_enforced_toolset_limits_its_members_at_every_endpoint() {
    let full = two_backends();
    let bound = |document: Value, published| (Arc::new(toolset(document)), published);
    let enforced = json!({
        "include": {"tools": ["files/read", "files/write"]}, "enforce": true,
        "bind": {"groups": ["dev"]},
        "overrides": {"files/write": {"args": {"repo": {"const": "x"}}}}
    });
    let call = |published: bool, groups: &[&str], at: &Endpoint, name: &str| {
        let toolsets = Toolsets::new([bound(enforced.clone(), published)]);
        let subject = subject(groups);
        outcome(&full, &toolsets, (at, &subject), None, ("tools/call", json!({"name": name})))
            .is_ok()
    };
    let (mcp, files, web) = (
        Endpoint::Aggregated,
        Endpoint::Single(backend("files")),
        Endpoint::Single(backend("web")),
    );
    for published in [true, false] {
        assert!(call(published, &["dev"], &mcp, "files__read"));
        assert!(call(published, &["dev"], &files, "read"));
        assert!(!call(published, &["dev"], &mcp, "web__read"));
        assert!(!call(published, &["dev"], &web, "read"));
        // Its argument is fixed at the toolset's own endpoint only.
        assert!(!call(published, &["dev"], &mcp, "files__write"));
        assert!(!call(published, &["dev"], &files, "write"));
        assert!(call(published, &["ops"], &mcp, "web__read"), "others are not bound");
    }
    assert!(call(true, &["dev"], &endpoint(), "files__write"));
    // A backend outside of the toolset looks like an absent one.
    let toolsets = Toolsets::new([bound(enforced.clone(), true)]);
    for (groups, may_use_web) in [(&["dev"], false), (&["ops"], true)] {
        let subject = subject(groups);
        let view = view(&full, &toolsets, &mcp, None, &subject).unwrap();
        assert!(view.policy().may_use_backend(&subject, &backend("files")));
        assert_eq!(view.policy().may_use_backend(&subject, &backend("web")), may_use_web);
    }
    let unknown = Subject { groups: Attribute::Unknown, ..subject(&[]) };
    let got = outcome(
        &full,
        &toolsets,
        (&mcp, &unknown),
        None,
        ("tools/call", json!({"name": "files__read"})),
    );
    assert_eq!(got, Err("tool_not_found"), "perhaps bound is bound, and gets nothing");
}

#[test]
fn a_searched_toolset_lists_five_tools_that_call_the_others() {
    let full = two_backends();
    let set = toolset(json!({
        "include": {"tools": ["files/*"]}, "exclude": {"tools": ["files/delete"]}, "search": true,
        "overrides": {"files/write": {"args": {"repo": {"const": "x", "hidden": true}}}}
    }));
    let shown = listed(&set.catalog(&full), ListKind::Tools);
    assert_eq!(shown.len(), 5, "{shown:?}");
    let toolsets = Toolsets::new([(Arc::new(set), true)]);
    let ann = subject(&[]);
    let policy: PolicyDocument = serde_json::from_value(
        json!({"rules": [{"id": "no", "effect": "deny", "objects": {"tools": ["files/odd.name"]}}]}),
    )
    .unwrap();
    let policy = Arc::new(Policy::compile(&policy, None).unwrap());
    let call = |name: &str, arguments: Value| {
        let params = json!({"name": name, "arguments": arguments});
        outcome(&full, &toolsets, (&endpoint(), &ann), Some(&policy), ("tools/call", params))
    };
    let inner = |tool: &str| json!({"name": tool, "arguments": {"path": "/", "repo": "r"}});
    let read = json!({"name": "read", "arguments": {"path": "/", "repo": "r"}});
    assert_eq!(call("call_tool_read", inner("files__read")), Ok(("files".to_owned(), read)));
    let write = json!({"name": "write", "arguments": {"path": "/", "repo": "x"}});
    assert_eq!(
        call("call_tool_destructive", inner("files__write")),
        Ok(("files".to_owned(), write))
    );
    for (name, tool, kind) in [
        ("call_tool_read", "files__write", "invalid_params"),
        ("call_tool_write", "files__write", "invalid_params"),
        ("call_tool_write", "files__read", "invalid_params"),
        ("call_tool_destructive", "files__delete", "tool_not_found"),
        ("call_tool_destructive", "web__write", "tool_not_found"),
        ("call_tool_destructive", "call_tool_destructive", "tool_not_found"),
        ("files__read", "files__read", "tool_not_found"),
    ] {
        assert_eq!(call(name, inner(tool)), Err(kind), "{name} {tool}");
    }
    let odd = exposed_names::exposed_name(&backend("files"), "odd.name");
    assert_eq!(call("call_tool_destructive", inner(&odd)), Err("tool_not_found"), "by the policy");
    let (_, found) = call("search_tools", json!({"query": "does it", "limit": 50})).unwrap();
    let found: Vec<&str> = found["structuredContent"]["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| tool["name"].as_str().unwrap())
        .collect();
    // Shorter texts of equal words come first.
    assert_eq!(found, ["files__write", "files__read", "files__a__b"]);
    assert_eq!(call("describe_tool", json!({"name": odd})), Err("tool_not_found"));
}

#[test]
fn a_search_uses_the_stricter_hints_of_the_toolset() {
    let full = two_backends();
    // The class of a tool in rules and patterns is that of the backend's annotations.
    let set = toolset(json!({
        "include": {"tools": ["files/*"], "classes": ["read"]}, "search": true,
        "overrides": {"files/read": {"annotations": {"readOnlyHint": false}}}
    }));
    let toolsets = Toolsets::new([(Arc::new(set), true)]);
    let ann = subject(&[]);
    let call = |name: &str, arguments: Value| {
        let params = json!({"name": name, "arguments": arguments});
        outcome(&full, &toolsets, (&endpoint(), &ann), None, ("tools/call", params))
    };
    let (_, described) = call("describe_tool", json!({"name": "files__read"})).unwrap();
    assert_eq!(described["structuredContent"]["call_with"], "call_tool_destructive");
    let inner = json!({"name": "files__read", "arguments": {}});
    assert_eq!(call("call_tool_read", inner.clone()), Err("invalid_params"));
    let sent = json!({"name": "read", "arguments": {}});
    assert_eq!(call("call_tool_destructive", inner), Ok(("files".to_owned(), sent)));
}

#[test]
fn a_call_is_repeatable_only_by_the_hints_that_the_toolset_lists() {
    let full = two_backends();
    let is_repeatable = |annotations: Value| {
        let set = toolset(json!({
            "include": {"tools": ["files/read"]},
            "overrides": {"files/read": {"annotations": annotations}}
        }));
        let params = json!({"name": "files__read"});
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
        let call = Bytes::from(call.to_string());
        let call = Message::decode(call, &json::Limits::default()).unwrap();
        let (version, shown) = (Version::LATEST_WITH_SESSIONS, set.catalog(&full));
        let decided =
            routing::decide(&call, &endpoint(), &full.capabilities, version, &shown, None);
        let Ok(Decision::Forward(plan)) = decided else { panic!("{decided:?}") };
        let tool = plan.target.tool().unwrap();
        assert!(tool.traits.read_only, "access rules use the hint of the backend");
        tool.is_repeatable
    };
    assert!(is_repeatable(json!({})));
    assert!(is_repeatable(json!({"destructiveHint": true, "openWorldHint": true})));
    assert!(!is_repeatable(json!({"readOnlyHint": false})));
}

fn patterns() -> impl Strategy<Value = Vec<String>> {
    let backends = prop::sample::select(vec!["files", "web", "*"]);
    let names = prop::sample::select(vec!["read", "write", "*", "*e", "a*", "odd.name", "delete"]);
    let pattern = (backends, names).prop_map(|(backend, name)| format!("{backend}/{name}"));
    prop::collection::vec(pattern, 0..3)
}

fn documents() -> impl Strategy<Value = Value> {
    let classes = prop::option::of(prop::sample::select(vec!["read", "write"]));
    let style = prop::sample::select(vec!["always", "unique", "never"]);
    let aliased = prop::collection::btree_map(
        prop::sample::select(vec!["files/read", "web/read", "files/odd.name", "files/gone"]),
        prop::sample::select(vec!["read", "fetch", "delete"]),
        0..3,
    );
    (patterns(), patterns(), classes, style, aliased, any::<bool>(), any::<bool>()).prop_map(
        |(include, exclude, class, style, mut aliases, fixes, enforces)| {
            let mut taken = BTreeSet::new();
            aliases.retain(|_, alias| taken.insert(*alias));
            let mut document = json!({
                "include": {"tools": include, "resources": ["files/*"]},
                "exclude": {"tools": exclude, "resources": ["files/file:///b"]},
                "names": style, "aliases": aliases,
            });
            if let Some(class) = class {
                document["include"]["classes"] = json!([class]);
            }
            if fixes {
                document["overrides"] =
                    json!({"files/read": {"args": {"repo": {"const": 1, "hidden": true}}}});
            }
            if enforces {
                document["enforce"] = true.into();
                document["bind"] = json!({"groups": ["dev"]});
            }
            document
        },
    )
}

fn policies() -> impl Strategy<Value = Value> {
    let rule = (patterns(), any::<bool>(), any::<bool>()).prop_map(|(tools, allows, all)| {
        let tools = if tools.is_empty() { vec!["*".to_owned()] } else { tools };
        let mut rule =
            json!({"effect": if allows { "allow" } else { "deny" }, "objects": {"tools": tools}});
        if !all {
            rule["subjects"] = json!({"groups": ["dev"]});
        }
        rule
    });
    (prop::collection::vec(rule, 0..4), any::<bool>()).prop_map(|(mut rules, denies)| {
        rules.iter_mut().enumerate().for_each(|(at, rule)| rule["id"] = format!("r{at}").into());
        json!({"default": if denies { "deny" } else { "allow" }, "rules": rules})
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    /// For random toolsets and policies: a tool is listed, under one name, exactly if the toolset
    /// holds it and the policy allows it. Exactly the listed names can be called.
    #[test]
    fn exactly_the_listed_tools_are_callable(
        document in documents(), policy in policies(), is_dev in any::<bool>(),
    ) {
        let full = two_backends();
        let set = Arc::new(toolset(document.clone()));
        let toolsets = Toolsets::new([(set.clone(), true)]);
        let document: ToolsetDocument = serde_json::from_value(document).unwrap();
        let selection = Selection::compile(&document.include, &document.exclude, None).unwrap();
        let policy: PolicyDocument = serde_json::from_value(policy).unwrap();
        let policy = Arc::new(Policy::compile(&policy, None).unwrap());
        let subject = subject(if is_dev { &["dev"] } else { &["ops"] });
        let view = view(&full, &toolsets, &endpoint(), Some(&policy), &subject).unwrap();
        let mut called = HashMap::new();
        let candidates: Vec<String> = full.backends.iter().flat_map(|(id, lists)| {
            lists.tools.iter().flat_map(move |tool| {
                [tool.key.clone(), exposed_names::exposed_name(id, &tool.key)]
            })
        }).chain(["fetch".to_owned(), "nothing".to_owned()]).collect();
        let shown: BTreeSet<String> = listed(&view.catalog, ListKind::Tools).iter()
            .map(|tool| tool["name"].as_str().unwrap().to_owned()).collect();
        for name in shown.iter().chain(&candidates) {
            let params = json!({"name": name, "arguments": {}});
            let at = (&endpoint(), &subject);
            match outcome(&full, &toolsets, at, Some(&policy), ("tools/call", params)) {
                Ok((backend, sent)) => {
                    prop_assert!(shown.contains(name), "{name} is called and not listed");
                    let object = (backend, sent["name"].as_str().unwrap().to_owned());
                    let other = called.insert(object, name.clone());
                    prop_assert!(other.is_none_or(|other| other == *name), "two names for one tool");
                }
                Err(kind) => {
                    prop_assert!(!shown.contains(name), "{name} is listed and refused: {kind}");
                    prop_assert_eq!(kind, "tool_not_found");
                }
            }
        }
        for (id, lists) in &full.backends {
            for tool in &lists.tools {
                let object = Object::listed(id, ListKind::Tools, tool);
                let allowed = policy.decide(&subject, object.listing_method(), &object).verdict;
                let expected = selection.has(&object) && allowed == Verdict::Allow;
                let is_called = called.contains_key(&(id.to_string(), tool.key.clone()));
                prop_assert_eq!(is_called, expected, "{}/{}", id, tool.key);
            }
        }
    }

    /// Lists have the same bytes whatever order backends list their entries in.
    #[test]
    fn lists_are_byte_stable(document in documents(), seed in any::<u64>()) {
        let set = toolset(document);
        let full = two_backends();
        let mut shuffled = full.backends.clone();
        for lists in shuffled.values_mut() {
            let lists = Arc::make_mut(lists);
            let by = (seed as usize) % lists.tools.len().max(1);
            lists.tools.rotate_left(by);
            lists.resources.reverse();
        }
        let (one, other) = (set.catalog(&full), set.catalog(&full.rebuilt(shuffled)));
        for kind in ListKind::ALL {
            let page = |catalog: &Catalog| catalog.list(&endpoint(), kind, None).unwrap();
            prop_assert_eq!(page(&one), page(&other));
        }
        prop_assert_eq!(one.digests(&endpoint()), other.digests(&endpoint()));
    }
}
