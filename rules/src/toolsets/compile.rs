//! Checks the document of a toolset and takes its patterns apart. All faults are reported at once.

use std::{collections::BTreeMap, sync::Arc};

use protocol::ids::{BackendId, ToolsetId};

use super::{
    Toolset,
    document::{DescriptionLength, EntryOverride, ToolsetDocument},
    entry::{EntryShape, Trim},
};
use crate::{
    access::{Ceiling, PolicyFault, Selection, unknown_backend},
    catalog::FixedArguments,
    limits::{
        results::{RESULT_TOKENS_MAX, RESULT_TOKENS_MIN},
        toolsets::{
            FIXED_ARGUMENT_BYTES_MAX, FIXED_ARGUMENTS_MAX, TOOLSET_ALIAS_BYTES_MAX,
            TOOLSET_ENTRIES_MAX, TOOLSET_TEXT_BYTES_MAX,
        },
    },
};

/// Members of a toolset by backend and own name.
type ByEntry<T> = BTreeMap<(BackendId, String), T>;

pub(super) fn compile(
    id: ToolsetId,
    document: &ToolsetDocument,
    backends: Option<&[BackendId]>,
) -> Result<Toolset, Vec<PolicyFault>> {
    let mut compiler = ToolsetCompiler { backends, faults: Vec::new() };
    let selection = Selection::compile(&document.include, &document.exclude, backends);
    let selection = Arc::new(compiler.or_faults(selection));
    compiler.text("description", document.description.as_deref());
    compiler.count("aliases", document.aliases.len(), TOOLSET_ENTRIES_MAX);
    compiler.count("overrides", document.overrides.len(), TOOLSET_ENTRIES_MAX);
    let aliases = compiler.aliases(&document.aliases);
    let shapes = compiler.shapes(&document.overrides);
    if document.description_chars_max == Some(0) {
        compiler.fault("description_chars_max", "must be at least 1");
    }
    compiler.result_tokens("max_result_tokens", document.max_result_tokens);
    let ceiling = compiler.ceiling(document, &selection, &shapes);
    if !compiler.faults.is_empty() {
        return Err(compiler.faults);
    }
    Ok(Toolset {
        id,
        description: document.description.clone(),
        selection,
        ceiling: ceiling.map(Arc::new),
        aliases,
        shapes,
        names: document.names,
        is_searched: document.search,
        trim: Trim {
            first_sentence: document.descriptions == DescriptionLength::FirstSentence,
            chars_max: document.description_chars_max.map(|max| max as usize),
            output_schemas: document.output_schemas,
            result_tokens: document.max_result_tokens,
        },
    })
}

struct ToolsetCompiler<'a> {
    backends: Option<&'a [BackendId]>,
    faults: Vec<PolicyFault>,
}

