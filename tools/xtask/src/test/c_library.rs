//! libgaudi_copy.so.0 as a program in C sees it: its symbols, a test program in C and in C++ on the
//! mock, and the examples, which are built with the flags of pkgconf, on libfabric and libibverbs,
//! all as Debian packages them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, ensure};

use crate::c_library::{self, CRATE, FOLDER};
use crate::files;
use crate::install;
use crate::ledger::Row;
use crate::missing::{OrSkip as _, missing, or_missing};
use crate::packages::{Cache, Pins};
use crate::run::{self, Outcome, Show};
use crate::workspace::Workspace;

const LIMIT: Duration = Duration::from_secs(120);
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
/// The exit status of an example for which the machine lacks something.
const SKIP: i32 = 77;
/// Compilers of the test program: Debian's package, and the language and its standard.
const COMPILERS: [(&str, &str, &str, [&str; 3]); 2] = [
    ("C", "gcc", "cc", ["-x", "c", "-std=gnu11"]),
    ("C++", "g++", "c++", ["-x", "c++", "-std=gnu++17"]),
];
/// Examples, and the library of each.
const EXAMPLES: [(&str, &str); 2] = [("libfabric", "-lfabric"), ("verbs", "-libverbs")];

/// Builds the library and runs everything.
pub(super) fn row(workspace: &Workspace) -> Row {
    Row::time("c library", |row| {
        let place = Place::prepare(workspace)?;
        let exports = c_library::exports(&place.library).map(|count| format!("{count} functions"));
        row.settle("c library symbols", exports);
        for (language, package, compiler, standard) in COMPILERS {
            let version = run::text(Command::new(compiler).arg("--version"));
            match or_missing(version.or_skip(format!("install {package}")))? {
                Ok(_) => place.program(row, language, compiler, standard)?,
                Err(need) => {
                    println!("skip  c library {language}  {need}");
                    row.skip(format!("c library {language}"), need);
                }
            }
        }
        match or_missing(place.tree())? {
            Ok(tree) => {
                for example in EXAMPLES {
                    row.settle(&format!("c library {}", example.0), place.example(&tree, example));
                }
            }
            Err(need) => {
                println!("skip  c library examples  {need}");
                row.skip("c library examples", need);
            }
        }
        Ok(())
    })
}

/// Builds the library and the examples for the lab, which runs them on a NIC: the library, and the
/// examples by name.
pub(crate) fn examples(workspace: &Workspace) -> anyhow::Result<(PathBuf, Vec<(&'static str, PathBuf)>)> {
    let place = Place::prepare(workspace)?;
    let tree = place.tree()?;
    let compile = |example: (&'static str, &str)| -> anyhow::Result<_> {
        Ok((example.0, place.compile_example(&tree, example)?))
    };
    let programs = EXAMPLES.into_iter().map(compile).collect::<anyhow::Result<_>>()?;
    Ok((place.library, programs))
}

/// The library under a prefix, with its header and its pkg-config file.
struct Place<'a> {
    workspace: &'a Workspace,
    prefix: PathBuf,
    library: PathBuf,
    sources: PathBuf,
}

impl<'a> Place<'a> {
    fn prepare(workspace: &'a Workspace) -> anyhow::Result<Self> {
        let mut cargo = workspace.cargo();
        cargo.args(["build", "--locked", "--package", CRATE]);
        let log = workspace.logs.join("c-library-build.log");
        run::run(&cargo, &log, run::LIMIT, Show::Quiet)?.check("the build of the library")?;
        let target = workspace.logs.parent().context("the target folder")?;
        let prefix = workspace.logs.join("c-library");
        files::make_folder(&prefix)?;
        for entry in install::copy_library(workspace, &target.join("debug"), &prefix)? {
            entry.install(&prefix)?;
        }
        Ok(Self {
            workspace,
            library: prefix.join("lib").join(c_library::SONAME),
            prefix,
            sources: workspace.root.join(FOLDER),
        })
    }

    fn log(&self, name: &str) -> PathBuf {
        self.workspace.logs.join(format!("c-library-{name}.log"))
    }

    /// What the tree's pkgconf prints for the library.
    fn flags(&self, tree: &Path) -> anyhow::Result<Vec<String>> {
        let libraries = tree.join(LIBRARIES);
        let mut command = Command::new(libraries.join("ld-linux-x86-64.so.2"));
        command
            .arg("--library-path")
            .arg(&libraries)
            .arg(tree.join("usr/bin/pkgconf"))
            .env("PKG_CONFIG_PATH", self.prefix.join("lib/pkgconfig"))
            .args(["--cflags", "--libs", "gaudi_copy"]);
        let text = run::text(&mut command)?;
        Ok(text.split_whitespace().map(str::to_owned).collect())
    }

