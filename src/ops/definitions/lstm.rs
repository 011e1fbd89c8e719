//! LSTM whose activations are clipped or not the default ones, or whose gates are coupled. tract ignores these attributes.
//!
//! Each step of a direction computes, with ⊙ as the product of elements, and with every input of an activation clipped:
//!
//! ```text
//! i = gate(x W_i + h R_i + P_i ⊙ c + b_i)
//! f = gate(x W_f + h R_f + P_f ⊙ c + b_f), or 1 − i if the gates are coupled
//! c' = f ⊙ c + i ⊙ candidate(x W_c + h R_c + b_c)
//! h' = gate(x W_o + h R_o + P_o ⊙ c' + b_o) ⊙ state(c')
//! ```
//!
//! Source: the operator LSTM of ONNX.

use super::Definition;
use super::writer::Writer;

/// The largest number of steps that are written out, in all directions.
const STEPS: i64 = 256;

/// The default activations of a direction: of the gates, the candidate and the state.
const DEFAULT: [&str; 3] = ["Sigmoid", "Tanh", "Tanh"];

/// Activations that are operators of the same name, with the same default parameters.
const KNOWN: [&str; 9] = [
    "Elu",
    "HardSigmoid",
    "LeakyRelu",
    "Relu",
    "Sigmoid",
    "Softplus",
    "Softsign",
    "Tanh",
    "ThresholdedRelu",
];

pub(super) const DEFINITION: Definition = Definition {
    operator: ("", "LSTM"),
    attributes: &[
        "activations",
        "clip",
        "direction",
        "hidden_size",
        "input_forget",
        "layout",
    ],
    inputs: 8,
    write,
};

/// One direction of an LSTM.
struct Cell {
    /// The activations of the gates, the candidate and the state.
    activations: [String; 3],
    /// x W + b of all steps, `[steps, batch, 4 · hidden]`, with the gates in the order i, o, f, c.
    products: String,
    /// R, `[hidden, 4 · hidden]`.
    recurrent: String,
    /// P of the gates i, o and f, `[hidden]` each.
    peepholes: Option<Vec<String>>,
    /// The bounds of the inputs of activations.
    bounds: Option<[String; 2]>,
    /// The number 1, if the gates are coupled.
    coupled: Option<String>,
    hidden: i64,
}

/// h and c, `[batch, hidden]` each.
type CellState = [String; 2];

fn write(writer: &mut Writer) -> Option<()> {
    let [steps, ..] = extents(writer, 0)?;
    let [directions, ..] = extents(writer, 2)?;
    let is_covered = writer.int("layout", 0)? == 0 && writer.input(4).is_none();
    if !is_covered || !(1..=STEPS).contains(&(steps * directions)) {
        return None;
    }
    let activations = activations(writer, directions)?;
    let are_default = activations.iter().all(|names| *names == DEFAULT);
    if are_default && writer.float("clip", 0.0)? == 0.0 && writer.int("input_forget", 0)? == 0 {
        return None;
    }
    let (mut outputs, mut ends) = (vec![], [vec![], vec![]]);
    for (direction, activations) in activations.into_iter().enumerate() {
        let is_reverse = direction == 1 || writer.text("direction", "forward")? == "reverse";
        let cell = Cell::new(writer, direction, activations)?;
        let state = initial_state(writer, direction)?;
        let (states, last) = cell.run(writer, state, steps, is_reverse);
        outputs.push(stacked(writer, &states, 0));
        for (ends, last) in ends.iter_mut().zip(&last) {
            ends.push(writer.maker.unsqueeze(last, &[0]));
        }
    }
    let [h, c] = ends;
    for (slot, (values, axis)) in [(outputs, 1), (h, 0), (c, 0)].into_iter().enumerate() {
        if writer.has_output(slot) {
            let result = stacked(writer, &values, axis);
            writer.result(slot, &result)?;
        }
    }
    Some(())
}

