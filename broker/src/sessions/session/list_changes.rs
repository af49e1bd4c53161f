//! Notifications of changed lists, as the session has advertised them to its client.

use std::{collections::HashSet, sync::Arc};

use protocol::{capabilities::ServerCapabilities, handshake, method::Method, phase::SessionPhase};
use rules::{
    catalog::ListKind,
    event_log::{EventKind, Topic},
};

use super::Session;

impl Session {
    /// Sends the advertised notifications for lists that changed, once per method.
    pub fn on_lists_changed(&self, kinds: &[ListKind]) {
        let methods: HashSet<Method> =
            kinds.iter().filter_map(|kind| change_notification(&self.advertised, *kind)).collect();
        let told = self.visible_catalog().digests(&self.endpoint);
        let ready = {
            let mut state = self.lock();
            if state.lists.is_unchecked() || self.is_leaving() {
                return; // compared with what was told, here or by the next owner
            }
            let ready = state.phase == SessionPhase::Ready;
            state.lists.announce(told);
            state.dirty.lists = true;
            if !ready {
                state.lists.hold(&methods);
            }
            ready
        };
        if ready {
            methods.into_iter().for_each(|method| send_list_changed(self, method));
        }
    }

    /// Returns whether the client's lists still have to be compared. The backends may only just be
    /// reached.
    pub fn has_unchecked_lists(&self) -> bool {
        self.lock().lists.is_unchecked()
    }
}

/// Sends a notification for each list that differs from the client's last state. Called once
/// the backends have had time to answer.
pub fn compare_lists(session: &Session) {
    let methods = loop {
        let catalog = session.visible_catalog();
        let now = catalog.digests(&session.endpoint); // computed without the lock, it may take a while
        let mut state = session.lock();
        if !Arc::ptr_eq(&catalog, &session.visible_catalog()) {
            continue;
        }
        let Some(changed) = state.lists.compare(now) else { return };
        state.dirty.lists |= !changed.is_empty();
        let changed = changed.into_iter();
        let methods: HashSet<_> =
            changed.filter_map(|kind| change_notification(&session.advertised, kind)).collect();
        break methods;
    };
    methods.into_iter().for_each(|method| send_list_changed(session, method));
}

pub(super) fn send_list_changed(session: &Session, method: Method) {
    session.deliver_coalesced(
        EventKind::Message,
        Some(Topic::List(method)),
        handshake::notification(method, None),
    );
}

/// Returns the notification that the client was promised for changes of this list, if any.
fn change_notification(advertised: &ServerCapabilities, kind: ListKind) -> Option<Method> {
    let (promised, method) = match kind {
        ListKind::Tools => (advertised.tools_list_changed, Method::ToolsListChanged),
        ListKind::Prompts => (advertised.prompts_list_changed, Method::PromptsListChanged),
        ListKind::Resources | ListKind::ResourceTemplates => {
            (advertised.resources_list_changed, Method::ResourcesListChanged)
        }
    };
    promised.then_some(method)
}
