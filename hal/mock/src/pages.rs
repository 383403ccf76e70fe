//! First fit: free pages of device memory (memory.c `dram_pg_pool`) and free numbers (`idr_alloc`).

/// A first-fit pool of whole pages.
#[derive(Debug)]
pub(crate) struct PagePool {
    used: Vec<bool>,
    free: usize,
}

impl PagePool {
    pub(crate) fn new(pages: usize) -> Self {
        Self {
            used: vec![false; pages],
            free: pages,
        }
    }

    /// Frees all pages.
    pub(crate) fn restart(&mut self) {
        self.used.fill(false);
        self.free = self.used.len();
    }

    /// Pages that are free.
    pub(crate) fn free(&self) -> usize {
        self.free
    }

    /// Takes `count` pages, in one run if `contiguous`. Returns `None` and takes nothing if they
    /// are not free.
    pub(crate) fn take(&mut self, count: usize, contiguous: bool) -> Option<Vec<usize>> {
        if count == 0 || count > self.free {
            return None;
        }
        let pages: Vec<usize> = if contiguous {
            let first = self.used.windows(count).position(|run| !run.contains(&true))?;
            (first..first + count).collect()
        } else {
            (0..self.used.len())
                .filter(|&page| !self.used[page])
                .take(count)
                .collect()
        };
        for &page in &pages {
            self.used[page] = true;
        }
        self.free -= count;
        Some(pages)
    }

    /// Frees pages.
    pub(crate) fn give(&mut self, pages: &[usize]) {
        for &page in pages {
            debug_assert!(self.used[page], "page {page} was taken");
            self.used[page] = false;
        }
        self.free += pages.len();
    }
}

/// Returns the lowest unused number from 1 on, as `idr_alloc(.., 1, 0, ..)` does.
pub(crate) fn lowest_free(is_taken: impl Fn(u32) -> bool) -> u32 {
    let free = (1..=u32::MAX).find(|&number| !is_taken(number));
    free.expect("a process has fewer objects than there are numbers")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contiguous_runs_skip_holes() {
        let mut pool = PagePool::new(6);
        let a = pool.take(2, false).unwrap();
        let b = pool.take(1, false).unwrap();
        pool.give(&a);
        assert_eq!(
            pool.take(3, true),
            Some(vec![3, 4, 5]),
            "a run of three lies after the taken page"
        );
        assert_eq!(pool.take(3, true), None);
        assert_eq!(pool.take(2, false), Some(vec![0, 1]));
        assert_eq!(pool.take(1, false), None, "all are taken");
        pool.give(&b);
        assert_eq!(pool.free(), 1);
    }
}