impl Cell {
    /// Reads the weights of a direction, and computes what depends on the sequence alone.
    fn new(writer: &mut Writer, direction: usize, activations: [String; 3]) -> Option<Self> {
        let [_, _, hidden] = extents(writer, 2)?;
        let [weight, recurrent] = [1, 2].map(|slot| of_direction(writer, slot, direction));
        let weight = writer.maker.transpose(&weight?, &[1, 0]);
        let sequence = writer.input(0)?;
        let mut products = writer.pair("MatMul", &sequence, &weight);
        if let Some(biases) = of_direction(writer, 3, direction) {
            let halves = writer.maker.split(&biases, 0, &[4 * hidden; 2]);
            let bias = writer.pair("Add", &halves[0], &halves[1]);
            products = writer.pair("Add", &products, &bias);
        }
        let peepholes = of_direction(writer, 7, direction);
        Some(Cell {
            activations,
            products,
            recurrent: writer.maker.transpose(&recurrent?, &[1, 0]),
            peepholes: peepholes.map(|all| writer.maker.split(&all, 0, &[hidden; 3])),
            bounds: bounds(writer)?,
            coupled: match writer.int("input_forget", 0)? {
                0 => None,
                _ => Some(writer.number(1.0)?),
            },
            hidden,
        })
    }

    /// Runs all steps. Returns h after each step, `[1, 1, batch, hidden]`, in the order of the sequence, and the last state.
    fn run(
        &self,
        writer: &mut Writer,
        mut state: CellState,
        steps: i64,
        is_reverse: bool,
    ) -> (Vec<String>, CellState) {
        let mut states = vec![];
        for step in 0..steps {
            let at = if is_reverse { steps - 1 - step } else { step };
            state = self.step(writer, at, state);
            states.push(writer.maker.unsqueeze(&state[0], &[0, 1]));
        }
        if is_reverse {
            states.reverse();
        }
        (states, state)
    }

    fn step(&self, writer: &mut Writer, at: i64, [h, c]: CellState) -> CellState {
        let own = writer.maker.slice_between(&self.products, [at, at + 1], 0);
        let own = writer.maker.squeeze(&own, 0);
        let recurrent = writer.pair("MatMul", &h, &self.recurrent);
        let sum = writer.pair("Add", &own, &recurrent);
        let sums = writer.maker.split(&sum, 1, &[self.hidden; 4]);
        let input = self.gate(writer, 0, &sums[0], &c);
        let forget = match &self.coupled {
            Some(one) => writer.pair("Sub", one, &input),
            None => self.gate(writer, 2, &sums[2], &c),
        };
        let candidate = self.activation(writer, 1, &sums[3]);
        let kept = writer.pair("Mul", &forget, &c);
        let added = writer.pair("Mul", &input, &candidate);
        let c = writer.pair("Add", &kept, &added);
        let output = self.gate(writer, 1, &sums[1], &c);
        let shown = self.activation(writer, 2, &c);
        [writer.pair("Mul", &output, &shown), c]
    }

    /// The value of a gate, which may also depend on c.
    fn gate(&self, writer: &mut Writer, place: usize, sum: &str, c: &str) -> String {
        let sum = match &self.peepholes {
            Some(weights) => {
                let seen = writer.pair("Mul", &weights[place], c);
                writer.pair("Add", sum, &seen)
            }
            None => sum.to_owned(),
        };
        self.activation(writer, 0, &sum)
    }

    /// An activation of a clipped value.
    fn activation(&self, writer: &mut Writer, place: usize, value: &str) -> String {
        let clipped = match &self.bounds {
            Some([low, high]) => writer.maker.op("Clip", &[value, low, high], vec![]),
            None => value.to_owned(),
        };
        writer
            .maker
            .op(&self.activations[place], &[&clipped], vec![])
    }
}

