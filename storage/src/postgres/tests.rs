//! The conformance suites over PostgreSQL, and what is particular to a server that may go away.
