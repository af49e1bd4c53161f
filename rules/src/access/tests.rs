//! Decisions of policies, and views that agree with them.

use std::{collections::BTreeMap, sync::Arc};

use aws_lc_rs::hmac;
use proptest::prelude::*;
use protocol::{
    error::{ErrorKind, Refusal},
    ids::{PrincipalId, TenantId},
};

use super::*;
use crate::{
    catalog::{BackendLists, Catalog, ListKind, TaskHost, ToolTraits, read_page},
    endpoint::Endpoint,
};

mod spellings;

pub(super) fn backend(name: &str) -> BackendId {
    BackendId::parse(name).unwrap()
}

fn backends() -> Vec<BackendId> {
    ["files", "pay"].map(backend).into()
}

pub(super) fn policy(text: &str) -> Policy {
    let document: PolicyDocument = serde_json::from_str(text).unwrap();
    match Policy::compile(&document, Some(&backends())) {
        Ok(policy) => policy,
        Err(faults) => panic!("{faults:?}"),
    }
}

fn faults(text: &str) -> Vec<(String, String)> {
    let document: PolicyDocument = serde_json::from_str(text).unwrap();
    let faults = Policy::compile(&document, Some(&backends())).unwrap_err();
    faults.into_iter().map(|fault| (fault.path, fault.problem)).collect()
}

pub(super) fn subject(groups: &[&str], scopes: &[&str]) -> Subject {
    Subject {
        groups: Attribute::of(groups.iter().copied()),
        scopes: Attribute::of(scopes.iter().copied()),
        ..Subject::of_principal(PrincipalId::new("ann"))
    }
}

const READ_ONLY: ToolTraits = ToolTraits {
    task_support: crate::catalog::TaskSupport::Optional,
    read_only: true,
    idempotent: true,
    destructive: true,
    open_world: false,
    has_ui: false,
    is_app_visible: true,
};

pub(super) fn tool<'a>(backend: &'a BackendId, name: &'a str) -> Object<'a> {
    Object::Tool { backend, name, traits: ToolTraits::default() }
}

fn verdict(policy: &Policy, subject: &Subject, object: &Object<'_>) -> Verdict {
    policy.decide(subject, object.listing_method(), object).verdict
}