impl ToolsetCompiler<'_> {
    fn fault(&mut self, path: impl Into<String>, problem: impl Into<String>) {
        self.faults.push(PolicyFault {
            path: path.into(),
            problem: problem.into(),
            is_failed_test: false,
        });
    }

    fn or_faults<T: Default>(&mut self, part: Result<T, Vec<PolicyFault>>) -> T {
        part.unwrap_or_else(|faults| {
            self.faults.extend(faults);
            T::default()
        })
    }

    fn count(&mut self, path: &str, count: usize, max: usize) {
        if count > max {
            self.fault(path, format!("has {count} entries, at most {max} are allowed"));
        }
    }

    fn result_tokens(&mut self, path: &str, tokens: Option<u32>) {
        let allowed = RESULT_TOKENS_MIN..=RESULT_TOKENS_MAX;
        if tokens.is_some_and(|tokens| !allowed.contains(&tokens)) {
            self.fault(path, format!("must be {RESULT_TOKENS_MIN} to {RESULT_TOKENS_MAX}"));
        }
    }

    fn text(&mut self, path: &str, text: Option<&str>) {
        if text.is_some_and(|text| text.len() > TOOLSET_TEXT_BYTES_MAX) {
            self.fault(path, format!("has more than {TOOLSET_TEXT_BYTES_MAX} bytes"));
        }
    }

    /// Reads the key of an alias or override: a backend and an own name, not a pattern.
    fn entry(&mut self, path: &str, key: &str) -> Option<(BackendId, String)> {
        let named = key.split_once('/').filter(|(_, name)| !name.is_empty());
        let parsed = named.and_then(|(backend, name)| {
            Some((BackendId::parse_or_hosted(backend).ok()?, name.to_owned()))
        });
        let Some((backend, name)) = parsed else {
            self.fault(path, "must be BACKEND/NAME, by the backend's own name");
            return None;
        };
        if let Some(known) = self.backends.filter(|known| !known.contains(&backend)) {
            self.fault(path, unknown_backend(known));
            return None;
        }
        Some((backend, name))
    }

    fn aliases(&mut self, aliases: &BTreeMap<String, String>) -> ByEntry<String> {
        let mut taken: BTreeMap<&str, &str> = BTreeMap::new();
        let mut read = ByEntry::new();
        for (key, alias) in aliases {
            let path = format!("aliases.{key}");
            let is_safe = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
            if !(1..=TOOLSET_ALIAS_BYTES_MAX).contains(&alias.len())
                || !alias.bytes().all(is_safe)
                || alias.contains("__")
            {
                let text = format!(
                    "must be 1 to {TOOLSET_ALIAS_BYTES_MAX} letters, digits, `-` and `_`, without `__`"
                );
                self.fault(&path, text);
            } else if let Some(other) = taken.insert(alias, key) {
                self.fault(&path, format!("is the alias of {other} already"));
            }
            let entry = self.entry(&path, key);
            read.extend(entry.map(|entry| (entry, alias.clone())));
        }
        read
    }

    fn shapes(&mut self, overrides: &BTreeMap<String, EntryOverride>) -> ByEntry<EntryShape> {
        let mut read = ByEntry::new();
        for (key, given) in overrides {
            let path = format!("overrides.{key}");
            self.text(&format!("{path}.title"), given.title.as_deref());
            self.text(&format!("{path}.description"), given.description.as_deref());
            for (hint, value, tight) in given.annotations.hints() {
                if value.is_some_and(|value| value != tight) {
                    let text = format!("can only be {tight}: a hint is tightened, never loosened");
                    self.fault(format!("{path}.annotations.{hint}"), text);
                }
            }
            self.result_tokens(&format!("{path}.max_result_tokens"), given.max_result_tokens);
            let fixed = self.fixed(&path, given);
            let entry = self.entry(&path, key);
            read.extend(entry.map(|entry| (entry, EntryShape { given: given.clone(), fixed })));
        }
        read
    }

    fn fixed(&mut self, path: &str, given: &EntryOverride) -> Option<Arc<FixedArguments>> {
        self.count(&format!("{path}.args"), given.args.len(), FIXED_ARGUMENTS_MAX);
        let mut values = BTreeMap::new();
        for (name, argument) in &given.args {
            let path = format!("{path}.args.{name}");
            let value = argument.value.as_ref().map(serde_json::Value::to_string);
            if value.as_ref().is_some_and(|value| value.len() > FIXED_ARGUMENT_BYTES_MAX) {
                let text = format!("has more than {FIXED_ARGUMENT_BYTES_MAX} bytes");
                self.fault(format!("{path}.const"), text);
            }
            if value.is_none() && !argument.hidden {
                self.fault(path, "needs const, or hidden: true");
            }
            values.insert(name.clone(), value);
        }
        FixedArguments::of(values).map(Arc::new)
    }

    fn ceiling(
        &mut self,
        document: &ToolsetDocument,
        selection: &Arc<Selection>,
        shapes: &ByEntry<EntryShape>,
    ) -> Option<Ceiling> {
        match (document.enforce, &document.bind) {
            (false, None) => None,
            (false, Some(_)) => {
                self.fault("bind", "has an effect only with enforce: true");
                None
            }
            (true, None) => {
                self.fault("enforce", "needs bind: the keys, groups or clients that it applies to");
                None
            }
            (true, Some(bind)) => {
                if *bind == Default::default() {
                    self.fault("bind", "is empty; name keys, groups, clients or principals");
                }
                let reserved = shapes.iter().filter(|(_, shape)| shape.fixed.is_some());
                let reserved = reserved.map(|(entry, _)| entry.clone());
                match Ceiling::compile("bind", bind, selection.clone(), reserved) {
                    Ok(ceiling) => Some(ceiling),
                    Err(faults) => {
                        self.faults.extend(faults);
                        None
                    }
                }
            }
        }
    }
}
