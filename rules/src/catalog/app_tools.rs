//! Tools that apps call by the names that their own server gave them (MCP Apps).
//!
//! An app uses its server's names, not the exposed ones, and its host forwards them unchanged. Such
//! a name is resolved only among backends with apps, and only if one backend alone can be meant. A
//! call therefore never leaves the server of its app by a guess.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use protocol::ids::BackendId;

use super::{BackendLists, ListKind, Target};
use crate::maps::FastMap;

const TOOLS: ListKind = ListKind::Tools;

type Lists = BTreeMap<BackendId, Arc<BackendLists>>;

/// Tools that apps may call, of the backends with apps, by the tool's own name.
#[derive(Debug, Default)]
pub(super) struct AppTools {
    /// In the order of the backends' names.
    by_name: FastMap<String, Vec<BackendId>>,
    /// Names of such tools that pins keep from clients.
    held: HashSet<String>,
    /// Names of such tools that access rules hide, of apps that they do not hide.
    hidden: HashSet<String>,
    is_off: bool,
}

impl AppTools {
    pub(super) fn of(backends: &Lists) -> Self {
        let mut by_name: FastMap<String, Vec<BackendId>> = FastMap::default();
        let mut held = HashSet::new();
        let has_app = |lists: &BackendLists| lists.tools.iter().any(|tool| tool.traits.has_ui);
        for (backend, lists) in backends.iter().filter(|(_, lists)| has_app(lists)) {
            let kept = lists.tools.iter().filter(|tool| tool.pin.is_held);
            let kept = kept.filter(|tool| tool.traits.is_app_visible);
            held.extend(kept.map(|tool| tool.key.clone()));
            if !lists.listed(TOOLS).any(|tool| tool.traits.has_ui) {
                continue;
            }
            // A tool with fixed arguments is called by the name of its toolset only, which fixes them.
            let by_app = lists.listed(TOOLS).filter(|tool| tool.traits.is_app_visible);
            for tool in by_app.filter(|tool| tool.fixed.is_none()) {
                by_name.entry(tool.key.clone()).or_default().push(backend.clone());
            }
        }
        Self { by_name, held, hidden: HashSet::new(), is_off: false }
    }

    /// Returns the table of a caller, from whom access rules hide entries of `all`. An app that the
    /// caller sees can mean a tool that the caller does not see.
    pub(super) fn seen(self, seen: &Lists, all: &Lists) -> Self {
        let mut hidden = HashSet::new();
        let has_app = |lists: &BackendLists| lists.listed(TOOLS).any(|tool| tool.traits.has_ui);
        for (backend, lists) in seen.iter().filter(|(_, lists)| has_app(lists)) {
            let kept: HashSet<&str> = lists.tools.iter().map(|tool| tool.key.as_str()).collect();
            let of_app = all.get(backend).into_iter().flat_map(|lists| lists.listed(TOOLS));
            let of_app = of_app.filter(|tool| tool.traits.is_app_visible && tool.fixed.is_none());
            let unseen = of_app.filter(|tool| !kept.contains(tool.key.as_str()));
            hidden.extend(unseen.map(|tool| tool.key.clone()));
        }
        Self { hidden, ..self }
    }

    /// Returns the table in which no name is found.
    pub(super) fn off() -> Self {
        Self { is_off: true, ..Self::default() }
    }

    pub(super) fn is_off(&self) -> bool {
        self.is_off
    }

    /// Returns the backends with apps that have a tool of this own name for apps.
    pub(super) fn backends_with(&self, name: &str) -> &[BackendId] {
        self.by_name.get(name).map_or(&[], Vec::as_slice)
    }

    /// Returns whether pins keep a tool of this own name for apps from clients.
    pub(super) fn is_held(&self, name: &str) -> bool {
        self.held.contains(name)
    }

