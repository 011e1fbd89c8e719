//! The geometry of convolutions, and the image of a shift under them.

use crate::affine::linear::known_attributes;
use crate::affine::rule::At;
use crate::analysis::broadcast::LARGEST;
use crate::recipe::{Numbers, Recipe, Windows};
use crate::refusal::Reason;
use crate::shape::facts::{Shape, extent};

/// The attributes of Conv, followed by those that only ConvTranspose has.
const ATTRIBUTES: &[&str] = &[
    "auto_pad",
    "dilations",
    "group",
    "kernel_shape",
    "pads",
    "strides",
    "output_padding",
    "output_shape",
];

/// The geometry of a convolution: which input place each tap of the kernel reads for each output
/// place.
pub(super) struct Geometry {
    transposed: bool,
    group: usize,
    /// The numbers of input and output channels.
    channels: [usize; 2],
    kernel: Vec<usize>,
    strides: Vec<i64>,
    dilations: Vec<i64>,
    /// The number of zeros before the first place along each spatial axis. `None` if it depends on
    /// unknown extents.
    before: Option<Vec<i64>>,
    padded: bool,
    input: Vec<Option<usize>>,
    output: Vec<Option<usize>>,
}

impl Geometry {
    /// Reads the geometry of a node.
    ///
    /// # Errors
    /// An attribute is unknown or malformed, or the shape of the weight is unknown.
    pub(super) fn from_node(at: &At) -> Result<Self, Reason> {
        let transposed = at.proto().op_type() == "ConvTranspose";
        let known = if transposed {
            ATTRIBUTES
        } else {
            &ATTRIBUTES[..6]
        };
        at.only_attributes(&known_attributes(at, known))?;
        let weight = at.extents(1)?;
        if weight.len() < 3 {
            return Err(Reason::UnknownShape);
        }
        let kernel = weight[2..].to_vec();
        let mut geometry = Geometry {
            transposed,
            group: 1,
            channels: [0, 0],
            strides: at_least(at, "strides", vec![1; kernel.len()], 1)?,
            dilations: at_least(at, "dilations", vec![1; kernel.len()], 1)?,
            before: None,
            padded: true,
            input: spatial_extents(at.shape(0)?, kernel.len())?,
            output: spatial_extents(at.output_shape(0)?, kernel.len())?,
            kernel,
        };
        (geometry.before, geometry.padded) = geometry.padding(at)?;
        geometry.group = groups(at)?;
        let wide = weight[1]
            .checked_mul(geometry.group)
            .ok_or(Reason::UnknownShape)?;
        geometry.channels = if transposed {
            [weight[0], wide]
        } else {
            [wide, weight[0]]
        };
        Ok(geometry)
    }

    /// Computes the number of zeros before the first place along each spatial axis, if it is known,
    /// and whether the input may be padded at all.
    fn padding(&self, at: &At) -> Result<(Option<Vec<i64>>, bool), Reason> {
        let spatial = self.kernel.len();
        let auto = at.attr_text("auto_pad", "NOTSET")?;
        let pads = at
            .attr_ints("pads")?
            .unwrap_or_else(|| vec![0; 2 * spatial]);
        let has_output_shape = at.attr_ints("output_shape")?.is_some();
        Ok(match auto {
            "VALID" => (Some(vec![0; spatial]), false),
            "NOTSET" => {
                let is_given = pads.len() == 2 * spatial && !has_output_shape;
                let before = is_given.then(|| pads[..spatial].to_vec());
                (before, pads.iter().any(|&pad| pad != 0))
            }
            "SAME_UPPER" | "SAME_LOWER" if !self.transposed => {
                let totals = (0..spatial).map(|axis| self.same_padding(axis));
                match totals.collect::<Option<Vec<i64>>>() {
                    Some(totals) => {
                        // If the total is odd, the additional zero is after the input (`UPPER`) or
                        // before it (`LOWER`).
                        let more = i64::from(auto == "SAME_LOWER");
                        let before = totals.iter().map(|total| (total + more) / 2).collect();
                        (Some(before), totals.iter().any(|&total| total != 0))
                    }
                    None => (None, true),
                }
            }
            _ => (None, true),
        })
    }

    /// The number of zeros that `SAME` adds around the input along an axis. `None` if it depends on
    /// unknown extents.
    fn same_padding(&self, axis: usize) -> Option<i64> {
        // A kernel of extent 1 reads no place outside of the input, so it needs no padding.
        if self.kernel[axis] == 1 {
            return Some(0);
        }
        let (input, output) = (self.input[axis]? as i64, self.output[axis]? as i64);
        let reach = (self.kernel[axis] as i64 - 1)
            .checked_mul(self.dilations[axis])?
            .checked_add(1)?;
        let read = (output - 1)
            .checked_mul(self.strides[axis])?
            .checked_add(reach)?;
        Some(read.saturating_sub(input).max(0))
    }

    /// Whether each result is computed from the input at the same place only.
    pub(super) fn reads_one_place(&self) -> bool {
        let is_one =
            self.kernel.iter().all(|&taps| taps == 1) && self.strides.iter().all(|&step| step == 1);
        is_one && !self.padded && !self.transposed
    }

