//! Two outcomes side by side.

use std::ops::Range;

use crate::differences::{ROWS, Where};
use crate::op::Op;
use crate::outcome::{Outcome, Seen};

/// What two sides answered to one operation differently, in words.
pub(crate) type Difference = String;

/// Which rows of the table of differences were met, and how often.
#[derive(Debug, Clone)]
pub(crate) struct Met(pub(crate) Vec<u64>);

impl Default for Met {
    fn default() -> Self {
        Self(vec![0; ROWS.len()])
    }
}

/// What becomes of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Comparison {
    /// The same, but for what may differ.
    Same,
    /// One side may refuse what the other does: what that one was given is to be given back.
    Excused,
    /// Not the same.
    Different(Difference),
}

/// Compares, by the table.
pub(crate) fn compare(op: &Op, mock: &Outcome, driver: &Outcome, met: &mut Met) -> Comparison {
    if mock == driver {
        return Comparison::Same;
    }
    let kind = op.kind();
    if mock.verdict() != driver.verdict() {
        let row = ROWS.iter().position(|row| match row.at {
            Where::Verdict {
                kind: of,
                mock: left,
                driver: right,
            } => of == kind && left == mock.verdict() && right == driver.verdict(),
            _ => false,
        });
        return match row {
            Some(row) => {
                met.0[row] += 1;
                Comparison::Excused
            }
            None => Comparison::Different("verdict".to_owned()),
        };
    }
    if mock.fields.len() != driver.fields.len() {
        return Comparison::Different("which fields there are".to_owned());
    }
    for ((field, left), (other, right)) in mock.fields.iter().zip(&driver.fields) {
        if field != other {
            return Comparison::Different("which fields there are".to_owned());
        }
        if left == right {
            continue;
        }
        if let Some(difference) = field_differs(op, field, left, right, met) {
            return Comparison::Different(difference);
        }
    }
    Comparison::Same
}

fn field_differs(op: &Op, field: &str, left: &Seen, right: &Seen, met: &mut Met) -> Option<Difference> {
    let excused =
        |row: &Where| matches!(row, Where::Field { kind, field: of } if *kind == op.kind() && *of == field);
    if let Some(row) = ROWS.iter().position(|row| excused(&row.at)) {
        met.0[row] += 1;
        return None;
    }
    let (Seen::Bytes(left), Seen::Bytes(right)) = (left, right) else {
        return Some(field.to_owned());
    };
    if left.len() != right.len() {
        return Some(format!("{field}: {} and {} bytes", left.len(), right.len()));
    }
    let mut seen = vec![false; ROWS.len()];
    let mut places: Vec<Range<usize>> = Vec::new();
    for (at, _) in left
        .iter()
        .zip(right)
        .enumerate()
        .filter(|(_, (one, other))| one != other)
    {
        let row = ROWS.iter().position(|row| match (&row.at, op) {
            (Where::Bytes(question, range), Op::Info { op, .. }) => question == op && range.contains(&at),
            _ => false,
        });
        match (row, places.last_mut()) {
            (Some(row), _) => seen[row] = true,
            (None, Some(last)) if last.end + 8 > at => last.end = at + 1,
            (None, _) => places.push(at..at + 1),
        }
    }
    if !places.is_empty() {
        let show = |place: &Range<usize>| {
            let place = place.start..place.end.min(place.start + 24);
            format!(
                "{place:?} {:02x?} {:02x?}",
                &left[place.clone()],
                &right[place.clone()]
            )
        };
        let shown: Vec<_> = places.iter().take(8).map(show).collect();
        return Some(format!("{field}: bytes {}", shown.join(", ")));
    }
    for (count, seen) in met.0.iter_mut().zip(seen) {
        *count += u64::from(seen);
    }
    None
}
