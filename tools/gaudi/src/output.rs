//! [`Output`]: prints results to standard output or a file, as text or JSON.

use std::borrow::Borrow;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use crate::common::{Color, Common, seconds};
use crate::report::{Column, shown};
use crate::saved::Saved;
use crate::table::{self, Layout};

pub(crate) use crate::report::grouped;

/// Columns of a terminal whose width is unknown, such as a serial one.
const UNKNOWN: usize = 80;
/// The narrowest terminal that lines are wrapped for.
const NARROWEST: usize = 40;

/// The result could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the result: {0}")]
pub(crate) struct OutputError(pub(crate) io::Error);

impl OutputError {
    /// Whether the reader closed the pipe.
    pub(crate) fn is_broken_pipe(&self) -> bool {
        self.0.kind() == io::ErrorKind::BrokenPipe
    }
}

impl Color {
    /// Whether to write colour.
    pub(crate) fn is_on(self, terminal: bool) -> bool {
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        match self {
            Self::Always => true,
            Self::Never => false,
            // NO_COLOR is the user's choice (no-color.org); CLICOLOR_FORCE only means that the
            // output can show colour.
            Self::Auto => !set("NO_COLOR") && (terminal || set("CLICOLOR_FORCE")),
        }
    }
}

/// How text looks on a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    Plain,
    /// A table's header.
    Head,
    Good,
    Doubtful,
    Bad,
}

enum Sink {
    Stdout(BufWriter<io::Stdout>),
    /// An older file stays until the result is complete.
    File(BufWriter<Saved>),
}

impl Sink {
    fn writer(&mut self) -> &mut dyn Write {
        match self {
            Self::Stdout(writer) => writer,
            Self::File(writer) => writer,
        }
    }
}

/// The option of commands that can repeat their output.
#[derive(Debug, Default, Args)]
pub(crate) struct Again {
    /// Print again every so many seconds, until interrupted.
    #[arg(long = "loop", value_name = "SEC", num_args = 0..=1, require_equals = true, default_missing_value = "1",
          value_parser = seconds)]
    pub(crate) every: Option<Duration>,
}

impl Again {
    /// Waits for the next time. Returns `false` if there is none.
    pub(crate) fn pause(&self, output: &mut Output) -> anyhow::Result<bool> {
        let Some(pause) = self.every else {
            return Ok(false);
        };
        output.finish()?;
        std::thread::sleep(pause);
        Ok(true)
    }
}

/// Standard output or a file, as text or as JSON.
pub(crate) struct Output {
    sink: Sink,
    json: bool,
    quiet: bool,
    colour: bool,
    /// Columns of the terminal; `None` if the output is not a terminal, and lines have any
    /// length.
    width: Option<usize>,
}

