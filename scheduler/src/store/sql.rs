//! Statements over many rows, in few shapes.
//!
//! A prepared statement is found again by its text, so rows go in blocks of 64, 16, 4 and 1:
//! four texts a table, however many rows there are.

use std::fmt::Write as _;

use sqlx::query::Query;
use sqlx::sqlite::{Sqlite, SqliteArguments};
use sqlx::{AssertSqlSafe, SqlSafeStr, SqlStr};

/// The sizes of blocks, largest first.
const BLOCKS: [usize; 4] = [64, 16, 4, 1];

/// One statement for each size of block.
#[derive(Debug, Clone)]
pub(super) struct Blocks {
    texts: [SqlStr; 4],
}

impl Blocks {
    /// `head` + rows of `columns` placeholders + `tail`; none of them holds anything from outside.
    pub(super) fn insert(head: &str, columns: usize, tail: &str) -> Self {
        Self::new(head, tail, |text, row| {
            text.push('(');
            for column in 1..=columns {
                let comma = if column > 1 { ", " } else { "" };
                let _ = write!(text, "{comma}${}", row * columns + column);
            }
            text.push(')');
        })
    }

    /// `head` + a list of placeholders + `tail`, for `IN (…)`.
    pub(super) fn list(head: &str, tail: &str) -> Self {
        Self::new(head, tail, |text, row| {
            let _ = write!(text, "${}", row + 1);
        })
    }

    fn new(head: &str, tail: &str, row: impl Fn(&mut String, usize)) -> Self {
        let text = |rows: usize| {
            let mut text = head.to_owned();
            for n in 0..rows {
                if n > 0 {
                    text.push_str(", ");
                }
                row(&mut text, n);
            }
            text.push_str(tail);
            let text: std::sync::Arc<str> = text.into();
            AssertSqlSafe(text).into_sql_str()
        };
        Self { texts: BLOCKS.map(text) }
    }

    /// The statements for `items`, each with the items that it takes.
    pub(super) fn over<'a, T>(
        &'a self,
        items: &'a [T],
    ) -> impl Iterator<Item = (Query<'static, Sqlite, SqliteArguments>, &'a [T])> {
        let mut rest = items;
        std::iter::from_fn(move || {
            let which = BLOCKS.iter().position(|size| *size <= rest.len())?;
            let (block, after) = rest.split_at(BLOCKS[which]);
            rest = after;
            Some((sqlx::query(self.texts[which].clone()), block))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_is_in_one_block() {
        let blocks = Blocks::insert("INSERT INTO t (a, b) VALUES ", 2, " ON CONFLICT DO NOTHING");
        for count in [0, 1, 3, 4, 63, 64, 150] {
            let items: Vec<usize> = (0..count).collect();
            let seen: Vec<usize> =
                blocks.over(&items).flat_map(|(_, block)| block.to_vec()).collect();
            assert_eq!(seen, items);
        }
        assert_eq!(
            blocks.texts[2].as_str(),
            "INSERT INTO t (a, b) VALUES ($1, $2), ($3, $4), ($5, $6), ($7, $8) ON CONFLICT DO NOTHING"
        );
        let list = Blocks::list("SELECT a FROM t WHERE a IN (", ")");
        assert_eq!(list.texts[3].as_str(), "SELECT a FROM t WHERE a IN ($1)");
    }
}
