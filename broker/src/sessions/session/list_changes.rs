//! Notifications of changed lists, as the session promised them to its client.

use std::collections::HashSet;

use protocol::{handshake, method::Method, phase::SessionPhase};

use super::Session;
use crate::rules::{
    catalog::ListKind,
    event_log::{EventKind, Topic},
};

impl Session {
    /// The merged lists changed: tells the client, once per kind, what it was promised to be told.
    pub fn on_lists_changed(&self, kinds: &[ListKind]) {
        let methods: HashSet<Method> =
            kinds.iter().filter_map(|kind| self.change_notification(*kind)).collect();
        let told = self.tenant.catalog().digests(&self.endpoint);
        let ready = {
            let mut state = self.lock();
            if state.lists_unchecked || self.is_leaving() {
                return; // compared with what was told, here or by the next owner
            }
            (state.announced_lists, state.dirty.lists) = (told, true);
            let ready = state.phase == SessionPhase::Ready;
            if !ready {
                state.held_changes.extend(&methods);
            }
            ready
        };
        if ready {
            methods.into_iter().for_each(|method| self.send_list_changed(method));
        }
    }

    pub(super) fn send_list_changed(&self, method: Method) {
        self.deliver_coalesced(
            EventKind::Message,
            Some(Topic::List(method)),
            handshake::notification(method, None),
        );
    }

    pub(super) fn change_notification(&self, kind: ListKind) -> Option<Method> {
        let (promised, method) = match kind {
            ListKind::Tools => (self.advertised.tools_list_changed, Method::ToolsListChanged),
            ListKind::Prompts => (self.advertised.prompts_list_changed, Method::PromptsListChanged),
            ListKind::Resources | ListKind::ResourceTemplates => {
                (self.advertised.resources_list_changed, Method::ResourcesListChanged)
            }
        };
        promised.then_some(method)
    }
}
