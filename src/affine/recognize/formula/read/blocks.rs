//! Statistics of blocks of an image: reads the averages of blocks, and the expansion to all places
//! of a block.

use tract_onnx::tract_hir::internal::TDim;

use crate::affine::recognize::formula::read::{Reading, Value};
use crate::analysis::node_view::At;
use crate::ir::NodeId;
use crate::onnx::operator::AVERAGE_POOL;
use crate::refusal::{Reason, Refusal};
use crate::shape::facts::{extent, same};

/// A Resize. All Resizes of a region must have equal settings.
#[derive(Clone)]
pub(super) struct Widening {
    settings: (String, String, String, i64),
    /// The refusal if the Resize does more than repeat places. Then the formula is known, but other
    /// operators cannot replace the site.
    pub refusal: Option<Refusal>,
}

impl Widening {
    /// Reads a Resize. `times` has, for each axis, the extent of the result divided by the extent
    /// of the input. `None` if the Resize has an attribute `axes`, or fills places with a constant.
    fn from_node(at: &At, times: &[usize]) -> Option<Widening> {
        let mode = text(at, "mode", "nearest")?;
        let place = text(at, "coordinate_transformation_mode", "half_pixel")?;
        let rounding = match mode.as_str() {
            "nearest" => text(at, "nearest_mode", "round_prefer_floor")?,
            _ => String::new(),
        };
        let antialias = at.attr("antialias", 0).ok()?;
        at.attr_ints("axes").ok()?.is_none().then_some(())?;
        let scales: Vec<f64> = match at.graph.input(at.node, 2) {
            Some(_) => at.numbers(2).ok()?.iter().copied().collect(),
            None => vec![],
        };
        let times = times.iter().map(|&times| times as f64);
        let repeats =
            (mode == "nearest" && place == "asymmetric" && rounding == "floor" && antialias == 0)
                && at.attr_text("keep_aspect_ratio_policy", "stretch").ok()? == "stretch"
                && (scales.is_empty() || times.eq(scales));
        // `tf_crop_and_resize` fills places outside of the image with a constant.
        (place != "tf_crop_and_resize").then(|| Widening {
            refusal: (!repeats)
                .then(|| Refusal::new(Reason::Attribute("mode".into()), at.graph.name(at.node))),
            settings: (mode, place, rounding, antialias),
        })
    }
}

/// A text attribute of a node, with the default `absent`.
fn text(at: &At, name: &str, absent: &'static str) -> Option<String> {
    at.attr_text(name, absent).ok().map(str::to_owned)
}

/// Whether all elements of a list attribute equal `number`, or the list is absent.
fn are_all(at: &At, name: &str, number: i64) -> bool {
    let list = at.attr_ints(name).ok().flatten();
    list.is_none_or(|list| list.iter().all(|&i| i == number))
}

impl Reading<'_> {
    /// Reads an AveragePool over blocks of an image that do not overlap, without padding.
    pub(super) fn pool(&mut self, node: NodeId) -> Option<Value> {
        let (at, value) = (self.at(node), self.plain(node, 0)?);
        at.only_attributes(AVERAGE_POOL).ok()?;
        let kernel = at.attr_ints("kernel_shape").ok()??;
        let is_plain = at.attr_text("auto_pad", "NOTSET").ok()? == "NOTSET"
            && !at.flag("ceil_mode", false).ok()?
            && at.attr_ints("strides").ok()?.as_ref() == Some(&kernel)
            && are_all(&at, "pads", 0)
            && are_all(&at, "dilations", 1);
        (is_plain && value.axes.len() == kernel.len() + 2).then_some(())?;
        let (mut axes, mut inner) = (value.axes[..2].to_vec(), vec![]);
        for (axis, &size) in value.axes[2..].iter().zip(&kernel) {
            let whole = self.atoms.count(axis)?;
            let size = usize::try_from(size)
                .ok()
                .filter(|&size| size > 0 && whole.is_multiple_of(size))?;
            let cut = vec![Some(TDim::from(whole / size)), Some(TDim::from(size))];
            let [blocks, places] =
                <[_; 2]>::try_from(self.atoms.reshape(&vec![axis.clone()], &cut)?).ok()?;
            axes.push(blocks);
            inner.extend(places);
        }
        let formula = value.formula.settled(&self.atoms)?;
        Some(Value::new(self.averaged(&formula, &inner)?, axes))
    }

    /// Reads a Resize that multiplies each extent by a whole number, as if it repeated every place.
    /// Any other Resize is a reason to refuse the region.
    pub(super) fn widen(&mut self, node: NodeId) -> Option<Value> {
        let (at, value) = (self.at(node), self.plain(node, 0)?);
        let (from, to) = (at.shape(0).ok()?, self.shape(node)?);
        (from.len() == to.len() && from.len() == value.axes.len()).then_some(())?;
        let (mut axes, mut times) = (value.axes.clone(), vec![]);
        for (axis, (from, to)) in axes.iter_mut().zip(from.iter().zip(&to)) {
            if same(from, to) {
                times.push(1);
                continue;
            }
            let (from, to) = (extent(from)?, extent(to)?);
            (from > 0 && to.is_multiple_of(from)).then_some(())?;
            times.push(to / from);
            axis.extend(self.atoms.free(TDim::from(to / from)));
        }
        let mut widening = Widening::from_node(&at, &times)?;
        let first = self.widening.get_or_insert_with(|| widening.clone());
        (first.settings == widening.settings).then_some(())?;
        first.refusal = first.refusal.take().or(widening.refusal.take());
        Some(Value { axes, ..value })
    }
}
