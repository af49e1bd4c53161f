//! Documents of access policies: the reader against its printer, and decisions against a naive
//! reading of the document.

use protocol::{
    ids::{BackendId, KeyId, PrincipalId},
    method::Method,
};
use rules::{
    access::{
        Attribute, Object, ObjectSelector, Policy, PolicyDocument, PolicyRule, RuleEffect,
        RuleMode, Subject, SubjectSelector, ToolClass, Verdict,
    },
    catalog::ToolTraits,
};

use crate::{Outcome, Target};

pub(super) const TARGET: Target = Target {
    name: "policies",
    tokens: &[
        "{",
        "}",
        "[",
        "]",
        ",",
        "\"default\":\"deny\",",
        "\"mode\":\"shadow\",",
        "\"effect\":\"deny\"",
        "\"effect\":\"allow\"",
        "\"effect\":\"approve\"",
        "\"rules\":[",
        "\"id\":\"r1\",",
        "\"subjects\":{",
        "\"principals\":[\"ann\"]",
        "\"groups\":[\"dev\"]",
        "\"scopes\":[\"read\"]",
        "\"keys\":[\"k1\"]",
        "\"clients\":[\"app\"]",
        "\"objects\":{",
        "\"backends\":[\"files\"]",
        "\"tools\":[\"files/read*\"]",
        "\"prompts\":[\"*\"]",
        "\"methods\":[\"tools/call\"]",
        "\"classes\":[\"write\"]",
        "\"required_scopes\":[\"read\"]",
        "\"tests\":[",
        "*",
        "/",
    ],
    bytes_max: 2048,
    check,
};

fn check(input: &[u8]) -> Outcome {
    let Ok(document) = serde_json::from_slice::<PolicyDocument>(input) else {
        return Outcome::of(&"unreadable");
    };
    let printed = serde_json::to_string(&document).expect("a document can be printed");
    let again: PolicyDocument =
        serde_json::from_str(&printed).expect("what is printed can be read");
    assert_eq!(again, document, "the round trip");
    let policy = match Policy::compile(&document, None) {
        Ok(policy) => policy,
        Err(faults) => {
            assert!(!faults.is_empty(), "a refusal names a fault");
            assert!(
                faults.iter().all(|fault| !fault.path.is_empty() && !fault.problem.is_empty()),
                "{faults:?}"
            );
            return Outcome::of(&("faults", faults.len().min(4), faults[0].is_failed_test));
        }
    };
    let mut verdicts = Vec::new();
    for subject in subjects() {
        for (method, object) in objects(&BackendId::parse("files").expect("a name")) {
            let decided = policy.decide(&subject, method, &object).verdict;
            assert_eq!(
                decided,
                decided_naively(&document, &subject, method, &object),
                "{subject:?} {object:?}"
            );
            if policy.allows_all() {
                assert_eq!(decided, Verdict::Allow, "a policy that allows all");
            }
            verdicts.push(decided);
        }
    }
    Outcome::of(&verdicts)
}

fn subjects() -> [Subject; 3] {
    let ann = Subject {
        key: Some(KeyId::new("k1")),
        groups: Attribute::of(["dev"]),
        scopes: Attribute::of(["read"]),
        client: Attribute::of(["app"]),
        ..Subject::of_principal(PrincipalId::new("ann"))
    };
    let unknown = Subject {
        groups: Attribute::Unknown,
        scopes: Attribute::Unknown,
        key: None,
        ..ann.clone()
    };
    [ann, unknown, Subject::of_principal(PrincipalId::new("bob"))]
}

