//! Results that are longer than their tool's budget: stored for the client, and shortened.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use protocol::{envelope::Message, handshake, ids::RequestId, json, splice::Splice};
use records::{KeptResult, ResultKey, ResultLimits};
use rules::{
    exposure::ResourceUris,
    limits::results::{
        KEPT_RESULT_BYTES_PER_PRINCIPAL, KEPT_RESULT_BYTES_PER_TENANT, KEPT_RESULT_ID_BYTES,
        KEPT_RESULT_TTL,
    },
    result_budget::{self, ShortenedResult},
};

use super::Call;

const LIMITS: ResultLimits = ResultLimits {
    principal_bytes: KEPT_RESULT_BYTES_PER_PRINCIPAL,
    tenant_bytes: KEPT_RESULT_BYTES_PER_TENANT,
};

impl Call {
    /// Returns the shortened answer. One that cannot be stored stays as it is: a budget loses
    /// nothing.
    pub(super) async fn shorten(
        &self,
        tokens: u32,
        tool: &str,
        answer: Message,
        uris: ResourceUris,
    ) -> (Message, ResourceUris) {
        let id = URL_SAFE_NO_PAD.encode(rand::random::<[u8; KEPT_RESULT_ID_BYTES]>());
        let Some((short, converted)) = self.shortened(&answer, &uris, tokens, &id) else {
            return (answer, uris);
        };
        let kept = KeptResult {
            key: ResultKey {
                tenant: self.session.tenant.id.clone(),
                principal: self.session.caller.principal.clone(),
                id,
            },
            backend: self.backend().clone(),
            tool: tool.to_owned(),
            mime_type: short.mime_type.to_owned(),
            page_bytes: u32::try_from(short.page_bytes).unwrap_or(u32::MAX),
            body: short.text.into_bytes(),
        };
        let persistence = &self.session.shared.persistence;
        let putting = persistence.store.put_result(&kept, KEPT_RESULT_TTL, LIMITS);
        match persistence.timed("put_result", putting).await {
            Ok(true) => (converted, ResourceUris::default()),
            Ok(false) => {
                tracing::warn!(tenant = %kept.key.tenant, backend = %self.backend(), tool, "the broker does not shorten a long result: the tenant reached its limit of stored results");
                (answer, uris)
            }
            Err(refusal) => {
                tracing::warn!(tenant = %kept.key.tenant, backend = %self.backend(), tool, %refusal, "the broker does not shorten a long result, because it could not store the whole result");
                (answer, uris)
            }
        }
    }

    /// Shortens an answer, with the URIs in the client's terms.
    fn shortened(
        &self,
        answer: &Message,
        uris: &ResourceUris,
        tokens: u32,
        id: &str,
    ) -> Option<(ShortenedResult, Message)> {
        let mut splice = Splice::new(&answer.frame);
        uris.expose(self.backend(), &mut splice);
        let frame = splice.finish();
        let decoded = |frame: bytes::Bytes| {
            let limits = json::Limits::with_bytes_max(frame.len());
            Message::decode(frame, &limits).ok()
        };
        let exposed = decoded(frame)?;
        let result = exposed.result?.of(&exposed.frame);
        let short = result_budget::shorten(result, tokens, id)?;
        let id = answer.id.clone().unwrap_or_else(|| RequestId::from_u64(0));
        let converted = decoded(handshake::success(&id, &short.result))?;
        Some((short, converted))
    }
}
