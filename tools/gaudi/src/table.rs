//! Layout of tables in the width of a terminal.
//!
//! Numbers and words are never broken, and nothing is cut. If a table is wider than the terminal,
//! these are tried in turn:
//! 1. a column of text wraps at its spaces;
//! 2. dispensable columns are hidden, and named below it;
//! 3. a matrix is split into several tables that repeat its first columns;
//! 4. each row becomes a block of `name value` lines.
//!
//! comfy-table is not used: its dynamic arrangement breaks words and numbers, and it can neither
//! hide nor split.

use unicode_width::UnicodeWidthStr as _;

/// Blanks between two columns.
const GAP: usize = 2;
/// The least width of a column that wraps, unless one of its words is longer.
const LEAST_WRAPPED: usize = 20;

/// Options of a table's layout.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Layout<'a> {
    /// Columns of numbers: aligned to the right, never wrapped.
    pub(crate) numbers: &'a [usize],
    /// Columns that may be hidden, least important first.
    pub(crate) optional: &'a [usize],
    /// Of a matrix that may be split: how many of its first columns each part repeats. 0 for any
    /// other table.
    pub(crate) repeated: usize,
}

/// One line of a drawn table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) is_head: bool,
    pub(crate) text: String,
}

impl Line {
    fn head(text: String) -> Self {
        Self { is_head: true, text }
    }

    fn body(text: String) -> Self {
        Self { is_head: false, text }
    }
}

/// Columns of a table that are drawn, each with its width.
type Columns = Vec<(usize, usize)>;

/// Draws a table in `width` columns of a terminal, or as wide as it is without one.
pub(crate) fn draw(
    header: &[&str],
    rows: &[Vec<String>],
    layout: Layout<'_>,
    width: Option<usize>,
) -> Vec<Line> {
    let rows: Vec<Vec<String>> = rows
        .iter()
        .map(|row| row.iter().map(|cell| printable(cell)).collect())
        .collect();
    let all: Vec<usize> = (0..header.len()).collect();
    let natural = |columns: &[usize]| -> Columns {
        let widest = |&column: &usize| {
            let cells = rows.iter().filter_map(|row| row.get(column));
            let cells = cells.map(|cell| cell.width());
            (column, cells.chain([header[column].width()]).max().unwrap_or(0))
        };
        columns.iter().map(widest).collect()
    };
    let whole = natural(&all);
    let Some(width) = width.filter(|width| needed(&whole) > *width) else {
        return grid(header, &rows, &whole, layout.numbers);
    };
    let fit = |columns: Columns| match needed(&columns) <= width {
        true => Some(columns),
        false => wrapped(columns, header, &rows, layout.numbers, width),
    };
    for hidden in 0..=layout.optional.len() {
        let hidden = &layout.optional[..hidden];
        let mut shown = all.clone();
        shown.retain(|column| !hidden.contains(column));
        if let Some(columns) = fit(natural(&shown)) {
            let mut lines = grid(header, &rows, &columns, layout.numbers);
            if !hidden.is_empty() {
                let names = all.iter().filter(|column| hidden.contains(column));
                let names: Vec<&str> = names.map(|&column| header[column]).collect();
                let names = format!("hidden for lack of width: {}", names.join(", "));
                lines.extend(wrap(&names, width).into_iter().map(Line::body));
            }
            return lines;
        }
    }
    split(header, &rows, &whole, layout, width).unwrap_or_else(|| blocks(header, &rows, width))
}

/// Escapes the control characters of a cell: a process or a device may have any name.
fn printable(cell: &str) -> String {
    cell.chars()
        .flat_map(|c| match c.is_control() {
            true => c.escape_default().collect::<Vec<_>>(),
            false => vec![c],
        })
        .collect()
}

fn needed(columns: &Columns) -> usize {
    let widths: usize = columns.iter().map(|(_, width)| width).sum();
    widths + GAP * columns.len().saturating_sub(1)
}

/// Narrows the widest column of text to the width that is left. `None` if a word is longer.
fn wrapped(
    mut columns: Columns,
    header: &[&str],
    rows: &[Vec<String>],
    numbers: &[usize],
    width: usize,
) -> Option<Columns> {
    let needed = needed(&columns);
    let (column, widest) = columns
        .iter_mut()
        .filter(|(column, _)| !numbers.contains(column))
        .max_by_key(|(_, width)| *width)?;
    let left = widest.checked_sub(needed.checked_sub(width)?)?;
    let cells = rows.iter().filter_map(|row| row.get(*column));
    let word = |text: &str| units(text).iter().map(|unit| unit.width()).max().unwrap_or(0);
    let longest = cells.map(|cell| word(cell)).max().unwrap_or(0);
    let least = longest.max(LEAST_WRAPPED).max(header[*column].width());
    *widest = left;
    (left >= least).then_some(columns)
}