fn objects(backend: &BackendId) -> [(Method, Object<'_>); 4] {
    let read = ToolTraits { read_only: true, open_world: false, ..ToolTraits::default() };
    [
        (Method::ToolsCall, Object::Tool { backend, name: "read", traits: read }),
        (Method::ToolsCall, Object::Tool { backend, name: "write", traits: ToolTraits::default() }),
        (Method::PromptsGet, Object::Prompt { backend, name: "read" }),
        (Method::ResourcesRead, Object::Resource { backend, uri: "file:///srv/a" }),
    ]
}

/// Decides as docs/access.md says it, without anything compiled.
fn decided_naively(
    document: &PolicyDocument,
    subject: &Subject,
    method: Method,
    object: &Object<'_>,
) -> Verdict {
    if document.mode == RuleMode::Shadow {
        return Verdict::Allow;
    }
    let is_call = method == Method::ToolsCall && matches!(object, Object::Tool { .. });
    let applies = |rule: &&PolicyRule| {
        rule.mode == RuleMode::Enforce
            && (is_call || rule.effect != RuleEffect::Approve)
            && is_object(&rule.objects, method, object)
            && is_subject(&rule.subjects, subject, rule.effect != RuleEffect::Allow)
    };
    let (mut denies, mut challenges, mut approves, mut allows) = (false, false, false, false);
    for rule in document.rules.iter().filter(applies) {
        let has = |scope: &String| subject.scopes.values().contains(scope);
        match rule.effect {
            RuleEffect::Allow => allows = true,
            RuleEffect::Deny if rule.required_scopes.is_empty() => denies = true,
            RuleEffect::Deny => challenges |= !rule.required_scopes.iter().all(has),
            RuleEffect::Approve => {
                approves = true;
                // An unknown attribute asks for the approval and permits nothing.
                allows |= is_subject(&rule.subjects, subject, false);
            }
        }
    }
    match () {
        () if denies || document.default == RuleEffect::Deny && !allows => Verdict::Deny,
        () if challenges => Verdict::Challenge,
        () if approves => Verdict::Approve,
        () => Verdict::Allow,
    }
}

/// Returns whether a rule is about a subject. An unknown attribute counts where a rule takes something
/// away.
fn is_subject(selector: &SubjectSelector, subject: &Subject, denies: bool) -> bool {
    let one = |patterns: &Option<Vec<String>>, value: Option<&str>| {
        patterns.as_ref().is_none_or(|patterns| {
            value.is_some_and(|value| patterns.iter().any(|pattern| fits(pattern, value)))
        })
    };
    let any = |patterns: &Option<Vec<String>>, attribute: &Attribute| match (patterns, attribute) {
        (None, _) => true,
        (Some(_), Attribute::Unknown) => denies,
        (Some(patterns), Attribute::Known(values)) => {
            values.iter().any(|value| patterns.iter().any(|pattern| fits(pattern, value)))
        }
    };
    one(&selector.principals, Some(subject.principal.as_str()))
        && one(&selector.keys, subject.key.as_ref().map(KeyId::as_str))
        && any(&selector.groups, &subject.groups)
        && any(&selector.scopes, &subject.scopes)
        && any(&selector.clients, &subject.client)
}

fn is_object(selector: &ObjectSelector, method: Method, object: &Object<'_>) -> bool {
    let backend = object.backend().as_str();
    let fits_one = |patterns: &Option<Vec<String>>, text: &str| {
        patterns.as_ref().is_none_or(|patterns| patterns.iter().any(|pattern| fits(pattern, text)))
    };
    let (kind, traits) = match object {
        Object::Tool { traits, .. } => (0, Some(traits)),
        Object::Prompt { .. } => (1, None),
        _ => (2, None),
    };
    let lists = [&selector.tools, &selector.prompts, &selector.resources];
    let is_named = lists.iter().all(|list| list.is_none())
        || lists[kind].iter().flatten().any(|pattern| {
            let (of_backend, name) = pattern.split_once('/').unwrap_or(("*", "*"));
            fits(of_backend, backend) && fits(name, object.name())
        });
    let is_of_class = selector.classes.as_ref().is_none_or(|classes| {
        traits.is_some_and(|traits| {
            classes.iter().any(|class| match class {
                ToolClass::Read => traits.read_only,
                ToolClass::Write => !traits.read_only,
                ToolClass::Destructive => !traits.read_only && traits.destructive,
                ToolClass::OpenWorld => traits.open_world,
            })
        })
    });
    fits_one(&selector.backends, backend)
        && fits_one(&selector.methods, method.name())
        && is_named
        && is_of_class
}

/// Matches a pattern by trying every length for each star.
fn fits(pattern: &str, text: &str) -> bool {
    let mut reached = vec![false; text.len() + 1];
    reached[0] = true;
    for letter in pattern.bytes() {
        if letter == b'*' {
            let first = reached.iter().position(|is| *is).unwrap_or(reached.len());
            reached.iter_mut().skip(first).for_each(|is| *is = true);
        } else {
            for at in (0..text.len()).rev() {
                reached[at + 1] = reached[at] && text.as_bytes()[at] == letter;
            }
            reached[0] = false;
        }
    }
    reached[text.len()]
}
