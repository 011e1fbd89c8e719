//! Recipes as lists of steps, as certificates hold them.

use serde::{Deserialize, Serialize};

use super::{Op, Recipe, Windows, places};
use crate::onnx::tensor::DataType;

/// The largest number of elements of a step in a certificate. Below this limit, products and sums
/// of extents do not overflow.
const MOST: usize = if usize::BITS < 64 { 1 << 28 } else { 1 << 40 };

/// The largest stride, dilation, padding and product of extents in the windows of a step.
const WIDEST: usize = 1 << 30;

/// One operation of a recipe: its kind, the indices of its inputs, and the extents of its result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct RecipeStep {
    #[serde(flatten)]
    op: StepOp,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    inputs: Vec<usize>,
    shape: Vec<usize>,
}

/// An [`Op`] as certificates hold it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "op", rename_all = "lowercase")]
enum StepOp {
    Constant {
        name: String,
    },
    Literal {
        numbers: Vec<f64>,
    },
    Round {
        data_type: String,
    },
    Neg,
    Sqrt,
    Add,
    Sub,
    Mul,
    Div,
    Reshape,
    Transpose {
        perm: Vec<usize>,
    },
    Pick {
        axis: usize,
        places: Vec<Option<usize>>,
    },
    Expand,
    Concat {
        axis: usize,
    },
    Sum {
        axis: usize,
    },
    Max {
        axis: usize,
    },
    Exp,
    Sigmoid,
    Softmax {
        axis: usize,
    },
    Flush {
        below: f64,
    },
    Product,
    Conv(Windows),
}

/// The float types, with their names in certificates.
const FLOATS: [(DataType, &str); 4] = [
    (DataType::Float16, "float16"),
    (DataType::BFloat16, "bfloat16"),
    (DataType::Float, "float32"),
    (DataType::Double, "float64"),
];

/// The name of an element type in certificates. Recipes exist only for float types.
pub(crate) fn float_name(data_type: DataType) -> String {
    let known = FLOATS.iter().find(|(float, _)| *float == data_type);
    known.map_or_else(|| data_type.name(), |(_, name)| (*name).to_owned())
}

/// The float type with this name in certificates. `None` if no float type has it.
pub(crate) fn float_named(name: &str) -> Option<DataType> {
    FLOATS
        .iter()
        .find(|(_, known)| *known == name)
        .map(|(float, _)| *float)
}

impl Recipe {
    /// The recipe as steps, each after its inputs. The last step is the recipe itself.
    pub(crate) fn to_steps(&self) -> Vec<RecipeStep> {
        let steps = self.steps();
        let places = places(&steps);
        let written = steps.iter().map(|step| RecipeStep {
            op: written(step.op()),
            inputs: step
                .inputs()
                .iter()
                .map(|input| places[&input.id()])
                .collect(),
            shape: step.shape().to_vec(),
        });
        written.collect()
    }

    /// Builds the recipe of a list of steps, which may be malformed.
    ///
    /// # Errors
    /// The step that does not fit the others, and the reason.
    pub(crate) fn from_steps(steps: &[RecipeStep]) -> Result<Self, String> {
        let mut made: Vec<Recipe> = Vec::with_capacity(steps.len());
        for (place, step) in steps.iter().enumerate() {
            let inputs: Option<Vec<&Recipe>> =
                step.inputs.iter().map(|&input| made.get(input)).collect();
            let next = match inputs {
                Some(inputs) => read(step, &inputs),
                None => Err("an input is no step before it".to_owned()),
            };
            made.push(next.map_err(|reason| format!("step {place}: {reason}"))?);
        }
        made.pop().ok_or_else(|| "it has no steps".to_owned())
    }
}

