//! The public contract of the vendor's `libhl-thunk.so` as a table of facts, and C files that check
//! it.
//!
//! - **The C compiler checks the headers**: each fact becomes a static assertion, or an assignment
//!   that compiles only if both types are equal. The build script generates the same for Rust.
//! - **Each line names its release.** Where the releases differ, [`Contract::newest`] returns the
//!   line of the Gaudi3 release, which the headers follow.

use std::fmt::Write;

/// The table.
pub const TABLE: &str = include_str!("../facts/hlthunk.tsv");

/// The release that a line describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Release {
    /// hl-thunk of 2023. Also valid for the Gaudi3 release, unless that has its own line.
    V2023,
    /// The Gaudi3 release.
    Gaudi3,
}

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// The release.
    pub from: Release,
    /// The stated fact.
    pub claim: Claim,
}

/// The fact that a line states. Types are spelled as in C.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// A function that the library exports.
    Function {
        /// Its name.
        name: String,
        /// The type of its result.
        result: String,
        /// The types of its parameters, separated by commas.
        parameters: String,
    },
    /// A function that the vendor declares but does not export.
    Unexported(String),
    /// A struct's size in bytes.
    Size {
        /// The struct.
        c_type: String,
        /// Size in bytes.
        bytes: usize,
    },
    /// A field of a struct.
    Field {
        /// The struct.
        c_type: String,
        /// The field's name.
        name: String,
        /// The field's type.
        of_type: String,
        /// Offset in the struct, in bytes.
        offset: usize,
        /// Size of the field in bytes.
        bytes: usize,
    },
    /// A member of an enum, or an integer macro if `of_enum` is empty.
    Value {
        /// `enum` and its tag.
        of_enum: String,
        /// The name.
        name: String,
        /// The value.
        value: u64,
    },
    /// A macro that is a string.
    Text {
        /// The name.
        name: String,
        /// The string.
        text: String,
    },
}

impl Claim {
    /// Returns a key that identifies the subject of the claim.
    fn subject(&self) -> String {
        match self {
            Self::Function { name, .. } | Self::Value { name, .. } | Self::Text { name, .. } => name.clone(),
            Self::Unexported(name) => name.clone(),
            Self::Size { c_type, .. } => c_type.clone(),
            Self::Field { c_type, name, .. } => format!("{c_type} {name}"),
        }
    }
}

/// The lines of the table, in order.
#[derive(Clone, Debug)]
pub struct Contract {
    /// All lines.
    pub facts: Vec<Fact>,
}

impl Contract {
    /// Reads the committed table.
    ///
    /// # Panics
    /// Panics if a line does not have the format that the table's head describes.
    pub fn read() -> Self {
        assert!(
            TABLE.contains("\n# source: "),
            "the table does not cite its source"
        );
        let lines = TABLE.lines().filter(|line| !line.starts_with('#'));
        let facts: Vec<Fact> = lines.map(fact).collect();
        Self { facts }
    }

    /// Returns the claims that the headers follow: the newest one where releases differ.
    pub fn newest(&self) -> impl Iterator<Item = &Claim> {
        self.facts.iter().filter_map(|fact| {
            let subject = fact.claim.subject();
            let newer = |other: &Fact| other.from > fact.from && other.claim.subject() == subject;
            (!self.facts.iter().any(newer)).then_some(&fact.claim)
        })
    }

    /// Returns the names of the functions that the library exports.
    pub fn exported(&self) -> impl Iterator<Item = &str> {
        self.newest().filter_map(|claim| match claim {
            Claim::Function { name, .. } => Some(name.as_str()),
            _ => None,
        })
    }
}

