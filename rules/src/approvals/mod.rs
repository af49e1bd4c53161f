//! Calls that wait for the approval of a person: the canonical form of their arguments, the tool
//! that they are for, and what their clients receive.

mod arguments;
mod notice;

use records::ApprovalBinding;

use crate::catalog::ToolIdentity;

pub use self::{
    arguments::{arguments_hash, canonical_arguments},
    notice::{APPROVAL_META, ApprovalNotice, ApprovalStanding},
};

/// Returns whether a tool is the one that an approval is bound to: by its pin where it is pinned,
/// else by its definition. `None`: the tool is not listed.
pub fn is_for(binding: &ApprovalBinding, tool: Option<ToolIdentity>) -> bool {
    tool.is_some_and(|tool| tool.is_as(&binding.definition, binding.pin.as_deref()))
}

#[cfg(test)]
mod tests {
    use protocol::ids::{BackendId, PrincipalId, TenantId};
    use records::PinKind;

    use super::*;
    use crate::pins::{IgnoredMembers, PinDefinition};

    #[test]
    fn an_approval_is_for_a_tool_by_its_pin_or_else_by_its_definition() {
        let pin = |text: &str| {
            let raw = format!(r#"{{"name":"send","description":"{text}"}}"#);
            PinDefinition::of_entry(
                PinKind::Tool,
                "send",
                raw.as_bytes(),
                &IgnoredMembers::default(),
            )
            .fingerprint
        };
        let binding = |pin: Option<String>| ApprovalBinding {
            tenant: TenantId::parse("acme").unwrap(),
            principal: PrincipalId::new("ann"),
            backend: BackendId::parse("pay").unwrap(),
            tool: "send".to_owned(),
            definition: [1; 32],
            pin,
            arguments_hash: [2; 32],
        };
        let tool = |definition, pin| Some(ToolIdentity { definition: [definition; 32], pin });
        let pinned = binding(Some(pin("pays").to_string()));
        assert!(is_for(&pinned, tool(9, Some(pin("pays")))), "only its text is another one");
        assert!(!is_for(&pinned, tool(1, Some(pin("pays twice")))));
        assert!(is_for(&pinned, tool(1, None)) && !is_for(&pinned, tool(9, None)));
        let free = binding(None);
        assert!(is_for(&free, tool(1, Some(pin("pays")))) && !is_for(&free, tool(9, None)));
        assert!(!is_for(&free, None) && !is_for(&pinned, None));
    }
}
