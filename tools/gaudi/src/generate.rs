//! Completions and man pages, made from the command line's own definition.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Args;
use clap_complete::Shell;

use crate::Cli;
use crate::common::Common;
use crate::exit;
use crate::output::Output;

/// Print the completion script of a shell.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  gaudi completions bash > ~/.local/share/bash-completion/completions/gaudi\n  gaudi completions zsh > _gaudi"
)]
pub(crate) struct Completions {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

/// Write the man pages: one for the program, one for each command.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  gaudi man ~/.local/share/man/man1\n  gaudi man . && ls gaudi-perf-copy.1"
)]
pub(crate) struct Man {
    /// An existing folder.
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
}

pub(crate) fn completions(_: &Common, completions: &Completions, output: &mut Output) -> Result<u8> {
    output.bytes(script(completions.shell)?.as_bytes())?;
    Ok(exit::DONE)
}

fn script(shell: Shell) -> Result<String> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::parser(), "gaudi", &mut script);
    Ok(with_names(shell, &String::from_utf8(script)?))
}

/// Options, the kind of their values, and the commands that list the values of this machine.
const NAMES: [(&[&str], &str, &str); 2] = [
    (
        &["device"],
        "devices",
        "gaudi list --names; echo mock:gaudi2; echo kernel",
    ),
    (&["nic", "peer-nic"], "nics", "gaudi nics --names; echo softnic"),
];

/// Adds the completion of this machine's devices and NICs to a script: clap completes only fixed
/// values.
fn with_names(shell: Shell, script: &str) -> String {
    if ![Shell::Bash, Shell::Zsh, Shell::Fish].contains(&shell) {
        return script.to_owned();
    }
    // zsh looks for `#compdef` in the first line.
    let (head, script) = match shell {
        Shell::Zsh => script.split_at(script.find('\n').map_or(0, |end| end + 1)),
        _ => ("", script),
    };
    let mut text = format!("{head}{}", functions(shell));
    let mut previous = "";
    for line in script.lines() {
        let mut options = NAMES
            .iter()
            .flat_map(|(options, kind, _)| options.iter().map(move |option| (*option, *kind)));
        let named = options.find_map(|(option, kind)| completed(shell, previous, line, option, kind));
        text.push_str(named.as_deref().unwrap_or(line));
        text.push('\n');
        previous = line;
    }
    text
}

/// Returns a line of a script with the value of an option completed. `None` if the line completes
/// another value.
fn completed(shell: Shell, previous: &str, line: &str, option: &str, kind: &str) -> Option<String> {
    let is_device = option == "device";
    match shell {
        // The arm of an option is followed by the line that fills the reply.
        Shell::Bash => {
            let arm = previous.trim();
            let is_arm = arm == format!("--{option})") || (is_device && arm == "-d)");
            let is_reply = is_arm && line.trim_start().starts_with("COMPREPLY=");
            is_reply.then(|| format!("{:20}_gaudi_{kind} \"${{cur}}\"", ""))
        }
        Shell::Zsh => {
            let is_option = line.contains(&format!("--{option}=[")) || (is_device && line.contains("-d+["));
            is_option.then(|| line.replace(":_default'", &format!(":_gaudi_{kind}'")))
        }
        _ => line
            .contains(&format!(" -l {option} "))
            .then(|| format!("{line} -f -a \"(__gaudi_{kind})\"")),
    }
}

/// Returns the functions of a shell that list names.
fn functions(shell: Shell) -> String {
    let each = NAMES.iter().map(|(_, kind, commands)| match shell {
        Shell::Bash => format!(
            "_gaudi_{kind}() {{\n    COMPREPLY=($(compgen -W \"$({{ {commands}; }} 2>/dev/null)\" -- \"$1\"))\n}}\n"
        ),
        Shell::Zsh => format!(
            "_gaudi_{kind}() {{\n    local -a names\n    names=(${{(f)\"$({{ {commands}; }} 2>/dev/null)\"}})\n    \
             compadd -a names\n}}\n"
        ),
        _ => format!("function __gaudi_{kind}\n    begin; {commands}; end 2>/dev/null\nend\n"),
    });
    let functions: String = each.collect();
    match shell {
        // A device spec has colons in it, at which bash otherwise begins another word.
        Shell::Bash => format!("{functions}COMP_WORDBREAKS=${{COMP_WORDBREAKS//:/}}\n"),
        _ => functions,
    }
}

