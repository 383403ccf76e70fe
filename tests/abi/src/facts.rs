//! Tables of facts about what no package ships.

/// One line of a table: its first word, and the words behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// `size`, `field`, `value`, `request`, `absent` or `place`.
    pub kind: String,
    /// The rest, in the columns of the table's head.
    pub words: Vec<String>,
}

/// The lines of a table, without its comments. A table that does not say where it is from is no
/// table of facts.
pub fn facts(table: &str) -> Vec<Fact> {
    assert!(
        table.lines().any(|line| line.starts_with("# source: ")),
        "a table of facts cites its source"
    );
    let lines = table.lines().filter(|line| !line.starts_with('#'));
    let fact = |line: &str| {
        let mut words = line.split('\t').map(str::to_owned);
        Fact {
            kind: words.next().unwrap_or_default(),
            words: words.collect(),
        }
    };
    lines.map(fact).collect()
}
