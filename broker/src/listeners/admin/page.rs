//! Pages of long lists. `limit` is the number of entries, `after` is the `next` of the page before.

use super::problem::Problem;

/// Maximum number of entries on a page.
pub(super) const LIMIT_MAX: u32 = 1_000;

/// Requested part of a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Page {
    /// `None`: all entries.
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

    /// Returns the page of a list ordered by `place`, and the value of `after` for the next page.
    pub(super) fn of<T>(
        &self,
        mut entries: Vec<T>,
        place: impl Fn(&T) -> String,
    ) -> (Vec<T>, Option<String>) {
        if let Some(after) = &self.after {
            entries.retain(|entry| place(entry) > *after);
        }
        let Some(limit) = self.limit.filter(|limit| *limit < entries.len()) else {
            return (entries, None);
        };
        entries.truncate(limit);
        let next = entries.last().map(place);
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
        assert_eq!(Page::default().of(all.clone(), Clone::clone), (all, None));
        Page::new(Some(0), None).unwrap_err();
        Page::new(Some(LIMIT_MAX + 1), None).unwrap_err();
    }
}