    /// The spatial extents of the image of this shift, if each place of the image follows from one
    /// place of the shift. `None` if the image depends on the border or on adjacent places.
    fn alike(&self, shift: &Numbers) -> Option<Vec<usize>> {
        let places = &shift.shape()[2..];
        let is_plain = places.iter().all(|&count| count == 1) && !self.padded && !self.transposed;
        (is_plain || self.reads_one_place()).then(|| places.to_vec())
    }

    /// Whether the image of this shift is equal at every place.
    pub(super) fn is_plain(&self, shift: &Numbers) -> bool {
        self.alike(shift)
            .is_some_and(|places| places.iter().all(|&count| count == 1))
    }

    /// The spatial extents of input and output. An error if an extent or the padding is unknown.
    fn places(&self) -> Result<(Vec<usize>, Vec<usize>), Reason> {
        let input = self.input.iter().copied().collect();
        let output = self.output.iter().copied().collect();
        match (input, output, &self.before) {
            (Some(input), Some(output), Some(_)) => Ok((input, output)),
            _ => Err(Reason::Padding),
        }
    }

    /// The spatial extents of input and output over which the image of a shift is computed.
    ///
    /// # Errors
    /// An extent is unknown, the image is too large, or the shift varies over samples.
    pub(super) fn room(&self, shift: &Numbers) -> Result<(Vec<usize>, Vec<usize>), Reason> {
        let (input, output) = match self.alike(shift) {
            Some(places) => (places.clone(), places),
            None => self.places()?,
        };
        let places =
            [&input, &output].map(|extents| extents.iter().copied().fold(1, usize::saturating_mul));
        let [taken, made] = [0, 1].map(|side| self.channels[side].saturating_mul(places[side]));
        let size = taken.saturating_add(made);
        match shift.shape()[0] {
            1 if size <= LARGEST => Ok((input, output)),
            1 => Err(Reason::TooLarge(size)),
            _ => Err(Reason::WrongAxis),
        }
    }

    /// Computes `L(t)`, the image of the shift `t`. If each place of the image follows from one
    /// place of the shift, the kernel is summed over its taps, and the image is the matrix product
    /// of this sum and the shift.
    pub(super) fn image(&self, weight: &Recipe, shift: &Numbers) -> Result<Recipe, Reason> {
        let extents = self.room(shift)?;
        self.image_in(weight, shift, extents)
            .ok_or(Reason::WrongAxis)
    }

    /// Computes the image over these spatial extents of input and output.
    fn image_in(
        &self,
        weight: &Recipe,
        shift: &Numbers,
        (input, output): (Vec<usize>, Vec<usize>),
    ) -> Option<Recipe> {
        let (group, taps) = (self.group, self.kernel.iter().product());
        let [inner, outer] = self.channels.map(|channels| channels / group);
        let weight = match self.transposed {
            true => weight
                .reshape(&[group, inner, outer, taps])?
                .transpose(&[0, 2, 1, 3])?,
            false => weight.reshape(&[group, outer, inner, taps])?,
        };
        let values = shift
            .recipe()
            .expand(&[&[1, inner * group][..], &input].concat())?
            .reshape(&[group, inner, input.iter().product()])?;
        let image = if self.alike(shift).is_some() {
            let summed = weight.sum(3)?.reshape(&[group, outer, inner])?;
            summed.product(&values)?
        } else {
            weight.conv(&values, self.windows(input, &output)?)?
        };
        image.reshape(&[&[1, outer * group][..], &output].concat())
    }

    fn windows(&self, input: Vec<usize>, output: &[usize]) -> Option<Windows> {
        Some(Windows {
            transposed: self.transposed,
            kernel: self.kernel.clone(),
            strides: self.strides.clone(),
            dilations: self.dilations.clone(),
            before: self.before.clone()?,
            input,
            output: output.to_vec(),
        })
    }
}

/// Reads a list attribute that must be as long as its default and have no element below `least`.
///
/// # Errors
/// [`Reason::Attribute`] for any other list.
pub(crate) fn at_least(
    at: &At,
    name: &str,
    default: Vec<i64>,
    least: i64,
) -> Result<Vec<i64>, Reason> {
    let count = default.len();
    let list = at.attr_ints(name)?.unwrap_or(default);
    if list.len() == count && list.iter().all(|&number| number >= least) {
        Ok(list)
    } else {
        Err(Reason::Attribute(name.into()))
    }
}

/// The extents of the spatial axes, which follow batch and channels.
fn spatial_extents(shape: Shape, spatial: usize) -> Result<Vec<Option<usize>>, Reason> {
    if shape.len() != spatial + 2 {
        return Err(Reason::UnknownShape);
    }
    Ok(shape[2..].iter().map(extent).collect())
}

/// The number of groups of channels.
///
/// # Errors
/// [`Reason::Attribute`] if it is not positive.
pub(super) fn groups(at: &At) -> Result<usize, Reason> {
    let groups = usize::try_from(at.attr("group", 1)?)
        .ok()
        .filter(|&groups| groups > 0);
    groups.ok_or_else(|| Reason::Attribute("group".into()))
}