fn written(op: &Op) -> StepOp {
    match op {
        Op::Constant(name) => StepOp::Constant {
            name: name.to_string(),
        },
        Op::Literal(numbers) => StepOp::Literal {
            numbers: numbers.to_vec(),
        },
        Op::Round(data_type) => StepOp::Round {
            data_type: float_name(*data_type),
        },
        Op::Neg => StepOp::Neg,
        Op::Sqrt => StepOp::Sqrt,
        Op::Add => StepOp::Add,
        Op::Sub => StepOp::Sub,
        Op::Mul => StepOp::Mul,
        Op::Div => StepOp::Div,
        Op::Reshape => StepOp::Reshape,
        Op::Transpose(perm) => StepOp::Transpose { perm: perm.clone() },
        Op::Pick { axis, places } => StepOp::Pick {
            axis: *axis,
            places: places.to_vec(),
        },
        Op::Expand => StepOp::Expand,
        Op::Concat(axis) => StepOp::Concat { axis: *axis },
        Op::Sum(axis) => StepOp::Sum { axis: *axis },
        Op::Max(axis) => StepOp::Max { axis: *axis },
        Op::Exp => StepOp::Exp,
        Op::Sigmoid => StepOp::Sigmoid,
        Op::Softmax(axis) => StepOp::Softmax { axis: *axis },
        Op::Flush(below) => StepOp::Flush { below: *below },
        Op::Product => StepOp::Product,
        Op::Conv(windows) => StepOp::Conv(Windows::clone(windows)),
    }
}

/// Reads an operation exactly as it is written. The constructors of [`Recipe`], which may simplify
/// an operation, are called only to check its inputs and to compute its extents.
fn read(step: &RecipeStep, inputs: &[&Recipe]) -> Result<Recipe, String> {
    let shape = &step.shape;
    if !is_countable(shape) {
        return Err(format!("its extents {shape:?} are too large"));
    }
    let (op, fits) = match inputs {
        [] => read_leaf(step)?,
        [a] => read_unary(step, a)?,
        [a, b] => read_binary(step, a, b)?,
        _ => read_concat(step, inputs)?,
    };
    match fits {
        None => Err("its inputs do not fit it".to_owned()),
        Some(extents) if extents == *shape => {
            let inputs = inputs.iter().map(|&input| input.clone());
            Ok(Recipe::new(op, inputs.collect(), extents))
        }
        Some(extents) => Err(format!("its extents are {extents:?}, and not {shape:?}")),
    }
}

/// An operation and the extents of its result. `None` if the inputs do not fit.
type CheckedOp = (Op, Option<Vec<usize>>);

/// Whether the product of all extents except 0 is at most [`MOST`].
fn is_countable(shape: &[usize]) -> bool {
    let mut extents = shape.iter().filter(|&&extent| extent != 0);
    let product = extents.try_fold(1_usize, |all, &extent| all.checked_mul(extent));
    product.is_some_and(|product| product <= MOST)
}

fn read_leaf(RecipeStep { op, shape, .. }: &RecipeStep) -> Result<CheckedOp, String> {
    match op {
        StepOp::Constant { name } => Ok((Op::Constant(name.as_str().into()), Some(shape.clone()))),
        StepOp::Literal { numbers } => {
            let count: usize = shape.iter().product();
            let fits = numbers.len() == 1 || numbers.len() == count;
            let op = Op::Literal(numbers.as_slice().into());
            Ok((op, fits.then(|| shape.clone())))
        }
        StepOp::Concat { axis } => Ok(concat(*axis, &[])),
        _ => Err("it has 0 inputs".to_owned()),
    }
}