fn grid(header: &[&str], rows: &[Vec<String>], columns: &Columns, numbers: &[usize]) -> Vec<Line> {
    let draw = |cells: &dyn Fn(usize) -> String| {
        let padded = columns.iter().enumerate().map(|(at, &(column, width))| {
            let cell = cells(at);
            let blanks = " ".repeat(width.saturating_sub(cell.width()));
            match numbers.contains(&column) {
                true => blanks + &cell,
                false => cell + &blanks,
            }
        });
        let text = padded.collect::<Vec<_>>().join(&" ".repeat(GAP));
        text.trim_end().to_owned()
    };
    let mut lines = vec![Line::head(draw(&|at| header[columns[at].0].to_owned()))];
    for row in rows {
        let cells = columns.iter().map(|&(column, width)| {
            let cell = row.get(column).map_or("", String::as_str);
            // Blanks at a cell's start are its indentation: only what must wrap loses them.
            match cell.width() <= width {
                true => vec![cell.to_owned()],
                false => wrap(cell, width),
            }
        });
        let cells: Vec<Vec<String>> = cells.collect();
        let height = cells.iter().map(Vec::len).max().unwrap_or(1);
        // A cell with fewer lines is blank below them.
        let part = |line| draw(&|at| cells[at].get(line).cloned().unwrap_or_default());
        lines.extend((0..height).map(|line| Line::body(part(line))));
    }
    lines
}

/// Draws several tables below one another, each with the first columns and as many of the others
/// as fit.
fn split(
    header: &[&str],
    rows: &[Vec<String>],
    whole: &Columns,
    layout: Layout<'_>,
    width: usize,
) -> Option<Vec<Line>> {
    let (first, others) = whole
        .split_at_checked(layout.repeated)
        .filter(|_| layout.repeated > 0)?;
    let mut parts: Vec<Columns> = Vec::new();
    for &column in others {
        let joined = |part: &Columns| [&part[..], &[column]].concat();
        match parts.last_mut() {
            Some(part) if needed(&joined(part)) <= width => part.push(column),
            _ => {
                let part = joined(&first.to_vec());
                (needed(&part) <= width).then(|| parts.push(part))?;
            }
        }
    }
    let mut lines = Vec::new();
    for (at, part) in parts.iter().enumerate() {
        if at > 0 {
            lines.push(Line::body(String::new()));
        }
        lines.extend(grid(header, rows, part, layout.numbers));
    }
    Some(lines)
}

/// Draws a block of lines for each row: a column's name, and the cell. A first column without a
/// name is the block's title.
fn blocks(header: &[&str], rows: &[Vec<String>], width: usize) -> Vec<Line> {
    let titled = header.first().is_some_and(|name| name.is_empty());
    let indent = if titled { "  " } else { "" };
    let names = header.iter().map(|name| name.width()).max().unwrap_or(0);
    let mut lines = Vec::new();
    for row in rows {
        if !lines.is_empty() {
            lines.push(Line::body(String::new()));
        }
        for (at, (name, cell)) in header.iter().zip(row).enumerate() {
            if at == 0 && titled {
                lines.push(Line::head(cell.clone()));
            } else if !cell.is_empty() {
                let blanks = " ".repeat(names.saturating_sub(name.width()));
                let first = format!("{indent}{name}{blanks}  ");
                let parts = hanging(&first, cell.trim_start(), width);
                lines.extend(parts.into_iter().map(Line::body));
            }
        }
    }
    lines
}

/// Returns `first` and `text`, wrapped at its spaces; later lines begin below the start of `text`.
pub(crate) fn hanging(first: &str, text: &str, width: usize) -> Vec<String> {
    let indent = first.width();
    let parts = wrap(text, width.saturating_sub(indent).max(LEAST_WRAPPED));
    let blanks = " ".repeat(indent);
    let begins = std::iter::once(first).chain(std::iter::repeat(blanks.as_str()));
    let lines = begins.zip(parts).map(|(begin, part)| format!("{begin}{part}"));
    lines.map(|line| line.trim_end().to_owned()).collect()
}

/// Wraps a text at spaces into lines of at most `width`. A longer word has a line of its own.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for unit in units(text) {
        match lines.last_mut() {
            Some(line) if line.is_empty() => *line = unit,
            Some(line) if line.width() + 1 + unit.width() <= width => {
                line.push(' ');
                line.push_str(&unit);
            }
            _ => lines.push(unit),
        }
    }
    lines
}

