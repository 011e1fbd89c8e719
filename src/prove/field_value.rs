//! The image of a tensor in the field.

use std::ops::Range;

use ndarray::{ArcArray, ArrayD, IxDyn};
use rayon::prelude::*;

use crate::onnx::external_data::Externals;
use crate::onnx::proto::TensorProto;
use crate::onnx::tensor::{self, DataType, Floats};
use crate::prove::field;
use crate::prove::random::{Digest, Hash, Unknown};
use crate::recipe::DECIDED;

/// The number of elements that are read at a time.
const READ: usize = 1 << 12;

/// The least number of such parts that one core converts.
const AT_LEAST: usize = 16;

/// Random integers are less than `INTEGERS`. About half of them are less than `SMALL`, because
/// masks, lengths and types of tokens are small.
const INTEGERS: u64 = 100;
const SMALL: u64 = 4;

/// Of every `OUTLYING` random integers, one is drawn from `OUTLIERS`, which holds numbers such as
/// the index of an ignored token or the last place of a long sequence.
const OUTLYING: u64 = 8;
const OUTLIERS: [i64; 6] = [-100, -2, -1, 511, 32_767, 1 << 20];

/// The bit that marks an element that a softmax counts as −∞. The other bits are the element's
/// image.
pub(super) const HIDDEN: u32 = 1 << 31;

/// A tensor of field elements in row-major order. Copies share the elements.
pub(super) type Elements = ArcArray<u32, IxDyn>;

/// A tensor of integers and booleans in row-major order. Copies share the elements.
pub(super) type Integers = ArcArray<i64, IxDyn>;

/// A value of a graph at one point.
#[derive(Debug, Clone)]
pub(super) enum FieldValue {
    /// Floats.
    Field(Elements),
    /// Floats, at least one of which is −∞, or counts as −∞ in a softmax. Such elements have the
    /// bit [`HIDDEN`].
    Masked(Elements),
    /// Known integers.
    Int(Integers),
    /// Integers that depend on random elements. Each unknown integer is represented by a random
    /// element of the field.
    Varying(Elements),
    /// A tensor of unknown extents.
    Opaque(Digest),
}

/// Applies an expression to the elements of any tensor. The last arm handles opaque tensors.
macro_rules! either {
    ($value:expr, $array:ident => $result:expr, else $other:expr) => {
        match $value {
            $crate::prove::field_value::FieldValue::Field($array) => {
                $crate::prove::field_value::FieldValue::field($result)
            }
            $crate::prove::field_value::FieldValue::Masked($array) => {
                $crate::prove::field_value::FieldValue::masked($result)
            }
            $crate::prove::field_value::FieldValue::Int($array) => {
                $crate::prove::field_value::FieldValue::int($result)
            }
            $crate::prove::field_value::FieldValue::Varying($array) => {
                $crate::prove::field_value::FieldValue::varying($result)
            }
            $crate::prove::field_value::FieldValue::Opaque(_) => $other,
        }
    };
}
pub(crate) use either;

/// The elements in row-major order.
pub(super) fn row_major<T: Clone>(array: ArrayD<T>) -> ArcArray<T, IxDyn> {
    if array.is_standard_layout() {
        array.into_shared()
    } else {
        array.as_standard_layout().into_owned().into_shared()
    }
}

impl FieldValue {
    /// A tensor of floats.
    pub(super) fn field(elements: ArrayD<u32>) -> Self {
        Self::Field(row_major(elements))
    }

    /// A tensor of floats, some of which may have the bit [`HIDDEN`].
    pub(super) fn masked(elements: ArrayD<u32>) -> Self {
        match elements.iter().any(|element| element & HIDDEN != 0) {
            true => Self::Masked(row_major(elements)),
            false => Self::field(elements),
        }
    }

    /// A tensor of integers.
    pub(super) fn int(integers: ArrayD<i64>) -> Self {
        Self::Int(row_major(integers))
    }

    /// A tensor of unknown integers. An empty tensor counts as known.
    pub(super) fn varying(elements: ArrayD<u32>) -> Self {
        if elements.is_empty() {
            return Self::int(elements.mapv(i64::from));
        }
        Self::Varying(row_major(elements))
    }

    /// A tensor with a random element at each place.
    pub(super) fn random(seed: Digest, shape: &[usize], is_integer: bool) -> Self {
        let unknown = Unknown::new(seed);
        let elements = (0..shape.iter().product::<usize>())
            .map(|place| unknown.value(place as u64))
            .collect();
        let elements = ArrayD::from_shape_vec(shape, elements).expect("as many elements");
        if is_integer {
            Self::varying(elements)
        } else {
            Self::field(elements)
        }
    }

