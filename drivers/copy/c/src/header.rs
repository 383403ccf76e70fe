//! The header and the version script, from the tables of the interface.

use std::fmt::Write as _;

use crate::abi::{ConstantRow, FunctionRow, Parameter, StructRow};
use crate::{domain, events, guard, keys, layouts};

/// The version of every symbol: a function that a later release adds gets the next one.
const VERSION: &str = "GAUDI_COPY_0";

const HEAD: &str = "\
/* libgaudi_copy: Gaudi memory for programs in C.
 *
 * Generated from drivers/copy/c: SNAPSHOTS=overwrite cargo test -p gaudi-copy-c header
 *
 * A function returns 0 or a negative errno; gaudi_copy_error has the cause in words. A domain, a
 * key and a listener are numbers, never 0; one that is closed or of another kind fails with EBADF.
 * NULL fails with EINVAL where nothing else is documented. An address is one of device memory or
 * of the program.
 *
 * Every structure starts with its size: set it to sizeof, and all other fields that are not used
 * to 0. A program works with a library of an older or newer release. A size below that of the first
 * release fails with EINVAL; a field that is set and that the library does not know with E2BIG.
 *
 * Every function may be called by any thread. In a fork child of a process that used the library
 * each fails with ENODEV; the child can exec.
 */
#ifndef GAUDI_COPY_H
#define GAUDI_COPY_H

#include <stdint.h>

#ifdef __cplusplus
extern \"C\" {
#endif
";

const TAIL: &str = "
#ifdef __cplusplus
}
#endif

#endif /* GAUDI_COPY_H */
";

/// The functions, in the header's order.
fn functions() -> impl Iterator<Item = &'static FunctionRow> {
    let tables = [
        domain::FUNCTIONS,
        events::FUNCTIONS,
        keys::FUNCTIONS,
        guard::FUNCTIONS,
    ];
    tables.into_iter().flatten()
}

/// Returns the text of `gaudi_copy.h`.
pub fn header() -> String {
    let mut text = HEAD.to_owned();
    for row in layouts::CONSTANTS {
        constant(&mut text, row);
    }
    for row in layouts::STRUCTS {
        structure(&mut text, row);
    }
    for row in functions() {
        function(&mut text, row);
    }
    text + TAIL
}

/// Returns the version script of the library.
pub fn version_script() -> String {
    let mut text = format!("{VERSION} {{\n\tglobal:\n");
    for row in functions() {
        line(&mut text, format_args!("\t\t{};", row.name));
    }
    text + "\tlocal:\n\t\t*;\n};\n"
}

fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    // A String takes any text.
    let _ = writeln!(text, "{line}");
}

/// A comment of lines. Each line starts with a space, as rustdoc's do.
fn comment(text: &mut String, indent: &str, lines: &[&str]) {
    if let [only] = lines {
        return line(text, format_args!("{indent}/**{} */", only.replace('`', "'")));
    }
    for (at, row) in lines.iter().enumerate() {
        let start = if at == 0 { "/**" } else { " *" };
        line(text, format_args!("{indent}{start}{}", row.replace('`', "'")));
    }
    line(text, format_args!("{indent} */"));
}

fn constant(text: &mut String, row: &ConstantRow) {
    text.push('\n');
    comment(text, "", row.text);
    line(text, format_args!("#define {} {}u", row.name, row.value));
}

fn structure(text: &mut String, row: &StructRow) {
    text.push('\n');
    comment(text, "", row.text);
    line(text, format_args!("struct {} {{", row.name));
    for field in row.fields {
        comment(text, "\t", field.text);
        line(text, format_args!("\t{};", (field.declare)(field.name)));
    }
    line(text, format_args!("}};"));
}

fn function(text: &mut String, row: &FunctionRow) {
    text.push('\n');
    comment(text, "", row.text);
    let parameters: Vec<_> = row.parameters.iter().map(parameter).collect();
    let parameters = match parameters.is_empty() {
        true => "void".to_owned(),
        false => parameters.join(", "),
    };
    let whole = format!("{}({parameters});", (row.result)(row.name));
    match whole.len() <= 100 {
        true => line(text, format_args!("{whole}")),
        false => line(text, format_args!("{}", whole.replacen(", ", ",\n\t", 1))),
    }
}

fn parameter((name, declare): &Parameter) -> String {
    declare(name.trim_start_matches("r#"))
}

/// Returns assertions in C of each size and offset, which a C compiler checks against the header.
pub fn assertions() -> String {
    let mut text = "/* Generated as gaudi_copy.h is: the library's sizes and offsets. */\n\
        #include <stddef.h>\n#include \"gaudi_copy.h\"\n\n\
        #ifdef __cplusplus\n#define CHECK static_assert\n#else\n#define CHECK _Static_assert\n#endif\n\n"
        .to_owned();
    for row in layouts::STRUCTS {
        let (name, size) = (row.name, row.size);
        line(
            &mut text,
            format_args!("CHECK(sizeof(struct {name}) == {size}, \"{name}\");"),
        );
        for field in row.fields {
            let (field, offset) = (field.name, field.offset);
            line(
                &mut text,
                format_args!("CHECK(offsetof(struct {name}, {field}) == {offset}, \"{field}\");"),
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Compares a generated file with the tree's: `SNAPSHOTS=overwrite` updates it.
    fn compare(path: &str, text: &str) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
        if std::env::var("SNAPSHOTS").as_deref() == Ok("overwrite") {
            std::fs::write(&path, text).expect("the tree is writable");
        }
        let seen = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            seen == text,
            "{} is out of date; SNAPSHOTS=overwrite updates it",
            path.display()
        );
    }

    #[test]
    fn header_and_script_are_up_to_date() {
        compare("include/gaudi_copy.h", &header());
        compare("gaudi_copy.map", &version_script());
        compare("tests/layouts.h", &assertions());
    }
}
