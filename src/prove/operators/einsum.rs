//! Einsum: products of operands, summed over labels.

use ndarray::Axis;

use super::movement::transposed;
use super::products::product;
use super::{Call, NotEvaluated, OpResult, reductions};
use crate::hash::HashMap;
use crate::ir::equation::implied;
use crate::prove::field_value::{Elements, FieldValue, row_major};

/// An operand, and a label for each of its axes.
struct EinsumTerm {
    elements: Elements,
    labels: Vec<char>,
}

impl EinsumTerm {
    /// The extent of the axis with this label. `None` if no axis has it.
    fn extent(&self, label: char) -> Option<usize> {
        let axis = self.labels.iter().position(|&own| own == label)?;
        Some(self.elements.shape()[axis])
    }

    /// The elements with their axes in the order of these labels. `None` if a label has no axis.
    fn ordered(&self, order: &[char]) -> Option<Elements> {
        let perm: Option<Vec<usize>> = order
            .iter()
            .map(|wanted| self.labels.iter().position(|label| label == wanted))
            .collect();
        Some(row_major(transposed(&self.elements, &perm?)))
    }

    /// The elements reshaped to three axes, one for each group of labels: the axes of a group are
    /// merged into one. `None` if a label has no axis.
    fn grouped(&self, groups: [&[char]; 3]) -> Option<Elements> {
        let shape = groups.map(|group| {
            let extents = group.iter().filter_map(|&label| self.extent(label));
            extents.product::<usize>()
        });
        let ordered = self.ordered(&groups.concat())?;
        ordered.into_shape_with_order(shape.to_vec()).ok()
    }
}

pub(super) fn einsum(call: &Call) -> OpResult {
    let equation: String = call.text("equation", "")?.split_whitespace().collect();
    let implicit = implied(&equation);
    let (terms, result) = equation.split_once("->").unwrap_or((&equation, &implicit));
    let (mut terms, result) = parsed(call, terms, result)?;
    widen(&mut terms)?;
    let mut terms = summed(&terms, &result);
    let mut made = terms.remove(0);
    while !terms.is_empty() {
        let next = terms.remove(0);
        let wanted: Vec<char> = terms
            .iter()
            .flat_map(|term| &term.labels)
            .chain(&result)
            .copied()
            .collect();
        made = contracted(call, &made, &next, &wanted)?;
    }
    if made.labels.len() != result.len() {
        return Err(NotEvaluated::Uncovered);
    }
    let made = made.ordered(&result).ok_or(NotEvaluated::Uncovered)?;
    Ok(vec![FieldValue::Field(made)])
}

/// Parses the operands, each with its labels, and the labels of the result. In each parsed operand,
/// a label occurs only once.
fn parsed(
    call: &Call,
    terms: &str,
    result: &str,
) -> Result<(Vec<EinsumTerm>, Vec<char>), NotEvaluated> {
    let operands: Vec<&Elements> = (0..call.inputs.len())
        .map(|slot| call.field(slot))
        .collect::<Result<_, _>>()?;
    let terms: Vec<&str> = terms.split(',').collect();
    if terms.len() != operands.len() {
        return Err(NotEvaluated::Uncovered);
    }
    // The largest number of axes that an ellipsis stands for. An ellipsis of fewer axes stands for
    // the last of these axes.
    let mut dots = 0;
    for (term, elements) in terms.iter().zip(&operands) {
        if term.contains('.') {
            let own = elements.ndim().checked_sub(letters(term));
            dots = dots.max(own.ok_or(NotEvaluated::Uncovered)?);
        }
    }
    let mut labelled = vec![];
    for (term, elements) in terms.iter().zip(&operands) {
        let own = elements.ndim().saturating_sub(letters(term));
        labelled.push(labels(term, dots, own).ok_or(NotEvaluated::Uncovered)?);
    }
    let result = labels(result, dots, dots).ok_or(NotEvaluated::Uncovered)?;
    let mut pairs = operands.iter().zip(&labelled);
    if pairs.any(|(elements, labels)| elements.ndim() != labels.len()) {
        return Err(NotEvaluated::Uncovered);
    }
    let terms = operands.into_iter().zip(labelled);
    let terms = terms.map(|(elements, labels)| diagonal(elements, labels));
    let terms: Option<Vec<EinsumTerm>> = terms.collect();
    Ok((terms.ok_or(NotEvaluated::Misfit)?, result))
}

/// The number of labels in a term.
fn letters(term: &str) -> usize {
    term.chars().filter(|&label| label != '.').count()
}

