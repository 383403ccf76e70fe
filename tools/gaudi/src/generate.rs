//! Completions and man pages, made from the command line's own definition.

use std::path::Path;

use anyhow::{Context as _, Result};
use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::args::Cli;
use crate::exit;
use crate::output::Output;

/// `gaudi completions SHELL`: the script for a shell, to standard output.
pub(crate) fn completions(shell: Shell, output: &mut Output) -> Result<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "gaudi", &mut script);
    output.bytes(&script)?;
    Ok(exit::DONE)
}

/// `gaudi man FOLDER`: a page for the program and one for each command.
pub(crate) fn man(folder: &Path) -> Result<u8> {
    let cannot = || format!("cannot write man pages to {}", folder.display());
    let mut command = Cli::command();
    command.build();
    let mut left = vec![command];
    while let Some(command) = left.pop() {
        left.extend(
            command
                .get_subcommands()
                .filter(|below| !below.is_hide_set() && below.get_name() != "help")
                .cloned(),
        );
        let page = clap_mangen::Man::new(command);
        let mut text = Vec::new();
        page.render(&mut text).with_context(cannot)?;
        let text = with_sections(&String::from_utf8(text)?);
        std::fs::write(folder.join(page.get_filename()), text).with_context(cannot)?;
    }
    Ok(exit::DONE)
}

/// A page whose text after the options stands under the headings of man-pages(7), not under `EXTRA`.
fn with_sections(page: &str) -> String {
    const EXTRA: &str = ".SH EXTRA\n";
    let Some((before, rest)) = page.split_once(EXTRA) else {
        return page.to_owned();
    };
    let (extra, after) = rest.find("\n.SH ").map_or((rest, ""), |at| rest.split_at(at + 1));
    let mut text = before.to_owned();
    for paragraph in extra.split("\n\n") {
        let heading = [
            ("Exit codes:", "EXIT STATUS"),
            ("Environment:", "ENVIRONMENT"),
            ("Examples:", "EXAMPLES"),
        ]
        .into_iter()
        .find_map(|(begin, heading)| Some((heading, paragraph.strip_prefix(begin)?)));
        let (heading, body) = heading.unwrap_or(("NOTES", paragraph));
        // Lines stay as they are where they are a list.
        let (begin, end) = if body.starts_with('\n') {
            (".nf\n", ".fi\n")
        } else {
            ("", "")
        };
        let lines = body.trim_start_matches('\n').lines();
        let lines: String = lines
            .map(|line| format!("{}\n", line.trim_start_matches("  ").trim_end()))
            .collect();
        text.push_str(&format!(".SH \"{heading}\"\n{begin}{}{end}", lines.trim_start()));
    }
    text.push_str(after);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn man_pages_have_named_sections() {
        let folder = tempfile::tempdir().unwrap();
        man(folder.path()).unwrap();
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
        let page = read("gaudi.1");
        for section in ["EXIT STATUS", "ENVIRONMENT", "EXAMPLES"] {
            assert!(page.contains(&format!(".SH \"{section}\"")), "{section}: {page}");
        }
        assert!(
            page.contains("\nGAUDI_DEVICE "),
            "a list begins at the margin: {page}"
        );
        for entry in std::fs::read_dir(folder.path()).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            assert!(!read(&name).contains(".SH EXTRA"), "{name}");
            assert!(!name.contains("help"), "{name}");
        }
        assert!(
            read("gaudi-perf-copy.1").contains("\\-\\-sizes"),
            "options are there"
        );
    }
}
