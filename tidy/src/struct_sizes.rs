//! Sizes of the types of the broker's core: how many methods a type has, and how many fields lie
//! under one lock.
//!
//! A type that grows beyond them is composed of parts: structs with their own state and methods.

use std::collections::{BTreeMap, BTreeSet};

use syn::{
    GenericArgument, ImplItem, Item, ItemImpl, PathArguments, PathSegment, Type, TypePath,
    visit::{self, Visit},
};

use crate::{
    repository::{Source, product},
    syntax::{attributes, is_for_tests},
};

/// The folders whose types are measured.
const CORE: [&str; 2] = ["broker/src/sessions/", "broker/src/backends/"];

/// Methods of a type, over all its blocks. Methods of traits do not count.
const METHODS_MAX: usize = 60;

/// Fields of a struct that lies under a `Mutex` or a `RwLock`.
const LOCKED_FIELDS_MAX: usize = 12;

/// Locks by their last name, whichever crate they come from.
const LOCKS: [&str; 2] = ["Mutex", "RwLock"];

/// Pointers to shared values. A lock around the pointer is not a lock around the value.
const SHARED: [&str; 3] = ["Arc", "Weak", "Rc"];

/// The types of several files. A name is unique in its crate, so it is enough to tell types apart.
#[derive(Debug, Default)]
struct TypeSizes {
    /// File and line of each type that is measured.
    places: BTreeMap<String, String>,
    fields: BTreeMap<String, usize>,
    methods: BTreeMap<String, usize>,
    /// Types that lie under a lock.
    locked: BTreeSet<String>,
    /// The file that is read, if its types are measured.
    file: Option<String>,
}

impl TypeSizes {
    /// Reads `sources`, and measures the types that are defined below one of `folders`.
    fn read(sources: &[Source], folders: &[&str]) -> Self {
        let mut sizes = Self::default();
        for source in sources {
            let is_measured = folders.iter().any(|folder| source.path.starts_with(folder));
            sizes.file = is_measured.then(|| source.path.clone());
            let file = syn::parse_file(&source.text)
                .unwrap_or_else(|error| panic!("{}: {error}", source.path));
            sizes.visit_file(&file);
        }
        sizes
    }

    fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for (name, place) in &self.places {
            let methods = self.methods.get(name).copied().unwrap_or_default();
            if methods > METHODS_MAX {
                faults.push(format!(
                    "{place}: {name} has {methods} methods, the limit is {METHODS_MAX}"
                ));
            }
            let fields = self.fields.get(name).copied().unwrap_or_default();
            if fields > LOCKED_FIELDS_MAX && self.locked.contains(name) {
                faults.push(format!(
                    "{place}: {name} has {fields} fields under one lock, the limit is {LOCKED_FIELDS_MAX}"
                ));
            }
        }
        faults
    }

    fn define(&mut self, ident: &syn::Ident, fields: usize) {
        if let Some(file) = &self.file {
            let place = format!("{file}:{}", ident.span().start().line);
            self.places.insert(ident.to_string(), place);
            self.fields.insert(ident.to_string(), fields);
        }
    }

    /// Notes the types that a lock around `segment`'s arguments locks.
    fn lock(&mut self, segment: &PathSegment) {
        let PathArguments::AngleBracketed(arguments) = &segment.arguments else { return };
        for argument in &arguments.args {
            if let GenericArgument::Type(locked) = argument {
                self.lock_type(locked);
            }
        }
    }

    fn lock_type(&mut self, locked: &Type) {
        match locked {
            Type::Path(path) => {
                let Some(last) = path.path.segments.last() else { return };
                let name = last.ident.to_string();
                if !SHARED.contains(&name.as_str()) {
                    self.locked.insert(name);
                    self.lock(last);
                }
            }
            Type::Tuple(tuple) => tuple.elems.iter().for_each(|locked| self.lock_type(locked)),
            _ => {}
        }
    }
}

