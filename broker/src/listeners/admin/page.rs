//! Pages of long lists. `limit` is the number of entries, `after` is the `next` of the page before.

use protocol::ids::TenantId;
use serde::Deserialize;
use utoipa::IntoParams;

use super::{permissions::SignedIn, problem::Problem};
use crate::control::{Control, ListPart, ListRange};

/// Maximum number of entries on a page.
pub(super) const LIMIT_MAX: u32 = 1_000;

/// Declares the body of a page: entries under a name of their own, and where the next page begins.
macro_rules! page_of {
    ($name:ident { $entries:ident: $entry:ty }) => {
        #[derive(Debug, serde::Serialize, serde::Deserialize, utoipa::ToSchema)]
        pub(super) struct $name {
            pub $entries: Vec<$entry>,
            /// Value of `after` for the next page; absent on the last page.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub next: Option<String>,
        }

        impl From<(Vec<$entry>, Option<String>)> for $name {
            fn from(($entries, next): (Vec<$entry>, Option<String>)) -> Self {
                Self { $entries, next }
            }
        }
    };
}
pub(super) use page_of;

/// Requested part of a list that has the entries of all tenants.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct OfTenant {
    /// Only this tenant.
    #[param(value_type = Option<String>)]
    pub(super) tenant: Option<TenantId>,
    /// Maximum number of entries on a page; absent: all entries.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// `next` of the page before.
    after: Option<String>,
}

impl OfTenant {
    /// Returns the page, unless the operator does not see the tenant.
    pub(super) fn page(&self, by: &SignedIn, control: &Control) -> Result<Page, Problem> {
        by.check_filter(control, self.tenant.as_ref())?;
        Page::new(self.limit, self.after.clone())
    }
}

/// Requested part of a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Page {
    /// `None`: all entries, or those of one answer if the list is long.
    limit: Option<usize>,
    after: Option<String>,
}

impl Page {
    pub(super) fn new(limit: Option<u32>, after: Option<String>) -> Result<Self, Problem> {
        let limit = match limit {
            None => None,
            Some(limit) if (1..=LIMIT_MAX).contains(&limit) => Some(limit as usize),
            Some(limit) => {
                return Err(Problem::invalid(
                    "limit",
                    format!("{limit} is not a usable limit; allowed: 1 to {LIMIT_MAX}"),
                ));
            }
        };
        Ok(Self { limit, after })
    }

    /// Returns the part of a long list that has the page. Without a limit, the page has `list_max`
    /// entries at most.
    pub(super) fn range(&self, list_max: usize) -> ListRange<'_> {
        let entries_max = self.limit.unwrap_or(list_max);
        ListRange { after: self.after.as_deref(), entries_max }
    }

    /// Returns the page of a long list from [`Self::range`] of it.
    pub(super) fn of_part<T>(
        &self,
        range: ListRange<'_>,
        part: ListPart<T>,
        sort_key: impl Fn(&T) -> String,
    ) -> (Vec<T>, Option<String>) {
        let ListPart { mut entries, complete_to } = part;
        if let Some(end) = &complete_to {
            entries.retain(|entry| sort_key(entry) <= *end);
        }
        let limit = Some(range.entries_max);
        let (entries, next) = Self { limit, ..self.clone() }.sorted(entries, sort_key);
        (entries, next.or(complete_to))
    }

    /// Puts a list into the order of `sort_key`, and returns the page of it.
    pub(super) fn sorted<T>(
        &self,
        mut entries: Vec<T>,
        sort_key: impl Fn(&T) -> String,
    ) -> (Vec<T>, Option<String>) {
        entries.sort_by_cached_key(&sort_key);
        self.of(entries, sort_key)
    }

    /// Returns the page of a list ordered by `sort_key`, and the value of `after` for the next
    /// page.
    pub(super) fn of<T>(
        &self,
        mut entries: Vec<T>,
        sort_key: impl Fn(&T) -> String,
    ) -> (Vec<T>, Option<String>) {
        if let Some(after) = &self.after {
            entries.retain(|entry| sort_key(entry) > *after);
        }
        let Some(limit) = self.limit.filter(|limit| *limit < entries.len()) else {
            return (entries, None);
        };
        entries.truncate(limit);
        let next = entries.last().map(sort_key);
        (entries, next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_follow_one_another_without_gaps() {
        let all: Vec<String> = (0..25).map(|number| format!("t{number:02}")).collect();
        let (mut seen, mut after) = (Vec::new(), None);
        loop {
            let (page, next) = Page::new(Some(10), after).unwrap().of(all.clone(), Clone::clone);
            seen.extend(page);
            after = next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(seen, all);
        assert_eq!(
            Page::new(Some(25), None).unwrap().of(all.clone(), Clone::clone).1,
            None,
            "the last page says so"
        );
        assert_eq!(Page::default().of(all.clone(), Clone::clone), (all.clone(), None));
        let part = |complete_to: Option<&str>| ListPart {
            entries: all.iter().rev().cloned().collect(),
            complete_to: complete_to.map(str::to_owned),
        };
        let of_part = |limit, list_max, end| {
            let page = Page::new(limit, None).unwrap();
            page.of_part(page.range(list_max), part(end), Clone::clone)
        };
        let (entries, next) = of_part(None, 25, Some("t19/~"));
        assert_eq!(
            (&entries[..], next.as_deref()),
            (&all[..20], Some("t19/~")),
            "a list that is cut"
        );
        assert_eq!(of_part(Some(5), 25, Some("t19/~")).1.as_deref(), Some("t04"));
        assert_eq!(of_part(None, 25, None), (all.clone(), None));
        assert_eq!(of_part(None, 7, None).1.as_deref(), Some("t06"), "a page without a limit");
        Page::new(Some(0), None).unwrap_err();
        Page::new(Some(LIMIT_MAX + 1), None).unwrap_err();
    }
}
