//! Tools of one backend that pass for those of other backends.

use std::{collections::HashSet, sync::Arc};

use protocol::ids::BackendId;
use records::PinKind;
use rules::{
    catalog::BackendLists,
    pins::{Neighbours, PinDefinition},
};

/// Adds the findings about tools that pass for those of other backends.
pub(super) fn find_look_alikes(
    lists: &mut BackendLists,
    definitions: &mut [PinDefinition],
    others: &[(BackendId, Arc<BackendLists>)],
) {
    if lists.tools.is_empty() || others.is_empty() {
        return;
    }
    let mut neighbours = Neighbours::default();
    for (other, lists) in others {
        for tool in &lists.tools {
            neighbours.add(other.as_str(), &tool.key, &tool.exposed_key);
        }
    }
    let names: Vec<String> = lists.tools.iter().map(|tool| tool.key.clone()).collect();
    let own: HashSet<&str> = names.iter().map(String::as_str).collect();
    let mut serious = HashSet::new();
    let tools = definitions.iter_mut().filter(|definition| definition.kind == PinKind::Tool);
    for definition in tools {
        definition.compare(&neighbours, &own);
        if definition.entry_pin().has_serious_finding {
            serious.insert(definition.name.as_str());
        }
    }
    for tool in &mut lists.tools {
        tool.pin.has_serious_finding |= serious.contains(tool.key.as_str());
    }
}
