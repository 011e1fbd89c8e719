//! Groups rows by modules, or into sections if the modules are unknown.

use std::collections::HashMap;

use crate::report::{OutlineBlock, OutlineItem};

/// The maximum depth of nested blocks. Rows of modules that are nested more deeply belong to the
/// block at this depth.
const DEEPEST: usize = 8;

/// The maximum number of rows of a section.
const LONGEST: usize = 48;

/// The minimum number of rows of a section that is cut off after a sum.
const SHORTEST: usize = 8;

/// The data that determine the block of a row.
pub(super) struct Lead {
    /// The steps of the row's module path; empty if the path is unknown.
    pub path: Vec<String>,
    /// Whether the row is a sum, after which a section may end.
    pub is_sum: bool,
}

/// The modules that TensorFlow, `torch.compile` and `DataParallel` put around a model.
const OF_FRAMEWORKS: [&str; 4] = [
    "StatefulPartitionedCall",
    "PartitionedCall",
    "_orig_mod",
    "module",
];

/// Splits a module path into steps. A number and the step before it form one step, such as
/// `blocks.0`. Steps of frameworks are left out.
pub(super) fn steps(path: &str) -> Vec<String> {
    let mut steps: Vec<String> = vec![];
    for step in path.split(['.', '/']).filter(|step| is_of_model(step)) {
        let is_full = steps.len() == DEEPEST;
        match steps.last_mut() {
            Some(last) if step.bytes().all(|letter| letter.is_ascii_digit()) => {
                *last += &format!(".{step}")
            }
            _ if is_full => break,
            _ => steps.push(step.to_owned()),
        }
    }
    steps
}

/// Whether a step of a path is a module of the model itself.
fn is_of_model(step: &str) -> bool {
    let name = step.trim_end_matches(|letter: char| letter.is_ascii_digit() || letter == '_');
    !step.is_empty() && !OF_FRAMEWORKS.contains(&name)
}

/// Groups rows into blocks, in their order. The first block is the whole graph.
///
/// A row without a path is put into the innermost block that contains both the previous and the
/// next row with a path.
pub(super) fn blocks(leads: &[Lead]) -> Vec<OutlineBlock> {
    let mut behind: Vec<Option<&[String]>> = vec![None; leads.len()];
    let mut next = None;
    for (at, lead) in leads.iter().enumerate().rev() {
        next = if lead.path.is_empty() {
            next
        } else {
            Some(&lead.path[..])
        };
        behind[at] = next;
    }
    let mut blocks = vec![OutlineBlock::default()];
    let mut places: HashMap<(usize, &str), usize> = HashMap::new();
    let mut last: &[String] = &[];
    for (row, lead) in leads.iter().enumerate() {
        let path = match behind[row] {
            _ if !lead.path.is_empty() => &lead.path,
            Some(next) => &last[..last.iter().zip(next).take_while(|(a, b)| a == b).count()],
            None => &[],
        };
        last = path;
        let mut at = 0;
        for step in path {
            at = *places.entry((at, step)).or_insert_with(|| {
                let place = blocks.len();
                blocks.push(OutlineBlock {
                    name: step.clone(),
                    items: vec![],
                });
                blocks[at].items.push(OutlineItem::Block(place));
                place
            });
        }
        blocks[at].items.push(OutlineItem::Row(row));
    }
    (0..blocks.len()).for_each(|place| cut(&mut blocks, place, leads));
    (1..blocks.len()).for_each(|place| join(&mut blocks, place));
    blocks
}

/// Cuts long runs of rows in a block into sections, after sums if possible.
fn cut(blocks: &mut Vec<OutlineBlock>, place: usize, leads: &[Lead]) {
    let items = std::mem::take(&mut blocks[place].items);
    for run in items.chunk_by(|a, b| is_row(a) && is_row(b)) {
        if run.len() <= LONGEST {
            blocks[place].items.extend(run);
            continue;
        }
        let mut rest = run;
        while !rest.is_empty() {
            let (section, more) = rest.split_at(section_length(rest, leads));
            let first = run.len() - rest.len() + 1;
            let name = format!("operators {first} to {}", first + section.len() - 1);
            let inner = blocks.len();
            blocks.push(OutlineBlock {
                name,
                items: section.to_vec(),
            });
            blocks[place].items.push(OutlineItem::Block(inner));
            rest = more;
        }
    }
}

