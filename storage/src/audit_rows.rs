//! Reads the rows of the audit log's chains. Both engines return them with the same columns.

use records::{AuditChain, AuditCheckpoint, AuditTruncation, ChainedAuditRecord};

use crate::StoreError;

/// A row from which a column can be read as a `T`.
pub(crate) trait Column<T> {
    fn column(&self, name: &str) -> Result<T, StoreError>;
}

/// A row whose columns can have any of the types in the audit log.
pub(crate) trait AuditRow:
    Column<i64>
    + Column<Option<i64>>
    + Column<String>
    + Column<Option<String>>
    + Column<Vec<u8>>
    + Column<Option<Vec<u8>>>
{
}

impl<R> AuditRow for R where
    R: Column<i64>
        + Column<Option<i64>>
        + Column<String>
        + Column<Option<String>>
        + Column<Vec<u8>>
        + Column<Option<Vec<u8>>>
{
}

fn read<R: Column<T>, T>(row: &R, column: &str) -> Result<T, StoreError> {
    row.column(column)
}

/// Reads a chain. A row without a chain row of its own is an empty chain.
pub(crate) fn chain(row: &impl AuditRow) -> Result<AuditChain, StoreError> {
    let name: String = read(row, "name")?;
    let Some(length) = read(row, "length")? else { return Ok(AuditChain::empty(&name)) };
    let head: Option<Vec<u8>> = read(row, "checkpoint_head")?;
    let checkpoint = match head {
        None => None,
        Some(head) => Some(AuditCheckpoint {
            count: read(row, "checkpoint_count")?,
            head,
            at_us: read(row, "checkpoint_at_us")?,
            signature: read::<_, Option<Vec<u8>>>(row, "checkpoint_signature")?.unwrap_or_default(),
        }),
    };
    let start = AuditTruncation {
        position: read(row, "start_position")?,
        hash: read(row, "start_hash")?,
        before_us: read(row, "start_before_us")?,
        signature: read::<_, Option<Vec<u8>>>(row, "start_signature")?.unwrap_or_default(),
    };
    Ok(AuditChain { name, length, head: read(row, "head")?, start, checkpoint })
}

/// Reads a record in its chain. Returns `None` if the row contains a chain without records.
pub(crate) fn chained_record(
    row: &impl AuditRow,
) -> Result<Option<ChainedAuditRecord>, StoreError> {
    let Some(position) = read(row, "chain_position")? else { return Ok(None) };
    Ok(Some(ChainedAuditRecord {
        number: read(row, "number")?,
        position,
        id: read(row, "id")?,
        at_us: read(row, "at_us")?,
        kind: read(row, "kind")?,
        tenant: read(row, "tenant")?,
        body: read(row, "body")?,
        hash: read::<_, Option<Vec<u8>>>(row, "chain_hash")?.unwrap_or_default(),
    }))
}
