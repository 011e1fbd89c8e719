//! The operators of ONNX as the specification defines them: the inputs, outputs, element types and
//! attributes in each operator set.
//!
//! `tests/schemas.py` writes the table from the definitions in the `onnx` package, and documents
//! the columns of the table.

use std::collections::HashMap;
use std::sync::LazyLock;

use super::proto::{AttributeProto, AttributeType};
use super::tensor::DataType;

/// The kinds of values that an input or an output may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sort {
    /// A tensor whose element type is a type variable. The index is that of the variable in the
    /// operator.
    Variable(usize),
    /// A tensor of one of these element types.
    OneOf(Types),
    /// Any value.
    Any,
}

/// A set of element types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Types(u64);

impl Types {
    /// Whether the set contains a type.
    pub(crate) fn contains(self, data_type: DataType) -> bool {
        self.0 >> data_type.code() & 1 == 1
    }

    /// The only type of the set; `None` for all other sets.
    pub(crate) fn only(self) -> Option<DataType> {
        let code = self.0.is_power_of_two().then(|| self.0.trailing_zeros());
        DataType::from_code(code?.try_into().ok()?)
    }
}

/// How many times an input or an output may occur.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arity {
    /// Exactly once.
    Once,
    /// At most once.
    Optional,
    /// Any number of times. All of them have the same type.
    Many,
    /// Any number of times. Their types may differ.
    ManyOfAnyType,
}

/// An input or an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Formal {
    /// The kinds of values that it may be.
    pub sort: Sort,
    /// How many times it may occur.
    pub count: Arity,
}

impl Formal {
    /// The index of the type variable. `None` for fixed types, and for repeated parameters of different types.
    pub(crate) fn variable(self) -> Option<usize> {
        match self.sort {
            Sort::Variable(index) if self.count != Arity::ManyOfAnyType => Some(index),
            _ => None,
        }
    }
}

/// An attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AttributeSchema {
    /// Its name.
    pub name: &'static str,
    /// The code of its type in `AttributeProto`; `None` for types that are not checked.
    pub type_code: Option<i32>,
    /// Whether the attribute is required.
    pub is_required: bool,
    /// The default value, as text.
    pub default: Option<&'static str>,
}

impl AttributeSchema {
    /// Whether an attribute of this name has the default value.
    pub(crate) fn is_default(&self, attribute: &AttributeProto) -> bool {
        let Some(default) = self.default else {
            return false;
        };
        match attribute.r#type() {
            AttributeType::Int => default.parse() == Ok(attribute.i()),
            AttributeType::Float => default.parse() == Ok(attribute.f()),
            AttributeType::String => default.as_bytes() == attribute.s(),
            AttributeType::Ints => {
                let numbers: Result<Vec<i64>, _> = default.split(',').map(str::parse).collect();
                numbers.as_deref() == Ok(&attribute.ints)
            }
            _ => false,
        }
    }
}

/// The schema of an operator. It is valid since one operator set, until a newer schema replaces it.
#[derive(Debug)]
pub(crate) struct OperatorSchema {
    since: i64,
    /// Whether the operator is deprecated.
    pub is_deprecated: bool,
    /// Its inputs.
    pub inputs: Vec<Formal>,
    /// Its outputs.
    pub outputs: Vec<Formal>,
    /// The element types of each type variable; `None` if the variable may also stand for a type
    /// other than a tensor.
    pub variables: Vec<Option<Types>>,
    /// Its attributes.
    pub attributes: Vec<AttributeSchema>,
}

impl OperatorSchema {
    /// The formal input of a slot; `None` if the operator has no such slot.
    pub(crate) fn input(&self, slot: usize) -> Option<Formal> {
        at(&self.inputs, slot)
    }

    /// The formal output of a slot; `None` if the operator has no such slot.
    pub(crate) fn output(&self, slot: usize) -> Option<Formal> {
        at(&self.outputs, slot)
    }

    /// Whether an input or output of the operator may have a type.
    pub(crate) fn allows(&self, formal: Formal, data_type: DataType) -> bool {
        match formal.sort {
            Sort::Variable(index) => {
                self.variables[index].is_none_or(|types| types.contains(data_type))
            }
            Sort::OneOf(types) => types.contains(data_type),
            Sort::Any => true,
        }
    }

    /// Whether the operator takes these inputs: `None` for an absent input, and `Some(None)` for an input of unknown type.
    pub(crate) fn takes(&self, inputs: &[Option<Option<DataType>>]) -> bool {
        let mut formals = self.inputs.iter().enumerate();
        let are_there = formals.all(|(slot, formal)| {
            formal.count != Arity::Once || inputs.get(slot).is_some_and(Option::is_some)
        });
        let mut inputs = inputs.iter().enumerate();
        let are_allowed = inputs.all(|(slot, input)| match (input, self.input(slot)) {
            (None, _) | (Some(None), Some(_)) => true,
            (Some(Some(data_type)), Some(formal)) => self.allows(formal, *data_type),
            (Some(_), None) => false,
        });
        are_there && are_allowed
    }
}

/// The formal parameter of a slot. If the last one may repeat, it stands for all further slots.
fn at(formals: &[Formal], slot: usize) -> Option<Formal> {
    let last = formals.last().copied();
    let repeats = last.filter(|it| matches!(it.count, Arity::Many | Arity::ManyOfAnyType));
    formals.get(slot).copied().or(repeats)
}

