//! [`Arguments`]: libtest's command line.

/// The arguments of libtest that matter to a suite: filters, `--exact`, `--skip`, `--list`.
#[derive(Debug, Default)]
pub struct Arguments {
    filters: Vec<String>,
    skips: Vec<String>,
    exact: bool,
    /// Only tests that libtest ignores by default, of which a suite has none.
    ignored: bool,
    /// Whether to list the selected tests and run none.
    pub list: bool,
}

impl Arguments {
    /// Reads the arguments of this process.
    pub fn read() -> Self {
        Self::of(std::env::args().skip(1))
    }

    fn of(mut words: impl Iterator<Item = String>) -> Self {
        let mut read = Self::default();
        while let Some(word) = words.next() {
            match word.as_str() {
                "--exact" => read.exact = true,
                "--list" => read.list = true,
                "--ignored" => read.ignored = true,
                "--skip" => read.skips.extend(words.next()),
                // They take a value and change nothing: cases run one after another.
                "--test-threads" | "--color" | "--format" | "--logfile" | "-Z" => _ = words.next(),
                flag if flag.starts_with('-') => {}
                filter => read.filters.push(filter.to_owned()),
            }
        }
        read
    }

    /// Returns whether a test is selected.
    pub fn select(&self, name: &str) -> bool {
        let matches = |filter: &String| {
            if self.exact {
                name == filter
            } else {
                name.contains(filter)
            }
        };
        !self.ignored
            && (self.filters.is_empty() || self.filters.iter().any(matches))
            && !self.skips.iter().any(matches)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_and_skips_select_as_libtest_does() {
        let of = |line: &str| Arguments::of(line.split_whitespace().map(str::to_owned));
        assert!(of("").select("plain::a"), "no filter selects all");
        assert!(
            of("plain -q --test-threads 1").select("plain::a"),
            "a value is no filter"
        );
        assert!(!of("plain::a --exact").select("plain::ab"), "exactly");
        assert!(!of("plain --skip ::a").select("plain::a"), "a skip wins");
        assert!(!of("--ignored").select("plain::a"), "none is ignored");
    }
}
