//! The rules of the house that a test can check: length of files, imports, names of types, fields of
//! log lines, indexes of migrations, avoided words, and the contents of the documentation.
//!
//! The crate holds tests only. They read the sources of the repository as text or as syntax trees,
//! so they run without the broker being built. Tests on sources in memory show how the checks fail.

#[cfg(test)]
mod architecture;
#[cfg(test)]
mod checklists;
#[cfg(test)]
mod circles;
#[cfg(test)]
mod diagram;
#[cfg(test)]
mod files;
#[cfg(test)]
mod graph;
#[cfg(test)]
mod layers;
#[cfg(test)]
mod log_fields;
#[cfg(test)]
mod migrations;
#[cfg(test)]
mod prose;
#[cfg(test)]
mod repository;
#[cfg(test)]
mod struct_sizes;
#[cfg(test)]
mod syntax;
#[cfg(test)]
mod type_names;
