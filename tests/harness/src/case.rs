//! [`Case`]: a named (operation, precondition, outcome).

use std::fmt;

/// A named (operation, precondition, outcome). A sweep over parameters is one case.
#[derive(Clone, Copy)]
pub struct Case<Tag: 'static, Run> {
    /// Unique name.
    pub id: &'static str,
    /// What the case belongs to: a chip, or a topic.
    pub group: &'static str,
    /// Where the outcome is decided: `file.c:function`. Empty if the suite names one source for
    /// all.
    pub source: &'static str,
    /// What a runner must know: what the case touches, or what it needs.
    pub tags: &'static [Tag],
    /// The case itself.
    pub run: Run,
}

impl<Tag: PartialEq, Run> Case<Tag, Run> {
    /// Returns a case without tags.
    pub const fn new(group: &'static str, id: &'static str, source: &'static str, run: Run) -> Self {
        Self {
            id,
            group,
            source,
            tags: &[],
            run,
        }
    }

    /// Returns the case with these tags.
    #[must_use]
    pub const fn tagged(mut self, tags: &'static [Tag]) -> Self {
        self.tags = tags;
        self
    }

    /// Returns whether the case has a tag.
    pub fn has(&self, tag: Tag) -> bool {
        self.tags.contains(&tag)
    }

    /// Returns the name of a case that is named as a sentence with underscores, as a sentence.
    pub fn sentence(&self) -> String {
        self.id.replace('_', " ")
    }
}

impl<Tag, Run> fmt::Debug for Case<Tag, Run> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, {})", self.id, self.group, self.source)
    }
}
