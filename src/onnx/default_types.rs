//! Makes the default element types of results explicit, by adding the absent attributes.

use super::proto::{AttributeProto, AttributeType, NodeProto, TensorProto};
use super::tensor::DataType;

/// The operators whose result is float32 by default, each with the attribute that sets the element
/// type of the result.
const FLOAT_BY_DEFAULT: [(&str, &str); 6] = [
    ("BlackmanWindow", "output_datatype"),
    ("HammingWindow", "output_datatype"),
    ("HannWindow", "output_datatype"),
    ("MelWeightMatrix", "output_datatype"),
    ("RandomNormal", "dtype"),
    ("RandomUniform", "dtype"),
];

/// Adds the attribute that sets the element type of a node's result to float32, if this type is the
/// default and the node lacks the attribute. For a ConstantOfShape, the attribute is `value`, a
/// float32 zero.
pub(crate) fn write_default_type(node: &mut NodeProto) {
    let attribute = match node.op() {
        ("", "ConstantOfShape") => zero(),
        ("", op) => match FLOAT_BY_DEFAULT.iter().find(|(known, _)| *known == op) {
            Some((_, name)) => type_attribute(name),
            None => return,
        },
        _ => return,
    };
    let mut names = node.attribute.iter().map(AttributeProto::name);
    if names.all(|name| name != attribute.name()) {
        node.attribute.push(attribute);
    }
}

fn zero() -> AttributeProto {
    let zero = TensorProto {
        dims: vec![1],
        data_type: Some(DataType::Float.code()),
        raw_data: Some(0_f32.to_le_bytes().to_vec().into()),
        ..Default::default()
    };
    AttributeProto {
        name: Some("value".into()),
        t: Some(zero.into()),
        r#type: Some(AttributeType::Tensor.into()),
        ..Default::default()
    }
}

fn type_attribute(name: &str) -> AttributeProto {
    AttributeProto {
        name: Some(name.into()),
        i: Some(DataType::Float.code().into()),
        r#type: Some(AttributeType::Int.into()),
        ..Default::default()
    }
}
