//! Doors: the places at which the broker asks the access policy. A test opens one of them with
//! `MCP_BROKER_OPEN_DOOR=NAME`, as if the call there had been forgotten, and expects that another
//! test sees it. Release builds contain no such switch.

/// Returns whether a test opened the door called `name`.
#[inline]
pub fn is_open(name: &str) -> bool {
    #[cfg(debug_assertions)]
    {
        static OPEN: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
        let open = OPEN.get_or_init(|| std::env::var("MCP_BROKER_OPEN_DOOR").ok());
        open.as_deref() == Some(name)
    }
    #[cfg(not(debug_assertions))]
    {
        let _ = name;
        false
    }
}
