//! One Rust source in the terms of the import graph: its imports, the paths it writes, the names
//! and modules it defines.
//!
//! Code that is built for tests only is left out: tests may import anything.

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::{Attribute, Ident, Item, Meta, UseTree, Visibility, visit::Visit};

/// The segments of a path, such as `crate::rules::Limits`.
pub(crate) type Segments = Vec<String>;

/// One name that a `use` declaration brings into scope.
#[derive(Debug, Clone)]
pub(crate) struct Import {
    pub segments: Segments,
    /// The name in scope. `None`: a glob.
    pub name: Option<String>,
    pub is_public: bool,
    pub line: usize,
}

/// A path in an expression, a type, a pattern, an attribute or a macro.
#[derive(Debug, Clone)]
pub(crate) struct InlinePath {
    pub segments: Segments,
    pub line: usize,
}

/// A struct, enum, union, trait or type alias.
#[derive(Debug, Clone)]
pub(crate) struct TypeDefinition {
    pub name: String,
    pub is_public: bool,
    pub line: usize,
}

/// The contents of one module.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    pub imports: Vec<Import>,
    pub paths: Vec<InlinePath>,
    /// Everything that is defined here, except for modules.
    pub names: Vec<String>,
    pub types: Vec<TypeDefinition>,
    /// Modules in files of their own.
    pub files: Vec<String>,
    /// Modules between braces.
    pub inline: Vec<(String, Contents)>,
}

impl Contents {
    pub(crate) fn parse(text: &str) -> syn::Result<Self> {
        let mut contents = Self::default();
        contents.visit_file(&syn::parse_file(text)?);
        Ok(contents)
    }

    fn import(&mut self, tree: &UseTree, before: &[String], is_public: bool) {
        let mut push = |last: &Ident, name: String| {
            let line = last.span().start().line;
            let mut segments = before.to_vec();
            // `use a::b::{self}` names `b`.
            if last != "self" || before.is_empty() {
                segments.push(last.to_string());
            }
            let name =
                if name == "self" { segments.last().cloned().unwrap_or_default() } else { name };
            self.imports.push(Import { segments, name: Some(name), is_public, line });
        };
        match tree {
            UseTree::Path(path) => {
                self.import(&path.tree, &[before, &[path.ident.to_string()]].concat(), is_public)
            }
            UseTree::Name(name) => push(&name.ident, name.ident.to_string()),
            UseTree::Rename(rename) => push(&rename.ident, rename.rename.to_string()),
            UseTree::Glob(glob) => {
                let line = glob.star_token.spans[0].start().line;
                self.imports.push(Import {
                    segments: before.to_vec(),
                    name: None,
                    is_public,
                    line,
                });
            }
            UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.import(tree, before, is_public))
            }
        }
    }

    fn define(&mut self, item: &Item) {
        let (ident, vis, is_type) = match item {
            Item::Struct(item) => (&item.ident, &item.vis, true),
            Item::Enum(item) => (&item.ident, &item.vis, true),
            Item::Union(item) => (&item.ident, &item.vis, true),
            Item::Trait(item) => (&item.ident, &item.vis, true),
            Item::Type(item) => (&item.ident, &item.vis, true),
            Item::Fn(item) => (&item.sig.ident, &item.vis, false),
            Item::Const(item) => (&item.ident, &item.vis, false),
            Item::Static(item) => (&item.ident, &item.vis, false),
            Item::Macro(item) => return self.names.extend(item.ident.iter().map(Ident::to_string)),
            _ => return,
        };
        self.names.push(ident.to_string());
        if is_type {
            let line = ident.span().start().line;
            self.types.push(TypeDefinition {
                name: ident.to_string(),
                is_public: !matches!(vis, Visibility::Inherited),
                line,
            });
        }
    }

    /// Adds the paths in the tokens of a macro or an attribute, which are not a syntax tree.
    fn scan(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            match &tokens[at] {
                TokenTree::Group(group) => self.scan(group.stream()),
                TokenTree::Ident(first) if !follows_colons(&tokens[..at]) => {
                    let (line, mut segments) = (first.span().start().line, vec![first.to_string()]);
                    while let Some(TokenTree::Ident(next)) =
                        tokens.get(at + 3).filter(|_| is_colons(&tokens[at + 1..]))
                    {
                        segments.push(next.to_string());
                        at += 3;
                    }
                    // `crate::rules::{Limits, Weight}` in a macro: the first segments are enough.
                    let has_group = is_colons(&tokens[at + 1..])
                        && matches!(tokens.get(at + 3), Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace);
                    if segments.len() > 1 || has_group {
                        self.paths.push(InlinePath { segments, line });
                    }
                }
                _ => {}
            }
            at += 1;
        }
    }
}

fn is_colons(tokens: &[TokenTree]) -> bool {
    matches!(tokens, [TokenTree::Punct(one), TokenTree::Punct(two), ..] if one.as_char() == ':' && two.as_char() == ':')
}

fn follows_colons(before: &[TokenTree]) -> bool {
    before.len() >= 2 && is_colons(&before[before.len() - 2..])
}

/// Returns whether the item is `#[cfg(test)]`, or may only be built with a feature for tests.
pub(crate) fn is_for_tests(attributes: &[Attribute]) -> bool {
    let mentions_test = |tokens: &TokenStream| {
        fn find(tokens: TokenStream) -> bool {
            tokens.into_iter().any(|token| match token {
                TokenTree::Ident(ident) => ident == "test",
                TokenTree::Group(group) => find(group.stream()),
                _ => false,
            })
        }
        find(tokens.clone()) && !tokens.to_string().starts_with("not")
    };
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) => list.path.is_ident("cfg") && mentions_test(&list.tokens),
        Meta::Path(path) => path.is_ident("test"),
        Meta::NameValue(_) => false,
    })
}

pub(crate) fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

impl<'ast> Visit<'ast> for Contents {
    fn visit_item(&mut self, item: &'ast Item) {
        if is_for_tests(attributes(item)) {
            return;
        }
        self.define(item);
        match item {
            Item::Mod(module) => {
                let name = module.ident.to_string();
                match &module.content {
                    None => self.files.push(name),
                    Some((_, items)) => {
                        let mut inner = Self::default();
                        items.iter().for_each(|item| inner.visit_item(item));
                        self.inline.push((name, inner));
                    }
                }
            }
            item => syn::visit::visit_item(self, item),
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.import(&item.tree, &[], !matches!(item.vis, Visibility::Inherited));
    }

    fn visit_impl_item(&mut self, item: &'ast syn::ImplItem) {
        let attributes: &[Attribute] = match item {
            syn::ImplItem::Fn(item) => &item.attrs,
            syn::ImplItem::Const(item) => &item.attrs,
            _ => &[],
        };
        if !is_for_tests(attributes) {
            syn::visit::visit_impl_item(self, item);
        }
    }

    /// A module in `pub(in path)` is not imported.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Segments =
            path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if segments.len() > 1 {
            let line = path.segments[0].ident.span().start().line;
            self.paths.push(InlinePath { segments, line });
        }
        syn::visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, invocation: &'ast syn::Macro) {
        self.visit_path(&invocation.path);
        self.scan(invocation.tokens.clone());
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        if let Meta::List(list) = &attribute.meta {
            self.scan(list.tokens.clone());
        }
    }
}
