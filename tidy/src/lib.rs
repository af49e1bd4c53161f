//! The rules of the house that a test can hold: how long a file is, which module imports which, what types are called, which
//! words the prose avoids, and what the documentation names.
//!
//! The crate holds tests only. They read the sources of the repository as text or as syntax trees, so they run without the
//! broker being built. Tests on sources in memory show how the checks fail.

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
mod prose;
#[cfg(test)]
mod repository;
#[cfg(test)]
mod syntax;
#[cfg(test)]
mod type_names;
