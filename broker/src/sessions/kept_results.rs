//! Reads of kept results: the principal of a call requests a page of the stored whole.

use std::sync::Arc;

use protocol::{error::Refusal, method::Method};
use records::ResultKey;
use rules::{
    access::{AccessCheck, Object},
    result_budget::ResultPage,
    routing::resource_not_found,
};

use super::session::{Session, local_requests::Reply};

/// Returns a page of a stored result. Only the principal that made the call finds it, and only while
/// it may still call the tool.
pub(super) async fn read(session: Arc<Session>, page: ResultPage) -> Result<Reply, Refusal> {
    let absent = || resource_not_found(&ResultPage::uri(&page.id));
    let key = ResultKey {
        tenant: session.tenant.id.clone(),
        principal: session.caller.principal.clone(),
        id: page.id.clone(),
    };
    let persistence = &session.shared.persistence;
    let kept = persistence
        .timed("get_result", persistence.store.result(&key))
        .await?
        .ok_or_else(absent)?;
    let (subject, snapshot) = (session.subject(), session.catalog());
    if let Some(view) = snapshot.view(&subject) {
        let traits = snapshot.full.traits(&kept.backend, &kept.tool).unwrap_or_default();
        let tool = Object::Tool { backend: &kept.backend, name: &kept.tool, traits };
        AccessCheck::new(&view, &subject).check(Method::ToolsCall, &tool, absent)?;
    }
    let text = String::from_utf8_lossy(&kept.body);
    page.read(&text, &kept.mime_type, kept.page_bytes as usize).map(Reply::Result)
}
