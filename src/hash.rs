//! Tables by name, which large graphs look into many times for each node.

/// A map with a hash function that is fast on names, and is seeded anew in each process.
pub(crate) type HashMap<K, V> = std::collections::HashMap<K, V, foldhash::fast::RandomState>;

/// A set with the same hash function.
pub(crate) type HashSet<T> = std::collections::HashSet<T, foldhash::fast::RandomState>;

/// A map with room for so many.
pub(crate) fn map_of<K, V>(count: usize) -> HashMap<K, V> {
    HashMap::with_capacity_and_hasher(count, Default::default())
}

/// A set with room for so many.
pub(crate) fn set_of<T>(count: usize) -> HashSet<T> {
    HashSet::with_capacity_and_hasher(count, Default::default())
}