    /// A tensor of random elements, or of random integers if the type is an integer type.
    pub(super) fn drawn(seed: Digest, shape: &[usize], data_type: DataType) -> Self {
        if !data_type.is_integer() {
            return Self::random(seed, shape, false);
        }
        let unknown = Unknown::new(seed);
        let places = 0..shape.iter().product::<usize>() as u64;
        let integers = places.map(|place| random_integer(unknown, place, data_type));
        ArrayD::from_shape_vec(shape, integers.collect()).map_or(Self::Opaque(seed), Self::int)
    }

    /// The extents. `None` if they are unknown.
    pub(super) fn shape(&self) -> Option<&[usize]> {
        match self {
            Self::Field(elements) | Self::Masked(elements) | Self::Varying(elements) => {
                Some(elements.shape())
            }
            Self::Int(integers) => Some(integers.shape()),
            Self::Opaque(_) => None,
        }
    }

    /// The number of elements, or 0 if it is unknown.
    pub(super) fn len(&self) -> usize {
        self.shape().map_or(0, |shape| shape.iter().product())
    }

    /// The elements of a tensor of floats, in which the bit [`HIDDEN`] marks hidden places.
    pub(super) fn elements(self) -> Option<Elements> {
        match self {
            Self::Field(elements) | Self::Masked(elements) => Some(elements),
            _ => None,
        }
    }

    /// The image of each element.
    pub(super) fn images(&self) -> Option<Elements> {
        match self {
            Self::Field(elements) | Self::Varying(elements) => Some(elements.clone()),
            Self::Masked(elements) => {
                Some(elements.mapv(|element| element & !HIDDEN).into_shared())
            }
            Self::Int(integers) => Some(integers.mapv(field::of_int).into_shared()),
            Self::Opaque(_) => None,
        }
    }

    /// The value, without the bits [`HIDDEN`], so that hidden elements become ordinary ones.
    pub(super) fn unmasked(&self) -> Self {
        match self {
            Self::Masked(elements) => Self::field(elements.mapv(|element| element & !HIDDEN)),
            other => other.clone(),
        }
    }

    /// The digest of the value. Hidden elements count as ordinary ones.
    pub(super) fn digest(&self, key: u64) -> Digest {
        let mut hash = Hash::new(key, "value");
        hash.number(match self {
            Self::Field(_) => 0,
            Self::Int(_) => 1,
            Self::Varying(_) => 2,
            Self::Masked(_) => return self.unmasked().digest(key),
            Self::Opaque(digest) => return *digest,
        });
        let shape = self.shape().unwrap_or_default();
        hash.all(shape, |extent| (extent as u64).to_le_bytes());
        match self {
            Self::Field(elements) | Self::Varying(elements) => {
                hash.all(slice(elements), u32::to_le_bytes)
            }
            Self::Int(integers) => hash.all(slice(integers), i64::to_le_bytes),
            Self::Masked(_) | Self::Opaque(_) => {}
        }
        hash.finish()
    }
}

/// The random integer at a place.
fn random_integer(unknown: Unknown, place: u64, data_type: DataType) -> i64 {
    match data_type {
        DataType::Bool => below(unknown, place, 2),
        DataType::Int32 | DataType::Int64 if place % OUTLYING == OUTLYING - 1 => {
            OUTLIERS[below(unknown, place, OUTLIERS.len() as u64) as usize]
        }
        // One random element selects the range, and another one selects the integer in this range.
        _ if below(unknown, 2 * place, 2) == 0 => below(unknown, 2 * place + 1, SMALL),
        _ => below(unknown, 2 * place + 1, INTEGERS),
    }
}

/// The random integer at a place in `0..end`.
fn below(unknown: Unknown, place: u64, end: u64) -> i64 {
    (u64::from(unknown.value(place)) * end / field::P) as i64
}

/// The elements in row-major order.
pub(super) fn slice<T>(array: &ArcArray<T, IxDyn>) -> &[T] {
    array.as_slice().expect("in row-major order")
}

/// The image of a tensor of floats. −∞ and the lowest number of the type count as −∞ in a softmax.
/// If any element is +∞ or NaN, each element becomes a random element of the field that depends on
/// the bits of the number.
pub(super) fn of_floats(floats: ArrayD<f64>, data_type: Option<DataType>, key: u64) -> FieldValue {
    let (unknown, lowest) = (of_bits(key), data_type.and_then(DataType::lowest));
    let is_wild = |number: &f64| number.is_nan() || *number == f64::INFINITY;
    if floats.iter().any(is_wild) {
        return FieldValue::field(floats.mapv(|number| unknown.value(number.to_bits())));
    }
    FieldValue::masked(floats.mapv(|number| match field::of_float(number) {
        Some(image) if Some(number) == lowest => image | HIDDEN,
        Some(image) => image,
        None => unknown.value(number.to_bits()) | HIDDEN,
    }))
}