fn is_row(item: &OutlineItem) -> bool {
    matches!(item, OutlineItem::Row(_))
}

/// The number of rows of the first section: up to the first sum after the minimum, or else the
/// maximum.
fn section_length(rows: &[OutlineItem], leads: &[Lead]) -> usize {
    let most = rows.len().min(LONGEST);
    let sum = rows[..most]
        .iter()
        .skip(SHORTEST - 1)
        .position(|item| matches!(item, OutlineItem::Row(row) if leads[*row].is_sum));
    sum.map_or(most, |place| place + SHORTEST)
}

/// Merges a block with its only entry, as long as this entry is a block.
fn join(blocks: &mut [OutlineBlock], place: usize) {
    while let [OutlineItem::Block(inner)] = blocks[place].items[..] {
        let OutlineBlock { name, items } = std::mem::take(&mut blocks[inner]);
        blocks[place].name += &format!(".{name}");
        blocks[place].items = items;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The blocks as text: names with their contents in parentheses, and rows by their indices.
    fn text(blocks: &[OutlineBlock], place: usize) -> String {
        let items = blocks[place].items.iter().map(|item| match item {
            OutlineItem::Row(row) => row.to_string(),
            OutlineItem::Block(inner) => {
                format!("{}({})", blocks[*inner].name, text(blocks, *inner))
            }
        });
        items.collect::<Vec<_>>().join(" ")
    }

    /// The blocks of rows with these paths, as text.
    fn blocks_of_paths(paths: &[&str]) -> String {
        let leads = paths.iter().map(|path| Lead {
            path: steps(path),
            is_sum: false,
        });
        text(&blocks(&leads.collect::<Vec<_>>()), 0)
    }

    #[test]
    fn path_steps_leave_out_modules_of_frameworks() {
        let path = "StatefulPartitionedCall_1/PartitionedCall/model/dense";
        assert_eq!(steps(path), ["model", "dense"]);
        assert_eq!(steps("_orig_mod.module.blocks.0"), ["blocks.0"]);
        assert_eq!(steps("modules.0.norm_1"), ["modules.0", "norm_1"]);
    }

    #[test]
    fn path_steps_keep_indices_and_are_limited_in_depth() {
        assert_eq!(
            steps("layers.2.blocks.1.attn"),
            ["layers.2", "blocks.1", "attn"]
        );
        assert_eq!(steps("y.then_branch/a.b"), ["y", "then_branch", "a", "b"]);
        assert_eq!(steps(&"a.".repeat(10_000)).len(), DEEPEST);
        assert_eq!(
            steps("a.b.c.d.e.f.g.h.7.i.3"),
            ["a", "b", "c", "d", "e", "f", "g", "h.7"]
        );
    }

    #[test]
    fn rows_join_the_block_of_their_path() {
        assert_eq!(
            blocks_of_paths(&["stem", "b.0.attn", "b.0", "b.1.attn", "b.0.mlp"]),
            "stem(0) b.0(attn(1) 2 mlp(4)) b.1.attn(3)"
        );
    }

    #[test]
    fn row_without_path_joins_its_neighbours() {
        assert_eq!(
            blocks_of_paths(&["", "b.0.q", "", "b.0.k", "", "b.1.q", ""]),
            "0 b.0(q(1) 2 k(3)) 4 b.1.q(5) 6"
        );
        assert_eq!(
            blocks_of_paths(&["b.0.q", "", "", "b.0.q"]),
            "b.0.q(0 1 2 3)"
        );
    }

    #[test]
    fn long_runs_are_split_after_sums() {
        let leads = (0..100).map(|row| Lead {
            path: vec![],
            is_sum: row == 3 || row == 19,
        });
        let blocks = blocks(&leads.collect::<Vec<_>>());
        let names: Vec<&str> = blocks.iter().map(|block| block.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "",
                "operators 1 to 20",
                "operators 21 to 68",
                "operators 69 to 100"
            ]
        );
        assert_eq!(blocks[2].items.first(), Some(&OutlineItem::Row(20)));
        assert_eq!(
            blocks.iter().map(|block| block.items.len()).sum::<usize>(),
            103
        );
    }
}