/// The three activations of each direction; `None` if one has parameters or is unknown.
fn activations(writer: &Writer, directions: i64) -> Option<Vec<[String; 3]>> {
    let mut names = writer.texts("activations")?;
    let count = 3 * usize::try_from(directions).ok()?;
    if names.is_empty() {
        names = DEFAULT
            .map(str::to_owned)
            .into_iter()
            .cycle()
            .take(count)
            .collect();
    }
    let are_known = names.iter().all(|name| KNOWN.contains(&name.as_str()));
    let of_directions = names.chunks(3).map(|names| names.to_vec().try_into().ok());
    (are_known && names.len() == count).then(|| of_directions.collect())?
}

/// The bounds of the inputs of activations, or `Some(None)` if they have none.
fn bounds(writer: &mut Writer) -> Option<Option<[String; 2]>> {
    let clip = writer.float("clip", 0.0)?;
    if clip == 0.0 {
        return Some(None);
    }
    let bounds = [-clip, clip].map(|bound| writer.number(bound.into()));
    let [low, high] = bounds;
    Some(Some([low?, high?]))
}

/// The three extents of an input.
fn extents(writer: &Writer, slot: usize) -> Option<[i64; 3]> {
    writer.extents(slot)?.try_into().ok()
}

/// The part of an input that belongs to a direction; `None` if the node lacks the input.
fn of_direction(writer: &mut Writer, slot: usize, direction: usize) -> Option<String> {
    let value = writer.input(slot)?;
    let part = writer.maker.slice(&value, &(direction..direction + 1), 0);
    Some(writer.maker.squeeze(&part, 0))
}

/// The initial state of a direction. A state that is not given is zero.
fn initial_state(writer: &mut Writer, direction: usize) -> Option<CellState> {
    let [_, batch, _] = extents(writer, 0)?;
    let [_, _, hidden] = extents(writer, 2)?;
    let zero = writer.number(0.0)?;
    let [h, c] = [5, 6].map(|slot| of_direction(writer, slot, direction));
    let zeros = writer.maker.expand(&zero, &[batch, hidden]);
    Some([h, c].map(|given| given.unwrap_or_else(|| zeros.clone())))
}

/// Concatenates values along an axis.
fn stacked(writer: &mut Writer, values: &[String], axis: i64) -> String {
    let values: Vec<&str> = values.iter().map(String::as_str).collect();
    writer.concat(&values, axis)
}

#[cfg(test)]
mod tests {
    use ndarray::{Array, ArrayView, Ix2, Ix3, s};
    use tract_onnx::prelude::{IntoTensor, Tensor};

    use crate::onnx::Model;
    use crate::ops::definitions::tests::{assert_close, run};
    use crate::ops::definitions::{LACKING, written_out};

    const STEPS: usize = 3;
    const BATCH: usize = 2;
    const INPUTS: usize = 2;
    const HIDDEN: usize = 2;
    const CLIP: f32 = 0.4;

    /// A bidirectional LSTM with all inputs but the lengths, which clips and couples.
    fn lstm(attributes: &str) -> Model {
        let text = format!(
            r#"<ir_version: 8, opset_import: ["" : 17]>
            both (float[3, 2, 2] x, float[2, 8, 2] w, float[2, 8, 2] r, float[2, 16] b, float[2, 2, 2] h,
                  float[2, 2, 2] c, float[2, 6] p) => (float[3, 2, 2, 2] y, float[2, 2, 2] last, float[2, 2, 2] cell) {{
                y, last, cell = LSTM<direction = "bidirectional", hidden_size = 2, {attributes}>(x, w, r, b, "", h, c, p)
            }}"#
        );
        Model::from_text(&text).unwrap()
    }

    /// Numbers between −0.8 and 0.8 that follow no pattern.
    fn numbers(shape: &[usize], seed: usize) -> Tensor {
        let number = |at: usize| ((at + 1) as f32 * 1.7 + seed as f32 * 0.9).sin() * 0.8;
        let numbers: Vec<f32> = (0..shape.iter().product()).map(number).collect();
        Array::from_shape_vec(shape, numbers).unwrap().into_tensor()
    }