/// The definition of an operator in an operator set.
#[derive(Debug, Clone, Copy)]
pub(crate) enum OperatorDefinition {
    /// The schema of the operator.
    Is(&'static OperatorSchema),
    /// The operator exists only in later operator sets.
    Later,
    /// No operator set has the operator.
    Unknown,
}

/// The definition of an operator of ONNX's own domain in operator set `opset`.
pub(crate) fn definition(op: &str, opset: i64) -> OperatorDefinition {
    static TABLE: LazyLock<HashMap<&'static str, Vec<OperatorSchema>>> = LazyLock::new(|| {
        let mut table: HashMap<&str, Vec<OperatorSchema>> = HashMap::new();
        for (name, schema) in include_str!("schema/operators.txt")
            .lines()
            .filter_map(line)
        {
            table.entry(name).or_default().push(schema);
        }
        table
    });
    let Some(versions) = TABLE.get(op) else {
        return OperatorDefinition::Unknown;
    };
    let latest = versions.iter().rev().find(|schema| schema.since <= opset);
    latest.map_or(OperatorDefinition::Later, OperatorDefinition::Is)
}

fn line(line: &'static str) -> Option<(&'static str, OperatorSchema)> {
    let columns: Vec<&'static str> = line.split('|').collect();
    let [name, since, inputs, outputs, variables, attributes, ..] = columns[..] else {
        return None;
    };
    let since = since.parse().ok()?;
    let (names, variables): (Vec<&str>, Vec<Option<Types>>) =
        variables.split_whitespace().filter_map(variable).unzip();
    let is_deprecated = inputs == "deprecated";
    let (inputs, outputs) = if is_deprecated {
        (vec![], vec![])
    } else {
        (formals(inputs, &names), formals(outputs, &names))
    };
    let attributes = attributes
        .split_whitespace()
        .filter_map(attribute)
        .collect();
    Some((
        name,
        OperatorSchema {
            since,
            is_deprecated,
            inputs,
            outputs,
            variables,
            attributes,
        },
    ))
}

fn formals(text: &str, variables: &[&str]) -> Vec<Formal> {
    text.split_whitespace()
        .map(|text| formal(text, variables))
        .collect()
}

fn variable(text: &'static str) -> Option<(&'static str, Option<Types>)> {
    let (name, set) = text.split_once(':')?;
    Some((name, types(set)))
}

fn types(set: &str) -> Option<Types> {
    u64::from_str_radix(set, 16).ok().map(Types)
}

fn formal(text: &str, variables: &[&str]) -> Formal {
    let (count, sort) = match text.split_at(1) {
        ("?", rest) => (Arity::Optional, rest),
        ("*", rest) => (Arity::Many, rest),
        ("%", rest) => (Arity::ManyOfAnyType, rest),
        _ => (Arity::Once, text),
    };
    let sort = match sort.strip_prefix('$') {
        Some(name) => variables
            .iter()
            .position(|&variable| variable == name)
            .map(Sort::Variable),
        None => types(sort).map(Sort::OneOf),
    };
    Formal {
        sort: sort.unwrap_or(Sort::Any),
        count,
    }
}

fn attribute(text: &'static str) -> Option<AttributeSchema> {
    let (name, value) = text.split_once('=')?;
    let (letter, default) = match value.split_once(':') {
        Some((letter, default)) => (letter, Some(default)),
        None => (value, None),
    };
    let type_code = "fistgFISTG".find(letter).map(|place| place as i32 + 1);
    let is_required = name.starts_with('!');
    Some(AttributeSchema {
        name: name.trim_start_matches('!'),
        type_code,
        is_required,
        default,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::builder::{float, int};

    fn schema(op: &str, opset: i64) -> &'static OperatorSchema {
        match definition(op, opset) {
            OperatorDefinition::Is(schema) => schema,
            other => panic!("{op}: {other:?}"),
        }
    }

    #[test]
    fn split_has_num_outputs_from_opset_18() {
        let has_count = [17, 18].map(|opset| {
            let attributes = &schema("Split", opset).attributes;
            attributes.iter().any(|a| a.name == "num_outputs")
        });
        assert_eq!(has_count, [false, true]);
        assert_eq!(schema("Split", 17).inputs[1].count, Arity::Optional);
        assert_eq!(schema("Split", 17).outputs[0].count, Arity::Many);
    }

    #[test]
    fn schema_has_element_types_and_attributes() {
        let relu = schema("Relu", 13);
        let Some(types) = relu.variables[0] else {
            panic!("Relu takes tensors")
        };
        assert!(types.contains(DataType::Float) && types.contains(DataType::BFloat16));
        assert!(!types.contains(DataType::Int64) && !types.contains(DataType::Bool));
        assert_eq!(relu.inputs[0].sort, Sort::Variable(0));
        let perm = schema("Transpose", 13).attributes[0];
        assert_eq!(
            perm,
            AttributeSchema {
                name: "perm",
                type_code: Some(7),
                is_required: false,
                default: None,
            }
        );
    }

    #[test]
    fn defaults_are_those_of_the_operator_set() {
        let resize = schema("Resize", 18);
        let is_default = |attribute: &AttributeProto| {
            let mut known = resize.attributes.iter();
            let known = known.find(|known| known.name == attribute.name());
            known.is_some_and(|known| known.is_default(attribute))
        };
        assert!(is_default(&float("cubic_coeff_a", -0.75)));
        assert!(!is_default(&float("cubic_coeff_a", -0.5)));
        assert!(is_default(&int("antialias", 0)) && !is_default(&int("antialias", 1)));
        assert!(!is_default(&int("axes", 0)));
    }

    #[test]
    fn schema_knows_deprecated_later_and_unknown_operators() {
        assert!(schema("Upsample", 10).is_deprecated);
        assert!(matches!(
            definition("RMSNormalization", 22),
            OperatorDefinition::Later
        ));
        assert!(matches!(
            definition("BiasGelu", 22),
            OperatorDefinition::Unknown
        ));
    }
}
