//! The table: one Parquet file, a row per measurement.
//!
//! # Theory of operation
//! Long format: `run`, `experiment`, `seed`, a column per parameter, `metric`, `unit`, `value`. Rows are in the order of the
//! runs and, within a run, of measuring; columns of parameters are in alphabetic order. A parameter's column has
//! integers if all of its values are integers, else numbers if all are numbers, else strings; a measurement without
//! the parameter has null. Nothing else is in the file, no time and no machine, so the same measurements give the same
//! bytes.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use parquet::basic::{ConvertedType, Repetition, Type as Physical};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::Type;

use super::journal::Journal;
use super::plan::Plan;
use crate::simulation::Measurement;

/// Columns that are always there.
const FIXED: [&str; 6] = ["run", "experiment", "seed", "metric", "unit", "value"];

/// A column and its cells.
struct Column {
    name: String,
    cells: Cells,
}

/// Cells of one type; `None` is null, in optional columns only.
enum Cells {
    Integers(Vec<Option<i64>>),
    Numbers(Vec<Option<f64>>),
    Texts(Vec<Option<String>>),
}

/// Writes the table of a sweep of which every run is done. The file is there whole or not at all.
///
/// # Errors
/// When a parameter has the name of another column, or the file cannot be written.
pub fn write(out: &Path, plan: &Plan, journal: &Journal) -> Result<()> {
    let done = |run: usize| journal.outcome(run).and_then(|outcome| outcome.as_ref().ok());
    let rows = plan.tasks.iter().flat_map(|task| {
        done(task.run).into_iter().flatten().map(move |measurement| (task.run, measurement))
    });
    let columns = columns(&rows.collect::<Vec<_>>())?;
    let unfinished = out.with_extension("parquet.part");
    write_file(&unfinished, &columns)
        .and_then(|()| Ok(fs::rename(&unfinished, out)?))
        .with_context(|| format!("cannot write {}", out.display()))
}

fn columns(rows: &[(usize, &Measurement)]) -> Result<Vec<Column>> {
    let named = |name: &str, cells| Column { name: name.to_owned(), cells };
    let texts = |pick: fn(&Measurement) -> &String| {
        Cells::Texts(rows.iter().map(|(_, row)| Some(pick(row).clone())).collect())
    };
    let runs = rows.iter().map(|(run, _)| i64::try_from(*run).ok()).collect();
    // Parquet keeps unsigned numbers in signed ones.
    let seeds = rows.iter().map(|(_, row)| Some(row.seed.cast_signed())).collect();
    let mut columns = vec![
        named("run", Cells::Integers(runs)),
        named("experiment", texts(|row| &row.experiment)),
        named("seed", Cells::Integers(seeds)),
    ];
    let parameters: BTreeSet<&String> =
        rows.iter().flat_map(|(_, row)| row.parameters.keys()).collect();
    for name in parameters {
        ensure!(!FIXED.contains(&name.as_str()), "a parameter is called {name:?} as a column is");
        let values: Vec<Option<&String>> =
            rows.iter().map(|(_, row)| row.parameters.get(name)).collect();
        columns.push(named(name, typed(&values)));
    }
    columns.extend([
        named("metric", texts(|row| &row.metric)),
        named("unit", texts(|row| &row.unit)),
        named("value", Cells::Numbers(rows.iter().map(|(_, row)| Some(row.value)).collect())),
    ]);
    Ok(columns)
}

/// Cells of the narrowest type that holds all values. An empty value is none.
fn typed(values: &[Option<&String>]) -> Cells {
    let values: Vec<Option<&String>> =
        values.iter().map(|value| value.filter(|value| !value.is_empty())).collect();
    if values.iter().all(Option::is_none) {
        return Cells::Texts(vec![None; values.len()]);
    }
    let integers = all(&values, |value| value.parse::<i64>().ok());
    let numbers =
        || all(&values, |value| value.parse().ok().filter(|number: &f64| number.is_finite()));
    let texts = || values.iter().map(|value| value.cloned()).collect();
    let as_numbers = || numbers().map_or_else(|| Cells::Texts(texts()), Cells::Numbers);
    integers.map_or_else(as_numbers, Cells::Integers)
}

/// All values as `T`, or `None` if one is none.
fn all<T>(values: &[Option<&String>], parse: impl Fn(&str) -> Option<T>) -> Option<Vec<Option<T>>> {
    let cell = |value: &Option<&String>| match value {
        None => Some(None),
        Some(text) => parse(text).map(Some),
    };
    values.iter().map(cell).collect()
}

impl Column {
    fn schema(&self) -> Result<Type> {
        let (physical, converted) = match (&self.cells, self.name.as_str()) {
            (Cells::Integers(_), "seed") => (Physical::INT64, ConvertedType::UINT_64),
            (Cells::Integers(_), _) => (Physical::INT64, ConvertedType::NONE),
            (Cells::Numbers(_), _) => (Physical::DOUBLE, ConvertedType::NONE),
            (Cells::Texts(_), _) => (Physical::BYTE_ARRAY, ConvertedType::UTF8),
        };
        let repetition =
            if self.is_optional() { Repetition::OPTIONAL } else { Repetition::REQUIRED };
        let builder = Type::primitive_type_builder(&self.name, physical);
        Ok(builder.with_repetition(repetition).with_converted_type(converted).build()?)
    }

