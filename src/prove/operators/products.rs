//! Matrix products.

use ndarray::{ArrayD, Axis};

use super::movement::{reshaped, transposed};
use super::{Allowance, Call, Made, Unmade, reductions, zip};
use crate::hash::HashMap;
use crate::ir::equation::implied;
use crate::prove::field;
use crate::prove::field_value::{Elements, FieldValue, row_major, slice};
use crate::prove::matrices::{Extents, multiply};
use crate::recipe::broadcast;

/// The attributes of FusedMatMul.
pub(super) const FUSED: &[&str] = &["alpha", "transA", "transB", "transBatchA", "transBatchB"];

/// Matrix products over the last two axes, where the axes before them broadcast.
///
/// # Errors
/// Where they are no matrices, do not fit each other, or are more than is allowed.
pub fn product(
    left: &Elements,
    right: &Elements,
    allowance: &Allowance,
) -> Result<ArrayD<u32>, Unmade> {
    let (&[ref outer_left @ .., rows, inner], &[ref outer_right @ .., other, columns]) =
        (left.shape(), right.shape())
    else {
        return Err(Unmade::Uncovered);
    };
    let outer = broadcast(outer_left, outer_right)
        .filter(|_| inner == other)
        .ok_or(Unmade::Misfit)?;
    let shape = [&outer[..], &[rows, columns]].concat();
    allowance.room(&shape)?;
    let batch: usize = outer.iter().product();
    allowance.products(&[batch, rows, inner, columns])?;
    // One matrix on the right side takes all the rows of the left one.
    let is_one =
        outer_right.iter().all(|&extent| extent == 1) && outer_left.len() >= outer_right.len();
    let (pairs, rows) = if is_one {
        (vec![(0, 0)], batch * rows)
    } else {
        (
            pairs(
                &outer,
                (outer_left, rows * inner),
                (outer_right, inner * columns),
            ),
            rows,
        )
    };
    let products = multiply(
        slice(left),
        slice(right),
        &pairs,
        Extents {
            rows,
            inner,
            columns,
        },
    );
    ArrayD::from_shape_vec(shape, products).map_err(|_| Unmade::Uncovered)
}

/// Where the matrices of each product begin, by the extents of the axes before them and their size.
fn pairs(
    outer: &[usize],
    left: (&[usize], usize),
    right: (&[usize], usize),
) -> Vec<(usize, usize)> {
    let start = |(shape, size): (&[usize], usize), mut flat: usize| {
        let (mut start, mut step) = (0, size);
        for (axis, &extent) in outer.iter().enumerate().rev() {
            let place = flat % extent;
            flat /= extent;
            let Some(own) = (axis + shape.len()).checked_sub(outer.len()) else {
                break;
            };
            if shape[own] != 1 {
                start += place * step;
            }
            step *= shape[own];
        }
        start
    };
    (0..outer.iter().product())
        .map(|flat| (start(left, flat), start(right, flat)))
        .collect()
}

/// As MatMul has it: a vector is a row on the left side and a column on the right one.
fn matrices(
    left: &Elements,
    right: &Elements,
    allowance: &Allowance,
) -> Result<ArrayD<u32>, Unmade> {
    let with = |elements: &Elements, shape: &[usize]| {
        elements
            .clone()
            .into_shape_with_order(shape)
            .map_err(|_| Unmade::Uncovered)
    };
    let row = if left.ndim() == 1 {
        with(left, &[1, left.len()])?
    } else {
        left.clone()
    };
    let column = if right.ndim() == 1 {
        with(right, &[right.len(), 1])?
    } else {
        right.clone()
    };
    let made = product(&row, &column, allowance)?;
    let mut shape = made.shape().to_vec();
    if right.ndim() == 1 {
        shape.pop();
    }
    if left.ndim() == 1 {
        shape.remove(shape.len() + usize::from(right.ndim() == 1) - 2);
    }
    made.into_shape_with_order(shape)
        .map_err(|_| Unmade::Uncovered)
}

pub(super) fn matmul(call: &Call) -> Made {
    Ok(vec![FieldValue::field(matrices(
        call.field(0)?,
        call.field(1)?,
        call.allowance,
    )?)])
}

/// The two last axes swapped.
fn turned(elements: &Elements) -> Result<Elements, Unmade> {
    let mut perm: Vec<usize> = (0..elements.ndim()).collect();
    let last = perm.len().checked_sub(2).ok_or(Unmade::Uncovered)?;
    perm.swap(last, last + 1);
    Ok(row_major(transposed(elements, &perm)))
}

pub(super) fn fused(call: &Call) -> Made {
    if call.flag("transBatchA", false)? || call.flag("transBatchB", false)? {
        return Err(Unmade::Uncovered);
    }
    let operand = |slot: usize, turns: &str| -> Result<Elements, Unmade> {
        let elements = call.field(slot)?;
        match (elements.ndim(), call.flag(turns, false)?) {
            // A vector is unchanged. Engines disagree about a matrix beside a vector.
            (0 | 1, _) | (_, false) => Ok(elements.clone()),
            _ if call.field(1 - slot)?.ndim() == 1 => Err(Unmade::Uncovered),
            _ => turned(elements),
        }
    };
    let made = matrices(
        &operand(0, "transA")?,
        &operand(1, "transB")?,
        call.allowance,
    )?;
    Ok(vec![FieldValue::field(scaled(
        made,
        call.float("alpha", 1.0)?,
    ))])
}

