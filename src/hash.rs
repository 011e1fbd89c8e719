//! Fast hash maps and sets for names, which passes query many times for each node of large graphs.

/// A map with a hash function that is fast on names. Its seed differs in each process.
pub(crate) type HashMap<K, V> = std::collections::HashMap<K, V, foldhash::fast::RandomState>;

/// A set with the hash function of [`HashMap`].
pub(crate) type HashSet<T> = std::collections::HashSet<T, foldhash::fast::RandomState>;

/// A map with room for `count` entries.
pub(crate) fn map_of<K, V>(count: usize) -> HashMap<K, V> {
    HashMap::with_capacity_and_hasher(count, Default::default())
}

/// A set with room for `count` entries.
pub(crate) fn set_of<T>(count: usize) -> HashSet<T> {
    HashSet::with_capacity_and_hasher(count, Default::default())
}
