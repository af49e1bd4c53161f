//! Lists without entries: of a server that was not read yet, and of one that declares only
//! capabilities.

use std::sync::Arc;

use bytes::Bytes;
use protocol::{
    capabilities::ServerCapabilities, error::Refusal, handshake::InitializeResult, version::Version,
};

use super::{BackendLists, CatalogMarks, HeldParts};

impl BackendLists {
    /// Returns the lists of a server without entries.
    pub fn empty(server: Arc<InitializeResult>) -> Self {
        Self {
            server,
            tools: Vec::new(),
            prompts: Vec::new(),
            resources: Vec::new(),
            resource_templates: Vec::new(),
            stale: false,
            held: HeldParts::default(),
            marks: CatalogMarks::default(),
        }
    }

    /// Returns the lists, without entries, of a server without a name that declares these
    /// capabilities.
    pub fn declaring(capabilities: &[u8]) -> Result<Self, Refusal> {
        Ok(Self::empty(Arc::new(InitializeResult {
            version: Version::LATEST_WITH_SESSIONS,
            capabilities: ServerCapabilities::parse(capabilities)?,
            server_info: Bytes::from_static(b"{}"),
            server_name: String::new(),
            server_version: String::new(),
            instructions: None,
        })))
    }

    /// Returns the same backend with empty lists.
    pub fn without_entries(&self) -> Self {
        let (stale, held, marks) = (self.stale, self.held, self.marks.clone());
        Self { stale, held, marks, ..Self::empty(self.server.clone()) }
    }
}