pub(crate) fn man(_: &Common, man: &Man, _: &mut Output) -> Result<u8> {
    write_pages(&man.folder)?;
    Ok(exit::DONE)
}

fn write_pages(folder: &Path) -> Result<()> {
    let cannot = || format!("cannot write man pages to {}", folder.display());
    let mut command = Cli::parser();
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
    Ok(())
}

/// Moves the text after the options from `EXTRA` to the headings of man-pages(7).
fn with_sections(page: &str) -> String {
    const EXTRA: &str = ".SH EXTRA\n";
    let Some((before, rest)) = page.split_once(EXTRA) else {
        return page.to_owned();
    };
    let (extra, after) = rest.find("\n.SH ").map_or((rest, ""), |at| rest.split_at(at + 1));
    let mut text = before.to_owned();
    let mut previous = "";
    for paragraph in extra.split("\n\n") {
        let heading = [
            ("Exit codes:", "EXIT STATUS"),
            ("Environment:", "ENVIRONMENT"),
            ("Examples:", "EXAMPLES"),
        ]
        .into_iter()
        .find_map(|(begin, heading)| Some((heading, paragraph.strip_prefix(begin)?)));
        let (heading, body) = heading.unwrap_or(("NOTES", paragraph));
        match heading == previous {
            true => text.push_str(".PP\n"),
            false => text.push_str(&format!(".SH \"{heading}\"\n")),
        }
        previous = heading;
        let mut is_list = false;
        for line in body.trim_start().lines().chain([""]) {
            let item = line.strip_prefix("  ");
            // Lines stay as they are where they are a list: the first one lost its blanks above.
            let is_item = item.is_some() || (body.starts_with('\n') && !line.is_empty());
            match (is_list, is_item) {
                (false, true) => text.push_str(".nf\n"),
                (true, false) => text.push_str(".fi\n"),
                _ => {}
            }
            is_list = is_item;
            if !line.is_empty() {
                text.push_str(&format!("{}\n", item.unwrap_or(line).trim()));
            }
        }
    }
    text.push_str(after);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_keep_their_commands() {
        let page = ".SH OPTIONS\n.SH EXTRA\nOne.\n\nTwo:\n  gaudi a\n  gaudi b\nThree.\n\nExamples:\n  gaudi c\n  gaudi d\n.SH VERSION\n";
        assert_eq!(
            with_sections(page),
            ".SH OPTIONS\n.SH \"NOTES\"\nOne.\n.PP\nTwo:\n.nf\ngaudi a\ngaudi b\n.fi\nThree.\n\
             .SH \"EXAMPLES\"\n.nf\ngaudi c\ngaudi d\n.fi\n.SH VERSION\n"
        );
    }

    #[test]
    fn scripts_complete_devices_and_nics() {
        for (shell, devices, nics) in [
            (Shell::Bash, "_gaudi_devices \"${cur}\"", "_gaudi_nics \"${cur}\""),
            (Shell::Zsh, ":SPEC:_gaudi_devices'", ":NAME:_gaudi_nics'"),
            (Shell::Fish, "-a \"(__gaudi_devices)\"", "-a \"(__gaudi_nics)\""),
        ] {
            let script = script(shell).unwrap();
            assert!(script.matches(devices).count() > 5, "{shell}: {script}");
            // Of nics, doctor, demo and four commands of perf.
            assert!(script.matches(nics).count() >= 7, "{shell}: {script}");
            assert_eq!(script.starts_with("#compdef gaudi"), shell == Shell::Zsh);
        }
    }

    #[test]
    fn man_pages_have_named_sections() {
        let folder = tempfile::tempdir().unwrap();
        write_pages(folder.path()).unwrap();
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