fn read_unary(RecipeStep { op, shape, .. }: &RecipeStep, a: &Recipe) -> Result<CheckedOp, String> {
    let own = Some(a.shape().to_vec());
    Ok(match op {
        StepOp::Round { data_type } => {
            let known = float_named(data_type);
            let data_type = known.ok_or_else(|| format!("it rounds to `{data_type}`"))?;
            (Op::Round(data_type), own)
        }
        StepOp::Neg => (Op::Neg, own),
        StepOp::Sqrt => (Op::Sqrt, own),
        StepOp::Exp => (Op::Exp, own),
        StepOp::Sigmoid => (Op::Sigmoid, own),
        StepOp::Flush { below } => (Op::Flush(*below), own),
        StepOp::Reshape => (Op::Reshape, extents(a.reshape(shape))),
        StepOp::Expand => {
            let expanded = a.align(shape.len()).and_then(|a| a.expand(shape));
            (Op::Expand, extents(expanded))
        }
        StepOp::Transpose { perm } => (Op::Transpose(perm.clone()), extents(a.transpose(perm))),
        StepOp::Pick { axis, places } => {
            let picked = a.pick(*axis, places.iter().copied());
            let (axis, places) = (*axis, places.as_slice().into());
            (Op::Pick { axis, places }, extents(picked))
        }
        StepOp::Concat { axis } => concat(*axis, &[a]),
        StepOp::Sum { axis } => (Op::Sum(*axis), extents(a.sum(*axis))),
        StepOp::Max { axis } => (Op::Max(*axis), extents(a.max(*axis))),
        StepOp::Softmax { axis } => (Op::Softmax(*axis), extents(a.softmax(*axis))),
        _ => return Err("it has 1 inputs".to_owned()),
    })
}

fn read_binary(step: &RecipeStep, a: &Recipe, b: &Recipe) -> Result<CheckedOp, String> {
    Ok(match &step.op {
        StepOp::Add => (Op::Add, extents(a.add(b))),
        StepOp::Sub => (Op::Sub, extents(a.sub(b))),
        StepOp::Mul => (Op::Mul, extents(a.mul(b))),
        StepOp::Div => (Op::Div, extents(a.div(b))),
        StepOp::Product => (Op::Product, extents(a.product(b))),
        StepOp::Concat { axis } => concat(*axis, &[a, b]),
        StepOp::Conv(windows) => {
            are_sound(windows).ok_or("its windows are none")?;
            let made = extents(a.conv(b, windows.clone()));
            (Op::Conv(windows.clone().into()), made)
        }
        _ => return Err("it has 2 inputs".to_owned()),
    })
}

fn read_concat(step: &RecipeStep, inputs: &[&Recipe]) -> Result<CheckedOp, String> {
    match &step.op {
        StepOp::Concat { axis } => Ok(concat(*axis, inputs)),
        _ => Err(format!("it has {} inputs", inputs.len())),
    }
}

fn concat(axis: usize, parts: &[&Recipe]) -> CheckedOp {
    let parts: Vec<Recipe> = parts.iter().map(|&part| part.clone()).collect();
    (Op::Concat(axis), extents(Recipe::concat(axis, &parts)))
}

fn extents(recipe: Option<Recipe>) -> Option<Vec<usize>> {
    recipe.map(|recipe| recipe.shape().to_vec())
}

/// Checks that lookups of places in windows stay in bounds and do not overflow.
fn are_sound(windows: &Windows) -> Option<()> {
    let Windows {
        kernel,
        strides,
        dilations,
        before,
        input,
        output,
        ..
    } = windows;
    let axes = input.len();
    let alike = [
        kernel.len(),
        strides.len(),
        dilations.len(),
        before.len(),
        output.len(),
    ];
    let mut steps = strides.iter().chain(dilations);
    let sound = alike.iter().all(|&count| count == axes)
        && [kernel, input, output]
            .iter()
            .all(|extents| are_small(extents))
        && steps.all(|&step| (1..=WIDEST as i64).contains(&step))
        && before
            .iter()
            .all(|zeros| zeros.unsigned_abs() <= WIDEST as u64);
    sound.then_some(())
}

/// Whether every product of leading extents is at most [`WIDEST`].
fn are_small(extents: &[usize]) -> bool {
    let product = extents.iter().try_fold(1_usize, |all, &extent| {
        all.checked_mul(extent).filter(|&all| all <= WIDEST)
    });
    product.is_some()
}

