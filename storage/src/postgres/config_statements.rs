//! The statements of changes of the configuration. Each makes one change together with its audit
//! record.

use records::AdminChange;

/// Builds one statement that makes a change and adds its audit record ($2 to $6), if the change had
/// an effect. The change reads from `checked`, which fails for another version than $7. `$again` is
/// the condition under which a repeated call after a lost answer counts as done ($1).
macro_rules! changing {
    ($change:literal, $again:literal) => {
        concat!(
            "WITH checked AS MATERIALIZED (SELECT check_change($1, $2, $7)), done AS (",
            $change,
            "), told AS (SELECT append_audit(ARRAY[$2::bytea], ARRAY[$3::bigint], ARRAY[$4::text], ARRAY[$5::text], ARRAY[$6::bytea])
                WHERE $2::bytea IS NOT NULL AND EXISTS (SELECT FROM done))
             SELECT EXISTS (SELECT FROM checked) AND (SELECT count(*) FROM told) >= 0 AND (EXISTS (SELECT FROM done) OR ($1 AND ",
            $again,
            "))"
        )
    };
}

/// Builds a statement for a change that may already be done. After a lost answer it counts as done
/// if it has no audit record. With a record, `checked` tells.
macro_rules! settling {
    ($change:literal) => {
        changing!($change, "$2::bytea IS NULL")
    };
}

/// Returns the statement of a change.
pub(super) const fn statement(change: AdminChange<'_>) -> &'static str {
    match change {
        AdminChange::PutTenant(_) => changing!(
            "INSERT INTO tenants (tenant, settings, created_at_us, updated_at_us) SELECT $8, $9, $10, $11 FROM checked
             ON CONFLICT (tenant) DO UPDATE SET settings = excluded.settings, updated_at_us = excluded.updated_at_us RETURNING 1",
            "TRUE"
        ),
        AdminChange::AddTenant(_) => changing!(
            "INSERT INTO tenants (tenant, settings, created_at_us, updated_at_us) SELECT $8, $9, $10, $11 FROM checked
             ON CONFLICT (tenant) DO NOTHING RETURNING 1",
            "FALSE"
        ),
        AdminChange::DeleteTenant(_) => settling!("SELECT 1 FROM checked WHERE delete_tenant($8)"),
        // After a lost answer, an identical key counts as this one. The equal hash proves that this
        // call made it.
        AdminChange::PutKey(_) => changing!(
            "INSERT INTO api_keys (key_id, tenant, principal, name, hash, attributes, created_at_us) SELECT $8, $9, $10, $11, $12, $13, $14 FROM checked
             WHERE NOT ($1 AND EXISTS (SELECT 1 FROM api_keys WHERE key_id = $8 AND tenant = $9 AND hash = $12)) RETURNING 1",
            "TRUE"
        ),
        AdminChange::DeleteKey(..) => settling!("DELETE FROM api_keys USING checked WHERE tenant = $8 AND key_id = $9 RETURNING 1"),
        AdminChange::PutBackend(_) => changing!(
            "INSERT INTO backends (tenant, backend, settings, created_at_us, updated_at_us) SELECT $8, $9, $10, $11, $12 FROM checked
             ON CONFLICT (tenant, backend) DO UPDATE SET settings = excluded.settings, updated_at_us = excluded.updated_at_us RETURNING 1",
            "TRUE"
        ),
        AdminChange::DeleteBackend(..) => settling!("DELETE FROM backends USING checked WHERE tenant = $8 AND backend = $9 RETURNING 1"),
        AdminChange::PutPolicy(_) => changing!(
            "INSERT INTO policies (tenant, document, created_at_us, updated_at_us) SELECT $8, $9, $10, $11 FROM checked
             ON CONFLICT (tenant) DO UPDATE SET document = excluded.document, updated_at_us = excluded.updated_at_us RETURNING 1",
            "TRUE"
        ),
        AdminChange::DeletePolicy(_) => settling!("DELETE FROM policies USING checked WHERE tenant = $8 RETURNING 1"),
        AdminChange::PutCatalogDocument(_) => changing!(
            "INSERT INTO catalog_documents (tenant, kind, name, document, created_at_us, updated_at_us) SELECT $8, $9, $10, $11, $12, $13 FROM checked
             ON CONFLICT (tenant, kind, name) DO UPDATE SET document = excluded.document, updated_at_us = excluded.updated_at_us RETURNING 1",
            "TRUE"
        ),
        AdminChange::DeleteCatalogDocument(..) => {
            settling!("DELETE FROM catalog_documents USING checked WHERE tenant = $8 AND kind = $9 AND name = $10 RETURNING 1")
        }
        // As for a key: an equal hash proves that this call made the operator.
        AdminChange::PutOperator(_) => changing!(
            "INSERT INTO operators (operator, name, hash, settings, created_at_us) SELECT $8, $9, $10, $11, $12 FROM checked
             WHERE NOT ($1 AND EXISTS (SELECT 1 FROM operators WHERE operator = $8 AND hash = $10)) RETURNING 1",
            "TRUE"
        ),
        AdminChange::DeleteOperator(_) => settling!("DELETE FROM operators USING checked WHERE operator = $8 RETURNING 1"),
        AdminChange::PutRevocation(_) => changing!(
            "INSERT INTO revocations (tenant, kind, subject, issued_before_us, created_at_us) SELECT $8, $9, $10, $11, $12 FROM checked
             ON CONFLICT (tenant, kind, subject) DO UPDATE SET issued_before_us = greatest(revocations.issued_before_us, excluded.issued_before_us) RETURNING 1",
            "TRUE"
        ),
        AdminChange::DeleteRevocation(..) => {
            settling!("DELETE FROM revocations USING checked WHERE tenant = $8 AND kind = $9 AND subject = $10 RETURNING 1")
        }
        AdminChange::PutTokenIssuer(_) => changing!(
            "INSERT INTO token_issuers (tenant, issuer, settings, created_at_us, updated_at_us) SELECT $8, $9, $10, $11, $12 FROM checked
             ON CONFLICT (tenant, issuer) DO UPDATE SET settings = excluded.settings, updated_at_us = excluded.updated_at_us RETURNING 1",
            "TRUE"
        ),
        AdminChange::DeleteTokenIssuer(..) => settling!("DELETE FROM token_issuers USING checked WHERE tenant = $8 AND issuer = $9 RETURNING 1"),
        AdminChange::HoldBreaker(..) => {
            settling!("INSERT INTO held_breakers (tenant, backend) SELECT $8, $9 FROM checked ON CONFLICT DO NOTHING RETURNING 1")
        }
        AdminChange::ReleaseBreaker(..) => settling!("DELETE FROM held_breakers USING checked WHERE tenant = $8 AND backend = $9 RETURNING 1"),
        AdminChange::PutAuditTerms(_) => settling!(
            "INSERT INTO audit_retention_terms (version, terms, signature) SELECT $8, $9, $10 FROM checked
             ON CONFLICT (only_row) DO UPDATE SET version = excluded.version, terms = excluded.terms, signature = excluded.signature
             WHERE audit_retention_terms.version = excluded.version - 1 RETURNING 1"
        ),
        AdminChange::EndSession(_) => settling!("SELECT 1 FROM checked WHERE ask_session_end($8)"),
        AdminChange::ApprovePins(_) => {
            settling!("SELECT 1 FROM checked WHERE approve_pins($8, $9, $10, $11, $12, $13, $14, $15, $16)")
        }
        AdminChange::BlockPins(_) => settling!("SELECT 1 FROM checked WHERE block_pins($8, $9, $10, $11, $12, $13)"),
        AdminChange::DecideApproval(_) => settling!(
            "UPDATE approvals SET state = $10, decided_by = $11, decision_reason = $12, decided_at_us = now_us(), changed_at_us = now_us(),
                 expires_at_us = CASE WHEN $10 = 'approved' THEN now_us() + ttl_us ELSE expires_at_us END, window_until_us = now_us() + $13::bigint
             FROM checked WHERE tenant = $8 AND approval = $9 AND state = 'pending' AND expires_at_us > now_us() RETURNING 1"
        ),
    }
}