/// Splits a text into words. A number stays with what follows it: more of its digits, or its unit.
fn units(text: &str) -> Vec<String> {
    let is_number = |word: &str| word.chars().all(|c| c.is_ascii_digit() || ".,-+".contains(c));
    let mut units: Vec<String> = Vec::new();
    let mut joins = false;
    for word in text.split_whitespace() {
        match units.last_mut() {
            Some(unit) if joins => {
                unit.push(' ');
                unit.push_str(word);
            }
            _ => units.push(word.to_owned()),
        }
        joins = is_number(word);
    }
    units
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(header: &[&str], rows: &[&[&str]], layout: Layout<'_>, width: usize) -> Vec<String> {
        let rows: Vec<Vec<String>> = rows
            .iter()
            .map(|row| row.iter().map(|cell| (*cell).to_owned()).collect())
            .collect();
        let lines = draw(header, &rows, layout, Some(width));
        lines.into_iter().map(|line| line.text).collect()
    }

    const ROWS: [&[&str]; 2] = [
        &["mock:gaudi2", "97 536", "works and does so in many short words"],
        &["kernel:0", "1", "-"],
    ];
    const HEADER: [&str; 3] = ["device", "memory[MiB]", "status"];

    #[test]
    fn fitting_table_keeps_columns_aligned() {
        let layout = Layout {
            numbers: &[1],
            ..Layout::default()
        };
        assert_eq!(
            drawn(&HEADER, &ROWS, layout, 80),
            [
                "device       memory[MiB]  status",
                "mock:gaudi2       97 536  works and does so in many short words",
                "kernel:0               1  -",
            ]
        );
    }

    #[test]
    fn text_column_wraps_at_spaces() {
        let layout = Layout {
            numbers: &[1],
            ..Layout::default()
        };
        assert_eq!(
            drawn(&HEADER, &ROWS, layout, 50),
            [
                "device       memory[MiB]  status",
                "mock:gaudi2       97 536  works and does so in",
                "                          many short words",
                "kernel:0               1  -",
            ]
        );
    }

    #[test]
    fn optional_column_is_hidden_and_named() {
        let layout = Layout {
            numbers: &[1],
            optional: &[2],
            ..Layout::default()
        };
        assert_eq!(
            drawn(&HEADER, &ROWS, layout, 40),
            [
                "device       memory[MiB]",
                "mock:gaudi2       97 536",
                "kernel:0               1",
                "hidden for lack of width: status",
            ]
        );
    }

    #[test]
    fn narrow_table_becomes_blocks() {
        let layout = Layout {
            numbers: &[1],
            ..Layout::default()
        };
        assert_eq!(
            drawn(&HEADER, &ROWS, layout, 40),
            [
                "device       mock:gaudi2",
                "memory[MiB]  97 536",
                "status       works and does so in many",
                "             short words",
                "",
                "device       kernel:0",
                "memory[MiB]  1",
                "status       -",
            ]
        );
        let digest = "5f8a27a3ca95270f64068863e729fd8872193f57562a64334ee2d22ec8ac8fea";
        assert_eq!(
            drawn(&["", "node A"], &[&["SHA-256", digest]], Layout::default(), 40),
            ["SHA-256".to_owned(), format!("  node A  {digest}")],
            "a long word is not broken"
        );
    }

    #[test]
    fn matrix_splits_and_repeats_first_column() {
        let layout = Layout {
            repeated: 1,
            ..Layout::default()
        };
        let rows: [&[&str]; 1] = [&["mlx5_0", "switch 4", "host 8 numa 20", "host 8"]];
        assert_eq!(
            drawn(&["NIC", "accel0", "accel1", "accel2"], &rows, layout, 34),
            [
                "NIC     accel0    accel1",
                "mlx5_0  switch 4  host 8 numa 20",
                "",
                "NIC     accel2",
                "mlx5_0  host 8",
            ]
        );
    }

    #[test]
    fn number_is_never_broken() {
        for width in 1..60 {
            let lines = wrap("it has 97 536 MiB of memory in 4 banks", width);
            let whole = |word: &str| lines.iter().any(|line| line.contains(word));
            assert!(whole("97 536 MiB") && whole("4 banks"), "{width}: {lines:?}");
        }
    }

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(
            drawn(&["name"], &[&["a\x1b[2Jb"]], Layout::default(), 80)[1],
            "a\\u{1b}[2Jb"
        );
    }
}
