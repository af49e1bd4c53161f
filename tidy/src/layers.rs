//! Imports that a module may not have, checked on parsed `use` trees and on paths written in full.
//!
//! A layer that is a crate needs no row here: Cargo guards it.

use crate::{
    graph::{Edge, is_below},
    repository::modules,
};

/// A module, and the modules that neither it nor anything below it may import. A crate may still be
/// used through a module that re-exports some of its names: that module decides which.
struct Layer {
    module: &'static str,
    forbidden: &'static [&'static str],
    /// Imports that are not cut yet. The number may only shrink.
    left: usize,
    reason: &'static str,
}

const LAYERS: [Layer; 5] = [
    Layer {
        module: "broker::backends",
        forbidden: &[
            "broker::sessions",
            "broker::broker",
            "broker::listeners",
            "broker::control",
            "broker::cli",
            "broker::serve",
            "broker::demo",
            "storage",
        ],
        left: 0,
        reason: "backends know no session",
    },
    Layer {
        module: "broker::sessions",
        forbidden: &[
            "broker::broker",
            "broker::listeners",
            "broker::control",
            "broker::cli",
            "broker::serve",
            "broker::demo",
            "storage",
        ],
        left: 0,
        reason: "sessions know no listener",
    },
    Layer {
        module: "broker::listeners::http",
        forbidden: &["storage", "broker::control", "broker::cli", "broker::serve"],
        left: 0,
        reason: "the data plane never asks the store",
    },
    Layer {
        module: "broker::listeners::duplex",
        forbidden: &["storage", "broker::control", "broker::cli", "broker::serve"],
        left: 0,
        reason: "the data plane never asks the store",
    },
    Layer {
        module: "broker::demo",
        forbidden: &["broker"],
        left: 0,
        reason: "the demo backend is a server of its own",
    },
];

/// Returns every import that a layer forbids.
fn violations(layer: &Layer, edges: &[Edge]) -> Vec<String> {
    let below = edges.iter().filter(|edge| edge.from.is_below(layer.module));
    let is_forbidden = |edge: &&Edge| {
        let is_passed_on =
            edge.to.importer.as_ref().is_some_and(|importer| !is_below(importer, layer.module));
        let is_named = layer.forbidden.iter().any(|module| edge.to.is_below(module));
        is_named && !is_passed_on && !edge.to.is_below(layer.module)
    };
    let show = |edge: &Edge| {
        let file = edge.from.file.as_deref().unwrap_or_default();
        format!("{file}:{}: {} is {}", edge.line, edge.written, edge.to.path.join("::"))
    };
    below.filter(is_forbidden).map(show).collect()
}

#[test]
fn imports_point_downwards() {
    let edges = modules("broker").edges();
    let mut faults = Vec::new();
    for layer in &LAYERS {
        let found = violations(layer, &edges);
        if found.len() != layer.left {
            faults.push(format!(
                "{}: {}, but {} imports are not cut, and `left` says {}:\n{}",
                layer.module,
                layer.reason,
                found.len(),
                layer.left,
                found.join("\n")
            ));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Fails if a row names a module that was removed, because the row would have no effect.
#[test]
fn layers_name_modules_that_exist() {
    let modules = modules("broker");
    for path in LAYERS
        .iter()
        .flat_map(|layer| layer.forbidden.iter().chain([&layer.module]))
        .filter(|path| path.starts_with("broker"))
    {
        assert!(modules.has(path), "{path} does not exist");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{graph::Modules, repository::Source};

    const RULE: [Layer; 2] = [
        Layer {
            module: "app::low",
            forbidden: &["app::high", "storage"],
            left: 0,
            reason: "low knows no high",
        },
        Layer { module: "app::demo", forbidden: &["app"], left: 0, reason: "demo stands alone" },
    ];

    /// Checks a crate with the modules `low`, `high` and `demo`, where `low` (or `demo`) is the text that is given.
    #[track_caller]
    fn found(name: &str, text: &str) -> usize {
        let mut files = vec![
            Source::new(
                "app/src/lib.rs",
                "mod demo; mod high; mod low; mod stores; pub use high::Session;",
            ),
            Source::new("app/src/stores.rs", "pub use storage::SessionKey;"),
            Source::new(
                "app/src/high/mod.rs",
                "mod session; pub use session::Session; pub fn start() {} pub mod limits { pub const MAX: u8 = 1; }",
            ),
            Source::new("app/src/high/session.rs", "pub struct Session;"),
            Source::new("app/src/low.rs", ""),
            Source::new("app/src/demo.rs", ""),
        ];
        files.retain(|source| source.path != format!("app/src/{name}.rs"));
        files.push(Source::new(&format!("app/src/{name}.rs"), text));
        let edges = Modules::read("app", "app", &files).edges();
        RULE.iter().map(|layer| violations(layer, &edges).len()).sum()
    }

    #[test]
    fn an_import_that_points_upwards_is_found_in_any_notation() {
        for text in [
            "use crate::high::Session;",
            "use crate::{high::{Session, limits::MAX as MOST}};",
            "use super::high;",
            "use crate::high::*;",
            "use crate::Session;",
            "use crate as app; fn f() { app::high::start() }",
            "fn f() { crate::high::start() }",
            "fn f(session: &crate::high::Session) {}",
            "fn f() { use super::high::start; start() }",
            "fn f() { assert!(crate::high::limits::MAX > 0) }",
            "#[derive(Debug)] #[serde(with = crate::high::Session)] struct S;",
            "mod inner { use super::super::high::Session; }",
            "pub(crate) use storage::SessionKey;",
            "fn f() -> storage::SessionKey { todo!() }",
        ] {
            assert!(found("low", text) > 0, "nothing was found in {text}");
        }
    }

    #[test]
    fn an_import_of_another_module_is_not_reported() {
        for text in [
            "use std::storage::Thing;",
            "use crate::stores::SessionKey;",
            "#[cfg(test)] mod tests { use crate::high::Session; }",
            "#[cfg(test)] use crate::high::Session;",
            "pub(in crate::high) struct S;",
            "mod high { pub struct Mine; } use self::high::Mine;",
            "/// See [`crate::high`].\nfn f(high: u8) -> u8 { high }",
        ] {
            assert_eq!(found("low", text), 0, "{text}");
        }
    }

    #[test]
    fn an_independent_module_may_import_only_itself() {
        assert_eq!(
            found("demo", "mod inner { pub struct S; } use self::inner::S; use std::fmt;"),
            0
        );
        assert!(found("demo", "use crate::low;") > 0);
    }
}
