//! Many short lists in one block of memory.

/// Short lists in one block of memory, by index (compressed sparse rows). A graph has millions of
/// lists of readers and inputs, so a separate allocation for each list would be slow.
pub(super) struct Csr<T> {
    items: Vec<T>,
    /// The end of each list.
    ends: Vec<usize>,
}

impl<T> Csr<T> {
    /// Creates an empty collection with capacity for `count` lists.
    pub(super) fn with_capacity(count: usize) -> Self {
        Csr {
            items: Vec::with_capacity(count),
            ends: Vec::with_capacity(count),
        }
    }

    /// Appends a list.
    pub(super) fn push(&mut self, list: impl IntoIterator<Item = T>) {
        self.items.extend(list);
        self.ends.push(self.items.len());
    }

    /// The list with the index `number`.
    pub(super) fn row(&self, number: usize) -> &[T] {
        let start = number.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.items[start..self.ends[number]]
    }
}

impl<T: Copy> Csr<T> {
    /// Builds `count` lists from pairs of a list's index and an item. The items of a list keep
    /// their order.
    pub(super) fn grouped(count: usize, items: &[(usize, T)]) -> Self {
        let mut ends = vec![0; count];
        items.iter().for_each(|(number, _)| ends[*number] += 1);
        let mut end = 0;
        for list in &mut ends {
            // At first, `ends` holds the start of each list. The loop below moves each start to the
            // end of its list.
            end += std::mem::replace(list, end);
        }
        let mut sorted: Vec<T> = items.iter().map(|(_, item)| *item).collect();
        for (number, item) in items {
            sorted[ends[*number]] = *item;
            ends[*number] += 1;
        }
        Csr {
            items: sorted,
            ends,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csr_rows_equal_the_pushed_lists() {
        let mut lists = Csr::with_capacity(3);
        for list in [vec![3, 1], vec![], vec![4]] {
            lists.push(list);
        }
        assert_eq!(
            [0, 1, 2].map(|number| lists.row(number)),
            [&[3, 1][..], &[], &[4]]
        );
    }

    #[test]
    fn csr_grouped_keeps_the_order_in_each_row() {
        let lists = Csr::grouped(5, &[(3, 'a'), (1, 'b'), (3, 'c'), (4, 'd'), (1, 'e')]);
        let expected = [&[][..], &['b', 'e'], &[], &['a', 'c'], &['d']];
        assert_eq!([0, 1, 2, 3, 4].map(|number| lists.row(number)), expected);
    }
}
