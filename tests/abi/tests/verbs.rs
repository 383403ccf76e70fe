//! The bindings against Debian's headers of libibverbs 44, 56 and 65, by a compiled check; and the
//! check against itself.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use gaudi_abi::verbs::{Constant, Layout, OPERATIONS, Operation, Since, constants, layouts, symbols};

/// Headers of one version, and the variable with the path of its `usr/include`.
struct Header {
    version: u32,
    variable: &'static str,
    case: &'static str,
}

const HEADERS: [Header; 3] = [
    Header {
        version: 44,
        variable: "GAUDI_VERBS_HEADERS_44",
        case: "header::libibverbs_44",
    },
    Header {
        version: 56,
        variable: "GAUDI_VERBS_HEADERS_56",
        case: "header::libibverbs_56",
    },
    Header {
        version: 65,
        variable: "GAUDI_VERBS_HEADERS_65",
        case: "header::libibverbs_65",
    },
];

impl Header {
    fn find(&self) -> Option<PathBuf> {
        let folder = PathBuf::from(std::env::var_os(self.variable)?);
        folder.join("infiniband/verbs.h").is_file().then_some(folder)
    }

    /// A skip is counted, never a pass.
    fn skip(&self, test: &str) {
        let need = format!(
            "infiniband/verbs.h of libibverbs-dev {}; cargo xtask test fetches it",
            self.version
        );
        gaudi_harness::skip_named(test, &need);
    }
}

const PROLOGUE: &str = "#include <stddef.h>\n#include <infiniband/verbs.h>\n#include <infiniband/mlx5dv.h>\n\
                        #include <rdma/rdma_user_ioctl_cmds.h>\n\
                        #include <rdma/ib_user_ioctl_cmds.h>\n";

fn push(c: &mut String, condition: &str, what: &str) {
    writeln!(c, "_Static_assert({condition}, \"{what}\");").expect("a string grows");
}

/// What is claimed about a version, in C.
fn c_file(
    version: u32,
    layouts: &[Layout],
    constants: &[Constant],
    operations: &[Operation],
    with_symbols: bool,
) -> String {
    let known = |since: Since| since <= Since(version);
    let mut c = PROLOGUE.to_owned();
    for layout in layouts.iter().filter(|layout| known(layout.since)) {
        let c_type = layout.c_type;
        let older = layout.older.iter().find(|(older, _)| *older == version);
        let size = older.map_or(layout.size, |(_, size)| *size);
        if !layout.is_prefix {
            push(
                &mut c,
                &format!("sizeof({c_type}) == {size}"),
                &format!("sizeof {c_type}"),
            );
        }
        for field in layout.fields.iter().filter(|field| known(field.since)) {
            let path = field.c_path;
            let at = format!("offsetof({c_type}, {path})");
            let condition = format!("{at} == {}", field.offset);
            push(&mut c, &condition, &format!("offset of {c_type} {path}"));
            push(
                &mut c,
                &format!("sizeof((({c_type} *)0)->{path}) == {}", field.size),
                &format!("size of {c_type} {path}"),
            );
        }
    }
    for constant in constants.iter().filter(|constant| known(constant.since)) {
        let name = &constant.c_name;
        // An enumerator is an int: what is negative there is sign-extended on both sides.
        push(
            &mut c,
            &format!("(unsigned long long)({name}) == {:#x}ull", constant.value),
            name,
        );
    }
    for Operation {
        c_type,
        field,
        prototype,
    } in operations
    {
        // Offset and size say nothing of what a pointer is called with.
        let prototype = prototype();
        push(
            &mut c,
            &format!("__builtin_types_compatible_p(__typeof__((({c_type} *)0)->{field}), {prototype})"),
            &format!("type of {c_type} {field}"),
        );
    }
    for symbol in symbols()
        .iter()
        .filter(|symbol| with_symbols && known(symbol.since))
    {
        let (name, prototype) = (symbol.name, (symbol.prototype)());
        // Arrays and macros: a name in parentheses is the function, not the macro of the same name.
        push(
            &mut c,
            &format!("__builtin_types_compatible_p(__typeof__(&({name})), {prototype})"),
            &format!("type of {name}"),
        );
    }
    c
}