fn scaled(elements: ArrayD<u32>, factor: u32) -> ArrayD<u32> {
    if factor == 1 {
        elements
    } else {
        elements.mapv_into(|element| field::mul(element, factor))
    }
}

pub(super) fn gemm(call: &Call) -> Made {
    let operand = |slot: usize, turns: &str| -> Result<Elements, Unmade> {
        let elements = call.field(slot)?;
        match elements.ndim() {
            2 if call.flag(turns, false)? => turned(elements),
            2 => Ok(elements.clone()),
            _ => Err(Unmade::Uncovered),
        }
    };
    let made = product(
        &operand(0, "transA")?,
        &operand(1, "transB")?,
        call.allowance,
    )?;
    let made = row_major(scaled(made, call.float("alpha", 1.0)?));
    let Some(added) = call.optional_field(2)? else {
        return Ok(vec![FieldValue::Field(made)]);
    };
    let added = row_major(scaled(added.to_owned(), call.float("beta", 1.0)?));
    let sum = zip(&made, &added, field::add).filter(|sum| sum.shape() == made.shape());
    Ok(vec![FieldValue::field(sum.ok_or(Unmade::Misfit)?)])
}

/// Sums of products over labels, of one operand or of two.
pub(super) fn einsum(call: &Call) -> Made {
    let equation: String = call.text("equation", "")?.split_whitespace().collect();
    let implicit = implied(&equation);
    let (terms, result) = equation.split_once("->").unwrap_or((&equation, &implicit));
    let operands: Vec<&Elements> = (0..call.inputs.len())
        .map(|slot| call.field(slot))
        .collect::<Result<_, _>>()?;
    let terms: Vec<&str> = terms.split(',').collect();
    if terms.len() != operands.len() {
        return Err(Unmade::Uncovered);
    }
    // The axes of the ellipsis, the last ones of which each operand has.
    let own = |term: &str| term.chars().filter(|&label| label != '.').count();
    let dotted = |(term, elements): (&&str, &&Elements)| {
        term.contains('.')
            .then(|| elements.ndim().checked_sub(own(term)))
    };
    let dots = terms
        .iter()
        .zip(&operands)
        .filter_map(dotted)
        .collect::<Option<Vec<_>>>()
        .ok_or(Unmade::Uncovered)?;
    let dots = dots.into_iter().max().unwrap_or(0);
    let ranks = operands.iter().map(|elements| elements.ndim());
    let terms: Vec<Vec<char>> = terms
        .iter()
        .zip(ranks)
        .map(|(term, rank)| {
            labels(term, dots, rank.saturating_sub(own(term))).ok_or(Unmade::Uncovered)
        })
        .collect::<Result<_, _>>()?;
    let result = labels(result, dots, dots).ok_or(Unmade::Uncovered)?;
    if operands
        .iter()
        .zip(&terms)
        .any(|(elements, labels)| elements.ndim() != labels.len())
    {
        return Err(Unmade::Uncovered);
    }
    let plain = operands
        .iter()
        .zip(terms)
        .map(|(&elements, labels)| diagonal(elements, labels));
    let (mut operands, terms): (Vec<Elements>, Vec<Vec<char>>) = plain
        .collect::<Option<Vec<_>>>()
        .ok_or(Unmade::Misfit)?
        .into_iter()
        .unzip();
    widen(&mut operands, &terms)?;
    let mut left = vec![];
    for (labels, elements) in terms.iter().zip(&operands) {
        // Labels of this operand alone that the result lacks.
        let alone = |label: &char| {
            !result.contains(label)
                && terms.iter().filter(|labels| labels.contains(label)).count() == 1
        };
        let gone: Vec<usize> = (0..labels.len()).filter(|&at| alone(&labels[at])).collect();
        let kept: Vec<char> = labels
            .iter()
            .copied()
            .filter(|label| !alone(label))
            .collect();
        left.push((row_major(reductions::sum(elements, &gone, false)), kept));
    }
    let (mut made, mut labels) = left.remove(0);
    while !left.is_empty() {
        let (next, others) = left.remove(0);
        let is_wanted = |label: &char| {
            result.contains(label) || left.iter().any(|(_, labels)| labels.contains(label))
        };
        (made, labels) = contracted(call, (&made, &labels), (&next, &others), &is_wanted)?;
    }
    let perm: Option<Vec<usize>> = result
        .iter()
        .map(|wanted| labels.iter().position(|label| label == wanted))
        .collect();
    let perm = perm
        .filter(|perm| perm.len() == labels.len())
        .ok_or(Unmade::Uncovered)?;
    let made = FieldValue::field(transposed(&made, &perm));
    let shape = made.shape().ok_or(Unmade::Uncovered)?.to_vec();
    Ok(vec![reshaped(&made, &shape)?])
}