    fn view(tensor: &Tensor) -> ArrayView<'_, f32, ndarray::IxDyn> {
        tensor.to_plain_array_view::<f32>().unwrap()
    }

    /// The outputs of a direction by loops over all elements: y `[steps, batch, hidden]`, h and c.
    fn direction(inputs: &[Tensor], at: usize) -> (Array<f32, Ix3>, [Array<f32, Ix2>; 2]) {
        let [x, w, r, b, h, c, p] = [0, 1, 2, 3, 4, 5, 6].map(|slot: usize| view(&inputs[slot]));
        let sigmoid = |z: f32| 1.0 / (1.0 + (-z.clamp(-CLIP, CLIP)).exp());
        let relu = |z: f32| z.clamp(-CLIP, CLIP).max(0.0);
        let tanh = |z: f32| z.clamp(-CLIP, CLIP).tanh();
        let mut y = Array::zeros((STEPS, BATCH, HIDDEN));
        let mut h = h.slice(s![at, .., ..]).to_owned();
        let mut c = c.slice(s![at, .., ..]).to_owned();
        for step in 0..STEPS {
            let step = if at == 1 { STEPS - 1 - step } else { step };
            let (before, cells) = (h.clone(), c.clone());
            for (row, unit) in (0..BATCH).flat_map(|row| (0..HIDDEN).map(move |unit| (row, unit))) {
                let sum = |gate: usize| {
                    let place = gate * HIDDEN + unit;
                    let own: f32 = (0..INPUTS)
                        .map(|i| x[[step, row, i]] * w[[at, place, i]])
                        .sum();
                    let other: f32 = (0..HIDDEN)
                        .map(|i| before[[row, i]] * r[[at, place, i]])
                        .sum();
                    own + other + b[[at, place]] + b[[at, 4 * HIDDEN + place]]
                };
                let old = cells[[row, unit]];
                let input = sigmoid(sum(0) + p[[at, unit]] * old);
                let new = (1.0 - input) * old + input * relu(sum(3));
                let output = sigmoid(sum(1) + p[[at, HIDDEN + unit]] * new);
                c[[row, unit]] = new;
                h[[row, unit]] = output * tanh(new);
                y[[step, row, unit]] = h[[row, unit]];
            }
        }
        (y, [h, c])
    }

    #[test]
    fn clipped_and_coupled_steps_are_written_out() {
        let clipped = lstm(
            r#"clip = 0.4, input_forget = 1, activations = ["Sigmoid", "Relu", "Tanh", "Sigmoid", "Relu", "Tanh"]"#,
        );
        let shapes: [&[usize]; 7] = [
            &[3, 2, 2],
            &[2, 8, 2],
            &[2, 8, 2],
            &[2, 16],
            &[2, 2, 2],
            &[2, 2, 2],
            &[2, 6],
        ];
        let inputs: Vec<Tensor> = (0..7).map(|slot| numbers(shapes[slot], slot)).collect();
        let written = written_out(&clipped, LACKING).unwrap();
        let outputs = run(&written, &inputs);
        for at in 0..2 {
            let (y, ends) = direction(&inputs, at);
            let found = view(&outputs[0]).slice(s![.., at, .., ..]).to_owned();
            assert_close(&found.into_tensor(), &y.into_tensor());
            for (end, output) in ends.into_iter().zip(&outputs[1..]) {
                let found = view(output).slice(s![at, .., ..]).to_owned();
                assert_close(&found.into_tensor(), &end.into_tensor());
            }
        }
    }

    #[test]
    fn lstm_that_tract_computes_stays() {
        let defaults = r#"activations = ["Sigmoid", "Tanh", "Tanh", "Sigmoid", "Tanh", "Tanh"]"#;
        assert!(written_out(&lstm(defaults), LACKING).is_none());
        let unknown =
            r#"clip = 0.4, activations = ["Sigmoid", "Tanh", "Tanh", "Affine", "Tanh", "Tanh"]"#;
        assert!(written_out(&lstm(unknown), LACKING).is_none());
    }
}
