//! Switch that disables one check of the access policy. A test disables a check with
//! `MCP_BROKER_DISABLED_CHECK=NAME`, as if the code did not contain it, and expects that another test
//! fails. Release builds contain no such switch.

/// Returns whether a test disabled the check called `name`.
#[inline]
pub fn is_disabled(name: &str) -> bool {
    #[cfg(debug_assertions)]
    {
        static DISABLED: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
        let disabled = DISABLED.get_or_init(|| std::env::var("MCP_BROKER_DISABLED_CHECK").ok());
        disabled.as_deref() == Some(name)
    }
    #[cfg(not(debug_assertions))]
    {
        let _ = name;
        false
    }
}