#[cfg(test)]
mod tests {
    use ndarray::Axis;

    use super::*;
    use crate::recipe::testing::{read as constants, recipes, vector};
    use crate::recipe::{evaluate, part};

    fn through_json(recipe: &Recipe) -> Recipe {
        let text = serde_json::to_string(&recipe.to_steps()).unwrap();
        Recipe::from_steps(&serde_json::from_str::<Vec<RecipeStep>>(&text).unwrap()).unwrap()
    }

    fn bits(recipe: &Recipe) -> Vec<u64> {
        evaluate(recipe, &constants)
            .unwrap()
            .iter()
            .map(|number| number.to_bits())
            .collect()
    }

    #[test]
    fn every_operation_survives_json() {
        let awkward = [
            0.1 + 0.2,
            f64::from(1e-5_f32),
            -0.0,
            5e-324,
            f64::MAX,
            1.0 / 3.0,
        ];
        let literal = Recipe::literal(&awkward, &[6]).unwrap();
        let named = |op: &Op| {
            serde_json::to_value(written(op)).unwrap()["op"]
                .as_str()
                .unwrap()
                .to_owned()
        };
        let mut seen = std::collections::BTreeSet::new();
        for recipe in recipes()
            .into_iter()
            .chain([literal.clone(), literal.add(&vector()).unwrap()])
        {
            seen.extend(recipe.steps().into_iter().map(|step| named(step.op())));
            let again = through_json(&recipe);
            assert_eq!(again.to_string(), recipe.to_string());
            assert_eq!(again.to_steps(), recipe.to_steps());
            assert_eq!(bits(&again), bits(&recipe), "{recipe}");
        }
        let all = "add concat constant conv div exp expand flush literal max mul neg pick product reshape round sigmoid \
                   softmax sqrt sub sum transpose";
        assert_eq!(
            seen.into_iter().collect::<Vec<_>>(),
            all.split(' ').collect::<Vec<_>>()
        );
    }

    #[test]
    fn parsed_expand_prepends_axes() {
        let steps = r#"[{"op":"constant","name":"v","shape":[6]},{"op":"expand","inputs":[0],"shape":[4,6]}]"#;
        let recipe =
            Recipe::from_steps(&serde_json::from_str::<Vec<RecipeStep>>(steps).unwrap()).unwrap();
        assert_eq!(bits(&recipe), bits(&vector()).repeat(4));
        let whole = evaluate(&recipe, &constants).unwrap();
        for axis in 0..2 {
            let there = whole.slice_axis(Axis(axis), (1..3).into());
            assert_eq!(part(&recipe, axis, 1..3, &constants).unwrap(), there);
        }
    }

    #[test]
    fn shared_operand_is_one_step() {
        let v = vector();
        let square = v.mul(&v).unwrap();
        let text = serde_json::to_string(&square.to_steps()).unwrap();
        let expected =
            r#"[{"op":"constant","name":"v","shape":[6]},{"op":"mul","inputs":[0,0],"shape":[6]}]"#;
        assert_eq!(text, expected);
    }

    #[test]
    fn recipe_of_100000_steps_survives_json() {
        let mut long = vector();
        for _ in 0..100_000 {
            long = long.add(&Recipe::number(1.0, 1)).unwrap();
        }
        assert_eq!(bits(&through_json(&long)), bits(&long));
    }

    fn flaw(steps: &str) -> String {
        let v = r#"{"op":"constant","name":"v","shape":[6]}"#;
        let w = r#"{"op":"constant","name":"W","shape":[4,6]}"#;
        let steps: Vec<RecipeStep> = serde_json::from_str(&format!("[{v},{w},{steps}]")).unwrap();
        Recipe::from_steps(&steps).unwrap_err()
    }

