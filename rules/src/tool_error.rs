//! Errors of tools, which are results and no errors of the protocol.

use protocol::envelope::{Kind, Message};

/// Returns whether the result reports an error of the tool (MCP 2025-11-25, Tools: Error Handling).
pub fn is_tool_error(answer: &Message) -> bool {
    answer.kind == Kind::Result && answer.bytes(answer.fields.is_error) == Some(b"true")
}
