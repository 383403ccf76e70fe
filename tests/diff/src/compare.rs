//! Compares two outcomes.

use std::ops::Range;

use crate::differences::{ROWS, Scope};
use crate::op::Op;
use crate::outcome::{Outcome, Value};

/// A description of the part of two outcomes that differs.
pub(crate) type Difference = String;

/// The number of occurrences of each row of the table of differences.
#[derive(Debug, Clone)]
pub(crate) struct RowHits(pub(crate) Vec<u64>);

impl Default for RowHits {
    fn default() -> Self {
        Self(vec![0; ROWS.len()])
    }
}

/// Returns the first difference without a row in the table.
pub(crate) fn compare(op: &Op, mock: &Outcome, driver: &Outcome, hits: &mut RowHits) -> Option<Difference> {
    if mock == driver {
        return None;
    }
    if mock.verdict() != driver.verdict() {
        return verdict_differs(op, mock, driver, hits);
    }
    let names = |outcome: &Outcome| outcome.fields.iter().map(|field| field.0).collect::<Vec<_>>();
    if names(mock) != names(driver) {
        return Some("the set of fields".to_owned());
    }
    let mut pairs = mock.fields.iter().zip(&driver.fields);
    pairs.find_map(|((field, left), (_, right))| match left == right {
        true => None,
        false => field_differs(op, field, left, right, hits),
    })
}

fn verdict_differs(op: &Op, mock: &Outcome, driver: &Outcome, hits: &mut RowHits) -> Option<Difference> {
    let excused = |row: &Scope| {
        matches!(row, Scope::Refused { kind, mock: errno }
            if *kind == op.kind() && *errno == mock.verdict() && driver.refused.is_none())
    };
    match ROWS.iter().position(|row| excused(&row.at)) {
        Some(row) => {
            hits.0[row] += 1;
            None
        }
        None => Some("verdict".to_owned()),
    }
}

fn field_differs(
    op: &Op,
    field: &str,
    left: &Value,
    right: &Value,
    hits: &mut RowHits,
) -> Option<Difference> {
    let excused =
        |row: &Scope| matches!(row, Scope::Field { kind, field: of } if *kind == op.kind() && *of == field);
    if let Some(row) = ROWS.iter().position(|row| excused(&row.at)) {
        hits.0[row] += 1;
        return None;
    }
    let (Value::Bytes(left), Value::Bytes(right)) = (left, right) else {
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
            (Scope::Bytes(question, range), Op::Info { op, .. }) => question == op && range.contains(&at),
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
    for (count, seen) in hits.0.iter_mut().zip(seen) {
        *count += u64::from(seen);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::{OpNumber, Ref};

    fn refused(errno: &str) -> Outcome {
        Outcome {
            refused: Some(errno.to_owned()),
            fields: Vec::new(),
        }
    }

    #[test]
    fn row_excuses_only_its_refusal() {
        let mmap = Op::Mmap {
            offset: Ref {
                of: Some(0 as OpNumber),
                plus: 0,
            },
            len: 4096,
        };
        let (named, done) = (refused("EOPNOTSUPP"), Outcome::default());
        let mut hits = RowHits::default();
        assert_eq!(compare(&mmap, &named, &done, &mut hits), None);
        assert_eq!(hits.0.iter().sum::<u64>(), 1, "it is counted");
        for (op, mock, driver) in [
            (&mmap, &done, &named),
            (&mmap, &refused("EINVAL"), &done),
            (&mmap, &named, &refused("EINVAL")),
            (&Op::UnregisterEvents, &named, &done),
        ] {
            let what = compare(op, mock, driver, &mut hits);
            assert_eq!(
                what.as_deref(),
                Some("verdict"),
                "{op:?}: {mock} against {driver}"
            );
        }
        assert_eq!(hits.0.iter().sum::<u64>(), 1, "and nothing else is");
    }
}
