//! Backends that lie, flood, stall and break the rules, on every wire they can be on. Each row is a line of a table; after
//! each of them the same connection, or a new one, serves an ordinary call.

mod http;
mod pipes;
mod raw_http;