/// Sums each operand over the labels that neither another operand nor the result has.
fn summed(terms: &[EinsumTerm], result: &[char]) -> Vec<EinsumTerm> {
    let mut readers: HashMap<char, usize> = HashMap::default();
    for &label in terms.iter().flat_map(|term| &term.labels) {
        *readers.entry(label).or_default() += 1;
    }
    terms
        .iter()
        .map(|term| {
            let (gone, kept): (Vec<usize>, Vec<usize>) = (0..term.labels.len()).partition(|&at| {
                !result.contains(&term.labels[at]) && readers[&term.labels[at]] == 1
            });
            EinsumTerm {
                elements: row_major(reductions::sum(&term.elements, &gone, false)),
                labels: kept.into_iter().map(|at| term.labels[at]).collect(),
            }
        })
        .collect()
}

/// Takes the diagonal of axes with equal labels, so that each label occurs once. `None` if their
/// extents differ.
fn diagonal(elements: &Elements, mut labels: Vec<char>) -> Option<EinsumTerm> {
    let mut elements = elements.clone();
    while let Some((first, again)) = repeated(&labels) {
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
    Some(EinsumTerm { elements, labels })
}

/// Two axes that have equal labels. `None` if all labels differ.
fn repeated(labels: &[char]) -> Option<(usize, usize)> {
    (0..labels.len()).find_map(|again| {
        let before = &labels[..again];
        let first = before.iter().position(|&label| label == labels[again])?;
        Some((first, again))
    })
}

/// Repeats axes of extent 1 to the extent that other axes with the same label have.
fn widen(terms: &mut [EinsumTerm]) -> Result<(), NotEvaluated> {
    let mut extents: HashMap<char, usize> = HashMap::default();
    for term in &*terms {
        for (&label, &extent) in term.labels.iter().zip(term.elements.shape()) {
            let most = extents.entry(label).or_insert(extent);
            *most = if *most == 1 { extent } else { *most };
        }
    }
    for EinsumTerm { elements, labels } in terms {
        let shape: Vec<usize> = labels.iter().map(|label| extents[label]).collect();
        if elements.shape() != shape {
            *elements = row_major(
                elements
                    .broadcast(shape)
                    .ok_or(NotEvaluated::Misfit)?
                    .to_owned(),
            );
        }
    }
    Ok(())
}

/// The labels of a term of an Einsum. The ellipsis of the term stands for the last `own` of the
/// `all` axes that an ellipsis stands for in the longest term. `None` if the term is invalid.
fn labels(term: &str, all: usize, own: usize) -> Option<Vec<char>> {
    // The axes of an ellipsis get private characters as labels, which no term contains.
    let of_dots: String = (all - own.min(all)..all)
        .filter_map(|at| char::from_u32(0xE000 + at as u32))
        .collect();
    let labels: Vec<char> = term.replacen("...", &of_dots, 1).chars().collect();
    let mut others = labels
        .iter()
        .filter(|&&label| !label.is_ascii_alphabetic() && label < '\u{E000}');
    others.next().is_none().then_some(labels)
}

/// The product of two operands, summed over the labels that are in both operands but not in
/// `wanted`. `wanted` holds the labels of the other operands and of the result.
fn contracted(
    call: &Call,
    one: &EinsumTerm,
    other: &EinsumTerm,
    wanted: &[char],
) -> Result<EinsumTerm, NotEvaluated> {
    let (common, rows): (Vec<char>, Vec<char>) = one
        .labels
        .iter()
        .copied()
        .partition(|label| other.labels.contains(label));
    let (batch, inner): (Vec<char>, Vec<char>) =
        common.into_iter().partition(|label| wanted.contains(label));
    let mut columns = other.labels.clone();
    columns.retain(|label| !one.labels.contains(label));
    let left = one.grouped([&batch, &rows, &inner]);
    let right = other.grouped([&batch, &inner, &columns]);
    let (left, right) = left.zip(right).ok_or(NotEvaluated::Uncovered)?;
    for &label in batch.iter().chain(&inner) {
        if one.extent(label) != other.extent(label) {
            return Err(NotEvaluated::Uncovered);
        }
    }
    let labels = [batch, rows, columns].concat();
    let shape: Option<Vec<usize>> = labels
        .iter()
        .map(|&label| one.extent(label).or(other.extent(label)))
        .collect();
    let made = product(&left, &right, call.allowance)?;
    let made = made
        .into_shape_with_order(shape.ok_or(NotEvaluated::Uncovered)?)
        .map_err(|_| NotEvaluated::Uncovered)?;
    Ok(EinsumTerm {
        elements: row_major(made),
        labels,
    })
}