    fn compile(&self, command: &mut Command, name: &str) -> anyhow::Result<PathBuf> {
        let program = self.prefix.join(name);
        command.args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-o"]);
        command.arg(&program);
        run::output(command)?;
        Ok(program)
    }

    fn run(&self, mut command: Command, name: &str) -> anyhow::Result<Outcome> {
        command
            .env("GAUDI_DEVICE", "mock:gaudi2")
            .env_remove("GAUDI_MAPPING_TABLE");
        run::run(&command, &self.log(name), LIMIT, Show::Quiet)
    }

    /// The test program, whose lines `ok NAME` are its cases.
    fn program(
        &self,
        row: &mut Row,
        language: &str,
        compiler: &str,
        standard: [&str; 3],
    ) -> anyhow::Result<()> {
        let source = self.sources.join("tests/program.c");
        let mut command = Command::new(compiler);
        command.args(standard).arg(&source).args(["-x", "none"]);
        command.arg("-I").arg(self.prefix.join("include"));
        command.arg("-L").arg(self.prefix.join("lib"));
        command.args(["-lgaudi_copy", "-lpthread"]);
        let program = self.compile(&mut command, &format!("program-{compiler}"))?;
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", self.prefix.join("lib"));
        let outcome = self.run(command, compiler)?;
        let passed: Vec<_> = outcome.lines().collect();
        for case in cases(&files::read_text(&source)?) {
            let found = match passed.contains(&format!("ok {case}")) {
                true => Ok(String::new()),
                false => Err(anyhow::anyhow!("{}", outcome.why("the program"))),
            };
            row.settle(&format!("c library {language} {case}"), found);
        }
        ensure!(outcome.ok(), "{}", outcome.why("the program"));
        Ok(())
    }

    /// libfabric and libibverbs with their headers, and pkgconf.
    fn tree(&self) -> anyhow::Result<PathBuf> {
        let pins = Pins::load(&self.workspace.root)?;
        let unpacked = Cache::open()?.bundle(&pins.libfabric)?;
        println!("-- libfabric: {}", unpacked.note);
        Ok(unpacked.tree)
    }

    /// Compiles an example against the tree's headers and libraries.
    fn compile_example(&self, tree: &Path, (name, library): (&str, &str)) -> anyhow::Result<PathBuf> {
        let mut command = Command::new("cc");
        command
            .arg(self.sources.join(format!("examples/{name}.c")))
            .arg("-isystem")
            .arg(tree.join("usr/include"))
            .args(self.flags(tree)?)
            .arg("-L")
            .arg(tree.join(LIBRARIES))
            .arg(library)
            // The tree's C library is newer than the compiler's.
            .arg("-Wl,--allow-shlib-undefined");
        self.compile(&mut command, &format!("example-{name}"))
    }

    /// An example, on the tree's loader and libraries.
    fn example(&self, tree: &Path, (name, library): (&str, &str)) -> anyhow::Result<String> {
        let libraries = tree.join(LIBRARIES);
        let program = self.compile_example(tree, (name, library))?;
        let mut command = Command::new(libraries.join("ld-linux-x86-64.so.2"));
        let path = format!("{}:{}", libraries.display(), self.prefix.join("lib").display());
        command.args(["--library-path", &path]).arg(program);
        let outcome = self.run(command, name)?;
        let last = run::last_line(&outcome.log);
        if outcome.code == Some(SKIP) {
            return missing(last.trim_start_matches("need: "));
        }
        ensure!(outcome.ok(), "{}", outcome.why(name));
        Ok(last)
    }
}

/// The cases of the test program: the arguments of its `CASE` lines.
fn cases(source: &str) -> Vec<String> {
    let name = |line: &str| Some(line.trim().strip_prefix("CASE(")?.strip_suffix(");")?.to_owned());
    source.lines().filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_of_program_are_found() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../drivers/copy/c/tests/program.c");
        let found = cases(&std::fs::read_to_string(path).unwrap());
        assert!(found.contains(&"fork_child_gets_enodev".to_owned()), "{found:?}");
        assert!(found.len() > 9, "{found:?}");
    }
}
