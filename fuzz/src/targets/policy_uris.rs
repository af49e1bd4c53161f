//! Access policies: a deny reaches a resource under each spelling that a reader follows to it, and an
//! allow reaches nothing outside of it.

use std::sync::OnceLock;

use protocol::ids::{BackendId, PrincipalId};
use protocol::method::Method;
use rules::access::{Object, Policy, PolicyDocument, Subject, Verdict};

use super::{resource_uris::URI_TOKENS, uri_readers::READERS};
use crate::{Outcome, Target};

pub(super) const TARGET: Target =
    Target { name: "policy_uris", tokens: URI_TOKENS, bytes_max: 256, check };

const FOLDER: &str = "/srv/secret/";
const DENIES: &str = r#"{"rules":[{"id":"r","effect":"deny","objects":{"resources":["files/file:///srv/secret/*"]}}]}"#;
const ALLOWS: &str = r#"{"default":"deny","rules":[{"id":"r","effect":"allow","objects":{"resources":["files/file:///srv/secret/*"]}}]}"#;

fn check(input: &[u8]) -> Outcome {
    static POLICIES: OnceLock<[Policy; 2]> = OnceLock::new();
    let [denies, allows] = POLICIES.get_or_init(|| [DENIES, ALLOWS].map(policy));
    let uri = String::from_utf8_lossy(input);
    let (denied, allowed) = (verdict(denies, &uri), verdict(allows, &uri));
    for (name, reader) in READERS {
        let Some(path) = reader(&uri) else { continue };
        if path.starts_with(FOLDER) {
            assert_eq!(denied, Verdict::Deny, "{name} looks at {path}");
        } else if format!("{path}/") != FOLDER {
            assert_eq!(allowed, Verdict::Deny, "{name} looks at {path}");
        }
    }
    Outcome::of(&(denied, allowed, READERS.map(|(_, reader)| reader(&uri).is_some())))
}

fn policy(text: &str) -> Policy {
    let document: PolicyDocument = serde_json::from_str(text).expect("a document");
    Policy::compile(&document, None).expect("a policy")
}

fn verdict(policy: &Policy, uri: &str) -> Verdict {
    let (subject, backend) = (
        Subject::of_principal(PrincipalId::new("ann")),
        BackendId::parse("files").expect("a name"),
    );
    policy
        .decide(&subject, Method::ResourcesRead, &Object::Resource { backend: &backend, uri })
        .verdict
}