/// The elements at which axes of one label have one place, and the labels, each of them once.
fn diagonal(elements: &Elements, mut labels: Vec<char>) -> Option<(Elements, Vec<char>)> {
    let mut elements = elements.clone();
    while let Some((first, again)) = (0..labels.len()).find_map(|again| {
        Some((
            labels[..again]
                .iter()
                .position(|label| *label == labels[again])?,
            again,
        ))
    }) {
        if elements.shape()[first] != elements.shape()[again] {
            return None;
        }
        let places = (0..elements.shape()[first])
            .map(|place| {
                elements
                    .index_axis(Axis(again), place)
                    .index_axis_move(Axis(first), place)
            })
            .collect::<Vec<_>>();
        elements = row_major(ndarray::stack(Axis(first), &places).ok()?);
        labels.remove(again);
    }
    Some((elements, labels))
}

/// An axis of one place is as long as the others of its label.
fn widen(operands: &mut [Elements], terms: &[Vec<char>]) -> Result<(), Unmade> {
    let mut extents: HashMap<char, usize> = HashMap::default();
    for (elements, labels) in operands.iter().zip(terms) {
        for (&label, &extent) in labels.iter().zip(elements.shape()) {
            let most = extents.entry(label).or_insert(extent);
            *most = if *most == 1 { extent } else { *most };
        }
    }
    for (elements, labels) in operands.iter_mut().zip(terms) {
        let shape: Vec<usize> = labels.iter().map(|label| extents[label]).collect();
        if elements.shape() != shape {
            *elements = row_major(elements.broadcast(shape).ok_or(Unmade::Misfit)?.to_owned());
        }
    }
    Ok(())
}

/// The labels of a term of an Einsum; the axes of its ellipsis, `own` many, are the last of `all`.
/// `None` where the term is invalid.
fn labels(term: &str, all: usize, own: usize) -> Option<Vec<char>> {
    // No letter is one of these.
    let of_dots: String = (all - own.min(all)..all)
        .filter_map(|at| char::from_u32(0xE000 + at as u32))
        .collect();
    let labels: Vec<char> = term.replacen("...", &of_dots, 1).chars().collect();
    let is_label = |label: &char| label.is_ascii_alphabetic() || *label >= '\u{E000}';
    labels.iter().all(is_label).then_some(labels)
}

/// The sum of products of two operands over the labels that the result lacks.
fn contracted(
    call: &Call,
    (a, la): (&Elements, &[char]),
    (b, lb): (&Elements, &[char]),
    is_wanted: &dyn Fn(&char) -> bool,
) -> Result<(Elements, Vec<char>), Unmade> {
    let pick = |from: &[char], keep: &dyn Fn(&char) -> bool| -> Vec<char> {
        from.iter().copied().filter(|label| keep(label)).collect()
    };
    let batch = pick(la, &|label| lb.contains(label) && is_wanted(label));
    let inner = pick(la, &|label| lb.contains(label) && !is_wanted(label));
    let rows = pick(la, &|label| !lb.contains(label));
    let columns = pick(lb, &|label| !la.contains(label));
    let ordered =
        |elements: &Elements, labels: &[char], groups: [&[char]; 3]| -> Option<Elements> {
            let order = groups.concat();
            let perm: Option<Vec<usize>> = order
                .iter()
                .map(|wanted| labels.iter().position(|label| label == wanted))
                .collect();
            let moved = transposed(elements, &perm?);
            let extent = |group: &[char]| -> usize {
                let of = |label: &char| {
                    labels
                        .iter()
                        .position(|own| own == label)
                        .map(|at| elements.shape()[at])
                };
                group.iter().filter_map(of).product()
            };
            Some(row_major(
                moved
                    .into_shape_with_order(groups.map(extent).to_vec())
                    .ok()?,
            ))
        };
    let a_block = ordered(a, la, [&batch, &rows, &inner]).ok_or(Unmade::Uncovered)?;
    let b_block = ordered(b, lb, [&batch, &inner, &columns]).ok_or(Unmade::Uncovered)?;
    let extent = |label: &char| -> Result<usize, Unmade> {
        let of = |labels: &[char], elements: &Elements| {
            labels
                .iter()
                .position(|own| own == label)
                .map(|at| elements.shape()[at])
        };
        match (of(la, a), of(lb, b)) {
            (Some(one), Some(other)) if one != other => Err(Unmade::Uncovered),
            (one, other) => one.or(other).ok_or(Unmade::Uncovered),
        }
    };
    inner
        .iter()
        .try_for_each(|label| extent(label).map(|_| ()))?;
    let labels = [batch, rows, columns].concat();
    let shape: Vec<usize> = labels.iter().map(extent).collect::<Result<_, _>>()?;
    let made = product(&a_block, &b_block, call.allowance)?;
    let made = made
        .into_shape_with_order(shape)
        .map_err(|_| Unmade::Uncovered)?;
    Ok((row_major(made), labels))
}