fn fact(line: &str) -> Fact {
    let words: Vec<&str> = line.split('\t').collect();
    let number = |word: &str| word.parse().unwrap_or_else(|_| panic!("{word} in {line:?}"));
    let from = match words.get(1) {
        Some(&"2023") => Release::V2023,
        Some(&"gaudi3") => Release::Gaudi3,
        _ => panic!("{line:?} names no release"),
    };
    let word = |at: usize| words[at].to_owned();
    let claim = match (words[0], words.len()) {
        ("function", 5) => Claim::Function {
            name: word(2),
            result: word(3),
            parameters: word(4),
        },
        ("unexported", 5) => Claim::Unexported(word(2)),
        ("size", 4) => Claim::Size {
            c_type: word(2),
            bytes: number(words[3]),
        },
        ("field", 7) => Claim::Field {
            c_type: word(2),
            name: word(3),
            of_type: word(4),
            offset: number(words[5]),
            bytes: number(words[6]),
        },
        ("value", 5) => Claim::Value {
            of_enum: word(2),
            name: word(3),
            value: number(words[4]) as u64,
        },
        ("macro", 4) => Claim::Value {
            of_enum: String::new(),
            name: word(2),
            value: number(words[3]) as u64,
        },
        ("text", 4) => Claim::Text {
            name: word(2),
            text: word(3),
        },
        _ => panic!("invalid line {line:?}"),
    };
    Fact { from, claim }
}

/// The start of each C file: the header, and an assertion macro that works in C and C++.
pub const PROLOGUE: &str = "\
#include <stddef.h>
#include \"hlthunk.h\"
#ifdef __cplusplus
#define CHECK static_assert
#else
#define CHECK _Static_assert
#endif
";

/// Writes the C code that checks one claim. `at` makes the names in it unique.
pub fn check(c: &mut String, claim: &Claim, at: usize) {
    let written = match claim {
        Claim::Function {
            name,
            result,
            parameters,
        } => write!(
            c,
            "void check{at}(void);\nvoid check{at}(void) {{ {result} (*p)({parameters}) = {name}; (void)p; }}\n"
        ),
        Claim::Unexported(_) => Ok(()),
        Claim::Size { c_type, bytes } => {
            writeln!(c, "CHECK(sizeof({c_type}) == {bytes}, \"size of {c_type}\");")
        }
        Claim::Field {
            c_type,
            name,
            of_type,
            offset,
            bytes,
        } => write!(
            c,
            "CHECK(offsetof({c_type}, {name}) == {offset}, \"offset of {c_type} {name}\");\n\
             CHECK(sizeof((({c_type} *)0)->{name}) == {bytes}, \"size of {c_type} {name}\");\n\
             void check{at}({c_type} *s);\n\
             void check{at}({c_type} *s) {{ {} = &s->{name}; (void)p; }}\n",
            pointer(of_type)
        ),
        Claim::Value { of_enum, name, value } => {
            let member = match of_enum.is_empty() {
                true => String::new(),
                // In C++, the member converts to the enum only if it belongs to the enum.
                false => format!(
                    "void check{at}(void);\nvoid check{at}(void) {{ {of_enum} e = {name}; (void)e; }}\n"
                ),
            };
            write!(c, "CHECK({name} == {value}, \"{name}\");\n{member}")
        }
        Claim::Text { name, text } => writeln!(
            c,
            "CHECK(sizeof({name}) == {} && !__builtin_strcmp({name}, \"{text}\"), \"{name}\");",
            text.len() + 1
        ),
    };
    // Writing to a String cannot fail.
    written.unwrap_or_default();
}

/// Returns the declaration of a pointer `p` to a type: `uint8_t (*p)[6]` for `uint8_t [6]`.
fn pointer(of_type: &str) -> String {
    if let Some((result, parameters)) = of_type.split_once("(*)") {
        return format!("{result}(**p){parameters}");
    }
    match of_type.split_once(" [") {
        Some((element, length)) => format!("{element} (*p)[{length}"),
        None => format!("{of_type} *p"),
    }
}

/// Returns a C file that checks all newest claims.
pub fn c_file(contract: &Contract) -> String {
    let mut c = PROLOGUE.to_owned();
    for (at, claim) in contract.newest().enumerate() {
        check(&mut c, claim, at);
    }
    c
}
