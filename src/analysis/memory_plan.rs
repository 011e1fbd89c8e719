//! Computes the memory of activations during a run. A value occupies memory between the step that
//! computes it and its last reader.
//!
//! Weights are not counted. Steps run in the order of the nodes in the file, and a value is freed
//! immediately after its last reader. An operator that an engine runs in place takes over the
//! buffer of an operand without later readers.

use crate::analysis::Analysis;
use crate::ir::{NodeId, Reader, ValueId};
use crate::onnx::operator::Category;
use crate::shape::facts::extent;

/// Element-wise operators that tract and onnxruntime run in place.
const IN_PLACE: &[&str] = &[
    "Abs",
    "Ceil",
    "Clip",
    "Cos",
    "Erf",
    "Exp",
    "Floor",
    "HardSwish",
    "LeakyRelu",
    "Log",
    "Reciprocal",
    "Relu",
    "Round",
    "Sigmoid",
    "Sign",
    "Sin",
    "Sqrt",
    "Tanh",
];

/// A buffer for one value, or for a slice of a value.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Buffer {
    /// The value that the buffer holds, or of which it holds a slice.
    pub value: ValueId,
    /// The size of the buffer in bytes; 0 for a constant, or if the size is unknown.
    pub bytes: u64,
    /// Whether the value is an output of the graph, which the caller holds after the run.
    pub is_output: bool,
}

/// A step of the run.
#[derive(Debug, Clone)]
pub(crate) struct PlanStep {
    /// The node of the graph; `None` for a step that only slices a value or concatenates its
    /// slices.
    pub node: Option<NodeId>,
    /// The indices of the buffers that the step reads.
    pub reads: Vec<usize>,
    /// The indices of the buffers that the step writes.
    pub writes: Vec<usize>,
    /// Whether the step may overwrite a buffer that it reads.
    pub in_place: bool,
    /// The index of the sliced region, or cut, to which the step belongs, if any.
    pub cut: Option<usize>,
}

/// The steps of a run, with the buffers that they read and write.
#[derive(Debug, Clone)]
pub(crate) struct MemoryPlan {
    /// The steps, in the order in which they run.
    pub steps: Vec<PlanStep>,
    /// The buffers. The first ones hold the values of the graph, in the order of the values'
    /// indices.
    pub buffers: Vec<Buffer>,
    /// The indices of the buffers that the caller passes in.
    pub given: Vec<usize>,
    /// The values of unknown size. Their buffers count as 0 bytes.
    pub unknown: Vec<ValueId>,
}

/// The step of a run at which the most bytes are live.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Peak {
    /// The number of live bytes.
    pub bytes: u64,
    /// The index of the step.
    pub step: usize,
    /// The buffers that are live during the step, the largest first.
    pub held: Vec<usize>,
}

impl MemoryPlan {
    /// The plan of a graph whose extents are known.
    pub(crate) fn new(analysis: &Analysis) -> Self {
        let Analysis {
            graph, constants, ..
        } = analysis;
        let count = graph.value_count();
        let (mut buffers, mut unknown) = (Vec::with_capacity(count), vec![]);
        for value in (0..count as u32).map(ValueId) {
            let bytes = if constants.is_constant(value) {
                Some(0)
            } else {
                bytes(analysis, value)
            };
            if bytes.is_none() {
                unknown.push(value);
            }
            buffers.push(Buffer {
                value,
                bytes: bytes.unwrap_or(0),
                is_output: graph.is_output(value),
            });
        }
        let given = (0..count)
            .filter(|&value| graph.is_input(ValueId(value as u32)) && buffers[value].bytes > 0)
            .collect();
        let steps = (0..graph.proto().node.len())
            .map(|node| step(analysis, node))
            .collect();
        MemoryPlan {
            steps,
            buffers,
            given,
            unknown,
        }
    }

    /// The number of live bytes during each step. The live values are the inputs and outputs of the
    /// step, and the values that later steps read.
    pub(crate) fn live(&self) -> Vec<u64> {
        let last = self.last_readers();
        let mut held = self.bytes(&self.given);
        let mut live = Vec::with_capacity(self.steps.len());
        for (place, step) in self.steps.iter().enumerate() {
            let written = self.bytes(&step.writes);
            let mut freed = self.freed(place, &last);
            let overwrites = step.in_place
                && freed
                    .iter()
                    .any(|&buffer| self.buffers[buffer].bytes == written);
            live.push(if overwrites { held } else { held + written });
            let unread = step.writes.iter().filter(|&&buffer| last[buffer].is_none());
            freed.extend(unread);
            held = (held + written).saturating_sub(self.bytes(&freed));
        }
        live
    }

    fn bytes(&self, buffers: &[usize]) -> u64 {
        buffers
            .iter()
            .map(|&buffer| self.buffers[buffer].bytes)
            .sum()
    }

    /// Finds the step at which the most bytes are live.
    pub(crate) fn peak(&self) -> Peak {
        let live = self.live();
        // Of several equal maxima, the first one is taken.
        let highest = live
            .iter()
            .enumerate()
            .rev()
            .max_by_key(|&(_, bytes)| *bytes);
        let Some((step, &bytes)) = highest else {
            return Peak::default();
        };
        Peak {
            bytes,
            step,
            held: self.held_at(step),
        }
    }