impl<'ast> Visit<'ast> for TypeSizes {
    fn visit_item(&mut self, item: &'ast Item) {
        if is_for_tests(attributes(item)) {
            return;
        }
        match item {
            Item::Struct(item) => self.define(&item.ident, item.fields.len()),
            Item::Enum(item) => self.define(&item.ident, 0),
            _ => {}
        }
        visit::visit_item(self, item);
    }

    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        if let (None, Type::Path(path)) = (&item.trait_, &*item.self_ty)
            && let Some(last) = path.path.segments.last()
        {
            let functions = item.items.iter().filter(|item| match item {
                ImplItem::Fn(function) => !is_for_tests(&function.attrs),
                _ => false,
            });
            *self.methods.entry(last.ident.to_string()).or_default() += functions.count();
        }
        visit::visit_item_impl(self, item);
    }

    fn visit_type_path(&mut self, path: &'ast TypePath) {
        if let Some(last) = path.path.segments.last()
            && LOCKS.iter().any(|lock| last.ident == lock)
        {
            self.lock(last);
        }
        visit::visit_type_path(self, path);
    }
}

#[test]
fn no_type_of_the_core_exceeds_the_size_limits() {
    let sizes = TypeSizes::read(&product("broker"), &CORE);
    assert!(sizes.methods.contains_key("Session"), "the methods of the core are not read");
    assert!(sizes.locked.contains("SessionState"), "the locks of the core are not read");
    let faults = sizes.faults();
    assert!(faults.is_empty(), "compose them of parts:\n{}", faults.join("\n"));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(text: &str) -> Vec<String> {
        let sources = [
            Source::new("app/core/a.rs", text),
            Source::new("app/other.rs", "pub struct Other; impl Other { fn own() {} }"),
        ];
        TypeSizes::read(&sources, &["app/core/"]).faults()
    }

    fn methods(names: &str, count: usize) -> String {
        (0..count).map(|number| format!("fn {names}{number}() {{}}\n")).collect()
    }

    fn fields(count: usize) -> String {
        (0..count).map(|number| format!("field{number}: u8,")).collect()
    }

    #[test]
    fn methods_of_all_impl_blocks_are_counted() {
        let half = METHODS_MAX / 2;
        let blocks = |last: usize| {
            format!(
                "struct Large; impl Large {{ {} }} impl Large {{ {} }} impl Clone for Large {{ {} }}",
                methods("one", half),
                methods("two", last),
                methods("three", 5),
            )
        };
        assert_eq!(faults(&blocks(METHODS_MAX - half)), [""; 0], "those of a trait do not count");
        let found = faults(&blocks(METHODS_MAX - half + 1));
        assert_eq!(found, ["app/core/a.rs:1: Large has 61 methods, the limit is 60"]);
        let other = format!("impl Other {{ {} }}", methods("more", METHODS_MAX + 1));
        assert_eq!(faults(&other), [""; 0], "a type that is defined elsewhere");
    }

    #[test]
    fn methods_of_a_generic_type_are_counted_without_those_for_tests() {
        let many = methods("one", METHODS_MAX + 1);
        assert_eq!(faults(&format!("enum Large<T> {{}} impl<T> Large<T> {{ {many} }}")).len(), 1);
        assert_eq!(
            faults(&format!("enum Large {{}} #[cfg(test)] impl Large {{ {many} }}")),
            [""; 0]
        );
    }

    #[test]
    fn fields_under_a_lock_are_bounded() {
        let state = |count: usize, lock: &str| {
            format!("struct State {{ {} }} struct Owner {{ state: {lock} }}", fields(count))
        };
        let locks = [
            "Mutex<State>",
            "parking_lot::RwLock<State>",
            "Arc<Mutex<Option<State>>>",
            "RwLock<HashMap<u8, (u8, State)>>",
        ];
        for lock in locks {
            assert_eq!(faults(&state(LOCKED_FIELDS_MAX, lock)), [""; 0], "{lock}");
            let found = faults(&state(LOCKED_FIELDS_MAX + 1, lock));
            assert_eq!(found.len(), 1, "{lock}: {found:?}");
            assert!(found[0].contains("State has 13 fields under one lock"), "{found:?}");
        }
        for lock in ["State", "Mutex<Arc<State>>", "Mutex<Vec<Weak<State>>>"] {
            assert_eq!(faults(&state(LOCKED_FIELDS_MAX + 1, lock)), [""; 0], "{lock}");
        }
    }
}