    fn is_optional(&self) -> bool {
        !FIXED.contains(&self.name.as_str())
    }

    fn write(&self, group: &mut SerializedRowGroupWriter<'_, File>) -> Result<()> {
        let optional = self.is_optional();
        match &self.cells {
            Cells::Integers(cells) => {
                write_cells::<Int64Type, _>(group, cells, optional, |cell| *cell)
            }
            Cells::Numbers(cells) => {
                write_cells::<DoubleType, _>(group, cells, optional, |cell| *cell)
            }
            Cells::Texts(cells) => {
                let bytes = |cell: &String| ByteArray::from(cell.as_str());
                write_cells::<ByteArrayType, _>(group, cells, optional, bytes)
            }
        }
    }
}

fn write_cells<D: DataType, C>(
    group: &mut SerializedRowGroupWriter<'_, File>,
    cells: &[Option<C>],
    optional: bool,
    convert: impl Fn(&C) -> D::T,
) -> Result<()> {
    let values: Vec<D::T> = cells.iter().flatten().map(convert).collect();
    let present: Vec<i16> = cells.iter().map(|cell| cell.is_some().into()).collect();
    let levels = optional.then_some(&present[..]);
    let mut writer = group.next_column()?.context("more columns than the schema has")?;
    writer.typed::<D>().write_batch(&values, levels, None)?;
    writer.close()?;
    Ok(())
}

fn write_file(path: &Path, columns: &[Column]) -> Result<()> {
    let fields: Result<Vec<_>> =
        columns.iter().map(|column| Ok(Arc::new(column.schema()?))).collect();
    let schema = Type::group_type_builder("sweep").with_fields(fields?).build()?;
    let properties = WriterProperties::builder().set_created_by("floodway-lab".into()).build();
    let file = File::create(path)?;
    let mut writer = SerializedFileWriter::new(file, Arc::new(schema), Arc::new(properties))?;
    let mut group = writer.next_row_group()?;
    for column in columns {
        column.write(&mut group).with_context(|| format!("column {}", column.name))?;
    }
    group.close()?;
    writer.close()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use parquet::file::reader::{FileReader, SerializedFileReader};

    fn measurement(parameters: &[(&str, &str)], value: f64) -> Measurement {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Measurement {
            experiment: "x".into(),
            parameters: parameters.iter().map(owned).collect(),
            seed: u64::MAX,
            metric: "median".into(),
            unit: "ms".into(),
            value,
        }
    }

    fn kinds(columns: &[Column]) -> Vec<(&str, &str)> {
        let kind = |column: &Column| match column.cells {
            Cells::Integers(_) => "integers",
            Cells::Numbers(_) => "numbers",
            Cells::Texts(_) => "texts",
        };
        columns.iter().map(|column| (&*column.name, kind(column))).collect()
    }

    #[test]
    fn parameters_become_columns_of_the_narrowest_type() {
        let first = measurement(&[("bytes", "10"), ("load", "0.5"), ("variant", "vanilla")], 1.0);
        let second = measurement(&[("bytes", "20"), ("load", "1"), ("path", "")], 2.0);
        let columns = columns(&[(0, &first), (3, &second)]).unwrap();
        let parameters = &kinds(&columns)[3..7];
        let expected =
            [("bytes", "integers"), ("load", "numbers"), ("path", "texts"), ("variant", "texts")];
        assert_eq!(parameters, expected);
    }

    #[test]
    fn a_file_says_what_was_measured_and_the_same_file_again() {
        let rows = [measurement(&[("bytes", "10")], 0.1), measurement(&[], 1e300)];
        let columns = columns(&[(0, &rows[0]), (1, &rows[1])]).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let [first, second] = ["a", "b"].map(|name| dir.path().join(name));
        write_file(&first, &columns).unwrap();
        write_file(&second, &columns).unwrap();
        assert_eq!(fs::read(&first).unwrap(), fs::read(&second).unwrap());
        let reader = SerializedFileReader::new(File::open(&first).unwrap()).unwrap();
        let read: Vec<String> =
            reader.get_row_iter(None).unwrap().map(|row| row.unwrap().to_string()).collect();
        assert!(read[0].contains("bytes: 10") && read[0].contains("value: 0.1"), "{read:?}");
        assert!(read[0].contains(&format!("seed: {}", u64::MAX)), "{read:?}");
        assert!(read[1].contains("bytes: null") && read[1].contains("run: 1"), "{read:?}");
    }

    #[test]
    fn a_parameter_cannot_hide_a_column() {
        let row = measurement(&[("seed", "1")], 1.0);
        assert!(columns(&[(0, &row)]).is_err());
    }
}
