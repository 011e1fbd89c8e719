//! The sizes of symbolic dimensions in a run.

use std::collections::BTreeMap;
use std::str::FromStr;

/// Sizes for symbolic dimensions, by name.
///
/// A dimension without a listed size gets a default that most models accept. The default is 2 for
/// the first dimension of an input and for names that contain `batch`, 224 for the last two
/// dimensions of an input of rank 4, and 8 for all others.
///
/// ```
/// use unfold::run::Dims;
///
/// let dims: Dims = "batch=4,sequence=16".parse()?;
/// assert_eq!(dims.get("batch"), Some(4));
/// assert_eq!(dims.get("width"), None);
/// assert!("batch=0".parse::<Dims>().is_err());
/// # Ok::<(), String>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Dims(BTreeMap<String, usize>);

impl Dims {
    /// The size of a dimension; `None` if none is set.
    pub fn get(&self, name: &str) -> Option<usize> {
        self.0.get(name).copied()
    }

    /// Sets the size of a dimension. A previous size is replaced.
    pub fn set(&mut self, name: impl Into<String>, size: usize) {
        self.0.insert(name.into(), size);
    }

    /// Whether no dimension has a size.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Removes each name that has a size in `others`.
    pub(crate) fn remove_all(&mut self, others: &Dims) {
        self.0.retain(|name, _| others.get(name).is_none());
    }

    /// All names with their sizes, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, usize)> {
        self.0.iter().map(|(name, size)| (name.as_str(), *size))
    }

    /// The default size of a dimension:
    ///
    /// - 2 for the first dimension of an input and for a dimension whose name contains `batch`,
    ///   because a fold that mixes samples shows only with several samples;
    /// - 224 for the last two dimensions of an input of rank 4, which are the height and width of
    ///   an image;
    /// - 8 for all other dimensions, such as a sequence.
    pub(crate) fn default_for(name: Option<&str>, axis: usize, rank: usize) -> usize {
        let named_batch = name.is_some_and(|name| name.to_ascii_lowercase().contains("batch"));
        match axis {
            _ if named_batch => 2,
            0 => 2,
            _ if rank == 4 && axis >= 2 => 224,
            _ => 8,
        }
    }
}

impl FromStr for Dims {
    type Err = String;

    /// Parses one `name=size`, or several pairs separated by commas.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut dims = Self::default();
        for part in text
            .split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty())
        {
            let (name, size) = part
                .split_once('=')
                .ok_or_else(|| format!("`{part}` is not of the form name=size"))?;
            let size = size
                .trim()
                .parse()
                .map_err(|_| format!("`{size}` in `{part}` is no size"))?;
            if size == 0 {
                return Err(format!("`{part}`: a size is at least 1"));
            }
            dims.set(name.trim(), size);
        }
        Ok(dims)
    }
}

impl Extend<Dims> for Dims {
    fn extend<I: IntoIterator<Item = Dims>>(&mut self, others: I) {
        self.0.extend(others.into_iter().flat_map(|dims| dims.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dims_are_parsed_and_later_ones_win() {
        let mut dims: Dims = "n=1, m = 3".parse().unwrap();
        dims.extend(["n=5".parse().unwrap()]);
        assert_eq!(dims.iter().collect::<Vec<_>>(), [("m", 3), ("n", 5)]);
    }

    #[test]
    fn invalid_sizes_are_refused() {
        for text in ["n", "n=", "n=-1", "n=0", "n=two"] {
            assert!(text.parse::<Dims>().is_err(), "{text}");
        }
    }

    #[test]
    fn default_sizes_are_2_224_and_8() {
        assert_eq!(Dims::default_for(Some("N"), 0, 4), 2);
        assert_eq!(Dims::default_for(Some("Batch_size"), 1, 3), 2);
        assert_eq!(Dims::default_for(None, 3, 4), 224);
        assert_eq!(Dims::default_for(Some("sequence"), 1, 2), 8);
    }
}