    #[test]
    fn invalid_step_is_reported_with_its_number() {
        let cases = [
            (
                r#"{"op":"add","inputs":[0,2],"shape":[6]}"#,
                "an input is no step before it",
            ),
            (
                r#"{"op":"add","inputs":[0],"shape":[6]}"#,
                "it has 1 inputs",
            ),
            (
                r#"{"op":"constant","name":"c","inputs":[0],"shape":[6]}"#,
                "it has 1 inputs",
            ),
            (
                r#"{"op":"mul","inputs":[0,1],"shape":[6]}"#,
                "its extents are [4, 6], and not [6]",
            ),
            (
                r#"{"op":"product","inputs":[1,1],"shape":[4,6]}"#,
                "its inputs do not fit it",
            ),
            (
                r#"{"op":"reshape","inputs":[0],"shape":[7]}"#,
                "its inputs do not fit it",
            ),
            (
                r#"{"op":"expand","inputs":[0],"shape":[12]}"#,
                "its inputs do not fit it",
            ),
            (
                r#"{"op":"transpose","perm":[0,0],"inputs":[1],"shape":[4,4]}"#,
                "its inputs do not fit it",
            ),
            (
                r#"{"op":"sum","axis":2,"inputs":[1],"shape":[4,6]}"#,
                "its inputs do not fit it",
            ),
            (
                r#"{"op":"pick","axis":0,"places":[6],"inputs":[0],"shape":[1]}"#,
                "its inputs do not fit it",
            ),
            (
                r#"{"op":"concat","axis":0,"shape":[0]}"#,
                "its inputs do not fit it",
            ),
            (
                r#"{"op":"literal","numbers":[1,2],"shape":[3]}"#,
                "its inputs do not fit it",
            ),
            (
                r#"{"op":"round","data_type":"int8","inputs":[0],"shape":[6]}"#,
                "it rounds to `int8`",
            ),
        ];
        for (steps, expected) in cases {
            assert_eq!(flaw(steps), format!("step 2: {expected}"), "{steps}");
        }
        assert_eq!(Recipe::from_steps(&[]).unwrap_err(), "it has no steps");
    }

    #[test]
    fn overflowing_extents_are_rejected() {
        let huge = u64::MAX / 2 + 1;
        for shape in [
            format!("[{huge},2]"),
            format!("[0,{huge},{huge}]"),
            format!("[{huge}]"),
        ] {
            let steps = format!(r#"{{"op":"literal","numbers":[1],"shape":{shape}}}"#);
            assert!(flaw(&steps).contains("are too large"), "{shape}");
        }
        let conv = |stride: i64, kernel: u64| {
            flaw(&format!(
                r#"{{"op":"reshape","inputs":[1],"shape":[1,4,6,1]}},{{"op":"reshape","inputs":[0],"shape":[1,6,1]}},
                   {{"op":"conv","inputs":[2,3],"shape":[1,4,1],"transposed":true,"kernel":[{kernel}],
                     "strides":[{stride}],"dilations":[1],"before":[0],"input":[1],"output":[1]}}"#
            ))
        };
        assert_eq!(conv(0, 1), "step 4: its windows are none");
        assert_eq!(conv(i64::MIN, 1), "step 4: its windows are none");
        assert_eq!(conv(1, huge), "step 4: its windows are none");
        assert_eq!(conv(1, 2), "step 4: its inputs do not fit it");
    }

    #[test]
    fn steps_are_read_as_they_are_written() {
        let text = r#"[
            { "op": "constant", "name": "W", "shape": [2, 3] },
            { "op": "literal", "numbers": [0.5], "shape": [1, 1] },
            { "op": "mul", "inputs": [0, 1], "shape": [2, 3] }
        ]"#;
        let steps: Vec<RecipeStep> = serde_json::from_str(text).unwrap();
        let recipe = Recipe::from_steps(&steps).unwrap();
        assert_eq!(recipe.to_string(), "mul(W, 0.5)");
        assert_eq!(recipe.to_steps(), steps);
    }
}
