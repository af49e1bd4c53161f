//! Limits of toolsets, of batches of calls, and of prompts that the broker hosts.

/// Toolsets of one tenant.
pub const TOOLSETS_PER_TENANT_MAX: usize = 200;
/// Aliases of one toolset, and overrides of one.
pub const TOOLSET_ENTRIES_MAX: usize = 2_000;
/// An alias in a toolset. Most model APIs accept this length for a tool.
pub const TOOLSET_ALIAS_BYTES_MAX: usize = 64;
/// A title or description that a toolset gives.
pub const TOOLSET_TEXT_BYTES_MAX: usize = 8_192;
/// Arguments that a toolset fixes for one tool.
pub const FIXED_ARGUMENTS_MAX: usize = 64;
/// The value of one fixed argument, as JSON.
pub const FIXED_ARGUMENT_BYTES_MAX: usize = 8_192;
/// Estimated tokens of an endpoint's tools above which the report of costs warns.
pub const CATALOG_TOKENS_WARNED: u64 = 25_000;
/// The query of a search for tools.
pub const SEARCH_QUERY_BYTES_MAX: usize = 1024;
/// Tools that a search returns by default.
pub const SEARCH_RESULTS: usize = 10;
/// Tools that a search returns at most.
pub const SEARCH_RESULTS_MAX: usize = 50;
/// Prompts that the broker hosts for one tenant.
pub const HOSTED_PROMPTS_PER_TENANT_MAX: usize = 500;
/// Arguments of one hosted prompt.
pub const HOSTED_PROMPT_ARGUMENTS_MAX: usize = 64;
/// Listed values of one argument of a hosted prompt.
pub const HOSTED_PROMPT_VALUES_MAX: usize = 500;
/// Messages of one hosted prompt.
pub const HOSTED_PROMPT_MESSAGES_MAX: usize = 64;
/// All texts of one hosted prompt together.
pub const HOSTED_PROMPT_TEXT_BYTES_MAX: usize = 256 * 1024;
/// The messages that a hosted prompt makes of its arguments.
pub const HOSTED_PROMPT_RESULT_BYTES_MAX: usize = 1024 * 1024;
/// The name of a hosted prompt, and of an argument of it.
pub const HOSTED_PROMPT_NAME_BYTES_MAX: usize = 64;
/// Calls of one batch at most, whatever the configuration allows.
pub const BATCH_CALLS_MAX: u64 = 100;
/// Calls of one parallel batch that are in flight at the same time.
pub const BATCH_PARALLEL_MAX: usize = 8;
/// All results of one batch together, as JSON.
pub const BATCH_RESULT_BYTES_MAX: usize = 4 * 1024 * 1024;
/// JSON values of all results of one batch, at any depth. The content of each result is twice in the
/// result of the batch, which may not have more values than one message.
pub const BATCH_RESULT_VALUES_MAX: usize = 500_000;
