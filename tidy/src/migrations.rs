//! New migrations of PostgreSQL do not block the writes of running replicas. `CREATE INDEX` does so
//! until the index is complete.

use crate::repository::{Source, files};

/// The newest migration before this rule. Checksums do not let it and earlier ones change.
const LAST_BEFORE_RULE: u32 = 27;
/// First line of a migration that runs outside of a transaction.
const NO_TRANSACTION: &str = "-- no-transaction";
/// Begins the reason why an index is complete at once.
const SMALL_TABLE: &str = "-- Small table: ";

/// A statement, with the lines of the comment above it.
#[derive(Default)]
struct Statement<'s> {
    comment: Vec<&'s str>,
    /// Names and key words, in upper case.
    words: Vec<String>,
}

/// Returns the statements of a migration. The statements of a function are separate ones.
fn statements(text: &str) -> Vec<Statement<'_>> {
    let (mut done, mut open) = (Vec::new(), Statement::default());
    for line in text.lines().map(str::trim) {
        if line.starts_with("--") {
            open.comment.push(line);
            continue;
        }
        let code = line.split("--").next().unwrap_or_default();
        for (index, part) in code.split(';').enumerate() {
            if index > 0 {
                done.push(std::mem::take(&mut open));
            }
            let words = part.split(|char: char| !char.is_alphanumeric() && char != '_');
            open.words.extend(words.filter(|word| !word.is_empty()).map(str::to_uppercase));
        }
    }
    done.push(open);
    done.retain(|statement| !statement.words.is_empty());
    done
}

/// Returns the words after these ones.
fn after<'w>(words: &'w [String], sought: &[&str]) -> Option<&'w [String]> {
    let at = words.windows(sought.len()).position(|window| window == sought)?;
    Some(&words[at + sought.len()..])
}

/// Returns the name behind `word`.
fn name_after<'w>(words: &'w [String], word: &str, skipped: &[&str]) -> Option<&'w str> {
    let rest = after(words, &[word])?;
    rest.iter().map(String::as_str).find(|word| !skipped.contains(word))
}

/// Returns why an index of a migration blocks writes, or cannot be created.
fn faults(source: &Source) -> Vec<String> {
    let statements = statements(&source.text);
    let creates = |statement: &Statement<'_>, table: &str| {
        statement.words.first().is_some_and(|word| word == "CREATE")
            && name_after(&statement.words, "TABLE", &["IF", "NOT", "EXISTS"]) == Some(table)
    };
    let fault = |statement: &Statement<'_>| {
        let index = after(&statement.words, &["CREATE", "INDEX"])
            .or_else(|| after(&statement.words, &["CREATE", "UNIQUE", "INDEX"]))?;
        if index.first().is_some_and(|word| word == "CONCURRENTLY") {
            let is_alone = statements.len() == 1 && source.text.starts_with(NO_TRANSACTION);
            return (!is_alone).then_some(
                "the index is not the only statement after the line `-- no-transaction`",
            );
        }
        let table = name_after(index, "ON", &["ONLY"])?;
        let is_harmless = statements.iter().any(|statement| creates(statement, table))
            || statement.comment.iter().any(|line| line.starts_with(SMALL_TABLE));
        (!is_harmless).then_some("the index blocks writes to a table of an earlier migration")
    };
    let found = statements.iter().filter_map(fault);
    found.map(|fault| format!("{}: {fault}", source.path)).collect()
}

/// Returns the number at the beginning of a file's name.
fn number(path: &str) -> u32 {
    let name = path.rsplit('/').next().unwrap_or(path);
    let digits = name.split('_').next().unwrap_or(name);
    digits.parse().unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn an_index_of_a_new_migration_does_not_block_writes() {
    let migrations = files("migrations/postgres", &[".sql"]);
    assert!(migrations.iter().any(|source| number(&source.path) == LAST_BEFORE_RULE));
    let new = migrations.iter().filter(|source| number(&source.path) > LAST_BEFORE_RULE);
    let faults: Vec<String> = new.flat_map(faults).collect();
    assert!(
        faults.is_empty(),
        "{}\nThe rule is in docs/internals/how-to-add.md, A migration.",
        faults.join("\n")
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(text: &str) -> usize {
        faults(&Source::new("migrations/postgres/0099_test.sql", text)).len()
    }

    #[test]
    fn an_index_that_blocks_writes_is_found() {
        for text in [
            "CREATE INDEX a ON tasks (b);",
            "-- Small tables.\ncreate unique index a\n    on only tasks (b)",
            "CREATE TABLE other (b TEXT);\nCREATE INDEX a ON tasks (b);",
            "-- Small table: one row.\nCREATE INDEX a ON one (b);\nCREATE INDEX c ON tasks (b);",
            "DO $$\nBEGIN\n    EXECUTE format('CREATE INDEX a ON %I (b)', 'tasks');\nEND $$;",
            "CREATE INDEX CONCURRENTLY a ON tasks (b);",
            "-- no-transaction\nCREATE INDEX CONCURRENTLY a ON tasks (b);\nSELECT 1;",
        ] {
            assert_eq!(count(text), 1, "{text}");
        }
    }

    #[test]
    fn an_index_that_blocks_no_writes_is_permitted() {
        for text in [
            "CREATE TABLE IF NOT EXISTS new (b TEXT);\nCREATE INDEX a ON new (b);",
            "-- Small table: one row for each replica.\n-- And a reason.\nCREATE INDEX a ON nodes (b);",
            "-- no-transaction\n-- A reason.\nCREATE UNIQUE INDEX CONCURRENTLY a ON tasks (b);\n",
            "-- CREATE INDEX a ON tasks (b);\nDROP INDEX a;",
        ] {
            assert_eq!(count(text), 0, "{text}");
        }
        assert_eq!(number("migrations/postgres/0027_answers_by_bytes.sql"), 27);
    }
}
