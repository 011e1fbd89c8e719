//! Norm after norm: removes a normalizer that only divides each token by a scalar, if later
//! normalizers cancel this scalar.
//!
//! `N₁(x) = x/ρ`. Through linear operators without a bias, `1/ρ` stays a factor of each token. A
//! later normalizer N₂ along the channels removes it, `N₂(y/ρ) = N₂(y)`, except for the ε of N₂.
//! Let v be the mean of the squares of the input of N₂ with N₁, and u without it. Then the relative
//! change of the result of N₂ is at most `ε/2·|1/u − 1/v|`. So the fold is not exact, and is an
//! option.

use crate::affine::materialize::Edit;
use crate::affine::plan::{Follower, MergedNorm};
use crate::affine::recognize::decomposed_norm::Core;
use crate::affine::recognize::{Replacement, Site, View, online};
use crate::analysis::node_view::At;
use crate::hash::{HashMap, HashSet};
use crate::ir::builder::Maker;
use crate::ir::{NodeId, Reader, ValueId};

use crate::residual::layer_norm_to_rms::has_range;

/// The name of norm merging for `--skip`.
pub(crate) const MERGING: &str = "merging";

/// The largest number of operators, in total, between a normalizer and the normalizers after it.
const BETWEEN: usize = 64;

/// Plans which normalizers to remove. `is_skipped` decides by name whether a site stays. Of two
/// normalizers in a row, only one is removed at a time. The next repetition of the pipeline decides
/// on the other normalizer.
pub(crate) fn merged(
    view: &View,
    sites: &[Site],
    is_skipped: &dyn Fn(&str) -> bool,
) -> (Vec<MergedNorm>, Vec<Edit>) {
    let cores = online::cores(view, sites);
    let ends = ends(&cores);
    let (mut merged, mut edits, mut taken) = (vec![], vec![], HashSet::default());
    for (site, core) in cores.iter().enumerate() {
        let Some(core) = core
            .as_ref()
            .filter(|core| is_along_last(core) && divides(core, &sites[site]))
        else {
            continue;
        };
        let has_room = view.facts.data_type(core.output).is_some_and(has_range);
        let mut behind = Behind {
            view,
            cores: &cores,
            ends: &ends,
            left: BETWEEN,
            followers: vec![],
        };
        if is_skipped(&sites[site].name) || !has_room || !behind.all(core.output) {
            continue;
        }
        let Some(without) = without(view, core) else {
            continue;
        };
        let together = behind.followers.iter().copied().chain([site]);
        if together.clone().any(|site| taken.contains(&site)) {
            continue;
        }
        taken.extend(together);
        let followers = behind.followers.iter();
        let followers = followers.filter_map(|&site| {
            let core = cores[site].as_ref()?;
            follower(view, &sites[site], core)
        });
        merged.push(MergedNorm {
            name: sites[site].name.clone(),
            followers: followers.collect(),
        });
        let first = without.nodes[0];
        edits.push(Edit::replacing(view.graph, first, without));
    }
    (merged, edits)
}

/// Maps each value that is divided by the root of its variance or mean square to the site that
/// divides it.
fn ends(cores: &[Option<Core>]) -> HashMap<ValueId, usize> {
    let mut ends = HashMap::default();
    for (site, core) in cores.iter().enumerate() {
        let core = core.as_ref();
        if let Some(core) = core.filter(|core| is_along_last(core) && !core.norm) {
            ends.insert(core.input, site);
        }
    }
    ends
}

/// Whether statistics are over the channels of each token, which lie along the last axis.
fn is_along_last(core: &Core) -> bool {
    core.axes == [core.rank - 1]
}

/// The entry in the plan for a normalizer that follows a removed normalizer. `None` if the ε of
/// `core` is unknown.
fn follower(view: &View, site: &Site, core: &Core) -> Option<Follower> {
    Some(Follower {
        name: site.name.clone(),
        value: view.graph.value_name(core.input).to_owned(),
        centred: core.centred,
        epsilon: core.epsilon?,
    })
}

/// Whether a site only divides each token by a scalar.
fn divides(core: &Core, site: &Site) -> bool {
    site.is_bare() && !core.centred && core.factor.is_none() && core.inside.is_none()
}

/// Replaces a normalizer by an Identity.
fn without(view: &View, core: &Core) -> Option<Replacement> {
    let last = view.graph.producer(core.output)?.0;
    let mut maker = Maker::new(view.graph, last);
    maker.op("Identity", &[view.graph.value_name(core.input)], vec![]);
    let (made, constants) = maker.finish(view.graph.value_name(core.output));
    Some(Replacement {
        nodes: vec![last],
        made,
        constants,
    })
}

/// The search for the normalizers after a normalizer.
struct Behind<'v, 'a> {
    view: &'v View<'a>,
    cores: &'v [Option<Core>],
    /// Maps each normalized value to its site.
    ends: &'v HashMap<ValueId, usize>,
    left: usize,
    followers: Vec<usize>,
}

impl Behind<'_, '_> {
    /// Whether a factor that multiplies each token of a value disappears on all paths after the
    /// value.
    fn all(&mut self, value: ValueId) -> bool {
        let readers = self.view.graph.readers(value);
        !readers.is_empty()
            && readers.iter().all(|reader| match *reader {
                Reader::Node { node, input } => self.next(value, node, input),
                _ => false,
            })
    }

    /// Whether the factor of the removed normalizer is cancelled after this reader of `value`.
    fn next(&mut self, value: ValueId, node: NodeId, input: usize) -> bool {
        let end = self.ends.get(&value).filter(|&&site| {
            let core = self.cores[site].as_ref();
            core.is_some_and(|core| core.nodes.contains(&node) && core.epsilon.is_some())
        });
        if let Some(&site) = end {
            if !self.followers.contains(&site) {
                self.followers.push(site);
            }
            return true;
        }
        let left = self.left.checked_sub(1);
        self.left = left.unwrap_or(0);
        let made = self.view.graph.only_output(node).filter(|_| left.is_some());
        made.is_some_and(|made| self.is_scale_transparent(node, input) && self.all(made))
    }

    /// Whether a positive factor of each token passes the node unchanged.
    fn is_scale_transparent(&self, node: NodeId, input: usize) -> bool {
        let (graph, at) = (self.view.graph, self.view.at(node));
        match graph.domain_op(node) {
            ("", "Relu" | "Abs" | "LeakyRelu" | "Neg" | "Identity") => true,
            ("", "Mul") => others_are_constant(&at, input) && at.rank(input) == at.output_rank(0),
            ("", "Div") => {
                input == 0 && others_are_constant(&at, input) && at.rank(input) == at.output_rank(0)
            }
            ("", "MatMul") => input == 0 && others_are_constant(&at, input) && at.rank(1) == Ok(2),
            ("", "Gemm") => {
                input == 0
                    && at.is_constant(1)
                    && graph.input(node, 2).is_none()
                    && at.attr("transA", 0) == Ok(0)
            }
            _ => false,
        }
    }
}

/// Whether all inputs of a node except `input` are constants.
fn others_are_constant(at: &At, input: usize) -> bool {
    (0..at.arity()).all(|slot| slot == input || at.is_constant(slot))
}