impl Output {
    pub(crate) fn new(common: &Common) -> anyhow::Result<Self> {
        let terminal = common.output.is_none() && io::stdout().is_terminal();
        let sink = match &common.output {
            Some(path) => Sink::File(BufWriter::new(Saved::create(path)?)),
            None => Sink::Stdout(BufWriter::new(io::stdout())),
        };
        let colour = common.color.is_on(terminal);
        let width = width(terminal);
        Ok(Self {
            sink,
            json: common.json,
            quiet: common.quiet,
            colour,
            width,
        })
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Returns `text` with the style's codes if colour is on.
    pub(crate) fn styled(&self, style: Style, text: &str) -> String {
        let code = match style {
            Style::Head => 1,
            Style::Good => 32,
            Style::Doubtful => 33,
            Style::Bad => 31,
            Style::Plain => 0,
        };
        if self.colour && code != 0 && !text.is_empty() {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }

    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// Prints one line of text.
    pub(crate) fn line(&mut self, text: impl AsRef<str>) -> anyhow::Result<()> {
        self.bytes(format!("{}\n", text.as_ref()).as_bytes())
    }

    /// Prints bytes unchanged.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        self.sink.writer().write_all(bytes).map_err(OutputError)?;
        Ok(())
    }

    /// Prints a table: a header with units, numbers aligned to the right.
    pub(crate) fn table(
        &mut self,
        header: &[&str],
        numbers: &[usize],
        rows: &[Vec<String>],
    ) -> anyhow::Result<()> {
        let layout = Layout {
            numbers,
            ..Layout::default()
        };
        self.table_in(header, rows, layout)
    }

    /// Prints rows as a table of their columns.
    pub(crate) fn rows<T>(
        &mut self,
        columns: &[Column<T>],
        rows: impl IntoIterator<Item = impl Borrow<T>>,
    ) -> anyhow::Result<()> {
        let columns = shown(columns);
        let header: Vec<&str> = columns.iter().map(|column| column.head).collect();
        let cells = |row: &T| columns.iter().map(|column| column.cell(row)).collect();
        let rows: Vec<Vec<String>> = rows.into_iter().map(|row| cells(row.borrow())).collect();
        let those = |wanted: fn(&Column<T>) -> bool| -> Vec<usize> {
            (0..columns.len()).filter(|&at| wanted(columns[at])).collect()
        };
        let mut optional = those(|column| column.hidden > 0);
        optional.sort_by_key(|&at| columns[at].hidden);
        let layout = Layout {
            numbers: &those(|column| column.number.is_some()),
            optional: &optional,
            repeated: 0,
        };
        self.table_in(&header, &rows, layout)
    }

    /// Prints a table; the layout selects what happens if the terminal is too narrow.
    pub(crate) fn table_in(
        &mut self,
        header: &[&str],
        rows: &[Vec<String>],
        layout: Layout<'_>,
    ) -> anyhow::Result<()> {
        for line in table::draw(header, rows, layout, self.width) {
            let style = if line.is_head { Style::Head } else { Style::Plain };
            self.line(self.styled(style, &line.text))?;
        }
        Ok(())
    }

    /// Prints `first` and then `text`, which on a terminal wraps at spaces, with later lines
    /// indented to its start.
    pub(crate) fn hanging(&mut self, first: &str, text: &str) -> anyhow::Result<()> {
        self.hanging_after(Style::Plain, "", first, text)
    }

    /// Prints as [`hanging`](Self::hanging) does, where `first` begins with a `word` in a style.
    pub(crate) fn hanging_after(
        &mut self,
        style: Style,
        word: &str,
        first: &str,
        text: &str,
    ) -> anyhow::Result<()> {
        let lines = match self.width {
            Some(width) => table::hanging(first, text, width),
            None => vec![format!("{first}{text}").trim_end().to_owned()],
        };
        let mut word = word;
        for line in lines {
            // The style's codes take no columns, so they are added after wrapping.
            let rest = line.strip_prefix(word).unwrap_or(&line);
            self.line(format!("{}{rest}", self.styled(style, word)))?;
            word = "";
        }
        Ok(())
    }

    /// Prints one JSON document on one line: a schema, a version, and the fields of `body`.
    pub(crate) fn document(&mut self, schema: &str, body: &impl Serialize) -> anyhow::Result<()> {
        #[derive(Serialize)]
        struct Document<'a, T> {
            schema: &'a str,
            version: u32,
            #[serde(flatten)]
            body: &'a T,
        }
        let document = Document {
            schema,
            version: 1,
            body,
        };
        let mut line = serde_json::to_vec(&document)?;
        line.push(b'\n');
        self.bytes(&line)
    }

    /// Prints a note to standard error, unless `--quiet` is given.
    pub(crate) fn note(&self, text: impl AsRef<str>) {
        if !self.quiet {
            // The reader may be closed.
            let _ = writeln!(io::stderr(), "{}", text.as_ref());
        }
    }

    pub(crate) fn finish(&mut self) -> anyhow::Result<()> {
        self.sink.writer().flush().map_err(OutputError)?;
        match &mut self.sink {
            Sink::File(writer) => writer.get_mut().keep(),
            Sink::Stdout(_) => Ok(()),
        }
    }
}

/// Returns the width of tables: `COLUMNS`, for a pipe too; otherwise the terminal's width.
fn width(terminal: bool) -> Option<usize> {
    let wanted = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    let seen = || {
        let size = terminal_size::terminal_size();
        terminal.then(|| size.map_or(UNKNOWN, |(width, _)| usize::from(width.0)))
    };
    wanted
        .filter(|columns| *columns > 0)
        .or_else(seen)
        .map(|columns| columns.max(NARROWEST))
}