#[test]
fn without_a_rule_the_default_decides() {
    let files = backend("files");
    let anyone = subject(&[], &[]);
    assert_eq!(verdict(&policy("{}"), &anyone, &tool(&files, "read")), Verdict::Allow);
    assert!(policy("{}").allows_all());
    let closed = policy(r#"{"default":"deny"}"#);
    assert_eq!(verdict(&closed, &anyone, &tool(&files, "read")), Verdict::Deny);
    assert!(!closed.allows_all());
    let all_denied = Policy::deny_all();
    assert_eq!(verdict(&all_denied, &anyone, &tool(&files, "read")), Verdict::Deny);
    assert!(!all_denied.allows_all());
}

/// Requests skip the check under a policy that allows all.
#[test]
fn a_policy_allows_all_exactly_if_no_enforced_rule_can_refuse() {
    let with = |rule: &str| policy(&format!(r#"{{"rules":[{{"id":"r",{rule}}}]}}"#)).allows_all();
    assert!(with(r#""effect":"allow""#));
    assert!(with(r#""effect":"deny","mode":"shadow""#));
    assert!(!with(r#""effect":"deny""#));
    assert!(!with(r#""effect":"deny","required_scopes":["x"]"#));
    assert!(!with(r#""effect":"approve""#));
}

#[test]
fn a_deny_rule_wins_at_any_position() {
    let policy = policy(
        r#"{"default":"deny","rules":[
            {"id":"all","effect":"allow"},
            {"id":"no-writes","effect":"deny","objects":{"tools":["files/write*"]}},
            {"id":"writes","effect":"allow","subjects":{"groups":["dev"]},"objects":{"tools":["files/write"]}}]}"#,
    );
    let files = backend("files");
    let dev = subject(&["dev"], &[]);
    let object = tool(&files, "write");
    let decision = policy.decide(&dev, Method::ToolsCall, &object);
    assert_eq!(decision.verdict, Verdict::Deny);
    assert_eq!(decision.rule.unwrap().id, "no-writes");
    assert_eq!(verdict(&policy, &dev, &tool(&files, "read")), Verdict::Allow);
    let outcomes: Vec<_> = policy
        .explain(&subject(&[], &[]), Method::ToolsCall, &object)
        .into_iter()
        .map(|trace| (trace.rule.id.as_str(), trace.outcome.name()))
        .collect();
    assert_eq!(
        outcomes,
        [("all", "applied"), ("no-writes", "applied"), ("writes", "other_subject")]
    );
}

#[test]
fn each_given_member_of_a_subject_must_match_one_value() {
    let policy = policy(
        r#"{"default":"deny","rules":[{"id":"a","effect":"allow",
            "subjects":{"groups":["dev","ops*"],"principals":["ann*"],"scopes":["x"]}}]}"#,
    );
    let files = backend("files");
    let object = tool(&files, "read");
    assert_eq!(verdict(&policy, &subject(&["ops-eu"], &["x", "y"]), &object), Verdict::Allow);
    assert_eq!(verdict(&policy, &subject(&["ops-eu"], &["y"]), &object), Verdict::Deny);
    assert_eq!(verdict(&policy, &subject(&["sales"], &["x"]), &object), Verdict::Deny);
    let bob = Subject { principal: PrincipalId::new("bob"), ..subject(&["dev"], &["x"]) };
    assert_eq!(verdict(&policy, &bob, &object), Verdict::Deny);
}

#[test]
fn an_unknown_claim_matches_every_deny_with_the_claim_and_no_allow() {
    let deny =
        policy(r#"{"rules":[{"id":"d","effect":"deny","subjects":{"groups":["contractors"]}}]}"#);
    let allow = policy(
        r#"{"default":"deny","rules":[{"id":"a","effect":"allow","subjects":{"groups":["*"]}}]}"#,
    );
    let files = backend("files");
    let object = tool(&files, "read");
    let unknown = Subject { groups: Attribute::Unknown, ..subject(&[], &[]) };
    let none = subject(&[], &[]);
    assert_eq!(verdict(&deny, &unknown, &object), Verdict::Deny);
    assert_eq!(verdict(&deny, &none, &object), Verdict::Allow);
    assert_eq!(verdict(&allow, &unknown, &object), Verdict::Deny);
    assert_eq!(verdict(&allow, &none, &object), Verdict::Deny);
    assert_eq!(verdict(&allow, &subject(&["dev"], &[]), &object), Verdict::Allow);
}

#[test]
fn a_challenge_names_all_scopes_of_the_operation_and_only_if_they_would_help() {
    let policy = policy(
        r#"{"default":"deny","rules":[
            {"id":"dev","effect":"allow","subjects":{"groups":["dev"]}},
            {"id":"w","effect":"deny","objects":{"classes":["write"]},"required_scopes":["files:write"]},
            {"id":"d","effect":"deny","objects":{"classes":["destructive"]},"required_scopes":["files:delete","files:write"]}]}"#,
    );
    let files = backend("files");
    let object = tool(&files, "delete");
    let decision = policy.decide(&subject(&["dev"], &["files:delete"]), Method::ToolsCall, &object);
    assert_eq!(decision.verdict, Verdict::Challenge);
    assert_eq!(decision.required_scopes, ["files:write", "files:delete"]);
    let able = subject(&["dev"], &["files:delete", "files:write"]);
    assert_eq!(verdict(&policy, &able, &object), Verdict::Allow);
    assert_eq!(verdict(&policy, &subject(&[], &[]), &object), Verdict::Deny);
    let reads = Object::Tool { backend: &files, name: "read", traits: READ_ONLY };
    assert_eq!(verdict(&policy, &subject(&["dev"], &[]), &reads), Verdict::Allow);
    assert_eq!(policy.scopes(), ["files:delete", "files:write"]);
}

#[test]
fn a_missing_hint_counts_as_its_worse_value() {
    let files = backend("files");
    for (class, traits, is_in) in [
        ("read", READ_ONLY, true),
        ("read", ToolTraits::default(), false),
        ("write", ToolTraits::default(), true),
        ("destructive", ToolTraits::default(), true),
        ("destructive", READ_ONLY, false),
        ("open_world", ToolTraits::default(), true),
        ("open_world", READ_ONLY, false),
    ] {
        let policy = policy(&format!(
            r#"{{"rules":[{{"id":"d","effect":"deny","objects":{{"classes":["{class}"]}}}}]}}"#
        ));
        let object = Object::Tool { backend: &files, name: "t", traits };
        let expected = if is_in { Verdict::Deny } else { Verdict::Allow };
        assert_eq!(verdict(&policy, &subject(&[], &[]), &object), expected, "{class}");
    }
}

#[test]
fn a_shadow_rule_shows_its_decision_and_changes_none() {
    let policy = policy(
        r#"{"default":"deny","rules":[
            {"id":"a","effect":"allow","objects":{"tools":["files/*"]}},
            {"id":"s","effect":"deny","objects":{"tools":["files/write"]},"mode":"shadow"},
            {"id":"t","effect":"allow","objects":{"tools":["pay/*"]},"mode":"shadow"}]}"#,
    );
    let (files, pay) = (backend("files"), backend("pay"));
    let anyone = subject(&[], &[]);
    let decision = policy.decide(&anyone, Method::ToolsCall, &tool(&files, "write"));
    assert_eq!(decision.verdict, Verdict::Allow);
    let (would, rule) = decision.shadow.unwrap();
    assert_eq!((would, rule.unwrap().id.as_str()), (Verdict::Deny, "s"));
    let decision = policy.decide(&anyone, Method::ToolsCall, &tool(&pay, "refund"));
    assert_eq!(decision.verdict, Verdict::Deny);
    assert_eq!(decision.shadow.unwrap().0, Verdict::Allow);
    let decision = policy.decide(&anyone, Method::ToolsCall, &tool(&files, "read"));
    assert_eq!((decision.verdict, decision.shadow), (Verdict::Allow, None));
}

#[test]
fn a_policy_in_shadow_mode_allows_all() {
    let policy = policy(r#"{"mode":"shadow","default":"deny"}"#);
    let files = backend("files");
    let decision = policy.decide(&subject(&[], &[]), Method::ToolsCall, &tool(&files, "read"));
    assert_eq!(decision.verdict, Verdict::Allow);
    assert_eq!(decision.shadow, Some((Verdict::Deny, None)));
    assert!(policy.allows_all());
}

#[test]
fn every_fault_is_reported_with_its_path() {
    let found = faults(
        r#"{"rules":[
            {"id":"a b","effect":"allow","required_scopes":["x"]},
            {"id":"ok","effect":"deny","objects":{"tools":["read","ghost/read"],"methods":["tools/list"]}},
            {"id":"ok","effect":"deny","objects":{"backends":["ghost"],"classes":[]},"subjects":{"groups":[]}},
            {"id":"s","effect":"deny","required_scopes":["a b"]}]}"#,
    );
    let paths: Vec<&str> = found.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(
        paths,
        [
            "rules[0].id",
            "rules[0].required_scopes",
            "rules[1].objects.tools[0]",
            "rules[1].objects.tools[1]",
            "rules[1].objects.methods[0]",
            "rules[2].id",
            "rules[2].subjects.groups",
            "rules[2].objects.backends[0]",
            "rules[2].objects.classes",
            "rules[3].required_scopes[0]",
        ]
    );
    assert!(found[3].1.contains("files, pay"), "{}", found[3].1);
}

#[test]
fn a_test_that_fails_is_a_fault_of_its_own() {
    let document: PolicyDocument = serde_json::from_str(
        r#"{"default":"deny","rules":[{"id":"a","effect":"allow","subjects":{"groups":["dev"]}}],
            "tests":[
              {"as":{"groups":["dev"]},"method":"tools/call","object":"files/write","expect":"allow"},
              {"as":{},"method":"resources/read","object":"files/file:///a","expect":"allow"},
              {"as":{},"method":"ping","object":"files/x","expect":"deny"}]}"#,
    )
    .unwrap();
    let faults = Policy::compile(&document, Some(&backends())).unwrap_err();
    assert_eq!(faults.len(), 2, "{faults:?}");
    assert_eq!(faults[0].path, "tests[1]");
    assert_eq!(faults[0].problem, "expects allow, the policy decides deny");
    assert!(faults[0].is_failed_test && !faults[1].is_failed_test);
    assert_eq!(faults[1].path, "tests[2].method");
}

#[test]
fn a_test_can_give_the_annotations_of_its_tool() {
    let reading =
        r#""default":"deny","rules":[{"id":"r","effect":"allow","objects":{"classes":["read"]}}]"#;
    let test = |method: &str, annotations: &str, expect: &str| {
        let object = if method == "tools/call" { "files/a" } else { "files/file:///a" };
        let test = format!(
            r#"{{"as":{{}},"method":"{method}","object":"{object}"{annotations},"expect":"{expect}"}}"#
        );
        format!(r#"{{{reading},"tests":[{test}]}}"#)
    };
    let only_reads = r#","annotations":{"readOnlyHint":true}"#;
    policy(&test("tools/call", "", "deny"));
    policy(&test("tools/call", only_reads, "allow"));
    let failed = faults(&test("tools/call", only_reads, "deny"));
    assert_eq!(failed[0].0, "tests[0]");
    assert_eq!(faults(&test("resources/read", only_reads, "deny"))[0].0, "tests[0].annotations");
    for (class, hint) in [("destructive", "destructiveHint"), ("open_world", "openWorldHint")] {
        let denies = |annotations: &str, expect: &str| {
            format!(
                r#"{{"rules":[{{"id":"r","effect":"deny","objects":{{"classes":["{class}"]}}}}],
                    "tests":[{{"as":{{}},"method":"tools/call","object":"files/a"{annotations},"expect":"{expect}"}}]}}"#
            )
        };
        policy(&denies("", "deny"));
        policy(&denies(&format!(r#","annotations":{{"{hint}":true}}"#), "deny"));
        policy(&denies(&format!(r#","annotations":{{"{hint}":false}}"#), "allow"));
    }
}

#[test]
fn a_test_of_another_tool_than_the_listed_one_is_a_warning() {
    let document: PolicyDocument = serde_json::from_str(
        r#"{"default":"deny","rules":[{"id":"r","effect":"allow","objects":{"classes":["read"]}}],
            "tests":[
              {"as":{},"method":"tools/call","object":"files/reads","expect":"deny"},
              {"as":{},"method":"tools/call","object":"files/reads","annotations":{},"expect":"deny"},
              {"as":{},"method":"tools/call","object":"files/writes","expect":"deny"},
              {"as":{},"method":"tools/call","object":"files/absent","expect":"deny"}]}"#,
    )
    .unwrap();
    let policy = Policy::compile(&document, Some(&backends())).unwrap();
    let listed = catalog(&[("reads".to_owned(), true), ("writes".to_owned(), false)]);
    let warnings = policy.tests_of_other_tools(&document.tests, &listed);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert_eq!(warnings[0].path, "tests[0]");
    assert!(warnings[0].problem.contains("decides allow"), "{}", warnings[0].problem);
}

#[test]
fn a_pattern_that_matches_nothing_yet_is_a_warning() {
    let policy = policy(
        r#"{"rules":[{"id":"d","effect":"deny","objects":{"tools":["files/a","files/zz*"],"resources":["files/x:y"]}}]}"#,
    );
    let paths: Vec<String> = policy
        .unused_patterns(&catalog(&[("a".to_owned(), true)]))
        .into_iter()
        .map(|warning| warning.path)
        .collect();
    assert_eq!(paths, ["rules[0].objects.tools[1]"]);
}

#[test]
fn an_approve_permits_with_an_approval_and_loses_to_deny_and_challenge() {
    let files = backend("files");
    let rules = |more: &str| {
        format!(
            r#"{{"default":"deny","rules":[{more}{{"id":"a","effect":"approve","objects":{{"tools":["files/w*"]}}}},{{"id":"all","effect":"allow","objects":{{"tools":["files/write"]}}}}]}}"#
        )
    };
    let anyone = subject(&[], &[]);
    let approving = policy(&rules(""));
    let verdict_of = |policy: &Policy, name| verdict(policy, &anyone, &tool(&files, name));
    assert_eq!(verdict_of(&approving, "write"), Verdict::Approve, "an allow changes nothing");
    assert_eq!(verdict_of(&approving, "wipe"), Verdict::Approve, "it permits under a default deny");
    assert_eq!(verdict_of(&approving, "read"), Verdict::Deny);
    let object = tool(&files, "wipe");
    assert_eq!(approving.decide(&anyone, Method::ToolsCall, &object).rule.unwrap().id, "a");
    let denying =
        policy(&rules(r#"{"id":"d","effect":"deny","objects":{"tools":["files/wipe"]}},"#));
    assert_eq!(verdict_of(&denying, "wipe"), Verdict::Deny);
    let challenging = policy(&rules(
        r#"{"id":"c","effect":"deny","required_scopes":["x"],"objects":{"tools":["files/wipe"]}},"#,
    ));
    assert_eq!(verdict_of(&challenging, "wipe"), Verdict::Challenge);
    let scoped = subject(&[], &["x"]);
    assert_eq!(verdict(&challenging, &scoped, &object), Verdict::Approve);
    assert!(!approving.allows_all() && approving.may_use_backend(&anyone, &files));
    // Approvals are for calls of tools.
    let all = policy(r#"{"rules":[{"id":"a","effect":"approve"}]}"#);
    let prompt = Object::Prompt { backend: &files, name: "p" };
    assert_eq!(verdict(&all, &anyone, &prompt), Verdict::Allow);
    assert_eq!(all.decide(&anyone, Method::ToolsCall, &prompt).verdict, Verdict::Allow);
    assert_eq!(all.decide(&anyone, Method::ToolsList, &object).verdict, Verdict::Allow);
    assert_eq!(verdict(&all, &anyone, &object), Verdict::Approve);
}

#[test]
fn a_missing_claim_requires_the_approval_and_permits_no_call() {
    let files = backend("files");
    let rule = r#"{"id":"a","effect":"approve","subjects":{"groups":["dev"]}}"#;
    let unknown = Subject { groups: Attribute::Unknown, ..subject(&[], &[]) };
    let object = tool(&files, "write");
    for (default, of_dev, of_others, of_unknown) in [
        ("allow", Verdict::Approve, Verdict::Allow, Verdict::Approve),
        ("deny", Verdict::Approve, Verdict::Deny, Verdict::Deny),
    ] {
        let policy = policy(&format!(r#"{{"default":"{default}","rules":[{rule}]}}"#));
        assert_eq!(verdict(&policy, &subject(&["dev"], &[]), &object), of_dev);
        assert_eq!(verdict(&policy, &subject(&["ops"], &[]), &object), of_others);
        assert_eq!(verdict(&policy, &unknown, &object), of_unknown, "{default}");
    }
}

#[test]
fn faults_of_approve_rules_name_their_members() {
    for (rule, path) in [
        (r#""effect":"allow","by":{"roles":["admin"]}"#, "rules[0].by"),
        (r#""effect":"deny","ttl":"1m""#, "rules[0].ttl"),
        (r#""effect":"allow","four_eyes":false"#, "rules[0].four_eyes"),
        (r#""effect":"approve","ttl":"1d""#, "rules[0].ttl"),
        (r#""effect":"approve","by":{}"#, "rules[0].by"),
        (r#""effect":"approve","by":{"roles":["viewer"]}"#, "rules[0].by.roles[0]"),
        (r#""effect":"approve","by":{"groups":[""]}"#, "rules[0].by.groups[0]"),
        (r#""effect":"approve","required_scopes":["x"]"#, "rules[0].required_scopes"),
        (r#""effect":"approve","objects":{"prompts":["*"]}"#, "rules[0].objects.prompts"),
        (r#""effect":"approve","objects":{"resources":["*"]}"#, "rules[0].objects.resources"),
    ] {
        let found = faults(&format!(r#"{{"rules":[{{"id":"a",{rule}}}]}}"#));
        let paths: Vec<&str> = found.iter().map(|(path, _)| path.as_str()).collect();
        assert_eq!(paths, [path], "{rule}: {found:?}");
    }
    assert_eq!(faults(r#"{"default":"approve","rules":[]}"#)[0].0, "default");
    let wrong_ttl = r#"{"rules":[{"id":"a","effect":"approve","ttl":"1d"}]}"#;
    let allowed = &faults(wrong_ttl)[0].1;
    assert!(allowed.contains("from 1s to 168h"), "{allowed}");
}

fn lists(tools: &[(String, bool)]) -> Arc<BackendLists> {
    let entries: Vec<String> = tools
        .iter()
        .map(|(name, reads)| {
            format!(
                r#"{{"name":"{name}","inputSchema":{{"type":"object"}},"annotations":{{"readOnlyHint":{reads}}}}}"#
            )
        })
        .collect();
    let page = read_page(
        ListKind::Tools,
        &backend("files"),
        TaskHost::Backend,
        format!(r#"{{"tools":[{}]}}"#, entries.join(",")).as_bytes(),
    )
    .unwrap();
    let none = BackendLists::declaring(br#"{"tools":{}}"#).unwrap();
    Arc::new(BackendLists { tools: page.entries, ..none })
}

pub(super) fn catalog(tools: &[(String, bool)]) -> Arc<Catalog> {
    let lists: BTreeMap<_, _> = [(backend("files"), lists(tools))].into();
    let key = hmac::Key::new(hmac::HMAC_SHA256, &[1; 32]);
    Arc::new(Catalog::build(TenantId::parse("acme").unwrap(), key, lists))
}

fn rule() -> impl Strategy<Value = serde_json::Value> {
    let groups = prop::option::of(prop::collection::vec("[a-c]|\\*", 1..3));
    let tools = prop::option::of(prop::collection::vec("[a-c]{0,1}\\*{0,1}[a-c]", 1..3));
    let classes = prop::option::of(prop::sample::select(vec!["read", "write", "destructive"]));
    let scopes = prop::collection::vec("[x-z]", 0..2);
    let effects = prop::sample::select(vec!["allow", "deny", "approve"]);
    (groups, tools, classes, scopes, effects, any::<bool>()).prop_map(
        |(groups, tools, classes, scopes, effect, shadow)| {
            let mut objects = serde_json::Map::new();
            if let Some(tools) = tools {
                let named: Vec<_> = tools.iter().map(|name| format!("files/{name}")).collect();
                objects.insert("tools".to_owned(), named.into());
            }
            if let Some(class) = classes {
                objects.insert("classes".to_owned(), vec![class].into());
            }
            let mut subjects = serde_json::Map::new();
            if let Some(groups) = groups {
                subjects.insert("groups".to_owned(), groups.into());
            }
            serde_json::json!({
                "effect": effect,
                "mode": if shadow { "shadow" } else { "enforce" },
                "required_scopes": if effect == "deny" { scopes } else { vec![] },
                "objects": objects,
                "subjects": subjects,
            })
        },
    )
}

/// A host must not be sent to a user interface that the caller may not read. The tool stays.
#[test]
fn a_link_to_a_denied_user_interface_is_removed() {
    let files = backend("files");
    let tools = r#"{"tools":[
        {"name":"show","inputSchema":{},"_meta":{"ui":{"resourceUri":"ui://app/a","visibility":["model"]},"ui/resourceUri":"ui://app/a"}},
        {"name":"other","inputSchema":{},"_meta":{"ui":{"resourceUri":"ui://app/b"}}}]}"#;
    let page = read_page(ListKind::Tools, &files, TaskHost::Backend, tools.as_bytes()).unwrap();
    let listed = BackendLists { tools: page.entries, ..(*lists(&[])).clone() };
    let key = hmac::Key::new(hmac::HMAC_SHA256, &[1; 32]);
    let backends: BTreeMap<_, _> = [(files.clone(), Arc::new(listed))].into();
    let catalog = Arc::new(Catalog::build(TenantId::parse("acme").unwrap(), key, backends));
    let shown = |policy: &str, groups: &[&str]| {
        let index = PolicyIndex::new(Arc::new(self::policy(policy)), catalog.clone());
        let view = index.view(&index.verdicts(&subject(groups, &[])).1);
        let page =
            view.catalog.list(&Endpoint::Single(files.clone()), ListKind::Tools, None).unwrap();
        let page: serde_json::Value = serde_json::from_slice(&page).unwrap();
        let links = page["tools"].as_array().unwrap().iter().map(|tool| {
            let meta = &tool["_meta"];
            let has_flat = meta.get("ui/resourceUri").is_some();
            (meta["ui"]["resourceUri"].as_str().map(str::to_owned), has_flat)
        });
        (links.collect::<Vec<_>>(), view.hidden)
    };
    let (a, b) = (Some("ui://app/a".to_owned()), Some("ui://app/b".to_owned()));
    let denied = r#"{"rules":[{"id":"no-ui","effect":"deny","subjects":{"groups":["dev"]},"objects":{"resources":["files/ui://app/a"]}}]}"#;
    assert_eq!(shown(denied, &["dev"]), (vec![(None, false), (b.clone(), false)], 0));
    assert_eq!(shown(denied, &["ops"]), (vec![(a.clone(), true), (b.clone(), false)], 0));
    // Tools alone are allowed, so no user interface is.
    let tools_only = r#"{"default":"deny","rules":[{"id":"t","effect":"allow","objects":{"tools":["files/*"]}}]}"#;
    assert_eq!(shown(tools_only, &[]), (vec![(None, false), (None, false)], 0));
    let shadow = denied.replace(r#""effect""#, r#""mode":"shadow","effect""#);
    assert_eq!(shown(&shadow, &["dev"]), (vec![(a, true), (b, false)], 0));
}

proptest! {
    /// The view of a subject lists a tool exactly if the decision about its call is not a deny.
    #[test]
    fn a_tool_is_listed_exactly_if_it_is_callable(
        mut rules in prop::collection::vec(rule(), 0..6),
        closed in any::<bool>(),
        tools in prop::collection::btree_map("[a-c]{1,2}", any::<bool>(), 0..8),
        groups in prop::option::of(prop::collection::vec("[a-c]", 0..2)),
        scopes in prop::collection::vec("[x-z]", 0..3),
    ) {
        for (index, rule) in rules.iter_mut().enumerate() {
            rule["id"] = format!("r{index}").into();
        }
        let document = serde_json::json!({"default": if closed { "deny" } else { "allow" }, "rules": rules});
        let policy = Arc::new(policy(&document.to_string()));
        let tools: Vec<(String, bool)> = tools.into_iter().collect();
        let catalog = catalog(&tools);
        let subject = Subject {
            groups: groups.map_or(Attribute::Unknown, Attribute::of),
            ..self::subject(&[], &scopes.iter().map(String::as_str).collect::<Vec<_>>())
        };
        let index = PolicyIndex::new(policy.clone(), catalog.clone());
        let (key, verdicts) = index.verdicts(&subject);
        prop_assert_eq!(key, index.verdicts(&subject).0);
        let view = index.view(&verdicts);
        let page = view.catalog.list(&Endpoint::Aggregated, ListKind::Tools, None).unwrap();
        let page: serde_json::Value = serde_json::from_slice(&page).unwrap();
        let listed: Vec<String> = page["tools"]
            .as_array()
            .unwrap()
            .iter()
            .map(|tool| tool["name"].as_str().unwrap().trim_start_matches("files__").to_owned())
            .collect();
        let files = backend("files");
        for (name, _) in &tools {
            let traits = catalog.traits(&files, name).unwrap();
            let object = Object::Tool { backend: &files, name, traits };
            let decision = policy.decide(&subject, Method::ToolsCall, &object);
            prop_assert_eq!(listed.contains(name), decision.verdict != Verdict::Deny, "{}", name);
            prop_assert_eq!(view.catalog.tool(&format!("files__{name}")).is_some(), listed.contains(name));
            match view.decide(&subject, Method::ToolsCall, &object) {
                None => prop_assert_eq!((decision.verdict, decision.shadow), (Verdict::Allow, None)),
                Some(found) => prop_assert_eq!(found, decision),
            }
        }
        prop_assert_eq!(view.hidden, tools.len() - listed.len());
    }
}

#[test]
fn the_decision_about_a_listed_tool_allocates_nothing() {
    let tools: Vec<_> = (0..500).map(|at| (format!("tool_{at}"), at % 2 == 0)).collect();
    let rules: Vec<_> = (0..100)
        .map(|at| serde_json::json!({"id": format!("r{at}"), "effect": "deny", "subjects": {"groups": ["ops"]}, "objects": {"tools": [format!("files/tool_{at}*")]}}))
        .collect();
    let policy = Arc::new(policy(&serde_json::json!({"rules": rules}).to_string()));
    let index = PolicyIndex::new(policy, catalog(&tools));
    let (ann, files) = (subject(&["dev"], &["read"]), backend("files"));
    let view = index.view(&index.verdicts(&ann).1);
    let hasher = std::collections::hash_map::RandomState::new();
    let mut allowed = false;
    let counted = allocation_counter::measure(|| {
        std::hint::black_box(ann.fingerprint(&hasher));
        let traits = view.catalog.traits(&files, "tool_321").unwrap_or_default();
        let object = Object::Tool { backend: &files, name: "tool_321", traits };
        let absent = || Refusal::new(ErrorKind::ToolNotFound, "unknown name");
        allowed = AccessCheck::new(&view, &ann).check(Method::ToolsCall, &object, absent).is_ok();
    });
    assert!(allowed);
    assert_eq!(counted.count_total, 0);
}