    /// Returns the tool of this own name, if only one backend can be meant. A held or hidden tool can
    /// be meant too.
    pub(super) fn only_tool(&self, name: &str) -> Option<Target> {
        match self.backends_with(name) {
            [backend] if !self.is_held(name) && !self.hidden.contains(name) => {
                Some(Target::of(backend.clone(), name.to_owned()))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::hmac;
    use protocol::ids::TenantId;

    use super::*;
    use crate::{
        catalog::{Catalog, CatalogEntry, FixedArguments, ListKind, TaskHost, read_page},
        endpoint::Endpoint,
    };

    const LINK: &str = r#""_meta":{"ui":{"resourceUri":"ui://a"}}"#;

    fn lists(name: &str, tools: &str) -> (BackendId, Arc<BackendLists>) {
        let id = BackendId::parse(name).unwrap();
        let page = format!(r#"{{"tools":[{tools}]}}"#);
        let page = read_page(ListKind::Tools, &id, TaskHost::Backend, page.as_bytes()).unwrap();
        let none = BackendLists::declaring(br#"{"tools":{}}"#).unwrap();
        (id, Arc::new(BackendLists { tools: page.entries, ..none }))
    }

    fn catalog(backends: &[(&str, &str)]) -> Catalog {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &[1; 32]);
        let backends = backends.iter().map(|(name, tools)| lists(name, tools)).collect();
        Catalog::build(TenantId::parse("acme").unwrap(), key, backends)
    }

    fn tool(name: &str, more: &str) -> String {
        let comma = if more.is_empty() { "" } else { "," };
        format!(r#"{{"name":"{name}","inputSchema":{{"type":"object"}}{comma}{more}}}"#)
    }

    fn backend_of(catalog: &Catalog, name: &str) -> Option<String> {
        catalog.tool(name).map(|target| format!("{}/{}", target.backend, target.name))
    }

    #[test]
    fn an_app_can_call_the_tools_of_its_own_server() {
        let app = format!("{},{}", tool("show", LINK), tool("poll", ""));
        let catalog = catalog(&[("mon", &app), ("files", &tool("read", ""))]);
        assert_eq!(backend_of(&catalog, "mon__poll").as_deref(), Some("mon/poll"));
        assert_eq!(backend_of(&catalog, "poll").as_deref(), Some("mon/poll"));
        assert_eq!(backend_of(&catalog, "show").as_deref(), Some("mon/show"));
        assert_eq!(backend_of(&catalog, "read"), None, "no app belongs to this server");
        assert_eq!(backend_of(&catalog.without_app_names(), "poll"), None);
    }

    #[test]
    fn a_tool_name_of_two_servers_with_apps_is_ambiguous() {
        let one = format!("{},{}", tool("show", LINK), tool("poll", ""));
        let two = format!(
            "{},{}",
            tool("view", r#""_meta":{"ui/resourceUri":"ui://a"}"#),
            tool("poll", "")
        );
        let catalog = catalog(&[("one", &one), ("two", &two), ("three", &tool("poll", ""))]);
        assert_eq!(backend_of(&catalog, "poll"), None);
        assert_eq!(catalog.app_tools("poll"), ["one__poll", "two__poll"]);
        assert_eq!(backend_of(&catalog, "view").as_deref(), Some("two/view"));
        // A snapshot without one of them, as a caller may see it.
        let mut seen = catalog.backends.clone();
        seen.remove(&BackendId::parse("two").unwrap());
        assert_eq!(backend_of(&catalog.rebuilt(seen), "poll").as_deref(), Some("one/poll"));
    }

    /// Returns the catalog of two servers with apps, whose tools `poll` are changed before.
    fn with_polls(change: impl Fn(&str, &mut CatalogEntry)) -> Catalog {
        let tools = format!("{},{}", tool("show", LINK), tool("poll", ""));
        let changed = ["one", "two"].map(|name| {
            let (id, mut lists) = lists(name, &tools);
            change(name, &mut Arc::get_mut(&mut lists).unwrap().tools[1]);
            (id, lists)
        });
        let key = hmac::Key::new(hmac::HMAC_SHA256, &[1; 32]);
        Catalog::build(TenantId::parse("acme").unwrap(), key, changed.into())
    }

    #[test]
    fn a_held_tool_makes_its_app_name_ambiguous() {
        let catalog = with_polls(|name, poll| poll.pin.is_held = name == "two");
        assert_eq!(backend_of(&catalog, "poll"), None, "not that of the other server");
        assert!(catalog.is_app_tool_held("poll"));
        assert!(!catalog.is_exposed_held(ListKind::Tools, "poll"), "one can be called");
        assert_eq!(backend_of(&catalog, "one__poll").as_deref(), Some("one/poll"));
        assert_eq!(backend_of(&catalog, "two__poll"), None);
        let both = with_polls(|_, poll| poll.pin.is_held = true);
        assert!(both.is_exposed_held(ListKind::Tools, "poll"));
    }

    #[test]
    fn a_hidden_tool_of_a_visible_app_makes_its_app_name_ambiguous() {
        let tools = format!("{},{}", tool("show", LINK), tool("poll", ""));
        let catalog = catalog(&[("one", &tools), ("two", &tools)]);
        let without = |name: &str| {
            let mut seen = catalog.backends.clone();
            let two = seen.get_mut(&BackendId::parse("two").unwrap()).unwrap();
            Arc::make_mut(two).tools.retain(|tool| tool.key != name);
            catalog.seen(seen)
        };
        let seen = without("poll");
        assert_eq!(backend_of(&seen, "poll"), None, "the app of the other server may call it");
        assert!(!seen.is_exposed_held(ListKind::Tools, "poll"), "no pin holds it");
        assert_eq!(backend_of(&seen, "one__poll").as_deref(), Some("one/poll"));
        let seen = without("show");
        assert_eq!(backend_of(&seen, "poll").as_deref(), Some("one/poll"), "that app is hidden");
    }

    #[test]
    fn a_tool_with_fixed_arguments_has_the_name_of_its_toolset_only() {
        let fixed = BTreeMap::from([("mode".to_owned(), Some("\"ro\"".to_owned()))]);
        let fixed = FixedArguments::of(fixed).map(Arc::new);
        let catalog = with_polls(|_, poll| poll.fixed = fixed.clone());
        assert_eq!(backend_of(&catalog, "poll"), None);
        assert_eq!(catalog.app_tools("poll"), [""; 0]);
        assert_eq!(backend_of(&catalog, "one__poll").as_deref(), Some("one/poll"));
    }

    #[test]
    fn only_tools_visible_to_apps_are_found() {
        let visible = |who: &str| format!(r#""_meta":{{"ui":{{"visibility":{who}}}}}"#);
        let tools = [
            tool("show", LINK),
            tool("both", &visible(r#"["model","app"]"#)),
            tool("app", &visible(r#"["app"]"#)),
            tool("model", &visible(r#"["model"]"#)),
            tool("wrong", &visible(r#""app""#)),
        ];
        let catalog = catalog(&[("mon", &tools.join(","))]);
        let found: Vec<bool> = ["show", "both", "app", "model", "wrong"]
            .iter()
            .map(|name| catalog.tool(name).is_some())
            .collect();
        assert_eq!(found, [true, true, true, false, false]);
    }

    #[test]
    fn an_exposed_name_takes_precedence_over_an_app_name() {
        let app = format!("{},{}", tool("show", LINK), tool("files__read", ""));
        let catalog = catalog(&[("files", &tool("read", "")), ("mon", &app)]);
        assert_eq!(backend_of(&catalog, "files__read").as_deref(), Some("files/read"));
        assert_eq!(backend_of(&catalog, "mon__files__read").as_deref(), Some("mon/files__read"));
    }

    /// A host enforces what the metadata of a user interface demands, so a broker must not change
    /// it.
    #[test]
    fn metadata_of_user_interfaces_keeps_its_bytes() {
        let meta = r#"{ "ui" : {"csp":{"connectDomains":["https://a.example" ],"resourceDomains":[],"frameDomains":["https:\/\/b.example"],"baseUriDomains":[]}, "permissions":{"camera":{}, "clipboardWrite" :{}},"domain":"d.example","prefersBorder": false ,"visibility":[ "model","app" ],"x":1.50} }"#;
        let catalog = catalog(&[("mon", &tool("show", &format!("\"_meta\":{meta}")))]);
        for endpoint in [Endpoint::Aggregated, Endpoint::Single(BackendId::parse("mon").unwrap())] {
            let page = catalog.list(&endpoint, ListKind::Tools, None).unwrap();
            let page = String::from_utf8(page.to_vec()).unwrap();
            assert!(page.contains(&format!("\"_meta\":{meta}")), "{page}");
        }
    }

    #[test]
    fn a_link_is_removed_and_nothing_else() {
        let (_, lists) = lists(
            "mon",
            &tool(
                "show",
                r#""_meta":{"ui/resourceUri":"ui://a","ui":{"visibility":["app"], "resourceUri":"ui://a"},"x":[1]}"#,
            ),
        );
        let entry = lists.tools[0].without_ui_links();
        assert_eq!(lists.tools[0].ui_links(), ["ui://a", "ui://a"]);
        assert_eq!(entry.ui_links(), Vec::<String>::new());
        for (text, name) in [(&entry.native, "show"), (&entry.exposed, "mon__show")] {
            let read: serde_json::Value = serde_json::from_slice(text).unwrap();
            let expected = serde_json::json!({"name": name, "inputSchema": {"type": "object"},
                "_meta": {"ui": {"visibility": ["app"]}, "x": [1]}});
            assert_eq!(read, expected);
        }
    }
}