/// The error is what the compiler printed.
fn compile(include: &Path, text: &str) -> Result<(), String> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("verbs.c");
    std::fs::write(&file, text).expect("a file");
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "gcc".into());
    let output = Command::new(&compiler)
        .args(["-std=gnu11", "-fsyntax-only", "-Werror", "-I"])
        .arg(include)
        .arg(&file)
        .output()
        .unwrap_or_else(|error| panic!("cannot run {}: {error}", Path::new(&compiler).display()));
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).into_owned())
}

fn check(header: &Header, at_least: usize) {
    let Some(include) = header.find() else {
        return header.skip(header.case);
    };
    let text = c_file(header.version, &layouts(), &constants(), OPERATIONS, true);
    let asserts = text.matches("_Static_assert").count();
    assert!(
        asserts >= at_least,
        "{asserts} assertions are fewer than the tables once had"
    );
    if let Err(errors) = compile(&include, &text) {
        panic!(
            "gaudi-verbs-sys and the headers of libibverbs {} differ:\n{errors}",
            header.version
        );
    }
    println!("{}: {asserts} assertions hold", header.case);
}

/// The names of these tests are the names of their skips.
mod header {
    use super::{HEADERS, check};

    #[test]
    fn libibverbs_44() {
        check(&HEADERS[0], 680);
    }

    #[test]
    fn libibverbs_56() {
        check(&HEADERS[1], 685);
    }

    #[test]
    fn libibverbs_65() {
        check(&HEADERS[2], 710);
    }
}

/// One wrong claim, and the compiler names it.
fn refuses(
    (header, include): (&Header, &Path),
    layouts: &[Layout],
    constants: &[Constant],
    operations: &[Operation],
    what: &str,
) {
    let text = c_file(header.version, layouts, constants, operations, false);
    let errors = match compile(include, &text) {
        Ok(()) => panic!("a wrong {what} went through: the check checks nothing"),
        Err(errors) => errors,
    };
    assert!(
        errors.contains(what),
        "the compiler must name the wrong {what}:\n{errors}"
    );
}

#[test]
fn wrong_rows_are_refused() {
    let Some((header, include)) = HEADERS.iter().find_map(|header| Some((header, header.find()?))) else {
        return HEADERS[0].skip("wrong_rows_are_refused");
    };
    let of = (header, include.as_path());
    let right = |c_type: &str| -> Layout {
        layouts()
            .into_iter()
            .find(|layout| layout.c_type == c_type)
            .expect("a row")
    };
    let mut moved = right("struct ibv_sge");
    moved.fields[1].offset += 4;
    refuses(of, &[moved], &[], &[], "offset of struct ibv_sge length");
    let mut short = right("struct ibv_wc");
    short.size -= 4;
    refuses(of, &[short], &[], &[], "sizeof struct ibv_wc");
    let value = Constant {
        c_name: "IBV_WC_RECV".to_owned(),
        value: 127,
        since: Since(44),
    };
    refuses(of, &[], &[value], &[], "IBV_WC_RECV");
    let called = Operation {
        c_type: "struct ibv_context_ops",
        field: "poll_cq",
        prototype: || "int (*)(struct ibv_cq *, int, struct ibv_sge *)".to_owned(),
    };
    refuses(of, &[], &[], &[called], "type of struct ibv_context_ops poll_cq");
    let wrong = format!(
        "{PROLOGUE}_Static_assert(__builtin_types_compatible_p(__typeof__(&(ibv_dealloc_pd)), int (*)(struct ibv_mr *)), \"type of ibv_dealloc_pd\");\n"
    );
    let errors = compile(&include, &wrong).expect_err("a wrong argument");
    assert!(
        errors.contains("type of ibv_dealloc_pd"),
        "the compiler names it: {errors}"
    );
}

#[test]
fn prototypes_are_written_as_c_writes_them() {
    let of = |name: &str| {
        let symbol = symbols()
            .into_iter()
            .find(|symbol| symbol.name == name)
            .expect("a row");
        (symbol.prototype)()
    };
    let operation = |field: &str| {
        let row = OPERATIONS.iter().find(|operation| operation.field == field);
        (row.expect("a row").prototype)()
    };
    assert_eq!(
        operation("poll_cq"),
        "int (*)(struct ibv_cq *, int, struct ibv_wc *)",
        "a field of a table"
    );
    assert_eq!(
        of("ibv_close_device"),
        "int (*)(struct ibv_context *)",
        "one argument"
    );
    assert_eq!(
        of("ibv_reg_dmabuf_mr"),
        "struct ibv_mr * (*)(struct ibv_pd *, uint64_t, size_t, uint64_t, int, int)",
        "one of each kind"
    );
}