/// The element that represents −∞.
pub(super) fn lowest(key: u64) -> u32 {
    of_bits(key).value(f64::NEG_INFINITY.to_bits())
}

/// The function from the bits of a number to a random element.
fn of_bits(key: u64) -> Unknown {
    Unknown::new(Hash::new(key, "bits").finish())
}

/// The image of constants that were computed by more than arithmetic, for example by a Softmax.
/// Numbers of a magnitude below [`DECIDED`] become 0.
pub(super) fn of_numbers(numbers: &ArrayD<f64>, key: u64) -> FieldValue {
    let decided = numbers.mapv(|number| if number.abs() < DECIDED { 0.0 } else { number });
    of_floats(decided, None, key)
}

/// The image of the result of a Softmax over these axes. If all elements of a lane are equal, each
/// of them becomes the inverse of their number.
pub(super) fn of_shares(numbers: &ArrayD<f64>, along: Range<usize>, key: u64) -> FieldValue {
    let (value, shape) = (of_numbers(numbers, key), numbers.shape());
    let lane: usize = shape[along.clone()].iter().product();
    let inner: usize = shape[along.end..].iter().product();
    let (FieldValue::Field(elements), Some(share)) =
        (&value, field::inverse(field::of_int(lane as i64)))
    else {
        return value;
    };
    let (mut shares, numbers) = (slice(elements).to_vec(), row_major(numbers.clone()));
    let blocks = slice(&numbers).chunks((lane * inner).max(1));
    for (block, made) in blocks.zip(shares.chunks_mut((lane * inner).max(1))) {
        for start in 0..inner {
            let places = (start..block.len()).step_by(inner);
            if places.clone().all(|place| block[place] == block[start]) {
                places.for_each(|place| made[place] = share);
            }
        }
    }
    ArrayD::from_shape_vec(shape, shares).map_or(value, FieldValue::field)
}

/// The image of stored floats. All cores share the work. `None` if the floats cannot be read.
fn of_stored(floats: &Floats, data_type: Option<DataType>, key: u64) -> Option<FieldValue> {
    let count = floats.shape().iter().product();
    let lowest = data_type.and_then(DataType::lowest);
    let mut elements = vec![0; count];
    let parts = elements.par_chunks_mut(READ).enumerate();
    let parts = parts
        .with_min_len(AT_LEAST)
        .map_init(Vec::new, |buffer, (part, images)| {
            convert(floats, part * READ, lowest, buffer, images)
        });
    let has_images = parts.try_reduce(|| true, |one, other| Some(one && other))?;
    if !has_images {
        let all = floats.all().ok()?;
        return Some(of_floats(all, data_type, key));
    }
    ArrayD::from_shape_vec(floats.shape(), elements)
        .ok()
        .map(FieldValue::field)
}

/// Writes the images of at most [`READ`] stored floats, from index `at`. Returns false if a float
/// has no image because it is not finite or the lowest number of its type. `None` if the floats
/// cannot be read.
fn convert(
    floats: &Floats,
    at: usize,
    lowest: Option<f64>,
    buffer: &mut Vec<u8>,
    images: &mut [u32],
) -> Option<bool> {
    let mut numbers = [0.0; READ];
    let numbers = &mut numbers[..images.len()];
    floats.read(at, buffer, numbers).ok()?;
    // Unlike `all`, a fold without branches is vectorized. No number equals NaN.
    let lowest = lowest.unwrap_or(f64::NAN);
    let has_images = numbers.iter().fold(true, |all, &number| {
        all & (number != lowest) & number.is_finite()
    });
    if has_images {
        field::of_floats(numbers, images);
    }
    Some(has_images)
}

/// The value of a stored tensor.
pub(super) fn of_tensor(tensor: &TensorProto, externals: &Externals, key: u64) -> FieldValue {
    if let Some(floats) = Floats::new(tensor, externals)
        .ok()
        .and_then(|floats| of_stored(&floats, tensor::data_type(tensor).ok(), key))
    {
        return floats;
    }
    if let Ok(integers) = tensor::read_i64(tensor, externals) {
        return FieldValue::int(integers);
    }
    FieldValue::Opaque(stored(tensor, externals, key))
}

/// The digest of a stored tensor of any type.
pub(super) fn stored(tensor: &TensorProto, externals: &Externals, key: u64) -> Digest {
    let mut hash = Hash::new(key, "tensor");
    hash.number(tensor.data_type() as u64);
    hash.all(&tensor.dims, i64::to_le_bytes);
    match tensor::raw(tensor, externals) {
        Ok(bytes) => hash.bytes(&bytes),
        Err(_) => tensor.string_data.iter().for_each(|text| hash.bytes(text)),
    }
    hash.finish()
}