    /// The maximum of the live bytes while the steps of one cut run; 0 if the plan has no such
    /// steps.
    pub(crate) fn peak_of_cut(&self, cut: usize) -> u64 {
        let live = self.live();
        let steps = self
            .steps
            .iter()
            .zip(live)
            .filter(|(step, _)| step.cut == Some(cut));
        steps.map(|(_, bytes)| bytes).max().unwrap_or(0)
    }

    /// The buffers that are live while a step runs, the largest first.
    fn held_at(&self, place: usize) -> Vec<usize> {
        let last = self.last_readers();
        let written = self.steps[..=place]
            .iter()
            .flat_map(|step| step.writes.iter().copied());
        let made = self.given.iter().copied().chain(written);
        let mut held: Vec<usize> = made
            .filter(|&buffer| {
                let is_own = self.steps[place].writes.contains(&buffer);
                let is_read_later = last[buffer].is_some_and(|last| last >= place);
                self.buffers[buffer].bytes > 0 && (is_own || is_read_later)
            })
            .collect();
        held.sort_by_key(|&buffer| (std::cmp::Reverse(self.buffers[buffer].bytes), buffer));
        held
    }

    /// The step that reads each buffer last: `usize::MAX` for an output, `None` for a buffer
    /// without readers.
    fn last_readers(&self) -> Vec<Option<usize>> {
        let mut last: Vec<Option<usize>> = self
            .buffers
            .iter()
            .map(|buffer| buffer.is_output.then_some(usize::MAX))
            .collect();
        for (place, step) in self.steps.iter().enumerate() {
            for &buffer in &step.reads {
                last[buffer] = last[buffer].max(Some(place));
            }
        }
        last
    }

    /// The buffers that a step reads and no later step reads, each once.
    fn freed(&self, place: usize, last: &[Option<usize>]) -> Vec<usize> {
        let mut freed: Vec<usize> = self.steps[place].reads.clone();
        freed.retain(|&buffer| last[buffer] == Some(place));
        freed.sort_unstable();
        freed.dedup();
        freed
    }
}

/// The size of a value in bytes; `None` if its extents or its type are unknown.
fn bytes(analysis: &Analysis, value: ValueId) -> Option<u64> {
    let shape = analysis.facts.shape(value)?;
    let extents = shape.iter().map(extent).collect::<Option<Vec<usize>>>()?;
    let elements = extents
        .iter()
        .try_fold(1_usize, |all, &extent| all.checked_mul(extent))?;
    Some(analysis.facts.data_type(value)?.byte_size(elements)? as u64)
}

/// The step of a node. The values that its bodies capture count as inputs.
fn step(analysis: &Analysis, node: NodeId) -> PlanStep {
    let graph = &analysis.graph;
    let inputs = graph.inputs(node).iter().flatten();
    let reads = inputs
        .chain(graph.captures(node))
        .map(|value| value.index());
    let outputs = graph.outputs(node).iter().flatten();
    let in_place = match graph.category(node) {
        Some(Category::Arithmetic) => true,
        Some(Category::Movement) => !graph.is(node, "Transpose"),
        Some(Category::Elementwise) => graph.op(node).is_some_and(|op| IN_PLACE.contains(&op)),
        _ => false,
    };
    PlanStep {
        node: Some(node),
        reads: reads.collect(),
        writes: outputs.map(|value| value.index()).collect(),
        in_place,
        cut: None,
    }
}

/// Whether all readers of a value are nodes of the graph. If so, the value is neither an output nor
/// captured by a body.
pub(crate) fn is_read_by_nodes_alone(analysis: &Analysis, value: ValueId) -> bool {
    let readers = analysis.graph.readers(value);
    readers
        .iter()
        .all(|reader| matches!(reader, Reader::Node { .. }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnx::Model;

    /// A weight of `4 · 32` elements.
    fn weight(declared: &str) -> String {
        format!("{declared} = {{{}}}", vec!["1"; 4 * 32].join(", "))
    }

    /// `x` and `y` take 4 · 7 · 4 bytes, and the values between them 4 · 7 · 32.
    #[test]
    fn the_peak_is_that_of_the_written_order() {
        let [w, v] = ["float[4, 32] w", "float[32, 4] v"].map(weight);
        let bias = format!("float[32] b = {{{}}}", vec!["1"; 32].join(", "));
        let model = Model::from_text(&format!(
            "<ir_version: 9, opset_import: [\"\" : 20]>
            mlp (float[1, 7, 4] x) => (float[1, 7, 4] y) <{w}, {v}, {bias}>
            {{
                h = MatMul(x, w)
                a = Add(h, b)
                g = Gelu(a)
                y = MatMul(g, v)
            }}"
        ))
        .unwrap();
        let analysis = Analysis::new(&model).unwrap();
        let plan = MemoryPlan::new(&analysis);
        // The live values at each step are: x and h; h and a, since the Add runs in place; a and g,
        // since the Gelu does not; g and y.
        assert_eq!(plan.live(), [112 + 896, 896, 2 * 896, 896 + 112]);
        let peak = plan.peak();
        let values = peak.held.iter().map(|&buffer| plan.buffers[buffer].value);
        let held: Vec<&str> = values
            .map(|value| analysis.graph.value_name(value))
            .collect();
        assert_eq!((peak.bytes, peak.step, held), (1792, 2, vec!["a", "g"]));
    }

    #[test]
    fn the_peak_is_the_most_that_is_live() {
        let model = Model::open("models/digits/un-dynamo.onnx").unwrap();
        let plan = MemoryPlan::new(&Analysis::new(&model).unwrap());
        assert_eq!(plan.live().iter().max().copied(), Some(plan.peak().bytes));
    }
}
