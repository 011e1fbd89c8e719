//! Digests of values, and random elements that are derived from a seed.

use xxhash_rust::xxh3::Xxh3;

use super::field::P;

/// The identity of a value or of a function, as a keyed hash.
pub(crate) type Digest = u128;

/// Combines parts into a digest.
pub(crate) struct Hash(Xxh3);

impl Hash {
    /// A hash with a key. `what` names its purpose, so that hashes for different purposes differ.
    pub(crate) fn new(key: u64, what: &str) -> Self {
        let mut hash = Self(Xxh3::with_seed(key));
        hash.text(what);
        hash
    }

    /// Adds bytes after their length, so that their end is unambiguous.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.update(bytes);
    }

    /// Adds a string.
    pub(crate) fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    /// Adds a number.
    pub(crate) fn number(&mut self, number: u64) {
        self.0.update(&number.to_le_bytes());
    }

    /// Adds a digest.
    pub(crate) fn digest(&mut self, digest: Digest) {
        self.0.update(&digest.to_le_bytes());
    }

    /// Adds a list of numbers of any type, which `bytes` converts to bytes.
    pub(crate) fn all<T: Copy, const N: usize>(
        &mut self,
        numbers: &[T],
        bytes: impl Fn(T) -> [u8; N],
    ) {
        self.number(numbers.len() as u64);
        let mut buffer = [[0; N]; 512];
        for part in numbers.chunks(512) {
            for (to, &number) in buffer.iter_mut().zip(part) {
                *to = bytes(number);
            }
            self.0.update(buffer[..part.len()].as_flattened());
        }
    }

    /// The digest of everything that was added.
    pub(crate) fn finish(&self) -> Digest {
        self.0.digest128()
    }
}

/// An uninterpreted function of any number of elements.
///
/// Each argument is mixed into the state by two rounds of multiplication and shift, and the two
/// halves of the digest are mixed in too. So the digest selects one of 2¹²⁸ functions, which the
/// author of a model cannot predict. The results have 31 bits, for which a state of 64 bits
/// suffices.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unknown {
    before: u64,
    between: u64,
}

impl Unknown {
    /// The function with this digest.
    pub(super) fn new(digest: Digest) -> Self {
        Self {
            before: digest as u64,
            between: (digest >> 64) as u64,
        }
    }

    /// The state before the first argument.
    pub(super) fn start(self) -> u64 {
        self.between
    }

    /// The state after one more argument.
    pub(super) fn with(self, state: u64, argument: u64) -> u64 {
        let z = (state.rotate_left(23) ^ argument).wrapping_add(self.before);
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ self.between;
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// The element for a final state.
    pub(super) fn element(state: u64) -> u32 {
        ((u128::from(state) * u128::from(P)) >> 64) as u32
    }

    /// The element for one argument.
    pub(super) fn value(self, argument: u64) -> u32 {
        Self::element(self.with(self.start(), argument))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(parts: &[&str]) -> Digest {
        let mut hash = Hash::new(7, "parts");
        parts.iter().for_each(|part| hash.text(part));
        hash.finish()
    }

    #[test]
    fn digest_separates_its_parts() {
        assert_ne!(digest(&["ab", "c"]), digest(&["a", "bc"]));
        assert_eq!(digest(&["ab", "c"]), digest(&["ab", "c"]));
    }

    #[test]
    fn unknown_function_is_uniform_and_depends_on_its_arguments() {
        let unknown = Unknown::new(Hash::new(1, "f").finish());
        let mut seen: Vec<u32> = (0..1000).map(|argument| unknown.value(argument)).collect();
        let low = seen
            .iter()
            .filter(|&&element| u64::from(element) < P / 2)
            .count();
        assert!((400..600).contains(&low), "{low}");
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 1000);
        let [ascending, descending] = [[1, 2], [2, 1]].map(|arguments| {
            let start = unknown.start();
            arguments
                .iter()
                .fold(start, |state, &argument| unknown.with(state, argument))
        });
        assert_ne!(ascending, descending);
    }
}
